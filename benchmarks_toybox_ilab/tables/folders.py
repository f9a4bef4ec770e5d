"""Which files are photos and videos, what folders hold in natural order, and where a data set lies."""

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from benchmarks_toybox_ilab.tables.frame import natural_key
from benchmarks_toybox_ilab.tables.text import printable

Kind = Literal["image", "video"]

IMAGE_EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".bmp", ".dib", ".gif", ".webp", ".tif", ".tiff", ".mpo"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".jpx", ".jpf", ".j2c", ".jpc", ".tga", ".pcx", ".sgi", ".dds"),
    *(".psd", ".qoi", ".xbm", ".xpm", ".ico"),
)
VIDEO_EXTENSIONS = (
    *(".mp4", ".mov", ".avi", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".3gp", ".3g2", ".mts", ".m2ts", ".wmv"),
    *(".flv", ".ogv", ".asf", ".qt", ".vob", ".f4v", ".divx", ".mxf", ".mjpeg", ".mjpg", ".m2v", ".h264", ".264"),
    *(".h265", ".265", ".hevc", ".avc", ".ivf", ".y4m"),
)
_OPTIONAL = (".avif", ".avifs", ".heic", ".heif", ".hif")  # read if Pillow has a decoder
_RAW = (".dng", ".cr2", ".cr3", ".crw", ".nef", ".nrw", ".arw", ".srf", ".sr2", ".raf", ".orf", ".rw2", ".pef")
_TEXT_AND_OTHERS = """
.txt .md .rst .csv .tsv .json .jsonl .ndjson .xml .yaml .yml .toml .ini .cfg .conf .log .html .htm .css .nfo .srt .vtt
.ass .sub .doc .docx .odt .rtf .xls .xlsx .ods .ppt .pptx .tex .bib .pdf .svg .eps .ps .ai .xmp .aae .thm .lrv .raw
.zip .tar .gz .tgz .bz2 .xz .zst .7z .rar .iso .mp3 .wav .m4a .aac .flac .oga .opus .wma .aiff .mid .mka .npy .npz .mat
.h5 .hdf .hdf5 .pkl .pickle .pt .pth .ckpt .onnx .safetensors .tfrecord .parquet .arrow .feather .db .sqlite .lmdb .py
.pyc .ipynb .js .jsx .c .cc .cpp .h .hpp .java .go .rs .rb .php .sh .bat .ps1 .m .r .exe .dll .so .o .part .crdownload
.tmp .bak .lock
"""
_UNOPENED = frozenset((*_RAW, *_TEXT_AND_OTHERS.split()))
_CURES = dict.fromkeys((*_OPTIONAL, *_RAW), "convert them to JPEG or PNG")
# Made by systems, not by people: previews, bins, snapshots and the like. The first ones are in nearly every folder.
_SILENT = ("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", ".ds_store", ".directory", ".nomedia", ".crumb_frames")
_CLUTTER = frozenset(
    (
        *_SILENT,
        *("__macosx", "@eadir", "@tmp", "@recycle", "@recently-snapshot", "#recycle", "#snapshot", "$recycle.bin"),
        *("system volume information", "recycler", "recycled", "lost+found", "__pycache__"),
    )
)

