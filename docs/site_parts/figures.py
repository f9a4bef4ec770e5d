"""Figures drawn when the site is built, as SVG in the colours of the page; here those of "How CRUMB works"."""

import html
import io
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Wedge
from site_parts import crumb_figures, result_figures
from site_parts.result_figures import Drawn

from crumb_avalanche.memory.selection import EveryJth
from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.report.pictures import COLOURS, FORMATS, STYLE, inline_svg

HEIGHT = 1.1  # of a box
GREY = "#595959"
BLACK = "#000000"


@dataclass(frozen=True)
class Box:
    """A box of the pipeline: where it is, what stands in it, and its colour."""

    left: float
    bottom: float
    width: float
    text: str
    colour: str = GREY

    @property
    def right(self) -> float:
        """Where it ends."""
        return self.left + self.width

    @property
    def centre(self) -> tuple[float, float]:
        """Where its text stands."""
        return (self.left + self.width / 2, self.bottom + HEIGHT / 2)


# In the order of an image's way: to the right above, and back to the left below.
WAY = (
    Box(0.0, 3.4, 1.5, "image\n3 x 224 x 224"),
    Box(1.9, 3.4, 1.5, "F, frozen\nearly layers"),
    Box(3.8, 3.4, 1.5, "map Z\n512 x 13 x 13"),
    Box(5.7, 3.4, 1.5, "nearest row\nof codebook B", COLOURS[1]),
    Box(5.7, 1.1, 1.5, "codes\n5,408 bytes", COLOURS[0]),
    Box(3.8, 1.1, 1.5, "rows of B\nas map Z~"),
    Box(1.9, 1.1, 1.5, "P, trained\nlate layers", COLOURS[1]),
    Box(0.0, 1.1, 1.5, "loss\nby the label"),
)
TURN = 4  # boxes above
MEMORIES = Box(5.7, -1.1, 1.5, "memories\ncodes, labels", COLOURS[0])


