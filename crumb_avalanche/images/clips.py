"""Clips: images that belong together, their files, and the class names of folders."""

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
from benchmarks_toybox_ilab.tables.names import (
    check_name,
    check_near,
    check_not_splits,
    near_key,
)
from benchmarks_toybox_ilab.tables.text import printable

Frames = Iterator[tuple[str, Image.Image]]  # path and RGB image
OnBad = Literal["raise", "skip"]  # what to do with a file that gives no image
# Words for what shows no class, which no class may have as its name.
WORDS_OF_ANSWERS = ("nothing", "unknown")


@dataclass(frozen=True)
class BadImage:
    """A file that gives no image, or a video that does not give all its frames.

    Attributes:
        path: of the file.
        reason: what is wrong with it.
    """

    path: str
    reason: str

    def __str__(self) -> str:
        return printable(f"{self.path}: {self.reason}")


@dataclass(frozen=True, eq=False)
class Clip:
    """Images that belong together.

    A video, the photos of one folder, a list or batch in memory, or a single photo.

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


def warn_of_bad_image(bad_image: BadImage) -> None:
    """Issue a warning for a file that is left out."""
    warnings.warn(f"left out {bad_image}", stacklevel=2)


def check_label(name: object) -> str:
    """Return the name of a class that is learned, as `check_name` does.

    Raises:
        ValueError: If it breaks the rule of `check_name`, or is a word that answers
            have for what was not taught.
    """
    checked_name = check_name(name)
    if near_key(checked_name) in WORDS_OF_ANSWERS:
        raise ValueError(
            f"class name {checked_name!r} stands for what is none of the classes, and "
            "nobody could tell the two apart; choose another name, such as "
            f"'{checked_name} object' (an empty scene has none: crumb teach --nothing, "
            "teach_nothing)"
        )
    return checked_name


def label_of(clip: Clip) -> str:
    """Return the class name of a clip that is learned, or raise ValueError."""
    if clip.label is None:
        raise ValueError(
            f"{clip.path} has no class: give a label (--label NAME), or a folder with "
            "a folder for each class and no photo or video beside them"
        )
    return check_label(clip.label)


# Paths and patterns


def path_of(source: str | os.PathLike) -> Path:
    """Return the path of a source, `~` expanded.

    Raises:
        TypeError: If it is neither text nor a path.
        ValueError: If it is empty.
    """
    if not isinstance(source, str | bytes | os.PathLike):
        raise TypeError(
            f"the path is {source!r} ({type(source).__name__}); give text or a "
            "pathlib.Path."
        )
    text = os.path.expanduser(os.fsdecode(source))
    if not text:
        raise ValueError("the path is empty; give '.' for the current folder.")
    return Path(text)


def is_pattern(path: Path) -> bool:
    """Whether the path of a source is a glob pattern.

    An existing file or folder with brackets in its name is none.
    """
    return glob.has_magic(str(path)) and not os.path.lexists(path)


def matching_paths(pattern: Path) -> tuple[list[Path], Counter[str]]:
    """Find the visible photos, videos and folders that match a pattern.

    What lies in a folder that matches is not listed again.

    Returns:
        Their paths in natural order, and how many other files match, by extension.
    """
    root = _folder_of_pattern(pattern)
    # Unlike glob.glob, pathlib follows no links below **.
    candidates = set(root.glob(str(pattern.relative_to(root))))
    paths: list[Path] = []
    folders: set[Path] = set()
    n_ignored: Counter[str] = Counter()
    for path in sorted(candidates, key=_natural_key_of_path):
        is_in_folder = not folders.isdisjoint(path.parents)
        is_hidden = not all(map(is_visible, path.relative_to(root).parts))
        if is_in_folder or is_hidden:
            continue
        if os.path.isdir(path):
            folders.add(path)
        elif not kind_of(path):  # neither photo nor video
            n_ignored[path.suffix.lower()] += 1
            continue
        paths.append(path)
    return paths, n_ignored


def _folder_of_pattern(pattern: Path) -> Path:
    """Return the folder of a pattern, up to its first part with magic."""
    for parent in pattern.parents:
        if os.path.isdir(parent) or not glob.has_magic(str(parent)):
            return parent
    raise AssertionError("the last parent is . or /")


def _natural_key_of_path(path: Path) -> list:
    """Return the sort key of a path: frame2 comes before frame10."""
    return [natural_key(name) for name in path.parts]


# Class folders


def class_folders(source: object) -> dict[Path, str]:
    """Return the class folders of a folder and their class names, in natural order.

    A folder holds class folders if photos or videos lie in its subfolders, at any
    depth, and none beside them. Every other source has none.

    Raises:
        ValueError: If the name of a class folder breaks the rule of `check_name`.
    """
    if not isinstance(source, str | os.PathLike):
        return {}
    path = path_of(source)
    if not os.path.isdir(path):
        return {}
    entries = entries_of(path)
    if entries.images or entries.videos:
        return {}
    folders = [folder for folder in entries.folders if _holds_media(folder, path)]
    return {folder: check_name(folder.name, is_folder=True) for folder in folders}


def _holds_media(folder: Path, root: Path) -> bool:
    """Whether photos or videos lie below a folder; what cannot be read holds none."""
    for _, entries in walk(folder, lambda path, error: None, root):
        if entries.images or entries.videos:
            return True
    return False


def check_class_folders(source: object, known: Iterable[str] = ()) -> None:
    """Refuse class folders that look like splits, or have a name that is not allowed.

    That is nearly the name of another class, or one that `check_label` refuses.

    Args:
        source: path of a folder of class folders; every other source is passed.
        known: names of the classes taught.

    Raises:
        DoubtfulNameError: a folder looks like a split, or has such a name.
        ValueError: a folder has a name that `check_label` refuses.
    """
    classes = class_folders(source)
    if not classes:
        return
    names_below = {}
    for folder in classes:
        subfolders = entries_of(folder).folders
        names_below[folder.name] = [subfolder.name for subfolder in subfolders]
    for name in classes.values():
        check_label(name)  # raises
    # Both raise; the first for names such as train and test.
    check_not_splits(source, names_below)  # type: ignore[arg-type]
    check_near(classes.values(), known)


def clips_with_distinct_labels(
    clips: Iterable[Clip], names: Sequence[str | None]
) -> Iterator[Clip]:
    """Yield clips, after a check that no label is nearly the name of another class.

    Args:
        clips: to learn.
        names: of the classes taught, which may change meanwhile; ``None`` for those
            that were forgotten.

    Raises:
        DoubtfulNameError: at the first clip whose label nearly is such a name.
    """
    for clip in clips:
        if clip.label is not None and clip.label not in names:
            check_near([clip.label], [name for name in names if name is not None])
        yield clip


def only_class_folder(source: object) -> tuple[Path, list[str]] | None:
    """Return the only class folder, and the names of the folders in it.

    They could be the classes: a user who has put all classes into one folder is asked
    about them. ``None`` if there are several class folders or none, or less than two
    folders in the only one, or photos beside them, or a name that no class may have.

    Args:
        source: path of a folder; there is none in any other source.

    Raises:
        ValueError: If the only class folder itself has such a name.
    """
    class_by_folder = class_folders(source)
    if len(class_by_folder) != 1:
        return None
    (folder,) = class_by_folder
    try:
        # Empty where photos or videos lie beside the folders.
        names = list(class_folders(folder).values())
    except ValueError:
        # A name that no class may have: the folders in the class folder are no classes.
        # Names in the source are checked before it is taught, those below them are not.
        return None
    if len(names) < 2:
        return None
    return folder, names
