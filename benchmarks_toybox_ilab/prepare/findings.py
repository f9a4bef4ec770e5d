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
from benchmarks_toybox_ilab.tables.text import listed, printable

_DEEPEST = 4  # folders below the one that was given
_MOST_FILES = 100_000  # that are looked at
_MOST_SHOWN = 3  # names in a message
# Of archives that are not read, and of parts of split ones.
_OTHER_ENDINGS = (".7z", ".rar", ".zst", ".xz", ".bz2", ".z01", ".001")


def describe(source: Path, layout: Layout) -> str:
    """Say in sentences what a download holds in which nothing of a data set was found.

    Args:
        source: The download, a folder or an archive; it need not exist.
        layout: The files that were looked for.
    """
    if source.is_dir():
        return _describe_folder(source, layout)
    if source.is_file():
        return _describe_archives([source], layout)
    return ""


def _describe_folder(source: Path, layout: Layout) -> str:
    """Say what a downloaded folder holds instead of the files of a data set.

    Args:
        source: The folder.
        layout: How the data set lies in folders.
    """
    names = _files_of_download(source)
    if not names:
        return "It is empty."
    inner = _folder_with_layout(source, layout)
    if inner is not None:
        return f"But {inner} has its layout: give that folder."
    archive_names = _names_with_ending(names, ENDINGS)
    deeper_archives = [name for name in archive_names if "/" in name]
    if deeper_archives:
        folders = {str((source / name).parent) for name in deeper_archives}
        return (
            f"Archives lie deeper in it ({_first_names(deeper_archives)}): give "
            f"{_first_names(folders)}."
        )
    unread_archives = []
    for name in _names_with_ending(names, _OTHER_ENDINGS):
        if name not in archive_names:  # a.tar.xz is read, a.xz is not
            unread_archives.append(name)
    if unread_archives:
        return (
            "It holds archives of kinds that are not read "
            f"({_first_names(unread_archives)}): unpack them, and give the folder that "
            "they were unpacked to."
        )
    archives = archives_in(source)
    if archives:
        return _describe_archives(archives, layout)
    return _describe_names(names, layout, source)


def _describe_archives(archives: list[Path], layout: Layout) -> str:
    """Say what downloaded archives hold instead of the images of a data set.

    Args:
        archives: Their paths, at least one.
        layout: How the data set lies in folders.
    """
    names: list[str] = []
    for archive in archives:
        try:
            names += names_in(archive)
        except (FrameTableError, OSError):  # is reported where it is unpacked
            continue
    inner_archives = _names_with_ending(names, (*ENDINGS, *_OTHER_ENDINGS))
    if inner_archives:
        return (
            f"It holds archives in an archive ({_first_names(inner_archives)}): unpack "
            "the outer one, and give the folder that it was unpacked to."
        )
    return _describe_names(names, layout, archives[0])


def _describe_names(names: list[str], layout: Layout, source: Path) -> str:
    """Describe the files of a download of which none is an archive."""
    if not names:
        return "It is empty."
    other_case = [name for name in names if _fits_in_other_case(name, layout)]
    if other_case:
        return (
            f"Names in it differ from the layout in upper and lower case "
            f"({_first_names(other_case)}): rename them, below a folder if it is an "
            "archive."
        )
    return f"It holds {_first_names(names)}."


def _files_of_download(folder: Path) -> list[str]:
    """Return the paths of the visible files of a downloaded folder, relative to it."""
    names = []
    for name in _walk_download(folder):
        names.append(name)
        if len(names) == _MOST_FILES:
            break
    return names


def _walk_download(folder: Path) -> Iterator[str]:
    """Yield the paths of its visible files, folder by folder, sorted by name."""
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(filter(is_visible, folders))  # which os.walk follows
        for file in sorted(filter(is_visible, files)):
            yield Path(path, file).relative_to(folder).as_posix()


def _folder_with_layout(source: Path, layout: Layout) -> Path | None:
    """Return the nearest folder below a download that has the layout of a data set."""
    if not layout.folders:
        return None
    folders = [source]  # of a level
    for _ in range(_DEEPEST):
        folders = list(chain.from_iterable(map(_visible_folders_in, folders)))
        for folder in folders:
            if layout.find(folder, layout.needs_all_folders) is not None:
                return folder
    return None


def _visible_folders_in(folder: Path) -> list[Path]:
    """Return the folders in one of a download; none if it cannot be listed."""
    try:
        return [entry for entry in visible_entries(folder) if entry.is_dir()]
    except OSError:
        return []


def _fits_in_other_case(name: str, layout: Layout) -> bool:
    """Whether the path of a downloaded file fits the layout but for its case."""
    if layout.pattern is None:
        return False
    pattern = re.compile(layout.pattern.pattern, layout.pattern.flags | re.IGNORECASE)
    return any(map(pattern.fullmatch, without_outer_folders(name)))


def _names_with_ending(names: Iterable[str], endings: tuple[str, ...]) -> list[str]:
    """Return the names of files that have any of the endings, in any case."""
    return [name for name in names if name.lower().endswith(endings)]


def _first_names(names: Iterable[str]) -> str:
    """Name the first files or folders of a download, and how many more there are."""
    return listed(list(map(printable, sorted(names))), _MOST_SHOWN)
