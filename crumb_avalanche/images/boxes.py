"""Boxes around objects, as detectors return them, and the part of an image in each.

With a box the scene around an object hardly counts: it is cut off, before the network
sees the image.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from crumb_avalanche.images.clips import Clip, Frames

# Left, top, right and bottom in pixels, of the image upright.
Box = tuple[float, float, float, float]
Detector = Callable[[Image.Image], Any]
LARGEST = 1e9  # largest coordinate of a box, in pixels
MARGIN = 0.25  # on each side of a box, in units of its longer side
_RULE = (
    "give (left, top, right, bottom) in pixels of the upright image, one row for each "
    "box"
)


def boxes_of(detected: Any) -> list[Box]:
    """Return boxes from what people and detectors give.

    Args:
        detected: one box or several, as numbers, array or tensor, whose further columns
            are ignored; a dictionary with ``boxes``, as torchvision's detectors return;
            a result with ``boxes.xyxy``, as ultralytics' do; or a list of one of them.

    Raises:
        ValueError: it is none of these, or a box is empty.
    """
    rows = _rows(detected)
    if rows.shape[1] < 4:
        rows = np.zeros((1, 4))  # refused below
    left, top, right, bottom = rows[:, :4].T
    small = np.abs(rows[:, :4]) <= LARGEST
    if not (small.all() and (right > left).all() and (bottom > top).all()):
        raise ValueError(
            f"a box is {rows[0, :4].tolist()}, or another of {len(rows)} is empty or "
            f"too large; {_RULE}"
        )
    return [(row[0], row[1], row[2], row[3]) for row in rows.tolist()]


def _rows(detected: Any) -> np.ndarray:
    """Return ``(n, columns)`` float64 of what ``boxes_of`` takes."""
    boxes = detected
    is_list = isinstance(boxes, list | tuple)
    if is_list and len(boxes) == 1 and not isinstance(boxes[0], int | float):
        boxes = boxes[0]  # of a batch of one image
    if isinstance(boxes, dict) and "boxes" in boxes:
        boxes = boxes["boxes"]
    else:
        boxes = getattr(boxes, "boxes", boxes)
    boxes = getattr(boxes, "xyxy", boxes)
    if hasattr(boxes, "detach"):
        boxes = boxes.detach().cpu()
    try:
        rows = np.asarray(boxes, dtype=np.float64)
        return rows.reshape(-1, rows.shape[-1] or 4)
    except (IndexError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"boxes are {type(boxes).__name__}; {_RULE}") from error


def cut_out(image: Image.Image, box: Box, margin: float = MARGIN) -> Image.Image:
    """Return the square around a box, moved into the image.

    What is larger than the image ends with it.

    Raises:
        ValueError: the box lies outside the image.
    """
    left, top, right, bottom = box
    if right <= 0 or bottom <= 0 or left >= image.width or top >= image.height:
        raise ValueError(
            f"box {box} lies outside the image of {image.width} x {image.height} "
            f"pixels; {_RULE}"
        )
    longer = max(right - left, bottom - top)
    side = max(1, round((1 + 2 * margin) * longer))
    begin_x, end_x = _moved_inside((left + right - side) / 2, side, image.width)
    begin_y, end_y = _moved_inside((top + bottom - side) / 2, side, image.height)
    return image.crop((begin_x, begin_y, end_x, end_y))


def _moved_inside(begin: float, side: int, length: int) -> tuple[int, int]:
    """Return begin and end of a side of the square, within a length in pixels."""
    inside = min(max(round(begin), 0), max(length - side, 0))
    return inside, min(inside + side, length)


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
    remaining = iter(boxes)

    def cut(frames: Frames) -> Frames:
        for path, image in frames:
            box_of_image = next(remaining, None)
            if box_of_image is None:
                raise ValueError(
                    f"there are more images than boxes ({len(boxes)}); give a box for "
                    "each image"
                )
            yield path, cut_out(image, box_of_image)

    for clip in clips:
        yield replace(clip, frames=cut(clip.frames))
    left_over = len(list(remaining))
    if left_over:
        raise ValueError(
            f"there are {left_over} boxes more than images; give a box for each image"
        )
