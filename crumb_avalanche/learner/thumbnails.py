"""Small pictures of what a learner was taught, kept with its lessons by request only."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from PIL import Image

from crumb_avalanche.learner.clips import Clip, Frames
from crumb_avalanche.learner.lesson import Lesson

SIDE = 64  # pixels of the longer side
MOST = 16  # of a class
Jpeg = bytes  # of a file


def small_jpeg(image: Image.Image, side: int) -> Jpeg:
    """Encode an image as JPEG with at most ``side`` pixels on the longer side, without its metadata."""
    small = image.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.BILINEAR)
    small.info.clear()
    file = io.BytesIO()
    small.save(file, "JPEG", quality=80)
    return file.getvalue()


def first_frames(clips: Iterator[Clip], found: dict[str, Jpeg]) -> Iterator[Clip]:
    """Yield clips; the first frame that is read of each class is put into ``found`` as a thumbnail."""

    def noted(label: str, frames: Frames) -> Frames:
        for path, image in frames:
            if label not in found:
                found[label] = small_jpeg(image, SIDE)
            yield path, image

    for clip in clips:
        yield clip if clip.label is None else replace(clip, frames=noted(clip.label, clip.frames))


def pictures_of(lessons: Sequence[Lesson], name: str) -> list[Jpeg]:
    """Return the pictures of a class, the first one first."""
    return [lesson.pictures[name] for lesson in lessons if name in lesson.pictures]


def joined(lessons: Sequence[Lesson], more: Sequence[Lesson]) -> list[Lesson]:
    """Append lessons to a history, without pictures of classes that have 16 already."""
    history = list(lessons)
    for lesson in more:
        kept = {name: jpeg for name, jpeg in lesson.pictures.items() if len(pictures_of(history, name)) < MOST}
        history.append(replace(lesson, pictures=kept))
    return history


def state_of(lessons: Sequence[Lesson]) -> dict[str, Any]:
    """Return the pictures of lessons as plain values and tensors."""
    items = [(name, place, jpeg) for place, one in enumerate(lessons) for name, jpeg in one.pictures.items()]
    return {
        "names": [name for name, _, _ in items],
        "lessons": [place for _, place, _ in items],
        "images": [torch.frombuffer(bytearray(jpeg), dtype=torch.uint8) for _, _, jpeg in items],
    }


def with_pictures(lessons: Sequence[Lesson], state: dict[str, Any]) -> list[Lesson]:
    """Return lessons with the pictures of ``state_of``."""
    found = list(lessons)
    for name, place, image in zip(state["names"], state["lessons"], state["images"], strict=True):
        found[place] = replace(found[place], pictures=found[place].pictures | {name: image.numpy().tobytes()})
    return found


def counts_of(state: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return number and bytes of the pictures of each class, of ``state_of``."""
    sizes: dict[str, list[int]] = {}
    for name, image in zip(state["names"], state["images"], strict=True):
        sizes.setdefault(name, []).append(len(image))
    return {name: {"count": len(some), "bytes": sum(some)} for name, some in sizes.items()}
