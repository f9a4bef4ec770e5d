"""Figures that explain what CRUMB buys: the same bytes, and accuracy against bytes."""

from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from site_parts.csv_tables import (
    DOCS,
    RECORDED,
    Line,
    floats,
    grouped,
    read,
    unit_means,
)

from crumb_avalanche.report.paired import interval
from crumb_avalanche.report.pictures import COLOURS

Drawn = tuple[Figure, str]  # a figure and its caption
BLACK = "#000000"
IMAGE_BYTES = 3 * 224**2
TRAIN_IMAGES = 2624  # of ETH-80: 64 objects from 41 sides


@dataclass(frozen=True)
class Point:
    """A row of ``recommended_eth80.csv`` in the figure.

    Attributes:
        row: of the file; several rows at one point are drawn as the first.
        label: what stands beside it.
        shift: of the label from the point, in points.
        is_crumb: whether it is marked.
    """

    row: str
    label: str
    shift: tuple[float, float] = (7, -3)
    is_crumb: bool = False


POINTS = (
    Point("recommended", "recommended,\none look", (-84, -5)),
    Point("srda", "SRDA, LR-RGDA, FeCAM", (7, 2)),
    Point("slda", "streaming LDA", (-82, -3)),
    Point("crumb, tuned", "CRUMB, tuned", (9, -1), is_crumb=True),
    Point("paper", "CRUMB, paper", (9, -3), is_crumb=True),
    Point("remind, one image at a time", "REMIND", (7, -9)),
    Point("ncm", "nearest class mean"),
    Point("map_replay", "raw maps", (9, -3)),
    Point("offline", "joint training", (-92, -3)),
)
LEVEL = ("srda", "lr_rgda", "fecam")  # drawn as one point


def accuracy_by_bytes() -> Drawn:
    """Draw accuracy on ETH-80 against all bytes that are kept."""
    rows = grouped(read(DOCS / "recommended_eth80.csv"), "row")
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    for point in POINTS:
        lines = rows[(point.row,)]
        mean, half = interval(unit_means(lines, "accuracy", itemgetter("frame_table")))
        size = kept_bytes(point.row, lines)
        colour = COLOURS[1] if point.is_crumb else COLOURS[0]
        marker = "D" if point.is_crumb else "o"
        axes.errorbar(
            size, mean, yerr=half, fmt=marker, color=colour, ms=7, capsize=2, lw=1.2
        )
        axes.annotate(
            point.label,
            (size, mean),
            point.shift,
            textcoords="offset points",
            color=BLACK,
            size=10,
            weight="bold" if point.is_crumb else "normal",
        )
    axes.set_xscale("log")
    axes.set_xlim(8e3, 2e9)
    axes.set_xticks(
        [1e4, 1e5, 1e6, 1e7, 1e8, 1e9],
        ["10 kB", "100 kB", "1 MB", "10 MB", "100 MB", "1 GB"],
    )
    axes.minorticks_off()
    axes.set_ylim(74, 101)
    axes.set(xlabel="bytes kept besides the network", ylabel="final accuracy, %")
    axes.grid(color="#e6e6e6", lw=0.6)
    axes.set_axisbelow(True)
    level = [f"{fmean(floats(rows[(row,)], 'accuracy')):.1f}" for row in LEVEL]
    return figure, (
        "ETH-80, class-instance: final accuracy against all bytes that are kept, with 95 % intervals over splits. "
        f"SRDA, LR-RGDA and FeCAM ({', '.join(level)} %) stand at one point. Joint training keeps all {TRAIN_IMAGES:,} images."
    )


def kept_bytes(row: str, lines: list[Line]) -> float:
    """Return the most bytes that a row kept; joint training keeps every image."""
    if row == "offline":
        return TRAIN_IMAGES * IMAGE_BYTES
    return max(floats(lines, "memory_bytes"))


# Of `same_bytes.csv`: name, colour and line of each strategy.
STRATEGIES = {
    "crumb": ("CRUMB", COLOURS[1], "-"),
    "image_replay": ("image replay", COLOURS[0], "--"),
}


