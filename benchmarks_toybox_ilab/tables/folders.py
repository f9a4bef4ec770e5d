"""Which files are photos and videos, and what folders hold in natural order."""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image

from benchmarks_toybox_ilab.tables.frame import FrameTableError, natural_key
from benchmarks_toybox_ilab.tables.text import listed, printable

Kind = Literal["image", "video"]

# fmt: off
IMAGE_EXTENSIONS = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".bmp", ".dib", ".gif", ".webp",
    ".tif", ".tiff", ".mpo", ".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".jpx",
    ".jpf", ".j2c", ".jpc", ".tga", ".pcx", ".sgi", ".dds", ".psd", ".qoi", ".xbm",
    ".xpm", ".ico",
)
VIDEO_EXTENSIONS = (
    ".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".3gp", ".3g2",
    ".mts", ".m2ts", ".wmv", ".flv", ".ogv", ".asf", ".qt", ".vob", ".f4v", ".divx",
    ".mxf", ".mjpeg", ".mjpg", ".m2v", ".h264", ".264", ".h265", ".265", ".hevc",
    ".avc", ".ivf", ".y4m",
)
# Read if Pillow has a decoder.
_NEED_DECODER = (".avif", ".avifs", ".heic", ".heif", ".hif")
_RAW = (
    ".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".srf", ".sr2", ".raf",
    ".orf", ".rw2", ".pef",
)
# Not opened: raw photos, parts of files, previews of cameras, and what lies beside the
# images of data sets.
_BESIDE = (
    ".thm", ".lrv", ".part", ".crdownload", ".tmp", ".bak", ".txt", ".csv", ".json",
    ".xml", ".yaml", ".npy",
)
_UNOPENED = frozenset((*_RAW, *_BESIDE))
# Formats that Pillow knows by the first bytes.
_FORMATS = (
    "JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "PPM", "JPEG2000", "QOI",
    "DDS", "PSD",
)
# Made by systems, not by people: previews, bins, snapshots and the like. The first ones
# are in nearly every folder.
_SILENT = (
    "thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", ".ds_store", ".directory",
    ".nomedia", ".crumb_frames",
)
_CLUTTER = frozenset((
    *_SILENT,
    "__macosx", "@eadir", "@tmp", "@recycle", "@recently-snapshot", "#recycle",
    "#snapshot", "$recycle.bin", "system volume information", "recycler", "recycled",
    "lost+found", "__pycache__",
))
# fmt: on
_CURES = dict.fromkeys((*_NEED_DECODER, *_RAW), "convert them to JPEG or PNG")

_HIDDEN = "hidden or system"
_MOST_KINDS = 8  # of ignored files that are listed


@dataclass(frozen=True)
class Entries:
    """What lies in a folder, each in natural order.

    Attributes:
        folders: Folders, and links to folders.
        images: Photos.
        videos: Video files.
        ignored: Numbers of all others by extension, and of `hidden or system` entries.
    """

    folders: list[Path]
    images: list[Path]
    videos: list[Path]
    ignored: Counter[str]


def kind_of(path: Path) -> Kind | None:
    """Return "image" for a photo, "video" for a video, None for any other file.

    The extension decides where it is known, in any case. A file with another extension,
    or none, is a photo if Pillow recognises it by its first bytes.
    """
    extension = path.suffix.lower()
    if extension in IMAGE_EXTENSIONS:
        return "image"
    if extension in VIDEO_EXTENSIONS:
        return "video"
    if extension in _NEED_DECODER:
        has_decoder = Image.registered_extensions().get(extension) in Image.OPEN
        return "image" if has_decoder else None
    if extension in _UNOPENED or not path.is_file():  # a pipe would block
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Image.open(path, formats=_FORMATS).close()  # reads the header alone
    except Exception:  # Pillow raises far more than OSError on odd bytes
        return None
    return "image"


def is_video(path: Path) -> bool:
    """Whether a file is a video; see `kind_of`."""
    return path.suffix.lower() in VIDEO_EXTENSIONS


def entries_of(folder: Path) -> Entries:
    """List the folders, photos and videos in a folder; count its other files.

    Raises:
        OSError: If it cannot be listed.
    """
    entries = Entries(folders=[], images=[], videos=[], ignored=Counter())
    with os.scandir(folder) as scanned:
        entries_in_order = sorted(scanned, key=lambda entry: natural_key(entry.name))
    for entry in entries_in_order:
        if not is_visible(entry.name):
            if entry.name.lower() not in _SILENT:
                entries.ignored[_HIDDEN] += 1
            continue
        path = folder / entry.name
        with suppress(OSError):  # a link to itself
            if entry.is_dir():
                entries.folders.append(path)
                continue
        kind = kind_of(path)
        if kind == "image":
            entries.images.append(path)
        elif kind == "video":
            entries.videos.append(path)
        else:
            entries.ignored[path.suffix.lower()] += 1
    return entries


