"""Pictures of results, drawn without a display from numbers alone: accuracy curves and final accuracies."""

import io
import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
from benchmarks_toybox_ilab.tables.text import printable

# Okabe and Ito's palette, distinct for every kind of colour vision; without its yellow,
# which is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", ":", "-.")
MARKERS = "osD^vP*"

# Colours of text, lines and background follow the page, in light and in dark.
PAGE_COLOURS = {
    "#000000": "currentColor",
    "#262626": "currentColor",
    "#595959": "var(--faint)",
    "#e6e6e6": "var(--rule)",
    "#ffffff": "var(--panel)",
    "#0072b2": "var(--blue)",  # too dark on a dark page
}

CROWDED = 8  # curves of a page; with more, bands would cover each other

STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "crumb",  # the same numbers give the same file
}


@dataclass
class Curve:
    """Accuracies over all seen classes of one group of runs after each experience, in percent; NaN where not tested."""

    label: str
    mean: list[float]
    std: list[float] | None  # (n - 1) over runs; None for a single one
    finals: list[float]  # of each run
    joint: bool = (
        False  # all classes were learned at once, which gives one accuracy only
    )
    chance: list[float] | None = None

    @classmethod
    def of(
        cls,
        label: str,
        accuracies: list[list],
        joint: bool,
        classes_seen: list[int] | None,
    ) -> "Curve":
        """Summarise the accuracies of each run after each experience, ``None`` where it was not tested."""
        after = [None if None in values else values for values in zip(*accuracies)]
        mean = [
            math.nan if values is None else statistics.fmean(values) for values in after
        ]
        std = None
        if len(accuracies) > 1:
            std = [
                math.nan if values is None else statistics.stdev(values)
                for values in after
            ]
        chance = [100 / count for count in classes_seen] if classes_seen else None
        return cls(label, mean, std, list(after[-1]), joint, chance)


def chance_of(curves: list[Curve]) -> list[float]:
    """Return the chance level after each experience, in percent; empty unless all curves share it."""
    levels = [curve.chance or [] for curve in curves]
    chance = max(levels, key=len)  # a joint learner has the last entry only
    same = all(
        level == chance or (curve.joint and level == chance[-1:])
        for curve, level in zip(curves, levels)
    )
    return chance if same else []


def draw_curves(
    axes: Axes, curves: list[Curve], chance: list[float], bands: bool = True
) -> None:
    """Draw the accuracy after each experience; artists of curve n have a gid that begins with ``group-n-``.

    ``chance`` is drawn if not empty; ``bands`` shade one standard deviation on both
    sides.
    """
    longest = max(len(curve.mean) for curve in curves)
    for number, curve in enumerate(curves):
        colour, line = (
            COLOURS[number % len(COLOURS)],
            LINES[number // len(COLOURS) % len(LINES)],
        )
        tested = np.flatnonzero(
            ~np.isnan(curve.mean)
        )  # a line continues over an experience without a test
        mean, x = np.asarray(curve.mean)[tested], tested + 1
        spread = None if curve.std is None else np.asarray(curve.std)[tested]
        marker = MARKERS[number % len(MARKERS)]
        if curve.joint and longest > 1:  # an upper bound, which has no stream
            mean, x, line, marker = mean.repeat(2), np.array([1, longest]), "--", ""
            spread = None if spread is None else spread.repeat(2)
        label = literal(curve.label) + curve.joint * " (joint)"
        axes.plot(
            x,
            mean,
            color=colour,
            ls=line,
            marker=marker,
            label=label,
            gid=f"group-{number}-curve",
        )
        if bands and spread is not None:
            band = axes.fill_between(
                x, mean - spread, mean + spread, color=colour, alpha=0.18, lw=0
            )
            band.set_gid(f"group-{number}-band")
    if chance:
        axes.plot(
            range(1, len(chance) + 1), chance, color="0.35", lw=0.8, label="chance"
        )
    axes.set_xlim(0.6, longest + 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, min_n_ticks=1))
    axes.set_ylim(0, 108)
    axes.set_yticks(range(0, 101, 20))
    axes.set_xlabel("after experience")
    axes.set_ylabel("accuracy (%)")
    axes.grid(axis="y", color="0.9", lw=0.6)
    axes.set_axisbelow(True)
    shaded = (
        ", band of one standard deviation"
        if bands and any(curve.std for curve in curves)
        else ""
    )
    axes.set_title(f"all classes seen: mean of runs{shaded}", pad=10)


