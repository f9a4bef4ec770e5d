"""Toy shapes: a stream of video-like clips that are rendered when read.

Nothing is downloaded.

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
from typing import Any

from PIL import Image

from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import (
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    register,
    shows_keywords,
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
from benchmarks_toybox_ilab.tables.frame import Frame
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.numbers import check_whole_number

# fmt: off
PRETRAINING_CLASSES: tuple[str, ...] = (
    "bottle", "chair", "crescent", "gear", "hammer",
    "house", "ladder", "leaf", "ring", "star",
)
# fmt: on
STREAM_CLASSES: tuple[str, ...] = tuple(
    name for name in CLASSES if name not in PRETRAINING_CLASSES
)

_PATH = re.compile(
    r"(?P<class_name>[a-z]+)/object(?P<object>\d+)/session(?P<session>\d+)/"
    r"frame(?P<frame>\d+)(?:-of(?P<frames>\d+))?(?:-(?P<pixels>\d+)px)?(?P<dots>-dots)?"
)


@dataclass(frozen=True)
class ToyShapesReader:
    """Draw the frame that a path names; picklable and stateless.

    A path is `star/object2/session1/frame07`; the suffix `-of30` stands for a clip of
    30 frames instead of 15, `-128px` for an image of 128 instead of 64 pixels per side,
    and `-dots` for an image drawn as dots.
    """

    # in the repr, so that caches notice changed pixels
    drawing: int = field(default=DRAWING, init=False)

    def __call__(self, path: str) -> Image.Image:
        """Draw the frame of the toy shapes that a path names, as an RGB image.

        Raises:
            ValueError: If the path does not have this form or names an unknown class.
        """
        match = _PATH.fullmatch(str(path))
        if match is None:
            raise ValueError(
                f"{str(path)!r} is not the path of a toy shape; the form is "
                "class/object<n>/session<n>/frame<n>, with the suffixes -of<frames per "
                "clip> and -<pixels>px if they are not 15 and 64, and -dots for dots. "
                "Take the paths from ToyShapesFrames(...).path."
            )
        image = render(
            match["class_name"],
            object_index=int(match["object"]),
            session_index=int(match["session"]),
            frame_index=int(match["frame"]),
            size=int(match["pixels"] or SIZE),
            frames_per_clip=int(match["frames"] or FRAMES_PER_CLIP),
        )
        if match["dots"]:
            # White dots at random, dense along edges; the path seeds their draw.
            return as_dots(image, seed_text=str(path))
        return image


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
    """Make the table of toy shapes: classes x objects x sessions x frames.

    The held-out sessions are the test split.

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
        check_whole_number(name, number, 1)
    check_whole_number("size", size, 16)
    if isinstance(held_out_sessions, int):
        held_out_sessions = (held_out_sessions,)
    held_out = set(held_out_sessions)
    is_some_left = held_out < set(range(sessions))  # a proper subset
    if not is_some_left:
        raise ValueError(
            f"held_out_sessions is {tuple(held_out_sessions)}, but with "
            f"sessions={sessions} it can hold numbers from 0 to {sessions - 1}, and at "
            "least one session must remain for training; hold out fewer, or raise "
            "sessions."
        )
    digits = max(2, len(str(frames_per_clip - 1)))
    # A path says how the frame is drawn, as far as that is not the default.
    suffix = ""
    if frames_per_clip != FRAMES_PER_CLIP:
        suffix += f"-of{frames_per_clip}"
    if size != SIZE:
        suffix += f"-{size}px"
    if dots:
        suffix += "-dots"
    frames = []
    for class_name in sorted(chosen):
        for number in range(objects_per_class):
            for session in range(sessions):
                clip = f"{class_name}/object{number}/session{session}"
                split = "test" if session in held_out else "train"
                for frame in range(frames_per_clip):
                    frames.append(
                        Frame(
                            path=f"{clip}/frame{frame:0{digits}d}{suffix}",
                            class_name=class_name,
                            object_name=f"object{number}",
                            session=f"session{session}",
                            frame=frame,
                            split=split,
                        )
                    )
    name = "toy_dots" if dots else "toy_shapes"
    # The reader draws the image of a path: there are no files.
    return FrameTable(frames, reader=ToyShapesReader(), name=name)


def _streamed_benchmark(name: str, **settings: Any) -> Benchmark:
    """Return a benchmark of the ten toy shapes that are streamed.

    The other ten are for pretraining.
    """
    return Benchmark(
        Layout(name, "toy shapes", tree="", source="made by this package"),
        partial(ToyShapesFrames, classes=STREAM_CLASSES, **settings),
        classes_per_experience=2,
        batch_size=21,
        budget_images=15,
    )


# A third of the frames, for quick trials.
register(_streamed_benchmark("toy_shapes_short", frames_per_clip=5))
register(_streamed_benchmark("toy_dots", dots=True))


BENCHMARK = register(_streamed_benchmark("toy_shapes"))


@shows_keywords
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
    """Make the toy shapes as an Avalanche benchmark, with all 20 classes by default.

    `crumb run --benchmark toy_shapes` streams the ten of `STREAM_CLASSES`; the other
    ten are for pretraining. The default transform has the size that they are drawn in.

    Args:
        dataset_root: Ignored: there are no files.
        classes: Names of classes, such as `STREAM_CLASSES`; None selects all 20.
        objects_per_class: Number of objects per class.
        sessions: Number of clips per object.
        frames_per_clip: Number of frames per clip.
        size: Side of the images in pixels.
        held_out_sessions: Numbers of the test sessions, counted from 0.
        dots: Draw the shapes as dots along their edges.
        **host: Keywords of every stream, see `StreamKeywords`.
    """
    arguments = {
        "classes": classes,
        "objects_per_class": objects_per_class,
        "sessions": sessions,
        "frames_per_clip": frames_per_clip,
        "size": size,
        "held_out_sessions": held_out_sessions,
        "dots": dots,
    }
    return BENCHMARK.stream(None, arguments, **host)
