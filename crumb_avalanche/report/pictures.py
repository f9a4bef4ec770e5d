"""Pictures of results: accuracy curves and final accuracies, drawn without a display.

Artists of curve n have a gid that begins with ``group-n-``, by which a page finds them.
"""

import io
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup, escape
from matplotlib.artist import Artist
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

STRONG = "#262626"  # of intervals and dots on bars

# Colours of text, lines and background follow the page, in light and in dark.
PAGE_COLOURS = {
    "#000000": "currentColor",
    STRONG: "currentColor",
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
    """Accuracies over all seen classes of one group of runs, in percent.

    Attributes:
        label: of the group.
        mean: over runs, after each experience; NaN where it was not tested.
        std: standard deviation (n - 1) over runs, of the length of ``mean``; ``None``
            for a single run.
        finals: the last accuracy of each run.
        joint: whether all classes were learned at once, which gives one accuracy only.
        chance: chance level after each experience; ``None`` if it is not known.
    """

    label: str
    mean: list[float]
    std: list[float] | None
    finals: list[float]
    joint: bool = False
    chance: list[float] | None = None

    @classmethod
    def of(
        cls,
        label: str,
        accuracies: Sequence[Sequence[float | None]],
        joint: bool,
        classes_seen: Sequence[int] | None,
    ) -> "Curve":
        """Summarise the runs of one group by mean and standard deviation.

        Args:
            label: of the group.
            accuracies: of each run after each experience, in percent; ``None`` where it
                was not tested.
            joint: whether the learner is trained on all classes at once, an upper bound
                without a stream.
            classes_seen: number of classes after each experience, for the accuracy of
                guessing; ``None`` if it is not known.
        """
        mean = []
        std = []
        for accuracies_of_runs in zip(*accuracies):  # by experience
            if None in accuracies_of_runs:
                mean.append(math.nan)
                std.append(math.nan)
                continue
            mean.append(statistics.fmean(accuracies_of_runs))
            if len(accuracies_of_runs) > 1:
                std.append(statistics.stdev(accuracies_of_runs))
        finals = []
        for *_, final_accuracy in accuracies:
            if final_accuracy is not None:
                finals.append(float(final_accuracy))
        chance = None
        if classes_seen:
            chance = [100 / n_classes for n_classes in classes_seen]
        return cls(
            label,
            mean=mean,
            std=std if len(accuracies) > 1 else None,
            finals=finals,
            joint=joint,
            chance=chance,
        )


def chance_of(curves: Sequence[Curve]) -> list[float]:
    """Return the chance level that all curves share, after each experience.

    It is in percent, and empty if curves differ in it.
    """
    chances = [curve.chance or [] for curve in curves]
    longest_chance = max(chances, key=len)  # a joint learner has the last entry only
    for curve, chance in zip(curves, chances):
        has_same_end = curve.joint and chance == longest_chance[-1:]
        if chance != longest_chance and not has_same_end:
            return []
    return longest_chance


def draw_curves(
    axes: Axes, curves: Sequence[Curve], chance: Sequence[float], bands: bool = True
) -> None:
    """Draw the accuracy in percent after each experience, a line for each group.

    Args:
        axes: what to draw on.
        curves: of the groups of runs: means and standard deviations over runs.
        chance: accuracy of guessing in percent after each experience; not drawn if
            empty.
        bands: whether to shade one standard deviation on both sides.
    """
    longest = max(len(curve.mean) for curve in curves)
    for number, curve in enumerate(curves):
        _draw_curve(axes, curve, number=number, longest=longest, bands=bands)
    if chance:
        experiences = range(1, len(chance) + 1)
        axes.plot(experiences, chance, color="0.35", lw=0.8, label="chance")
    axes.set_xlim(0.6, longest + 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, min_n_ticks=1))
    axes.set_ylim(0, 108)  # so that markers at 100 % are whole
    axes.set_yticks(range(0, 101, 20))
    axes.set_xlabel("after experience")
    axes.set_ylabel("accuracy (%)")
    axes.grid(axis="y", color="0.9", lw=0.6)
    axes.set_axisbelow(True)
    title = "all classes seen: one run"
    if any(curve.std for curve in curves):
        title = "all classes seen: mean of runs"
        if bands:
            title += ", band of one standard deviation"
    axes.set_title(title, pad=10)