_IMAGE_STARTS = (
    *(b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*", b"8BPS\0\1", b"qoif", b"DDS "),
    *(b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51"),
)
_VIDEO_STARTS = (
    *(b"\x1aE\xdf\xa3", b"FLV\1", b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", b"\0\0\1\xba", b"\0\0\1\xb3", b"DKIF\0\0"),
    *(b"YUV4MPEG2 ", b"\x06\x0e\x2b\x34\x02\x05\x01\x01", b"\0\0\0\1\x67", b"\0\0\1\x67", b"\0\0\0\1\x09"),
    *(b"\0\0\0\1\x40\1", b"\0\0\0\1\x46\1"),
)
_ENOUGH = 1024  # bytes that tell the kind of a file
_HIDDEN = "hidden or system"
_MOST_KINDS = 8  # of ignored files that are listed


class Entries(NamedTuple):
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
    """Whether a file is a photo or a video; None for all others.

    The extension decides where it is known, in any case. A file with another extension, or none, is opened and told by
    its first bytes.
    """
    extension = path.suffix.lower()
    if extension in IMAGE_EXTENSIONS:
        return "image"
    if extension in VIDEO_EXTENSIONS:
        return "video"
    if extension in _OPTIONAL:
        return "image" if _can_decode(extension) else None
    return None if extension in _UNOPENED else _kind_of_content(path)


def is_video(path: Path) -> bool:
    """Whether a file is a video; see `kind_of`."""
    return kind_of(path) == "video"


def _can_decode(extension: str) -> bool:
    from PIL import Image

    return Image.registered_extensions().get(extension) in Image.OPEN


def _kind_of_content(path: Path) -> Kind | None:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would block
            return None
        with open(path, "rb") as file:
            start = file.read(_ENOUGH)
    except (OSError, ValueError):
        return None
    return _kind_of_bytes(start)


def _kind_of_bytes(start: bytes) -> Kind | None:
    riff = start[8:12] if start[:4] == b"RIFF" else b""
    brand = start[8:12] if start[4:8] == b"ftyp" else b""
    if start.startswith(_IMAGE_STARTS) or riff == b"WEBP" or (start[:2] == b"BM" and start[6:10] == b"\0\0\0\0"):
        return "image"
    if brand in (b"avif", b"avis", b"heic", b"heix", b"mif1", b"msf1"):
        return "image" if _can_decode(".avif" if brand[:3] == b"avi" else ".heic") else None
    if start[:1] == b"P" and start[1:2] in (b"1", b"2", b"3", b"4", b"5", b"6") and start[2:3].isspace():  # PBM to PPM
        return "image"
    if start.startswith(_VIDEO_STARTS) or riff == b"AVI " or (brand and brand[:3] != b"M4A"):
        return "video"
    if start[:4] == b"OggS" and (b"theora" in start or b"OVP80" in start):
        return "video"
    # Packets of an MPEG transport stream, without and with a time stamp of 4 bytes.
    packets = any(start[first::size][:4] == b"GGGG" for first, size in ((0, 188), (4, 192)))
    return "video" if packets else None


def entries_of(folder: Path) -> Entries:
    """List a folder, which is read once.

    Raises:
        OSError: If it cannot be listed.
    """
    entries = Entries([], [], [], Counter())
    with os.scandir(folder) as found:
        listed = sorted(found, key=lambda entry: natural_key(entry.name))
    for entry in listed:
        if not is_visible(entry.name):
            entries.ignored[_HIDDEN] += entry.name.lower() not in _SILENT
            continue
        path = folder / entry.name
        if _is_folder(entry):
            entries.folders.append(path)
        elif (kind := kind_of(path)) == "image":
            entries.images.append(path)
        elif kind == "video":
            entries.videos.append(path)
        else:
            entries.ignored[path.suffix.lower()] += 1
    return entries


def _is_folder(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def walk(top: Path, bad: Callable[[Path, OSError], object], root: Path | None = None) -> Iterator[tuple[Path, Entries]]:
    """Yield each folder from `top` down and what it holds, once, in natural order.

    A folder that is reached twice through links is listed once, and links to a folder above are not followed.

    Args:
        top: The first folder.
        bad: Called with each folder that cannot be listed, and why.
        root: Links to this folder and to those above it are not followed; `top` itself, or a folder above it.
    """
    real = Path(os.path.realpath(top if root is None else root))
    above = real.parents if root in (None, top) else (real, *real.parents)
    seen = {_identity(folder) for folder in above} - {None}
    stack = [top]
    while stack:
        folder = stack.pop()
        try:
            key = _identity(folder)
            if key in seen:
                continue
            entries = entries_of(folder)
        except OSError as error:
            bad(folder, error)
            continue
        if key is not None:
            seen.add(key)
        yield folder, entries
        stack += reversed(entries.folders)


def _identity(folder: Path) -> tuple[int, int] | str | None:
    """What tells whether two paths are the same folder."""
    try:
        status = os.stat(folder)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(folder)


def ignored_files(ignored: Counter[str]) -> str:
    """Describe what is ignored, such as `3 .heic (convert them to JPEG or PNG), 1 .txt and 2 hidden or system`."""
    found = sorted(ignored.items(), key=lambda item: (item[0] == _HIDDEN, -item[1], natural_key(item[0])))
    cure = {extension: f" ({_CURES[extension]})" for extension, _ in found if extension in _CURES}
    named = ((count, printable(name) or "without extension", cure.get(name, "")) for name, count in found if count)
    parts = [f"{count:,} {name}{advice}" for count, name, advice in named]
    if len(parts) > _MOST_KINDS + 1:
        rest = sum(count for _, count in found[_MOST_KINDS:])
        parts = [*parts[:_MOST_KINDS], f"{rest:,} others"]
    return " and ".join([", ".join(parts[:-1]), *parts[-1:]] if len(parts) > 1 else parts)


def visible_entries(folder: Path) -> list[Path]:
    """The entries of a folder in natural order, without hidden files and system files such as Thumbs.db."""
    entries = (entry for entry in folder.iterdir() if is_visible(entry.name))
    return sorted(entries, key=lambda entry: natural_key(entry.name))


def files_below(root: Path, folder: str = "") -> Iterator[str]:
    """Yield the visible files below root/folder at any depth, relative to root with forward slashes, sorted as text."""
    with os.scandir(root / folder) as entries:
        found = sorted((entry for entry in entries if is_visible(entry.name)), key=lambda entry: entry.name)
    for entry in found:
        name = f"{folder}/{entry.name}" if folder else entry.name
        if entry.is_dir():
            yield from files_below(root, name)
        else:
            yield name


def listed_entries(folder: Path, most: int = 8) -> str:
    """Name the visible entries of a folder, the first ones if there are many."""
    found = [entry.name for entry in visible_entries(folder)]
    return (", ".join(found[:most]) or "nothing") + (f" and {len(found) - most} more" if len(found) > most else "")


def is_visible(name: str) -> bool:
    """Whether a file or folder is neither hidden nor made by the system, such as Thumbs.db and @eaDir."""
    return name[0] != "." and name.lower() not in _CLUTTER
