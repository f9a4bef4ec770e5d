"""Figures drawn when the site is built, as SVG in the colours of the page; here those of "How CRUMB works"."""

import html
from collections.abc import Callable
from itertools import pairwise

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Wedge
from site_parts import result_figures

from crumb_avalanche.memory.selection import EveryJth
from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.report.pictures import COLOURS, STYLE, inline_svg

BOXES = {  # name: left, bottom, width, text
    "image": (-0.3, 1.0, 1.7, "image\n3 x 224 x 224"),
    "f": (2.0, 1.0, 1.4, "F, frozen\nearly layers"),
    "map": (3.9, 1.0, 1.7, "map Z\n512 x 13 x 13"),
    "search": (6.1, 1.0, 1.6, "nearest row\nof codebook B"),
    "codes": (8.3, 1.0, 1.6, "codes\n5,408 bytes"),
    "rebuilt": (10.5, 1.0, 1.5, "rows of B\nas map Z~"),
    "p": (12.6, 1.0, 1.4, "P, trained\nlate layers"),
    "loss": (14.6, 1.0, 1.4, "loss\nby the label"),
    "memory": (8.3, -1.3, 1.6, "memories\ncodes, labels"),
}
HEIGHT = 1.1
ARROWS = (
    "image f",
    "f map",
    "map search",
    "search codes",
    "codes rebuilt",
    "rebuilt p",
    "p loss",
)


def pipeline() -> tuple[Figure, str]:
    """Draw the way of an image, and that of a memory."""
    figure = Figure(figsize=(11.2, 2.9), layout="constrained")
    axes = figure.subplots()
    axes.axis("off")
    for name, (left, bottom, width, text) in BOXES.items():
        colour = (
            COLOURS[1]
            if name in ("p", "search")
            else COLOURS[0]
            if name in ("codes", "memory")
            else "#595959"
        )
        style = dict(fill=False, ec=colour, lw=1.6)
        axes.add_patch(
            FancyBboxPatch(
                (left, bottom), width, HEIGHT, "round,pad=0,rounding_size=0.1", **style
            )
        )
        axes.text(
            left + width / 2,
            bottom + HEIGHT / 2,
            text,
            ha="center",
            va="center",
            size=9.5,
        )
    for pair in ARROWS:
        start, end = (BOXES[name] for name in pair.split())
        _arrow(axes, (start[0] + start[2], 1 + HEIGHT / 2), (end[0], 1 + HEIGHT / 2))
    _arrow(axes, (9.1, 1.0), (9.1, -1.3 + HEIGHT))
    axes.text(9.0, 0.38, "every j-th image", ha="right", va="center", size=9)
    bent = {
        "arrowstyle": "->",
        "color": "#000000",
        "connectionstyle": "angle,angleA=0,angleB=90,rad=6",
    }
    axes.annotate("", (11.25, 1.0), (9.9, -1.3 + HEIGHT / 2), arrowprops=bent)
    axes.text(11.4, 0.0, "replayed beside\nnew images", ha="left", va="center", size=9)
    axes.plot(
        [4.75, 4.75, 13.3], [1 + HEIGHT, 2.8, 2.8], ls="--", color="#595959", lw=1
    )
    axes.annotate(
        "",
        (13.3, 1 + HEIGHT),
        (13.3, 2.8),
        arrowprops={"arrowstyle": "->", "color": "#595959", "ls": "--"},
    )
    axes.text(
        9.0,
        2.9,
        "direct path: the answer to a test image",
        ha="center",
        va="bottom",
        size=9,
    )
    axes.set(xlim=(-0.4, 16.1), ylim=(-1.4, 3.3))
    return figure, (
        "The frozen layers F turn an image into the map Z. Codes are the numbers of the nearest rows of the codebook "
        "B. Rows of B rebuild the map, and the trained layers P classify it. Every j-th image is kept as codes and "
        "replayed beside new images. A test image goes from Z to P directly."
    )


