"""Find photos and videos in folders, and the class names of class folders."""

import glob
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from benchmarks_toybox_ilab.tables.folders import entries_of, is_visible, kind_of, walk
from benchmarks_toybox_ilab.tables.frame import natural_key
from benchmarks_toybox_ilab.tables.names import check_name, check_near, check_not_splits


def labels_of(source: object) -> tuple[str, ...]:
    """Class names of a folder of class folders, in natural order; empty for every other source.

    A folder holds class folders if photos or videos lie in its subfolders, at any depth, and none beside them.

    Raises:
        ValueError: If the name of a class folder breaks the rule of `check_name`.
    """
    if not isinstance(source, str | os.PathLike):
        return ()
    return tuple(dict.fromkeys(class_folders(path_of(source)).values()))


def check_class_folders(source: object, known: Iterable[str] = ()) -> None:
    """Ask about class folders that look like splits of a data set, and whose names are nearly those of other classes.

    Args:
        source: path of a folder of class folders; every other source is passed.
        known: names of the classes taught.

    Raises:
        DoubtfulNameError: says what is meant, or how to insist.
    """
    classes = class_folders(path_of(source)) if isinstance(source, str | os.PathLike) else {}
    if classes:
        inner = {folder.name: [one.name for one in entries_of(folder).folders] for folder in classes}
        check_not_splits(source, inner)
        check_near(classes.values(), known)


def path_of(source: str | os.PathLike) -> Path:
    """Return the path with `~` expanded.

    Raises:
        ValueError: If it is empty.
    """
    text = os.path.expanduser(os.fsdecode(source))
    if not text:
        raise ValueError("the path is empty; give '.' for the current folder.")
    return Path(text)


def is_pattern(path: Path) -> bool:
    """Whether a path is a glob pattern, and not an existing file or folder with brackets in its name."""
    return glob.has_magic(str(path)) and not os.path.lexists(path)


def class_folders(path: Path) -> dict[Path, str]:
    """The class folders of a folder and their class names; see `labels_of`."""
    if not os.path.isdir(path):
        return {}
    entries = entries_of(path)
    if entries.images or entries.videos:
        return {}
    return {folder: check_name(folder.name) for folder in entries.folders if _holds_images(folder, path)}


def only_class_folder(source: object) -> tuple[Path, list[str]] | None:
    """The only class folder of a source, and the names of two or more folders in it that could be the classes instead.

    Returns:
        `None` if there are several class folders or none, or if photos or videos of the only one lie in less than two
        folders or beside them.
    """
    classes = class_folders(path_of(source)) if isinstance(source, str | os.PathLike) else {}
    if len(classes) != 1:
        return None
    (folder,) = classes
    try:
        inner = list(class_folders(folder).values())
    except ValueError:  # a name that no class may have
        return None
    return (folder, inner) if len(inner) > 1 else None


def matches(pattern: Path) -> tuple[list[Path], Counter[str]]:
    """Return the visible photos, videos and folders that match a pattern, in natural order, and what is ignored.

    What lies in a folder that matches is not listed again.
    """
    fixed = next(parent for parent in pattern.parents if os.path.isdir(parent) or not glob.has_magic(str(parent)))
    # Unlike glob.glob, pathlib follows no links below **.
    found = set(fixed.glob(str(pattern.relative_to(fixed))))
    listed: list[Path] = []
    folders: set[Path] = set()
    ignored: Counter[str] = Counter()
    for match in sorted(found, key=lambda match: [natural_key(part) for part in match.parts]):
        if not folders.isdisjoint(match.parents) or not all(map(is_visible, match.relative_to(fixed).parts)):
            continue
        if os.path.isdir(match):
            folders.add(match)
        elif not kind_of(match):
            ignored[match.suffix.lower()] += 1
            continue
        listed.append(match)
    return listed, ignored


def _holds_images(folder: Path, root: Path) -> bool:
    below = walk(folder, lambda path, error: None, root)
    return any(entries.images or entries.videos for _, entries in below)