def walk(
    top: Path, on_error: Callable[[Path, OSError], object], root: Path | None = None
) -> Iterator[tuple[Path, Entries]]:
    """Yield each folder from `top` down and what it holds, once, in natural order.

    A folder that is reached twice through links is listed once, and links to a folder
    above are not followed.

    Args:
        top: The first folder.
        on_error: Called with each folder that cannot be listed, and why.
        root: Links to this folder and to those above it are not followed; `top` itself,
            or a folder above it.
    """
    if root is None:
        root = top
    real_root = Path(os.path.realpath(root))
    above = list(real_root.parents)
    if root != top:
        above.append(real_root)
    # What paths of the same folder have in common; None for one that is gone.
    seen = {_folder_identity(folder) for folder in above} - {None}
    stack = [top]  # the next folder is the last one
    while stack:
        folder = stack.pop()
        try:
            identity = _folder_identity(folder)
            if identity in seen:
                continue
            entries = entries_of(folder)
        except OSError as error:
            on_error(folder, error)
            continue
        if identity is not None:
            seen.add(identity)
        yield folder, entries
        stack += reversed(entries.folders)


def _folder_identity(folder: Path) -> tuple[int, int] | str | None:
    """Return what two paths of the same folder have in common; None without a folder.

    It is the device and the number of the folder on it, or where the system has no such
    numbers the path without links.
    """
    try:
        status = os.stat(folder)
    except OSError:
        return None
    if not status.st_ino:
        return os.path.realpath(folder)
    return status.st_dev, status.st_ino


def ignored_files_in_words(ignored: Counter[str]) -> str:
    """Describe the files of a folder that are ignored.

    Such as `3 .heic (convert them to JPEG or PNG), 1 .txt and 2 hidden or system`.

    Args:
        ignored: Numbers of files by extension such as ".txt", empty for none, and of
            hidden files.
    """
    names = [name for name, count in ignored.items() if count]
    # The most frequent extensions first, hidden files last.
    names.sort(key=lambda name: (name == _HIDDEN, -ignored[name], natural_key(name)))
    phrases = [_extension_in_words(name, ignored[name]) for name in names]
    if len(phrases) > _MOST_KINDS + 1:  # "others" are never a single kind
        unnamed = sum(ignored[name] for name in names[_MOST_KINDS:])
        phrases = [*phrases[:_MOST_KINDS], f"{unnamed:,} others"]
    *first, last = phrases or [""]
    if not first:
        return last
    return f"{', '.join(first)} and {last}"


def _extension_in_words(name: str, count: int) -> str:
    """Describe the ignored files of an extension: `3 .heic (convert them ...)`."""
    phrase = f"{count:,} {printable(name) or 'without extension'}"
    if name in _CURES:
        phrase += f" ({_CURES[name]})"
    return phrase


def visible_entries(folder: Path) -> list[Path]:
    """Return the files and folders in a folder in natural order.

    Without hidden files and system files such as Thumbs.db.
    """
    entries = (entry for entry in folder.iterdir() if is_visible(entry.name))
    return sorted(entries, key=lambda entry: natural_key(entry.name))


def files_below(root: Path, folder: str = "") -> Iterator[str]:
    """Yield the visible files below root/folder at any depth.

    Relative to root with forward slashes, sorted as text. A folder that is reached
    twice through links is listed once, and links to a folder above are not followed.

    Raises:
        FrameTableError: If a folder cannot be listed.
    """
    real_root = Path(os.path.realpath(root))
    above = list(real_root.parents)
    if folder:
        above.append(real_root)
    seen = {_folder_identity(path) for path in above} - {None}
    return _files_in(root, folder, seen)


def _files_in(
    root: Path, folder: str, seen: set[tuple[int, int] | str | None]
) -> Iterator[str]:
    """Yield the visible files below root/folder; see `files_below`.

    Args:
        root, folder: The root, and the folder relative to it.
        seen: Identities of folders that are not listed any more; each that is listed is
            added.
    """
    identity = _folder_identity(root / folder)
    if identity in seen:
        return
    if identity is not None:
        seen.add(identity)
    entries = []  # name, and whether it is a folder
    try:
        with os.scandir(root / folder) as scanned:
            for entry in scanned:
                if is_visible(entry.name):
                    entries.append((entry.name, entry.is_dir()))
    except OSError as error:
        raise FrameTableError(
            f"folder {root / folder} cannot be listed ({error.strerror}). Make it "
            "readable, or move it away."
        ) from error
    for entry_name, is_folder in sorted(entries):
        name = f"{folder}/{entry_name}" if folder else entry_name
        if is_folder:
            yield from _files_in(root, name, seen)
        else:
            yield name


def listed_entries(folder: Path, most: int = 8) -> str:
    """Name the visible entries of a folder, the first ones if there are many."""
    names = [entry.name for entry in visible_entries(folder)]
    return listed(names, most) or "nothing"


def is_visible(name: str) -> bool:
    """Whether a file or folder is neither hidden nor made by the system.

    Such as Thumbs.db and @eaDir.
    """
    return name[0] != "." and name.lower() not in _CLUTTER