@dataclass(frozen=True)
class Memory:
    """What a strategy replays, in the figure of equal bytes.

    Attributes:
        name: of the strategy, in the figure.
        colour: of its memories and its curve.
        line: style of its curve.
        label_shift: how far its label stands above the end of the curve, in points.
    """

    name: str
    colour: str
    line: str
    label_shift: float


MEMORIES = {
    "crumb": Memory("CRUMB", COLOURS[1], "-", label_shift=4),
    "image_replay": Memory("image replay", COLOURS[0], "--", label_shift=-24),
}
COLUMNS = 30  # of code memories in their rectangle


def same_bytes() -> Drawn:
    """Draw codes and images in equal bytes, and the accuracy with each of them."""
    by_strategy = grouped(read(RECORDED / "same_bytes.csv"), "strategy")
    counts = {}
    forgetting = {}
    figure = Figure(figsize=(6.4, 6.4), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=(1, 2))
    for (strategy,), lines in by_strategy.items():
        counts[strategy] = int(lines[0]["buffer_items"])
        mean, half = interval(floats(lines, "forgetting"))
        forgetting[strategy] = f"{mean:.0f} ± {half:.0f}"
        _draw_curve(lower, MEMORIES[strategy], lines, f"forgets {mean:.0f} points")
        runs = len(lines)
    _draw_rectangles(upper, counts)
    lower.set(
        xlabel="after experience",
        ylabel="accuracy over all seen classes, %",
        xlim=(0.9, 5.2),
        ylim=(40, 102),
        xticks=range(1, 5),
    )
    lower.grid(axis="y", color="#e6e6e6", lw=0.6)
    return figure, (
        f"The bytes of 15 raw images hold {counts['crumb']} memories of CRUMB. ETH-80, class-instance, {runs} runs on as "
        f"many splits: mean and 95 % interval. CRUMB forgets {forgetting['crumb']} points, image replay "
        f"{forgetting['image_replay']}."
    )


def _draw_rectangles(axes: Axes, counts: dict[str, int]) -> None:
    """Draw the memories of each strategy as cells of a rectangle, one beside the other.

    Both rectangles have the same area, as their memories have the same bytes.
    """
    left = 0.0
    for strategy, columns in (("crumb", COLUMNS), ("image_replay", 5)):
        rows = -(-counts[strategy] // columns)
        cell_width = 1 / columns
        cell_height = 1 / rows
        for number in range(counts[strategy]):
            row, column = divmod(number, columns)
            axes.add_patch(
                Rectangle(
                    (left + column * cell_width, 1 - (row + 1) * cell_height),
                    cell_width,
                    cell_height,
                    facecolor=MEMORIES[strategy].colour,
                    edgecolor="#ffffff",
                    lw=0.8,
                )
            )
        left += 1.08
    axes.text(0.5, 1.06, f"{counts['crumb']} code memories", ha="center", size=11)
    axes.text(1.58, 1.06, f"{counts['image_replay']} raw images", ha="center", size=11)
    axes.set(xlim=(-0.01, 2.09), ylim=(0, 1.2))
    axes.axis("off")


def _draw_curve(axes: Axes, memory: Memory, lines: list[Line], note: str) -> None:
    """Draw the mean of the runs after each experience, its interval, and a note."""
    names = [name for name in lines[0] if name.startswith("accuracy_after_")]
    means = []
    halves = []
    for name in names:
        mean, half = interval(floats(lines, name))
        means.append(mean)
        halves.append(half)
    experiences = range(1, len(names) + 1)
    axes.errorbar(
        experiences,
        means,
        yerr=halves,
        color=memory.colour,
        ls=memory.line,
        marker="o",
        capsize=3,
        lw=2,
    )
    axes.annotate(
        f"{memory.name}\n{note}",
        (len(names), means[-1]),
        (8, memory.label_shift),
        textcoords="offset points",
        size=10.5,
    )
