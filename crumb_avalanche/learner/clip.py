"""Clips, which are images that belong together, their files, and the files that give no image."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image

from benchmarks_toybox_ilab.tables.folders import is_video
from benchmarks_toybox_ilab.tables.text import printable

Frames = Iterator[tuple[str, Image.Image]]
OnBad = Literal["raise", "skip"]  # what to do with a file that gives no image

ENOUGH_FRAMES = 20  # of a short video, where 5 frames per second give so many


@dataclass(frozen=True)
class BadImage:
    """A file that gives no image, or a video that does not give all its frames.

    Attributes:
        path: path of the file.
        reason: what is wrong with it.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.reason}")


@dataclass(frozen=True, eq=False)
class Clip:
    """Images that belong together: a video, the photos of one folder, a list or batch in memory, or a single photo.

    Attributes:
        path: path of the file or folder; `source`, `source[2]` ... for images in memory.
        label: class name, or `None`.
        frames: pairs of path and RGB image, decoded one at a time; can be read once. The path of a video's frame is
            that of the video and its time in seconds, `clip.mp4#t=1.5`.
    """

    path: str
    label: str | None
    frames: Frames


@dataclass(frozen=True)
class ClipFiles:
    """The files of a clip. They can be sent to another process, unlike a `Clip`.

    Attributes:
        path: path of the file or folder.
        label: class name, or `None`.
        files: paths of the photos in order, or of the video.
    """

    path: str
    label: str | None
    files: tuple[str, ...]

    @property
    def images(self) -> int:
        """Number of images; a guess for a video."""
        return ENOUGH_FRAMES if is_video(Path(self.files[0])) else len(self.files)


def warn(bad: BadImage) -> None:
    """Issue a warning for a file that is left out."""
    warnings.warn(f"left out {bad}", stacklevel=2)
