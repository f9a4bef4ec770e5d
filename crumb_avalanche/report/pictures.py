"""Pictures of results, drawn without a display from numbers alone."""

import math
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from crumb_avalanche.report.curves import Curve, chance_of, draw_curves, draw_finals, experience_axis, literal
from crumb_avalanche.report.palette import COLOURS
from crumb_avalanche.runs.tables import LEDGER_BYTES, LEDGER_SECONDS
from crumb_avalanche.system.atomic_file import atomic_write
from crumb_avalanche.system.sizes import bytes_text

STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "crumb",  # the same numbers give the same file
}
LARGEST_NUMBERED = 25  # experiences; numbers in a larger matrix are illegible


def save(figure: Figure, folder: Path, name: str = "report") -> list[Path]:
    """Write a figure as PNG and SVG, atomically; returns the paths."""
    paths = []
    for kind, options in {"png": {"dpi": 150}, "svg": {"metadata": {"Date": None}}}.items():
        path = folder / f"{name}.{kind}"
        with matplotlib.rc_context(STYLE), atomic_write(path) as unfinished:
            figure.savefig(unfinished, format=kind, **options)
        paths.append(path)
    return paths


def run_picture(
    title: str,
    matrix: list[list[float]],
    accuracy_after: list[float | None],
    classes_seen: list[int] | None,
    ledger: dict[str, float],
    joint: bool = False,
) -> Figure:
    """Draw one run: accuracy matrix, accuracy after each experience, ledger.

    Args:
        title: of the picture.
        matrix: accuracy after experience i (row) on the classes of experience j (column), in percent; unseen cells are
            absent.
        accuracy_after: accuracy over all seen classes after each experience, in percent; ``None`` if not tested.
        classes_seen: number of classes after each experience, for the chance level, if known.
        ledger: bytes and seconds.
        joint: whether all classes were learned at once.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(16, 5), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, wspace=0.04)
        figure.suptitle(literal(title))
        grid = figure.add_gridspec(2, 3, height_ratios=[3.2, 1], width_ratios=[1.05, 1, 1.05])
        _matrix(figure.add_subplot(grid[:, 0]), matrix, joint)
        axes = figure.add_subplot(grid[:, 1])
        numbers = range(1, len(accuracy_after) + 1)
        dots = [(number, value) for number, value in zip(numbers, accuracy_after) if value is not None]
        axes.plot(*zip(*dots), "-o", color=COLOURS[0], label="all classes seen so far")
        _number_dots(axes, dots)
        if classes_seen:
            chance = [100 / count for count in classes_seen]
            axes.plot(numbers, chance, "-" if len(chance) > 1 else "_", color="0.35", lw=0.8, label="chance")
        experience_axis(axes, len(accuracy_after))
        if joint:
            axes.set_xticks([1], ["joint"])
            axes.set_xlabel("all classes learned at once")
        axes.set_title("accuracy over all classes seen")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2)
        _bytes(figure.add_subplot(grid[0, 2]), ledger)
        _seconds(figure.add_subplot(grid[1, 2]), ledger)
    return figure


def comparison_picture(title: str, curves: list[Curve]) -> Figure:
    """Draw groups of runs: curves with bands of one standard deviation, and final accuracies.

    The chance level is drawn if all groups share it.

    Args:
        title: what the groups have in common.
        curves: one for each group.
    """
    chance = chance_of(curves)
    height = max(5.0, 2.2 + 0.55 * len(curves))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(13, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12)
        figure.suptitle(literal(title))
        left, right = figure.subplots(1, 2)
        draw_curves(left, curves, chance)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
        draw_finals(right, curves, chance[-1] if chance else None)
    return figure


def _number_dots(axes: Axes, dots: list[tuple[int, float]]) -> None:
    """Write its value beside each dot, away from the line; nothing if there are more than ten."""
    values = [value for _, value in dots]
    for place, (number, value) in enumerate(dots if len(dots) <= 10 else []):
        before, after = values[max(place - 1, 0)], values[min(place + 1, len(values) - 1)]
        valley = before > value and after >= value
        side = "center" if valley or before <= value >= after else "left" if before > after else "right"
        text, offset = f"{value:.1f}", ({"left": 3, "right": -3, "center": 0}[side], -15 if valley else 7)
        axes.annotate(text, (number, value), offset, textcoords="offset points", ha=side, color=COLOURS[0], fontsize=9)


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
    """Draw bytes as bars on a logarithmic axis, without entries of zero bytes."""
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
    """Draw the parts of the training time as one stacked bar, with their values in the legend."""
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
