"""Toy shapes: a video-like recognition stream that is drawn when it is read, so nothing has to be downloaded.

Twenty categories; each has objects that differ in proportions, colour and pattern; each object has clips (sessions) in
which it turns, tilts, drifts and grows along a smooth path, each clip under its own light and before its own clutter.
As in CORe50, the test set is whole sessions: known objects, in light, motion and surroundings that were never seen.

Colour says nothing about the class: objects of the same number have nearly the same hue and brightness in every class,
and light and background belong to the clip. A path (`star/object2/session1/frame07`) is all it takes to draw a frame.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from benchmarks_toybox_ilab.datasets._generator import generator
from benchmarks_toybox_ilab.datasets.toy_shapes.dots import as_dots
from benchmarks_toybox_ilab.datasets.toy_shapes.scene import (
    CLASSES,
    DRAWING,
    FRAMES_PER_CLIP,
    SIZE,
    check_at_least,
    check_classes,
    render,
)
from benchmarks_toybox_ilab.tables.frame import Frame
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

PRETRAINING_CLASSES: tuple[str, ...] = (
    "bottle", "chair", "crescent", "gear", "hammer", "house", "ladder", "leaf", "ring", "star",
)  # fmt: skip
STREAM_CLASSES: tuple[str, ...] = tuple(name for name in CLASSES if name not in PRETRAINING_CLASSES)

_PATH = re.compile(r"([a-z]+)/object(\d+)/session(\d+)/frame(\d+)(?:-of(\d+))?(?:-(\d+)px)?(-dots)?")


@dataclass(frozen=True)
class ToyShapesReader:
    """Draws the frame that a path names; picklable, without any state of its own.

    A path is `star/object2/session1/frame07`; `-of30` and `-128px` at its end say that the clip has 30 frames instead
    of 15 and that the picture has 128 pixels a side instead of 64; `-dots` that it consists of dots alone.
    """

    drawing: int = field(default=DRAWING, init=False)  # in the repr, so that caches notice other pixels

    def __call__(self, path: str) -> Image.Image:
        """The RGB image of the frame.

        Raises:
            ValueError: If the path is not of this form, or names a class that does not exist.
        """
        match = _PATH.fullmatch(str(path))
        if match is None:
            raise ValueError(
                f"{str(path)!r} is not the path of a toy shape; the form is class/object<n>/session<n>/frame<n>, "
                "with -of<frames a clip> and -<pixels>px behind it where they are not 15 and 64, and -dots for dots. "
                "Take the paths from ToyShapesFrames(...).path."
            )
        name, *numbers, frames, pixels, dots = match.groups()
        image = render(name, *map(int, numbers), int(pixels or SIZE), int(frames or FRAMES_PER_CLIP))
        return as_dots(image, str(path)) if dots else image


def ToyShapesFrames(
    root: str | Path | None = None,
    run: int = 0,
    classes: Sequence[str] | None = None,
    objects_per_class: int = 6,
    sessions: int = 4,
    frames_per_clip: int = FRAMES_PER_CLIP,
    size: int = SIZE,
    held_out_sessions: Sequence[int] | int = (3,),
    dots: bool = False,
) -> FrameTable:
    """The table of toy shapes: classes x objects x sessions x frames, with the held-out sessions as test split.

    Args:
        root: Ignored, there are no files; here so that all tables are called alike.
        run: Ignored, the split is the same in every run; a run's order of classes and clips is the protocol's.
        classes: Names from `CLASSES`, e.g. `STREAM_CLASSES`; None takes all 20.
        objects_per_class: Objects of each class.
        sessions: Clips of each object.
        frames_per_clip: Frames of each clip.
        size: Side of the pictures in pixels.
        held_out_sessions: Numbers of the sessions that make the test split, counted from 0; may be empty.
        dots: Tell the shapes by dots along their edges alone, which is far from all that networks are pretrained on.

    Raises:
        ValueError: If a class is unknown, a number is out of range, or nothing would be left to train on.
    """
    chosen = CLASSES if classes is None else check_classes(classes)
    check_at_least(1, objects_per_class=objects_per_class, sessions=sessions, frames_per_clip=frames_per_clip)
    check_at_least(16, size=size)
    held_out_sessions = (held_out_sessions,) if isinstance(held_out_sessions, int) else tuple(held_out_sessions)
    held_out = set(held_out_sessions)
    if not held_out < set(range(sessions)):
        raise ValueError(
            f"held_out_sessions is {held_out_sessions}, but with sessions={sessions} it can hold numbers from 0 "
            f"to {sessions - 1}, and at least one session must remain for training; hold out fewer, or raise sessions."
        )
    digits = max(2, len(str(frames_per_clip - 1)))
    suffix = f"-of{frames_per_clip}" * (frames_per_clip != FRAMES_PER_CLIP) + f"-{size}px" * (size != SIZE)
    suffix += "-dots" * dots
    frames = [
        Frame(
            path=f"{name}/object{item}/session{session}/frame{frame:0{digits}d}{suffix}",
            class_name=name,
            object_name=f"object{item}",
            session=f"session{session}",
            frame=frame,
            split="test" if session in held_out else "train",
        )
        for name in sorted(chosen)
        for item in range(objects_per_class)
        for session in range(sessions)
        for frame in range(frames_per_clip)
    ]
    return FrameTable(frames, reader=ToyShapesReader(), name="toy_dots" if dots else "toy_shapes")


@generator(image_size=SIZE)
def ToyShapes(dataset_root: str | Path | None = None, run: int = 0, **table: object) -> FrameTable:
    """The toy shapes as an Avalanche benchmark.

    Args:
        dataset_root: Ignored, there are no files.
        train_transform: PIL image to tensor; None is `imagenet_transform` of the size that the shapes are drawn in.
        **table: Arguments of `ToyShapesFrames`, such as `classes` or `size`.
    """
    return ToyShapesFrames(dataset_root, run, **table)