def draw_finals(axes: Axes, curves: list[Curve], chance: float | None) -> None:
    """Draw a bar for each group's final accuracy, a dot for each run's, and a line for the chance level if given.

    Artists of curve n have a gid that begins with ``group-n-``.
    """
    spreads = [curve.std[-1] if curve.std else 0.0 for curve in curves]
    means = [curve.mean[-1] for curve in curves]
    places = np.arange(len(curves))
    colours = [COLOURS[number % len(COLOURS)] for number in places]
    hatches = [
        "/" * (2 * (number // len(COLOURS))) for number in places
    ]  # for colours that repeat
    bars = axes.barh(
        places,
        means,
        height=0.6,
        color=colours,
        alpha=0.55,
        hatch=hatches,
        ec="white",
        lw=0,
    )
    for place, curve, spread in zip(places, curves, spreads):
        drawn = [bars[place]]
        if curve.std:
            line = axes.errorbar(
                means[place], place - 0.12, xerr=spread, color="0.15", capsize=4, lw=1.2
            )
            drawn += [artist for artist in line.get_children() if artist is not None]
        dots = place + (
            np.linspace(0.05, 0.22, len(curve.finals))
            if len(curve.finals) > 1
            else np.zeros(1)
        )
        drawn += axes.plot(
            curve.finals, dots, "o", ms=4, mfc="white", mec="0.15", mew=0.8, zorder=3
        )
        text = f"{means[place]:.1f}" + (f" ± {spread:.1f}" if curve.std else "")
        drawn.append(
            axes.text(
                max([*curve.finals, means[place] + spread]) + 2,
                place,
                text,
                va="center",
            )
        )
        for number, artist in enumerate(drawn):
            artist.set_gid(f"group-{place}-final-{number}")
    if chance is not None:
        axes.axvline(chance, color="0.35", lw=0.8)
    labels = [
        fill(literal(curve.label), 28, break_long_words=False, break_on_hyphens=False)
        for curve in curves
    ]
    axes.set_yticks(places, labels)
    axes.set_ylim(len(curves) - 0.4, -0.6)
    axes.set_xlim(0, 122)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("final accuracy, all classes (%)")
    axes.set_title(
        "final accuracy: bar mean, line one standard deviation, dots runs", pad=10
    )


def literal(text: str) -> str:
    """Escape a text so that it is drawn literally: no formulas between dollar signs, no characters invalid in SVG."""
    return printable(text).replace("$", r"\$")


def save(figure: Figure, folder: Path, name: str = "report") -> list[Path]:
    """Write a figure as PNG and SVG, atomically; returns the paths."""
    paths = []
    for kind, options in {
        "png": {"dpi": 150},
        "svg": {"metadata": {"Date": None}},
    }.items():
        path = folder / f"{name}.{kind}"
        with matplotlib.rc_context(STYLE), atomic_write(path) as file:
            figure.savefig(file, format=kind, **options)
        paths.append(path)
    return paths


def comparison_picture(title: str, curves: list[Curve]) -> Figure:
    """Draw groups of runs: curves with bands of one standard deviation, and final accuracies."""
    chance = chance_of(curves)
    height = max(5.0, 2.2 + 0.55 * len(curves))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12)
        figure.suptitle(literal(title))
        left, right = figure.subplots(1, 2)
        draw_curves(left, curves, chance)
        figure.legend(
            *left.get_legend_handles_labels(), loc="outside lower center", ncols=3
        )
        draw_finals(right, curves, chance[-1] if chance else None)
    return figure


def page_figures(curves: list[Curve]) -> tuple[Figure, Figure]:
    """Draw the accuracy after each experience, and the final accuracy; of one height, as they stand side by side."""
    height, chance = max(4.6, 1 + 0.4 * len(curves)), chance_of(curves)
    with matplotlib.rc_context(STYLE):
        after, finals = (
            Figure(figsize=(8, height), layout="constrained") for _ in range(2)
        )
        left, right = after.subplots(), finals.subplots()
        draw_curves(left, curves, chance, bands=len(curves) <= CROWDED)
        after.legend(
            *left.get_legend_handles_labels(), loc="outside lower center", ncols=3
        )
        draw_finals(right, curves, chance[-1] if chance else None)
        right.set_ylim(max(len(curves), 4) - 0.4, -0.6)
        left.set_title("")  # the page shows it as a caption
        right.set_title("")
    return after, finals


def inline_svg(figure: Figure, prefix: str, label: str, groups: list[int]) -> Markup:
    """Draw a figure as an ``svg`` element in the colours of the page.

    Args:
        figure: what to draw.
        prefix: of all ids in it, which are unique on the page with it.
        label: what the figure shows, for screen readers.
        groups: for each curve, the page's number of its group of runs; its elements get
            it as ``data-group``.
    """
    file = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = re.sub(r"<(metadata|style).*?</\1>", "", file.getvalue(), flags=re.DOTALL)
    text = re.sub(r'style="[^"]*"', _style_of_page, text)
    text = re.sub(r'(<\w+ id=")', rf"\1{prefix}", text)
    drawn = re.compile(rf'(?<=<g )(?=id="{prefix}group-(\d+)-)')
    text = drawn.sub(lambda found: f'data-group="{groups[int(found[1])]}" ', text)
    text = text.replace('xlink:href="#', f'href="#{prefix}').replace(
        "url(#", f"url(#{prefix}"
    )
    box, inner = re.findall(
        r'<svg [^>]*(viewBox="[^"]*")[^>]*>(.*)', " ".join(text.split())
    )[0]
    return Markup(
        f'<svg {box} role="img" aria-label="{escape(printable(label))}">{inner}'
    )


def _style_of_page(found: re.Match) -> str:
    """Return a style attribute with the colours and fonts of the page."""
    style = re.sub(
        r"#[0-9a-f]{6}", lambda colour: PAGE_COLOURS.get(colour[0], colour[0]), found[0]
    )
    return re.sub(r"font-family: [^;\"]*;? ?", "", style)
