"""Small pictures of what a learner was taught, kept by request only."""

import io
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image

from crumb_avalanche.learner.clip import Clip, Frames

SIDE = 64  # pixels of the longer side
MOST = 16  # of a class
Jpeg = bytes  # of a file


def small_jpeg(image: Image.Image, side: int) -> bytes:
    """Encode an image as JPEG with at most ``side`` pixels on the longer side, without its metadata."""
    small = image.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.BILINEAR)
    small.info.clear()
    file = io.BytesIO()
    small.save(file, "JPEG", quality=80)
    return file.getvalue()


def first_frames(clips: Iterator[Clip], found: dict[str, bytes]) -> Iterator[Clip]:
    """Yield clips; the first frame that is read of each class is put into ``found`` as a thumbnail."""

    def noted(label: str, frames: Frames) -> Frames:
        for path, image in frames:
            if label not in found:
                found[label] = small_jpeg(image, SIDE)
            yield path, image

    for clip in clips:
        yield clip if clip.label is None else replace(clip, frames=noted(clip.label, clip.frames))


@dataclass
class Thumbnails:
    """One picture of each class and lesson, for the first 16 lessons of a class that ask for them.

    Attributes:
        items: class name, number of the lesson, and JPEG bytes of each.
    """

    items: list[tuple[str, int, bytes]] = field(default_factory=list)

    def add(self, lesson: int, found: dict[str, bytes]) -> None:
        """Keep the pictures of a lesson, by class name."""
        self.items += [(name, lesson, jpeg) for name, jpeg in found.items() if len(self.of(name)) < MOST]

    def of(self, name: str) -> list[bytes]:
        """Return the pictures of a class, the first one first."""
        return [jpeg for other, _, jpeg in self.items if other == name]

    def rename(self, old: str, new: str) -> None:
        """Give a class another name."""
        self.items = [(new if name == old else name, lesson, jpeg) for name, lesson, jpeg in self.items]

    def forget(self, name: str) -> None:
        """Remove the pictures of a class."""
        self.items = [item for item in self.items if item[0] != name]

    def undo(self, lesson: int) -> None:
        """Remove the pictures of the last lesson."""
        self.items = [item for item in self.items if item[1] < lesson]

    def merge(self, other: "Thumbnails", lessons: int) -> None:
        """Add the pictures of another learner, whose lessons follow those of this one."""
        for name, lesson, jpeg in other.items:
            self.add(lessons + lesson, {name: jpeg})

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and tensors."""
        names, lessons, images = zip(*self.items) if self.items else ((), (), ())
        tensors = [torch.frombuffer(bytearray(jpeg), dtype=torch.uint8) for jpeg in images]
        return {"names": list(names), "lessons": list(lessons), "images": tensors}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> "Thumbnails":
        """Load what ``state_dict`` returned."""
        images = [image.numpy().tobytes() for image in state["images"]]
        return cls(list(zip(state["names"], state["lessons"], images, strict=True)))


def counts_of(state: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return number and bytes of the pictures of each class, of ``state_dict``."""
    kept = Thumbnails.of_state(state)
    pictures = {name: kept.of(name) for name, _, _ in kept.items}
    return {name: {"count": len(some), "bytes": sum(map(len, some))} for name, some in pictures.items()}