def _draw_curve(
    axes: Axes, curve: Curve, number: int, longest: int, bands: bool
) -> None:
    """Draw an accuracy curve and its band.

    Args:
        axes: what to draw on.
        curve: mean and standard deviation of a group of runs after each experience; a
            joint learner's is a level line over all experiences.
        number: of the curve in the picture, from 0, which decides colour, line, marker
            and the ids by which the page finds it.
        longest: number of experiences of the longest curve.
        bands: whether to shade one standard deviation on both sides.
    """
    colour = COLOURS[number % len(COLOURS)]
    line_style = LINES[number // len(COLOURS) % len(LINES)]
    marker = MARKERS[number % len(MARKERS)]
    label = literal(curve.label)
    # A line continues over an experience without a test.
    tested = np.flatnonzero(~np.isnan(curve.mean))
    experiences = tested + 1
    mean = np.asarray(curve.mean)[tested]
    spread = None if curve.std is None else np.asarray(curve.std)[tested]
    if curve.joint:
        label += " (joint)"
    if curve.joint and longest > 1:  # an upper bound, which has no stream
        line_style = "--"
        marker = ""
        experiences = np.array([1, longest])
        mean = mean.repeat(2)
        spread = None if spread is None else spread.repeat(2)
    axes.plot(
        experiences,
        mean,
        color=colour,
        ls=line_style,
        marker=marker,
        label=label,
        gid=f"group-{number}-curve",
    )
    if bands and spread is not None:
        band = axes.fill_between(
            experiences,
            mean - spread,
            mean + spread,
            color=colour,
            alpha=0.18,
            lw=0,
        )
        band.set_gid(f"group-{number}-band")


def draw_finals(axes: Axes, curves: Sequence[Curve], chance: float | None) -> None:
    """Draw a bar for each group's final accuracy, and a dot for each run's.

    Args:
        axes: what to draw on.
        curves: of the groups of runs, from the top.
        chance: accuracy of guessing in percent, a line; ``None`` for none.
    """
    rows = np.arange(len(curves))  # of the bars
    finals = []
    colours = []
    hatches = []  # for colours that repeat
    for row, curve in enumerate(curves):
        repeats, index = divmod(row, len(COLOURS))
        finals.append(curve.mean[-1])
        colours.append(COLOURS[index])
        hatches.append("/" * (2 * repeats))
    bars = axes.barh(
        rows,
        finals,
        height=0.6,
        color=colours,
        alpha=0.55,
        hatch=hatches,
        ec="white",
        lw=0,
    )
    for row, curve in enumerate(curves):
        artists = [bars[row], *_draw_spread_and_dots(axes, curve, row)]
        for number, artist in enumerate(artists):
            # An id by which the page finds it.
            artist.set_gid(f"group-{row}-final-{number}")
    if chance is not None:
        axes.axvline(chance, color="0.35", lw=0.8)
        axes.annotate(
            "chance",
            (chance, 0),
            xycoords=("data", "axes fraction"),
            xytext=(3, 3),
            textcoords="offset points",
            size=8,
        )
    labels = []
    for curve in curves:
        label = literal(curve.label)
        labels.append(fill(label, 28, break_long_words=False, break_on_hyphens=False))
    axes.set_yticks(rows, labels)
    axes.set_ylim(len(curves) - 0.4, -0.6)  # the first bar at the top
    axes.set_xlim(0, 122)  # with room for the numbers
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("final accuracy, all classes (%)")
    title = "final accuracy of one run"
    if any(curve.std for curve in curves):
        title = "final accuracy: bar mean, line one standard deviation, dots runs"
    axes.set_title(title, pad=10)


def _draw_spread_and_dots(axes: Axes, curve: Curve, row: int) -> list[Artist]:
    """Draw what stands on a bar: standard deviation, a dot for each run, numbers.

    Args:
        axes: what to draw on; accuracies in percent along x.
        curve: its final accuracies, their mean and standard deviation are drawn.
        row: number of the bar, from the top.

    Returns:
        All that was drawn, to give it ids.
    """
    artists: list[Artist] = []
    mean = curve.mean[-1]
    spread = 0.0
    mean_text = f"{mean:.1f}"
    if curve.std:
        spread = curve.std[-1]
        mean_text += f" ± {spread:.1f}"
        line = axes.errorbar(
            mean, row - 0.12, xerr=spread, color="0.15", capsize=4, lw=1.2
        )
        artists += [artist for artist in line.get_children() if artist is not None]
    heights = np.zeros(1)  # of the dots, below the middle of the bar
    if len(curve.finals) > 1:
        heights = np.linspace(0.05, 0.22, len(curve.finals))
    artists += axes.plot(
        curve.finals,
        row + heights,
        "o",
        ms=4,
        mfc="white",
        mec="0.15",
        mew=0.8,
        zorder=3,
    )
    right_end = max(*curve.finals, mean + spread)
    artists.append(axes.text(right_end + 2, row, mean_text, va="center"))
    return artists


def literal(text: str) -> str:
    """Escape a text so that it is drawn literally.

    Dollar signs begin no formula, and characters that are invalid in SVG are escaped.
    """
    return printable(text).replace("$", r"\$")


# Formats of a picture, and options of savefig for each.
FORMATS: dict[str, dict[str, Any]] = {
    "png": {"dpi": 150},
    "svg": {"metadata": {"Date": None}},  # the same numbers give the same file
}


def encoded(figure: Figure) -> dict[str, bytes]:
    """Return the content of a PNG and an SVG file of a figure, by extension."""
    contents = {}
    for extension, options in FORMATS.items():
        file = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            figure.savefig(file, format=extension, **options)
        contents[extension] = file.getvalue()
    return contents


def save(figure: Figure, folder: Path, name: str = "report") -> list[Path]:
    """Write a figure as PNG and SVG, atomically; returns the paths."""
    paths = []
    for extension, content in encoded(figure).items():
        path = folder / f"{name}.{extension}"
        with atomic_write(path) as file:
            file.write(content)
        paths.append(path)
    return paths


def comparison_picture(title: str, curves: Sequence[Curve]) -> Figure:
    """Draw groups of runs: curves with bands of one standard deviation, and finals."""
    chance = chance_of(curves)
    height = max(5.0, 2.2 + 0.55 * len(curves))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13, height))
        figure.set_layout_engine("constrained", w_pad=0.12)
        figure.suptitle(literal(title))
        left, right = figure.subplots(1, 2)
        draw_curves(left, curves, chance)
        _add_legend(figure, left)
        draw_finals(right, curves, chance[-1] if chance else None)
    return figure


