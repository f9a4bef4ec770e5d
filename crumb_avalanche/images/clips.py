"""Clips, which are images that belong together; their files, and the class names of folders."""

import glob
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image

from benchmarks_toybox_ilab.tables.folders import entries_of, is_visible, kind_of, walk
from benchmarks_toybox_ilab.tables.frame import natural_key
from benchmarks_toybox_ilab.tables.names import check_name, check_near, check_not_splits
from benchmarks_toybox_ilab.tables.text import printable

Frames = Iterator[tuple[str, Image.Image]]
OnBad = Literal["raise", "skip"]  # what to do with a file that gives no image


@dataclass(frozen=True)
class BadImage:
    """A file that gives no image, or a video that does not give all its frames, and what is wrong with it."""

    path: str
    reason: str

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.reason}")


@dataclass(frozen=True, eq=False)
class Clip:
    """Images that belong together: a video, the photos of one folder, a list or batch in memory, or a single photo.

    Attributes:
        path: path of the file or folder; `source`, `source[2]` ... for images in
            memory.
        label: class name, or `None`.
        frames: pairs of path and RGB image, decoded one at a time; can be read once.
            The path of a video's frame is that of the video and its time in seconds,
            `clip.mp4#t=1.5`.
        files: photos in order, or a video; empty for images in memory.
    """

    path: str
    label: str | None
    frames: Frames
    files: tuple[str, ...] = ()

    @property
    def is_folder(self) -> bool:
        """Whether it is the photos of a folder, which are asked about one by one."""
        return bool(self.files) and os.path.isdir(self.path)


def warn(bad: BadImage) -> None:
    """Issue a warning for a file that is left out."""
    warnings.warn(f"left out {bad}", stacklevel=2)


def label_of(clip: Clip) -> str:
    """Return the class name of a clip that is learned; raise ValueError if it has none."""
    if clip.label is None:
        raise ValueError(
            f"{clip.path} has no class: give a label (--label NAME), or a folder with a folder for each class and no "
            "photo or video beside them"
        )
    return clip.label


# Paths and patterns


def path_of(source: str | os.PathLike) -> Path:
    """Return the path with `~` expanded; raise ValueError if it is empty."""
    text = os.path.expanduser(os.fsdecode(source))
    if not text:
        raise ValueError("the path is empty; give '.' for the current folder.")
    return Path(text)


def is_pattern(path: Path) -> bool:
    """Whether a path is a glob pattern, and not an existing file or folder with brackets in its name."""
    return glob.has_magic(str(path)) and not os.path.lexists(path)


def matches(pattern: Path) -> tuple[list[Path], Counter[str]]:
    """Return the visible photos, videos and folders that match a pattern, in natural order, and what is ignored.

    What lies in a folder that matches is not listed again.
    """
    fixed = next(
        parent
        for parent in pattern.parents
        if os.path.isdir(parent) or not glob.has_magic(str(parent))
    )
    # Unlike glob.glob, pathlib follows no links below **.
    found = set(fixed.glob(str(pattern.relative_to(fixed))))
    listed: list[Path] = []
    folders: set[Path] = set()
    ignored: Counter[str] = Counter()
    for match in sorted(
        found, key=lambda match: [natural_key(part) for part in match.parts]
    ):
        if not folders.isdisjoint(match.parents) or not all(
            map(is_visible, match.relative_to(fixed).parts)
        ):
            continue
        if os.path.isdir(match):
            folders.add(match)
        elif not kind_of(match):
            ignored[match.suffix.lower()] += 1
            continue
        listed.append(match)
    return listed, ignored


# Class folders


def class_folders(source: object) -> dict[Path, str]:
    """Return the class folders of a folder and their class names, in natural order; none for every other source.

    A folder holds class folders if photos or videos lie in its subfolders, at any
    depth, and none beside them.

    Raises:
        ValueError: If the name of a class folder breaks the rule of `check_name`.
    """
    path = path_of(source) if isinstance(source, str | os.PathLike) else None
    if path is None or not os.path.isdir(path):
        return {}
    entries = entries_of(path)
    if entries.images or entries.videos:
        return {}
    below = {
        folder: walk(folder, lambda path, error: None, path)
        for folder in entries.folders
    }
    holding = [
        folder
        for folder, inner in below.items()
        if any(one.images or one.videos for _, one in inner)
    ]
    return {folder: check_name(folder.name) for folder in holding}


def check_class_folders(source: object, known: Iterable[str] = ()) -> None:
    """Raise DoubtfulNameError for class folders that look like splits of a data set, or are nearly named as others.

    Args:
        source: path of a folder of class folders; every other source is passed.
        known: names of the classes taught.
    """
    if classes := class_folders(source):
        inner = {
            folder.name: [one.name for one in entries_of(folder).folders]
            for folder in classes
        }
        check_not_splits(source, inner)  # type: ignore[arg-type]
        check_near(classes.values(), known)


def checked(clips: Iterable[Clip], names: Sequence[str | None]) -> Iterator[Clip]:
    """Yield clips; raise DoubtfulNameError at the first whose class has nearly the name of another one.

    Args:
        clips: clips.
        names: those of the classes, which may change meanwhile.
    """
    for clip in clips:
        if clip.label is not None and clip.label not in names:
            check_near([clip.label], [name for name in names if name is not None])
        yield clip


def only_class_folder(source: object) -> tuple[Path, list[str]] | None:
    """Return the only class folder of a source, and the names of two or more folders in it that could be the classes.

    ``None`` if there are several class folders or none, or less than two folders in the
    only one, or photos beside them.
    """
    classes = class_folders(source)
    if len(classes) != 1:
        return None
    (folder,) = classes
    try:
        inner = list(class_folders(folder).values())
    except ValueError:  # a name that no class may have
        return None
    return (folder, inner) if len(inner) > 1 else None
