"""Say what lies where a data set was looked for, and what to do with it."""

import os
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from benchmarks_toybox_ilab.datasets.layout import Layout, without_outer_folders
from benchmarks_toybox_ilab.prepare.archives import ENDINGS, archives_in, names_in
from benchmarks_toybox_ilab.tables.folders import is_visible, visible_entries
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.text import printable

_DEEPEST = 4  # folders below the one that was given
_MOST_FILES = 100_000  # that are looked at
_SHOWN = 3  # names in a message
# Of archives that are not read, and of parts of split ones.
_OTHER_ENDINGS = (".7z", ".rar", ".zst", ".xz", ".bz2", ".txz", ".tbz2", ".z01", ".001")


def describe(source: Path, layout: Layout) -> str:
    """Say in sentences what a source holds that has nothing of a data set.

    Args:
        source: A folder or an archive; it need not exist.
        layout: The files that were looked for.
    """
    if source.is_dir():
        return _describe_folder(source, layout)
    if source.is_file():
        return _describe_archives([source], layout)
    return ""


def _describe_folder(source: Path, layout: Layout) -> str:
    """Say what a folder without the layout holds instead."""
    names = _names_below(source)
    if not names:
        return "It is empty."
    inner = _folder_with_layout(source, layout)
    if inner is not None:
        return f"But {inner} has its layout: give that folder."
    deeper = [name for name in _with_ending(names, ENDINGS) if "/" in name]
    if deeper:
        folders = {str((source / name).parent) for name in deeper}
        return (
            f"Archives lie deeper in it ({_listed(deeper)}): give {_listed(folders)}."
        )
    unread = _with_ending(names, _OTHER_ENDINGS)
    if unread:
        return (
            f"It holds archives of kinds that are not read ({_listed(unread)}): unpack "
            "them, and give the folder that they were unpacked to."
        )
    archives = archives_in(source)
    if archives:
        return _describe_archives(archives, layout)
    return _describe_names(names, layout, source)


def _describe_archives(archives: list[Path], layout: Layout) -> str:
    """Say what archives without images of the layout hold instead."""
    names: list[str] = []
    for archive in archives:
        try:
            names += names_in(archive)
        except (FrameTableError, OSError):  # is reported where it is unpacked
            continue
    inner = _with_ending(names, (*ENDINGS, *_OTHER_ENDINGS))
    if inner:
        return (
            f"It holds archives in an archive ({_listed(inner)}): unpack the outer "
            "one, and give the folder that it was unpacked to."
        )
    return _describe_names(names, layout, archives[0])


def _describe_names(names: list[str], layout: Layout, source: Path) -> str:
    """Describe files of which none is an archive."""
    if not names:
        return "It is empty."
    other_case = [name for name in names if _fits_in_other_case(name, layout)]
    if other_case:
        return (
            f"Names in it differ from the layout in upper and lower case "
            f"({_listed(other_case)}): rename them, below a folder if it is an archive."
        )
    return f"It holds {_listed(names)}."


def _names_below(folder: Path) -> list[str]:
    """Return the paths of visible files below a folder, in natural order by folder."""
    names = []
    for name in _walk(folder):
        names.append(name)
        if len(names) == _MOST_FILES:
            break
    return names


def _walk(folder: Path) -> Iterator[str]:
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(filter(is_visible, folders))
        for file in sorted(filter(is_visible, files)):
            yield Path(path, file).relative_to(folder).as_posix()


def _folder_with_layout(source: Path, layout: Layout) -> Path | None:
    """Return the nearest folder below a source that has the layout."""
    if not layout.folders:
        return None
    folders = [source]
    for _ in range(_DEEPEST):
        folders = list(chain.from_iterable(map(_folders_in, folders)))
        for folder in folders:
            if layout.find(folder, layout.needs_all_folders) is not None:
                return folder
    return None


def _folders_in(folder: Path) -> list[Path]:
    try:
        return [entry for entry in visible_entries(folder) if entry.is_dir()]
    except OSError:
        return []


def _fits_in_other_case(name: str, layout: Layout) -> bool:
    """Whether the path of a file, without outer folders, fits but for its case."""
    if layout.pattern is None:
        return False
    pattern = re.compile(layout.pattern.pattern, layout.pattern.flags | re.IGNORECASE)
    return any(map(pattern.fullmatch, without_outer_folders(name)))


def _with_ending(names: Iterable[str], endings: tuple[str, ...]) -> list[str]:
    """Return the names that end in any of the endings, in any case."""
    return [name for name in names if name.lower().endswith(endings)]


def _listed(names: Iterable[str]) -> str:
    """Return the first names, and how many more there are."""
    names = sorted(names)
    listed = ", ".join(map(printable, names[:_SHOWN]))
    if len(names) > _SHOWN:
        listed += f" and {len(names) - _SHOWN} more"
    return listed
