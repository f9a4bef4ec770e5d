"""Boxes around objects: as detectors return them, and the part of an image that is looked at for each.

With a box the scene around an object hardly counts: it is cut off, before the network
sees the image.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from crumb_avalanche.images.clips import Clip, Frames

Box = tuple[
    float, float, float, float
]  # left, top, right, bottom in pixels, of the image upright
Detector = Callable[[Image.Image], Any]
LARGEST = 1e9  # largest coordinate of a box, in pixels
MARGIN = 0.25  # on each side of a box, in units of its longer side
_RULE = "give (left, top, right, bottom) in pixels of the upright image, one row for each box"


def boxes_of(found: Any) -> list[Box]:
    """Return boxes from what people and detectors give.

    Args:
        found: one box or several, as numbers, array or tensor, whose further columns
            are ignored; a dictionary with ``boxes``, as torchvision's detectors return;
            a result with ``boxes.xyxy``, as ultralytics' do; or a list of one of them.

    Raises:
        ValueError: it is none of these, or a box is empty.
    """
    if (
        isinstance(found, list | tuple)
        and len(found) == 1
        and not isinstance(found[0], int | float)
    ):
        found = found[0]
    found = (
        found["boxes"]
        if isinstance(found, dict) and "boxes" in found
        else getattr(found, "boxes", found)
    )
    found = getattr(found, "xyxy", found)
    try:
        rows = np.asarray(
            found.detach().cpu() if hasattr(found, "detach") else found,
            dtype=np.float64,
        )
        rows = rows.reshape(-1, rows.shape[-1] or 4)
    except (IndexError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"boxes are {type(found).__name__}; {_RULE}") from error
    left, top, right, bottom = rows[:, :4].T if rows.shape[1] >= 4 else np.zeros((4, 1))
    if not (
        (np.abs(rows[:, :4]) <= LARGEST).all()
        and (right > left).all()
        and (bottom > top).all()
    ):
        raise ValueError(
            f"a box is {rows[0, :4].tolist()}, or another of {len(rows)} is empty or too large; {_RULE}"
        )
    return [(row[0], row[1], row[2], row[3]) for row in rows.tolist()]


def cut_out(image: Image.Image, box: Box, margin: float = MARGIN) -> Image.Image:
    """Return the square around a box, moved into the image; what is larger than the image ends with it.

    Raises:
        ValueError: the box lies outside the image.
    """
    left, top, right, bottom = box
    if right <= 0 or bottom <= 0 or left >= image.width or top >= image.height:
        raise ValueError(
            f"box {box} lies outside the image of {image.width} x {image.height} pixels; {_RULE}"
        )
    side = max(1, round((1 + 2 * margin) * max(right - left, bottom - top)))
    edges = []
    for first, last, length in (
        (left, right, image.width),
        (top, bottom, image.height),
    ):
        begin = round((first + last - side) / 2)
        begin = min(max(begin, 0), max(length - side, 0))
        edges.append((begin, min(begin + side, length)))
    return image.crop((edges[0][0], edges[1][0], edges[0][1], edges[1][1]))


def in_box(clips: Iterable[Clip], box: Any) -> Iterator[Clip]:
    """Yield clips of which the part in a box is learned.

    Args:
        clips: clips, whose images are read as they are used.
        box: a box for each image, in order; see ``boxes_of``.

    Raises:
        ValueError: there are more images or fewer than boxes, or see ``boxes_of`` and
            ``cut_out``.
    """
    boxes = boxes_of(box)
    rest = iter(boxes)

    def cut(frames: Frames) -> Frames:
        for path, image in frames:
            if (one := next(rest, None)) is None:
                raise ValueError(
                    f"there are more images than boxes ({len(boxes)}); give a box for each image"
                )
            yield path, cut_out(image, one)

    for clip in clips:
        yield replace(clip, frames=cut(clip.frames))
    if left := len(list(rest)):
        raise ValueError(
            f"there are {left} boxes more than images; give a box for each image"
        )
