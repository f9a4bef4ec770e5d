"""Toy shapes: a stream of video-like clips that are rendered when read, without any download.

Twenty categories; each has objects that differ in proportions, colour and pattern; each
object has clips (sessions) in which it rotates, tilts, moves and changes its size
smoothly, each clip with its own light and cluttered background. As in CORe50, the test
set consists of whole sessions: known objects with unseen light, motion and background.

Colour carries no information about the class: objects with the same number have nearly
the same hue and brightness in every class, and light and background belong to the clip.
A frame is drawn from its path alone, such as `star/object2/session1/frame07`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from PIL import Image

from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import (
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    register,
)
from benchmarks_toybox_ilab.datasets.toy_shapes.scene import (
    CLASSES,
    DRAWING,
    FRAMES_PER_CLIP,
    SIZE,
    as_dots,
    check_classes,
    render,
)
from benchmarks_toybox_ilab.tables.frame import Frame, whole_number
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

PRETRAINING_CLASSES: tuple[str, ...] = (
    "bottle", "chair", "crescent", "gear", "hammer", "house", "ladder", "leaf", "ring", "star",
)  # fmt: skip
STREAM_CLASSES: tuple[str, ...] = tuple(
    name for name in CLASSES if name not in PRETRAINING_CLASSES
)

_PATH = re.compile(
    r"([a-z]+)/object(\d+)/session(\d+)/frame(\d+)(?:-of(\d+))?(?:-(\d+)px)?(-dots)?"
)


@dataclass(frozen=True)
class ToyShapesReader:
    """Draw the frame that a path names; picklable and stateless.

    A path is `star/object2/session1/frame07`; the suffix `-of30` stands for a clip of
    30 frames instead of 15, `-128px` for an image of 128 instead of 64 pixels per side,
    and `-dots` for an image drawn as dots.
    """

    drawing: int = field(
        default=DRAWING, init=False
    )  # in the repr, so that caches notice changed pixels

    def __call__(self, path: str) -> Image.Image:
        """Draw the frame as an RGB image.

        Raises:
            ValueError: If the path does not have this form or names an unknown class.
        """
        match = _PATH.fullmatch(str(path))
        if match is None:
            raise ValueError(
                f"{str(path)!r} is not the path of a toy shape; the form is class/object<n>/session<n>/frame<n>, "
                "with the suffixes -of<frames per clip> and -<pixels>px if they are not 15 and 64, and -dots for dots. "
                "Take the paths from ToyShapesFrames(...).path."
            )
        name, *numbers, frames, pixels, dots = match.groups()
        image = render(
            name,
            *map(int, numbers),
            int(pixels or SIZE),
            int(frames or FRAMES_PER_CLIP),
        )
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
    """The table of toy shapes: classes x objects x sessions x frames; the held-out sessions are the test split.

    Args:
        root, run: Ignored: there are no files, and the split is the same in every run.
        classes: Names from `CLASSES`, e.g. `STREAM_CLASSES`; None selects all 20.
        objects_per_class: Number of objects per class.
        sessions: Number of clips per object.
        frames_per_clip: Number of frames per clip.
        size: Side of the images in pixels.
        held_out_sessions: Numbers of the test sessions, counted from 0; may be empty.
        dots: Draw the shapes as dots along their edges, unlike the images that networks
            are pretrained on.

    Raises:
        ValueError: If a class is unknown, a number is out of range, or no session
            remains for training.
    """
    chosen = CLASSES if classes is None else check_classes(classes)
    counts = {
        "objects_per_class": objects_per_class,
        "sessions": sessions,
        "frames_per_clip": frames_per_clip,
    }
    for name, number in counts.items():
        whole_number(name, number, 1)
    whole_number("size", size, 16)
    held_out_sessions = (
        (held_out_sessions,)
        if isinstance(held_out_sessions, int)
        else tuple(held_out_sessions)
    )
    held_out = set(held_out_sessions)
    if not held_out < set(range(sessions)):
        raise ValueError(
            f"held_out_sessions is {held_out_sessions}, but with sessions={sessions} it can hold numbers from 0 "
            f"to {sessions - 1}, and at least one session must remain for training; hold out fewer, or raise sessions."
        )
    digits = max(2, len(str(frames_per_clip - 1)))
    suffix = f"-of{frames_per_clip}" * (
        frames_per_clip != FRAMES_PER_CLIP
    ) + f"-{size}px" * (size != SIZE)
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
    return FrameTable(
        frames, reader=ToyShapesReader(), name="toy_dots" if dots else "toy_shapes"
    )


def _streamed(name: str, **settings: object) -> Benchmark:
    """A benchmark of the ten streamed shapes; the other ten are for pretraining."""
    layout = Layout(name, "toy shapes", tree="", source="made by this package")
    return Benchmark(
        layout, partial(ToyShapesFrames, classes=STREAM_CLASSES, **settings), 2, 21, 15
    )


register(
    _streamed("toy_shapes_short", frames_per_clip=5)
)  # a third of the frames, for quick trials
register(_streamed("toy_dots", dots=True))


BENCHMARK = register(_streamed("toy_shapes"))


def ToyShapes(
    dataset_root: str | Path | None = None,
    *,
    classes: Sequence[str] | None = None,
    objects_per_class: int = 6,
    sessions: int = 4,
    frames_per_clip: int = FRAMES_PER_CLIP,
    size: int = SIZE,
    held_out_sessions: Sequence[int] | int = (3,),
    dots: bool = False,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """The toy shapes as an Avalanche benchmark; the default transform has the size that they are drawn in.

    See `ToyShapesFrames` and `Benchmark.stream`; `dataset_root` is ignored, there are
    no files.
    """
    own = dict(
        classes=classes,
        objects_per_class=objects_per_class,
        sessions=sessions,
        frames_per_clip=frames_per_clip,
    )
    return BENCHMARK.stream(
        None,
        {**own, "size": size, "held_out_sessions": held_out_sessions, "dots": dots},
        **host,
    )