def _add_legend(figure: Figure, axes: Axes) -> None:
    """Put the legend of the curves in axes below the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)


@dataclass(frozen=True)
class PageFigures:
    """The figures of a stream on a page, of one height, as they stand side by side.

    Attributes:
        curves: the accuracy after each experience.
        finals: the final accuracy.
    """

    curves: Figure
    finals: Figure


def page_figures(curves: Sequence[Curve]) -> PageFigures:
    """Draw the two figures of a page: accuracy after each experience, and final one.

    They have no titles: the page has captions.

    Args:
        curves: of the groups of runs on one stream.
    """
    size = (8, max(4.6, 1 + 0.4 * len(curves)))  # in inches
    chance = chance_of(curves)  # in percent, after each experience
    with matplotlib.rc_context(STYLE):
        figures = PageFigures(
            curves=Figure(figsize=size, layout="constrained"),
            finals=Figure(figsize=size, layout="constrained"),
        )
        left = figures.curves.subplots()
        right = figures.finals.subplots()
        draw_curves(left, curves, chance, bands=len(curves) <= CROWDED)
        _add_legend(figures.curves, left)
        draw_finals(right, curves, chance[-1] if chance else None)
        right.set_ylim(max(len(curves), 4) - 0.4, -0.6)  # few bars are not thick
        left.set_title("")
        right.set_title("")
    return figures


def inline_svg(
    figure: Figure, prefix: str, label: str, groups: Sequence[int]
) -> Markup:
    """Draw a figure as an ``svg`` element in the colours of the page.

    What matplotlib writes gets the colours and fonts of the page, and its ids a prefix,
    so that several figures can stand on one page.

    Args:
        figure: what to draw; ids ``group-N-...`` are of the curve ``N``.
        prefix: of all ids in it, which are unique on the page with it.
        label: what the figure shows, for screen readers.
        groups: for each curve, the page's number of its group of runs; its elements get
            it as ``data-group``, by which the page highlights it.
    """
    file = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    # Without matplotlib's notes and style sheet.
    svg = re.sub(r"<(metadata|style).*?</\1>", "", file.getvalue(), flags=re.DOTALL)
    svg = re.sub(r'style="[^"]*"', _style_of_page, svg)
    # Prefix ids, and below what refers to them.
    svg = re.sub(r'(<\w+ id=")', rf"\1{prefix}", svg)

    def group_attribute(match: re.Match) -> str:
        """Return the attribute of an element of a curve, in the place of the match."""
        curve = int(match["curve"])
        return f'data-group="{groups[curve]}" '

    # Before the id of each element of a curve.
    svg = re.sub(
        rf'(?<=<g )(?=id="{prefix}group-(?P<curve>\d+)-)', group_attribute, svg
    )
    svg = svg.replace('xlink:href="#', f'href="#{prefix}')
    svg = svg.replace("url(#", f"url(#{prefix}")
    # Without the XML declaration before the element, and its size in points.
    element = re.search(r'<svg [^>]*(viewBox="[^"]*")[^>]*>(.*)', " ".join(svg.split()))
    assert element is not None, "matplotlib writes one svg element"
    box, inner = element.groups()
    return Markup(
        f'<svg {box} role="img" aria-label="{escape(printable(label))}">{inner}'
    )


def _style_of_page(match: re.Match) -> str:
    """Return a style attribute of a drawing with the colours and fonts of the page.

    ``match`` is the attribute as matplotlib wrote it.
    """

    def colour_of_page(colour: re.Match) -> str:
        return PAGE_COLOURS.get(colour[0], colour[0])

    style = re.sub(r"#[0-9a-f]{6}", colour_of_page, match[0])
    return re.sub(r"font-family: [^;\"]*;? ?", "", style)