def directions() -> tuple[Figure, str]:
    """Draw which of six memory blocks of two values slices are replaced by."""
    codebook = Codebook(6, 2)
    blocks = torch.tensor(
        [[2.6, 0.3], [1.2, 0.8], [2.0, 2.0], [0.7, 1.5], [0.3, 2.7], [1.9, 1.1]]
    )
    codebook.blocks.data.copy_(blocks)
    random = np.random.default_rng(3)
    slices = torch.from_numpy(np.abs(random.normal(1.0, 0.9, (60, 2)))).float()
    codes = codebook.encode(slices.T[None, :, :, None])[0, 0, :, 0]
    figure = Figure(figsize=(5.4, 4.8), layout="constrained")
    axes = figure.subplots()
    angles = torch.rad2deg(torch.atan2(blocks[:, 1], blocks[:, 0]))
    order = angles.argsort().tolist()
    edges = [0.0, *[float(angles[a] + angles[b]) / 2 for a, b in pairwise(order)], 90.0]
    for place, row in enumerate(order):
        axes.add_patch(
            Wedge(
                (0, 0),
                6,
                edges[place],
                edges[place + 1],
                color=COLOURS[row],
                alpha=0.13,
                lw=0,
            )
        )
    for row, colour in zip(range(6), COLOURS):
        chosen = slices[codes == row]
        axes.plot(*chosen.T, "o", ms=4.5, color=colour, alpha=0.75, mec="none")
        axes.annotate(
            "",
            blocks[row].tolist(),
            (0, 0),
            arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2},
        )
        axes.annotate(
            f"B{chr(0x2080 + row)}",
            blocks[row].tolist(),
            (5, 3),
            textcoords="offset points",
            size=11,
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


def memory() -> tuple[Figure, str]:
    """Draw which images of a stream are held after each experience, by the default selection rule."""
    capacity, experiences, images = 24, 4, 60
    rule, slots = EveryJth(), Slots(capacity, seed=0)
    held: dict[int, tuple[int, int]] = {}  # slot: class and place in the stream
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for experience in range(experiences):
        classes = [2 * experience, 2 * experience + 1]
        labels = [classes[place * 2 // images] for place in range(images)]
        rule.begin_experience(slots, dict.fromkeys(classes, images // 2), 10)
        for start in range(0, images, 10):
            for position, slot in rule.choose(slots, labels[start : start + 10]):
                held[slot] = (
                    labels[start + position],
                    experience * images + start + position,
                )
        kept = {slot for of_class in slots.by_class.values() for slot in of_class}
        for label, place in (held[slot] for slot in sorted(kept)):
            axes.plot(
                place, experience + 1, "|", ms=15, mew=2, color=COLOURS[label // 2]
            )
    for border in range(images, experiences * images, images):
        axes.axvline(border, color="#595959", lw=0.8, ls=":")
    axes.set_yticks(
        range(1, experiences + 1),
        [f"after experience {number}" for number in range(1, experiences + 1)],
    )
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
    axes.annotate(
        "",
        end,
        start,
        arrowprops={"arrowstyle": "->", "color": "#000000", "shrinkA": 1, "shrinkB": 1},
    )


# Each with the least width in pixels in which its text can be read; a smaller screen
# scrolls.
FIGURES: dict[str, tuple[Callable[[], tuple[Figure, str]], int]] = {
    "pipeline": (pipeline, 680),
    "directions": (directions, 320),
    "memory": (memory, 440),
    **result_figures.FIGURES,
}


def figure(name: str) -> str:
    """Return a figure with its caption as an element of the page."""
    with matplotlib.rc_context(STYLE):
        draw, least = FIGURES[name]
        drawn, caption = draw()
    width, svg = (
        int(drawn.get_figwidth() * 72),
        inline_svg(drawn, f"{name}-", caption, []),
    )
    return (
        f'<figure class="drawn" style="max-width: {width}px; --least: {min(least, width)}px">'
        f'<div tabindex="0">{svg}</div><figcaption>{html.escape(caption)}</figcaption></figure>\n'
    )