def pipeline() -> Drawn:
    """Draw the way of an image, and that of a memory."""
    figure = Figure(figsize=(5.6, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.axis("off")
    for box in (*WAY, MEMORIES):
        _draw_box(axes, box)
    for box, following in pairwise(WAY[:TURN]):
        _arrow(axes, (box.right, box.centre[1]), (following.left, box.centre[1]))
    for box, following in pairwise(WAY[TURN:]):
        _arrow(axes, (box.left, box.centre[1]), (following.right, box.centre[1]))
    nearest, codes, rebuilt = WAY[TURN - 1 : TURN + 2]
    middle = nearest.centre[0]
    _arrow(axes, (middle, nearest.bottom), (middle, codes.bottom + HEIGHT))
    _arrow(axes, (middle, codes.bottom), (middle, MEMORIES.bottom + HEIGHT))
    axes.text(middle - 0.1, 0.55, "every j-th", ha="right", va="center", size=9)
    axes.annotate(
        "",
        (rebuilt.centre[0], rebuilt.bottom),
        (MEMORIES.left, MEMORIES.centre[1]),
        arrowprops={
            "arrowstyle": "->",
            "color": BLACK,
            "connectionstyle": "angle,angleA=0,angleB=90,rad=6",
        },
    )
    replayed = "replayed beside\nnew images"
    axes.text(rebuilt.centre[0] - 0.12, -0.1, replayed, ha="right", va="center", size=9)
    _draw_direct_path(axes)
    axes.set(xlim=(-0.1, 7.3), ylim=(-1.2, 4.6))
    return figure, (
        "The frozen layers F turn an image into the map Z. Codes are the numbers of the nearest rows of the codebook "
        "B. Rows of B rebuild the map, and the trained layers P classify it. Every j-th image is kept as codes and "
        "replayed beside new images. A test image goes from Z to P directly."
    )


def _draw_box(axes: Axes, box: Box) -> None:
    """Draw a box with its text."""
    axes.add_patch(
        FancyBboxPatch(
            (box.left, box.bottom),
            box.width,
            HEIGHT,
            "round,pad=0,rounding_size=0.1",
            fill=False,
            ec=box.colour,
            lw=1.6,
        )
    )
    x, y = box.centre
    axes.text(x, y, box.text, ha="center", va="center", size=9.5)


def _draw_direct_path(axes: Axes) -> None:
    """Draw the way of a test image from the map to the trained layers."""
    feature_map = WAY[2]
    plastic = WAY[6]
    start, end = feature_map.centre[0], plastic.centre[0]
    between = (feature_map.bottom + plastic.bottom + HEIGHT) / 2
    way = [feature_map.bottom, between, between]
    axes.plot([start, start, end], way, ls="--", color=GREY, lw=1)
    style = {"arrowstyle": "->", "color": GREY, "ls": "--"}
    axes.annotate("", (end, plastic.bottom + HEIGHT), (end, between), arrowprops=style)
    label = "direct path: the answer to a test image"
    axes.text(end + 0.12, between - 0.1, label, ha="left", va="top", size=9)


def directions() -> Drawn:
    """Draw which of six memory blocks of two values slices are replaced by."""
    blocks = torch.tensor(
        [[2.6, 0.3], [1.2, 0.8], [2.0, 2.0], [0.7, 1.5], [0.3, 2.7], [1.9, 1.1]]
    )
    codebook = Codebook(len(blocks), 2)
    codebook.blocks.data.copy_(blocks)
    random = np.random.default_rng(3)
    slices = torch.from_numpy(np.abs(random.normal(1.0, 0.9, (60, 2)))).float()
    codes = codebook.encode(slices.T[None, :, :, None])[0, 0, :, 0]
    figure = Figure(figsize=(5.4, 4.8), layout="constrained")
    axes = figure.subplots()
    _draw_sectors(axes, blocks)
    for row, (block, colour) in enumerate(zip(blocks.tolist(), COLOURS)):
        chosen = slices[codes == row]
        axes.plot(*chosen.T, "o", ms=4.5, color=colour, alpha=0.75, mec="none")
        arrow = {"arrowstyle": "-|>", "color": colour, "lw": 2}
        axes.annotate("", block, (0, 0), arrowprops=arrow)
        subscript = chr(0x2080 + row)
        axes.annotate(
            f"B{subscript}", block, (5, 3), textcoords="offset points", size=11
        )
    axes.set(
        xlim=(0, 3.4),
        ylim=(0, 3.2),
        xlabel="first value of a slice",
        ylabel="second value",
        aspect="equal",
    )
    return figure, (
        "Six memory blocks of two values are arrows. Each of 60 slices is a dot in the colour of the block that "
        "replaces it. The borders are rays from the origin: only the direction of a slice decides."
    )


def _draw_sectors(axes: Axes, blocks: torch.Tensor) -> None:
    """Shade the directions of which each of some ``(n, 2)`` blocks is the nearest."""
    angles = torch.rad2deg(torch.atan2(blocks[:, 1], blocks[:, 0]))
    order = angles.argsort().tolist()
    borders = [float(angles[low] + angles[high]) / 2 for low, high in pairwise(order)]
    edges = [0.0, *borders, 90.0]
    for row, (start, end) in zip(order, pairwise(edges)):
        axes.add_patch(
            Wedge((0, 0), 6, start, end, color=COLOURS[row], alpha=0.13, lw=0)
        )


def memory() -> Drawn:
    """Draw which images of a stream are held after each experience, by the default selection rule."""
    capacity = 24
    experiences = 4
    images = 60  # of an experience
    batch_size = 10
    rule = EveryJth()
    slots = Slots(capacity, seed=0)
    stored: dict[int, tuple[int, int]] = {}  # slot: class and place in the stream
    figure = Figure(figsize=(5.8, 3.4), layout="constrained")
    axes = figure.subplots()
    for experience in range(experiences):
        classes = [2 * experience, 2 * experience + 1]
        labels = [classes[position * 2 // images] for position in range(images)]
        rule.begin_experience(slots, dict.fromkeys(classes, images // 2), batch_size)
        for start in range(0, images, batch_size):
            batch = labels[start : start + batch_size]
            for position, slot in rule.choose(slots, batch):
                in_stream = experience * images + start + position
                stored[slot] = (batch[position], in_stream)
        used = [slot for members in slots.by_class.values() for slot in members]
        for slot in sorted(used):
            label, in_stream = stored[slot]
            axes.plot(
                in_stream, experience + 1, "|", ms=15, mew=2, color=COLOURS[label // 2]
            )
    for border in range(images, experiences * images, images):
        axes.axvline(border, color=GREY, lw=0.8, ls=":")
    numbers = range(1, experiences + 1)
    axes.set_yticks(numbers, [f"after experience {number}" for number in numbers])
    axes.set(
        ylim=(experiences + 0.6, 0.4),
        xlim=(-3, experiences * images + 3),
        xlabel="place in the stream, images",
    )
    return figure, (
        f"A buffer of {capacity} memories after each of four experiences of two classes. The memories are spread over "
        "the whole stream seen so far, and each class has fewer of them as new classes come."
    )


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw a black arrow."""
    style = {"arrowstyle": "->", "color": BLACK, "shrinkA": 1, "shrinkB": 1}
    axes.annotate("", end, start, arrowprops=style)


# Each with the least width in pixels in which its text can be read; a smaller screen
# scrolls.
FIGURES: dict[str, tuple[Callable[[], Drawn], int]] = {
    "pipeline": (pipeline, 340),
    "directions": (directions, 320),
    "memory": (memory, 340),
    "same_bytes": (crumb_figures.same_bytes, 340),
    "accuracy_by_bytes": (crumb_figures.accuracy_by_bytes, 340),
    **result_figures.FIGURES,
}


def drawn(name: str) -> Drawn:
    """Draw a figure of ``FIGURES``."""
    draw, _ = FIGURES[name]
    with matplotlib.rc_context(STYLE):
        return draw()


def caption(name: str) -> str:
    """Return the caption of a figure."""
    _, text = drawn(name)
    return text


def picture(name: str) -> str:
    """Return a figure as an SVG file on white, with its text as text."""
    figure, _ = drawn(name)
    file = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.fonttype": "none"}):
        figure.savefig(file, **FORMATS["svg"], format="svg")
    return file.getvalue()


def figure(name: str) -> str:
    """Return a figure with its caption as an element of the page."""
    _, least = FIGURES[name]
    plot, text = drawn(name)
    width = int(plot.get_figwidth() * 72)
    svg = inline_svg(plot, f"{name}-", text, [])
    return (
        f'<figure class="drawn" style="max-width: {width}px; --least: {min(least, width)}px">'
        f'<div tabindex="0">{svg}</div><figcaption>{html.escape(text)}</figcaption></figure>\n'
    )
