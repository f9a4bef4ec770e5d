"""Boxes around objects, as detectors return them, and the part of an image in each.

With a box the scene around an object hardly counts: it is cut off, before the network
sees the image.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from benchmarks_toybox_ilab.tables.image import REDUCTION
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
        ValueError: it is none of these, or a box has less than four numbers, is empty
            or too large; says which box.
    """
    rows = _box_rows(detected)[:, :4].tolist()
    for number, row in enumerate(rows, 1):
        problem = _problem_of_box(row)
        if problem:
            raise ValueError(
                f"box {number} of {len(rows)} is {row}, {problem}; {_RULE}"
            )
    return [(row[0], row[1], row[2], row[3]) for row in rows]


def _problem_of_box(row: Sequence[float]) -> str:
    """Say what is wrong with a box; empty if nothing is.

    Args:
        row: at most four numbers: left, top, right and bottom in pixels.
    """
    if len(row) < 4:
        return "less than four numbers"
    left, top, right, bottom = row
    if not all(abs(edge) <= LARGEST for edge in row):  # true of NaN, too
        return "not finite or too large"
    if right <= left or bottom <= top:
        return "which is empty"
    return ""


def _box_rows(detected: Any) -> np.ndarray:
    """Return the boxes of a detector as rows, ``(n, columns)`` float64.

    Args:
        detected: one box or several, as numbers, array or tensor; a dictionary with
            ``boxes``; a result with ``boxes.xyxy``; or a list of one of them.

    Raises:
        ValueError: it is none of these.
    """
    boxes = detected
    is_batch_of_one = (
        isinstance(boxes, list | tuple)
        and len(boxes) == 1
        and not isinstance(boxes[0], int | float)
    )
    if is_batch_of_one:
        boxes = boxes[0]
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
        raise ValueError(f"{_problem_of_values(boxes)}; {_RULE}") from error


def _problem_of_values(boxes: Any) -> str:
    """Say which value of boxes is no number, or else what they are.

    Args:
        boxes: lists of boxes, or any other value that is no array of numbers.
    """
    remaining = list(boxes) if isinstance(boxes, list | tuple) else []
    while remaining:
        value = remaining.pop(0)
        if isinstance(value, list | tuple):
            remaining = [*value, *remaining]
        elif isinstance(value, str):
            return f"{value!r} of the boxes is no number"
    return f"boxes are {type(boxes).__name__}"


def cut_out(image: Image.Image, box: Box, margin: float = MARGIN) -> Image.Image:
    """Return the square part of an image around a box.

    A square that would leave the image is moved into it, and one that is larger than
    the image ends with it.

    Args:
        image: upright.
        box: left, top, right and bottom in pixels.
        margin: on each side of the box, in units of its longer side.

    Raises:
        ValueError: the box lies outside the image.
    """
    # A large JPEG is decoded at a half of its sides or less; a box counts all pixels.
    reduction = image.info.get(REDUCTION, 1.0)
    left, top, right, bottom = (edge / reduction for edge in box)
    if right <= 0 or bottom <= 0 or left >= image.width or top >= image.height:
        width = round(reduction * image.width)
        height = round(reduction * image.height)
        raise ValueError(
            f"box {box} lies outside the image of {width} x {height} pixels; {_RULE}"
        )
    longer_side = max(right - left, bottom - top)
    side = max(1, round((1 + 2 * margin) * longer_side))  # of the square, in pixels
    # The square has the middle of the box, unless it would leave the image.
    begin_x, end_x = _interval_inside((left + right - side) / 2, side, image.width)
    begin_y, end_y = _interval_inside((top + bottom - side) / 2, side, image.height)
    return image.crop((begin_x, begin_y, end_x, end_y))


def _interval_inside(begin: float, side: int, image_side: int) -> tuple[int, int]:
    """Move an interval of pixels into the image, along one axis.

    Returns:
        First pixel, and the pixel after the last.
    """
    last_begin = max(image_side - side, 0)
    begin_inside = min(max(round(begin), 0), last_begin)
    return begin_inside, min(begin_inside + side, image_side)


def in_box(clips: Iterable[Clip], box: Any) -> Iterator[Clip]:
    """Yield clips whose images are cut to the box of each.

    Args:
        clips: of whole images, which are read as they are used.
        box: a box for each image of all clips, in order; see ``boxes_of``.

    Raises:
        ValueError: there are more images or fewer than boxes, or see ``boxes_of`` and
            ``cut_out``.
    """
    boxes = boxes_of(box)
    remaining_boxes = iter(boxes)

    def cut_frames(frames: Frames) -> Frames:
        """Yield frames, each cut to the next box."""
        for path, image in frames:
            box_of_image = next(remaining_boxes, None)
            if box_of_image is None:
                raise ValueError(
                    f"there are more images than boxes ({len(boxes)}); give a box for "
                    "each image"
                )
            yield path, cut_out(image, box_of_image)

    for clip in clips:
        yield replace(clip, frames=cut_frames(clip.frames))
    n_left = len(list(remaining_boxes))
    if n_left:
        raise ValueError(
            f"there are {n_left} boxes more than images; give a box for each image"
        )
