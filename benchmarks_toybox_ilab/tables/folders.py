"""List folders in natural order, list files below a folder, and find the folder of a data set."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks_toybox_ilab.tables.frame import FrameTableError, natural_key

_CLUTTER = frozenset({"thumbs.db", "desktop.ini", "__macosx"})


def visible_entries(folder: Path) -> list[Path]:
    """The entries of a folder in natural order, without hidden files and system files such as Thumbs.db."""
    entries = (entry for entry in folder.iterdir() if _visible(entry.name))
    return sorted(entries, key=lambda entry: natural_key(entry.name))


def files_below(root: Path, folder: str = "") -> Iterator[str]:
    """Yield the visible files below root/folder at any depth, relative to root with forward slashes, sorted as text."""
    with os.scandir(root / folder) as entries:
        found = sorted((entry for entry in entries if _visible(entry.name)), key=lambda entry: entry.name)
    for entry in found:
        name = f"{folder}/{entry.name}" if folder else entry.name
        if entry.is_dir():
            yield from files_below(root, name)
        else:
            yield name


def dataset_folder(root: Path, folders: Iterable[str], name: str, layout: str) -> Path:
    """Return root or root/name, whichever holds `folders`.

    Raises:
        FrameTableError: If neither does; says what is expected and what was found.
    """
    folders = list(folders)
    for candidate in (root, root / name):
        if all((candidate / folder).is_dir() for folder in folders):
            return candidate
    advice = f"{name} is laid out as {layout}; give that folder as root, or make it with `crumb prepare {name}`."
    if not root.is_dir():
        raise FrameTableError(f"there is no folder {root}. {advice}")
    found = [entry.name for entry in visible_entries(root)]
    listed = ", ".join(found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "") if found else "nothing"
    missing = [folder for folder in folders if not (root / folder).is_dir()]
    raise FrameTableError(f"{root} has no folder {' and no folder '.join(missing)}, but holds {listed}. {advice}")


def _visible(name: str) -> bool:
    return name[0] != "." and name.lower() not in _CLUTTER
