"""Results as pictures. Knows numbers only, no folders; draws without a display."""

import math
import os
import statistics
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from crumb_avalanche.cli.tables import LEDGER_BYTES, LEDGER_SECONDS

# Okabe and Ito's colours, told apart with every kind of colour vision; without yellow, too faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", ":", "-.")
MARKERS = "osD^vP*"
STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "crumb",  # the same numbers give the same file
}
LARGEST_NUMBERED = 25  # experiences; the numbers of a larger matrix could not be read


@dataclass
class Curve:
    """What is drawn of one group of runs, in percent.

    Attributes:
        label: its name in the legend.
        mean: accuracy over all seen classes after each experience.
        std: its standard deviation (n - 1) over runs, or None for a single run.
        finals: final accuracy of each run.
        joint: learned all classes at once, so that there is one accuracy only.
        chance: chance level after each experience, in percent, if known.
    """

    label: str
    mean: list[float]
    std: list[float] | None
    finals: list[float]
    joint: bool = False
    chance: list[float] | None = None

    @classmethod
    def of(cls, label: str, accuracies: list[list[float]], joint: bool, classes_seen: list[int] | None) -> "Curve":
        """From the accuracies after each experience of each run, and the number of classes seen by then."""
        after = list(zip(*accuracies))
        std = [statistics.stdev(values) for values in after] if len(accuracies) > 1 else None
        chance = [100 / count for count in classes_seen] if classes_seen else None
        return cls(label, [statistics.fmean(values) for values in after], std, list(after[-1]), joint, chance)


def save(figure: Figure, folder: Path) -> list[Path]:
    """Write ``report.png`` and ``report.svg``, each whole or not at all."""
    paths = []
    for kind, options in {"png": {"dpi": 150}, "svg": {"metadata": {"Date": None}}}.items():
        path = folder / f"report.{kind}"
        temporary = path.with_name(path.name + ".part")
        with matplotlib.rc_context(STYLE):
            figure.savefig(temporary, format=kind, **options)
        os.replace(temporary, path)
        paths.append(path)
    return paths


