"""Find photos and videos in folders, and the class names of class folders."""

import glob
import os
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks_toybox_ilab.datasets.clip_folder import EXTENSIONS, UNREAD_EXTENSIONS
from benchmarks_toybox_ilab.tables.folders import visible_entries
from benchmarks_toybox_ilab.tables.frame import natural_key
from benchmarks_toybox_ilab.tables.text import is_seen, printable
from benchmarks_toybox_ilab.video.extract import VIDEO_EXTENSIONS

LONGEST_NAME = 200

_KINDS = {
    **dict.fromkeys(EXTENSIONS, "image"),
    **dict.fromkeys(VIDEO_EXTENSIONS, "video"),
    **dict.fromkeys(UNREAD_EXTENSIONS, "unread"),
}


def check_name(name: object) -> str:
    """Return a class name without outer spaces and in Unicode form NFC, so that names that look the same are the same.

    Raises:
        ValueError: If it is not text, is blank, has more than 200 characters, or contains a slash, a backslash, a
            character that is not seen (`is_seen`), such as a line break.
    """
    rule = (
        f"a class name is text of 1 to {LONGEST_NAME} characters without slashes, line breaks, control characters, "
        "marks of direction and invisible characters"
    )
    if not isinstance(name, str):
        raise ValueError(f"a class name is {name!r} ({type(name).__name__}); {rule}.")
    name = unicodedata.normalize("NFC", name)
    bad = [char for place, char in enumerate(name) if char in "/\\" or not is_seen(name, place)]
    name = name.strip()
    if bad or not 0 < len(name) <= LONGEST_NAME:
        wrong = f"contains {bad[0]!a}" if bad else f"has {len(name)} characters" if name else "is blank"
        shown = f"'{printable(name[:40])}'" + ("..." if len(name) > 40 else "")
        raise ValueError(f"class name {shown} {wrong}; {rule}. Choose another name, or rename the folder.")
    return name


def labels_of(source: object) -> tuple[str, ...]:
    """Class names of a folder of class folders, in natural order; empty for every other source.

    A folder holds class folders if photos or videos lie in its subfolders, at any depth, and none beside them.

    Raises:
        ValueError: If the name of a class folder breaks the rule of `check_name`.
    """
    if not isinstance(source, str | os.PathLike):
        return ()
    return tuple(dict.fromkeys(class_folders(path_of(source)).values()))


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


def kind_of(path: Path) -> str | None:
    """What the extension says: "image", "video", "unread" (a photo that cannot be read), or None for other files."""
    return _KINDS.get(path.suffix.lower())


def class_folders(path: Path) -> dict[Path, str]:
    """The class folders of a folder and their class names; see `labels_of`."""
    folders, files = _split(visible_entries(path)) if os.path.isdir(path) else ([], [])
    if any(kind_of(file) in ("image", "video") for file in files):
        return {}
    return {folder: check_name(folder.name) for folder in folders if _holds_images(folder, path)}


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


def walk(top: Path, root: Path, bad: Callable[[Path, str], object]) -> Iterator[tuple[Path, list[Path]]]:
    """Yield each folder from `top` down, once, and its visible files, in natural order.

    Args:
        top: the first folder.
        root: links to this folder and to those above it are not followed; `top` itself, or a folder above it.
        bad: called with each folder that cannot be listed, and why.
    """
    real = Path(os.path.realpath(root))
    seen = set(real.parents) if top == root else {real, *real.parents}
    stack = [top]
    while stack:
        folder = stack.pop()
        real = Path(os.path.realpath(folder))
        if real in seen:
            continue
        seen.add(real)
        try:
            folders, files = _split(visible_entries(folder))
        except OSError as error:
            bad(folder, f"the folder cannot be read: {error.strerror or error}")
            continue
        yield folder, files
        stack += reversed(folders)


def matches(pattern: Path) -> Iterator[Path]:
    """Yield the visible photos, videos and folders that match a pattern, in natural order.

    What lies in a folder that matches is not listed again.
    """
    fixed = next(parent for parent in pattern.parents if os.path.isdir(parent) or not glob.has_magic(str(parent)))
    # Unlike glob.glob, pathlib follows no links below **.
    found = set(fixed.glob(str(pattern.relative_to(fixed))))
    folders: set[Path] = set()
    for match in sorted(found, key=lambda match: [natural_key(part) for part in match.parts]):
        hidden = any(part.startswith(".") for part in match.relative_to(fixed).parts)
        if hidden or not folders.isdisjoint(match.parents):
            continue
        if os.path.isdir(match):
            folders.add(match)
            yield match
        elif kind_of(match):
            yield match


def _holds_images(folder: Path, root: Path) -> bool:
    below = walk(folder, root, lambda path, reason: None)
    return any(kind_of(file) in ("image", "video") for _, files in below for file in files)


def _split(entries: list[Path]) -> tuple[list[Path], list[Path]]:
    """The folders and the other entries."""
    folders: list[Path] = []
    files: list[Path] = []
    for entry in entries:
        (folders if os.path.isdir(entry) else files).append(entry)
    return folders, files