def run_picture(
    title: str,
    matrix: list[list[float]],
    accuracy_after: list[float],
    classes_seen: list[int] | None,
    ledger: dict[str, float],
    joint: bool = False,
) -> Figure:
    """One run: accuracy matrix, accuracy after each experience, ledger.

    Args:
        title: what was run.
        matrix: row i after experience i, column j on the classes of experience j; in percent, unseen cells absent.
        accuracy_after: accuracy over all seen classes after each experience, in percent.
        classes_seen: their number, for the chance level, if known.
        ledger: bytes and seconds.
        joint: all classes were learned at once.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(16, 5), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, wspace=0.04)
        figure.suptitle(title)
        grid = figure.add_gridspec(2, 3, height_ratios=[3.2, 1], width_ratios=[1.05, 1, 1.05])
        _matrix(figure.add_subplot(grid[:, 0]), matrix, joint)
        axes = figure.add_subplot(grid[:, 1])
        numbers = range(1, len(accuracy_after) + 1)
        axes.plot(numbers, accuracy_after, "-o", color=COLOURS[0], label="all classes seen so far")
        _number_dots(axes, accuracy_after)
        if classes_seen:
            chance = [100 / count for count in classes_seen]
            axes.plot(numbers, chance, "-" if len(chance) > 1 else "_", color="0.35", lw=0.8, label="chance")
        _experience_axis(axes, len(accuracy_after))
        if joint:
            axes.set_xticks([1], ["joint"])
            axes.set_xlabel("all classes learned at once")
        axes.set_title("accuracy over all classes seen")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
        _bytes(figure.add_subplot(grid[0, 2]), ledger)
        _seconds(figure.add_subplot(grid[1, 2]), ledger)
    return figure


def comparison_picture(title: str, curves: list[Curve]) -> Figure:
    """Several groups of runs: curves with bands of one standard deviation, and final accuracies.

    The chance level is drawn if it is the same for all.

    Args:
        title: what the groups have in common.
        curves: one for each group.
    """
    levels = [curve.chance or [] for curve in curves]
    chance = max(levels, key=len)  # a joint learner's has one entry, the last
    if any(level != chance and not (curve.joint and level == chance[-1:]) for curve, level in zip(curves, levels)):
        chance = []
    height = max(5.0, 2.2 + 0.55 * len(curves))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12)
        figure.suptitle(title)
        left, right = figure.subplots(1, 2)
        longest = max(len(curve.mean) for curve in curves)
        for number, curve in enumerate(curves):
            colour, line = COLOURS[number % len(COLOURS)], LINES[number // len(COLOURS) % len(LINES)]
            spread = None if curve.std is None else np.asarray(curve.std)
            mean, x = np.asarray(curve.mean), np.arange(1, len(curve.mean) + 1)
            marker = MARKERS[number % len(MARKERS)]
            if curve.joint and longest > 1:  # a bound, reached without a stream
                mean, x, line, marker = mean.repeat(2), np.array([1, longest]), "--", ""
                spread = None if spread is None else spread.repeat(2)
            left.plot(x, mean, color=colour, ls=line, marker=marker, label=curve.label + curve.joint * " (joint)")
            if spread is not None:
                left.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.18, lw=0)
        if chance:
            left.plot(range(1, len(chance) + 1), chance, color="0.35", lw=0.8, label="chance")
        _experience_axis(left, longest)
        left.set_title("all classes seen: mean of runs, band of one standard deviation", pad=10)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        _final_bars(right, curves, chance[-1] if chance else None)
    return figure


def _number_dots(axes: Axes, values: list[float]) -> None:
    """The value beside each dot, on the side that the line leaves free; none where they would crowd."""
    for place, value in enumerate(values if len(values) <= 10 else []):
        before, after = values[max(place - 1, 0)], values[min(place + 1, len(values) - 1)]
        valley = before > value and after >= value
        side = "center" if valley or before <= value >= after else "left" if before > after else "right"
        text, offset = f"{value:.1f}", ({"left": 3, "right": -3, "center": 0}[side], -15 if valley else 7)
        axes.annotate(
            text, (place + 1, value), offset, textcoords="offset points", ha=side, color=COLOURS[0], fontsize=9
        )


def _final_bars(axes: Axes, curves: list[Curve], chance: float | None) -> None:
    spreads = [curve.std[-1] if curve.std else 0.0 for curve in curves]
    means = [curve.mean[-1] for curve in curves]
    places = np.arange(len(curves))
    colours = [COLOURS[number % len(COLOURS)] for number in places]
    hatches = ["/" * (2 * (number // len(COLOURS))) for number in places]  # where colours come again
    axes.barh(places, means, height=0.6, color=colours, alpha=0.55, hatch=hatches, ec="white", lw=0)
    for place, curve, spread in zip(places, curves, spreads):
        if curve.std:
            axes.errorbar(means[place], place - 0.12, xerr=spread, color="0.15", capsize=4, lw=1.2)
        dots = place + (np.linspace(0.05, 0.22, len(curve.finals)) if len(curve.finals) > 1 else np.zeros(1))
        axes.plot(curve.finals, dots, "o", ms=4, mfc="white", mec="0.15", mew=0.8, zorder=3)
        text = f"{means[place]:.1f}" + (f" ± {spread:.1f}" if curve.std else "")
        axes.text(max([*curve.finals, means[place] + spread]) + 2, place, text, va="center")
    if chance is not None:
        axes.axvline(chance, color="0.35", lw=0.8)
    axes.set_yticks(places, [_wrapped(curve.label) for curve in curves])
    axes.set_ylim(len(curves) - 0.4, -0.6)
    axes.set_xlim(0, 122)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("final accuracy, all classes (%)")
    axes.set_title("final accuracy: bar mean, line one standard deviation, dots runs", pad=10)


def _wrapped(label: str, width: int = 28) -> str:
    """A label in lines, broken after commas and spaces."""
    lines = [""]
    for word in label.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return "\n".join(lines)


def _experience_axis(axes: Axes, count: int) -> None:
    """Experience number and percent."""
    axes.set_xlim(0.6, count + 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, min_n_ticks=1))
    axes.set_ylim(0, 108)
    axes.set_yticks(range(0, 101, 20))
    axes.set_xlabel("after experience")
    axes.set_ylabel("accuracy (%)")
    axes.grid(axis="y", color="0.9", lw=0.6)
    axes.set_axisbelow(True)


def _matrix(axes: Axes, matrix: list[list[float]], joint: bool) -> None:
    width = len(matrix[-1])
    cells = np.full((len(matrix), width), np.nan)
    for number, row in enumerate(matrix):
        cells[number, : len(row)] = row
    image = axes.imshow(cells, cmap="cividis", vmin=0, vmax=100, aspect="equal")
    if width <= LARGEST_NUMBERED:
        size = min(11, 120 / width) if width > 5 else 11
        for (row, column), value in np.ndenumerate(cells):
            if not math.isnan(value):
                text = f"{value:.1f}" if width <= 6 else f"{value:.0f}"
                colour = "black" if value > 55 else "white"
                axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=size)
    axes.hlines(np.arange(1, len(matrix)) - 0.5, -0.5, width - 0.5, color="white", lw=1)
    axes.vlines(np.arange(1, width) - 0.5, -0.5, len(matrix) - 0.5, color="white", lw=1)
    step = math.ceil(width / 12)
    axes.set_xticks(range(0, width, step), range(1, width + 1, step))
    axes.set_yticks(*(([0], ["joint"]) if joint else (range(0, len(matrix), step), range(1, len(matrix) + 1, step))))
    axes.set_xlabel("on the classes of experience")
    axes.set_ylabel("" if joint else "after experience")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title("accuracy matrix")
    axes.figure.colorbar(image, ax=axes, label="accuracy (%)", shrink=0.3 if joint else 0.75)


def _bytes(axes: Axes, ledger: dict[str, float]) -> None:
    """Bars on a logarithmic axis; what takes no bytes is left out."""
    shown = {label: ledger[name] for name, label in LEDGER_BYTES.items() if ledger[name] > 0}
    axes.barh(list(shown), list(shown.values()), height=0.7, color=COLOURS[5])
    axes.set_xscale("log")
    if shown:
        axes.set_xlim(10 ** math.floor(math.log10(min(shown.values())) - 0.3), max(shown.values()) * 60)
    for place, value in enumerate(shown.values()):
        axes.annotate(bytes_text(value), (value, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("bytes (logarithmic)")
    axes.set_title(f"ledger: {int(ledger['buffer_items']):,} memories stored")


def _seconds(axes: Axes, ledger: dict[str, float]) -> None:
    """The parts of the training time as one stacked bar, their values in the legend."""
    start, total = 0.0, max(ledger["train_seconds"], 1e-9)
    for number, (name, label) in enumerate(LEDGER_SECONDS.items()):
        seconds = ledger[name]
        if seconds > 0:
            text = f"{label}: {seconds:.1f} s ({100 * seconds / total:.0f} %)"
            axes.barh([0], [seconds], left=start, height=0.6, color=COLOURS[number], label=text, ec="white", lw=0.5)
            start += seconds
    axes.set_yticks([0], ["time"])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"seconds of training ({ledger['images_per_second']:.1f} images/s)")
    if start:
        axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.75), ncols=2, fontsize=8, handlelength=1)


def bytes_text(count: float) -> str:
    """Bytes in decimal units: ``2.27 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return ""
