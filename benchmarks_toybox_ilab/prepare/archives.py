"""Unpack archives of data sets safely; an interrupted call resumes."""

import errno
import gzip
import lzma
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from benchmarks_toybox_ilab.tables.atomic_file import atomic_write, remove_abandoned
from benchmarks_toybox_ilab.tables.disk import check_room, readable_size
from benchmarks_toybox_ilab.tables.folders import visible_entries
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.progress import terminal_bar

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz")
MOST_RATIO = 100  # of unpacked to packed bytes; of images it is at most 10

_CHUNK = 1 << 20
_SMALL = 100_000_000  # bytes that are unpacked in any case
_BLOCK = 512  # bytes of a block of a tar file
_MARKER = 4  # bytes before the first file of a .zip file that was meant to be split
_COMPRESSED_STARTS = (
    b"\x1f\x8b",
    b"BZh",
    b"\xfd7zXZ",
)  # of tar files; a plain one is recognised by its header
# What the readers raise on damaged bytes. RuntimeError: encrypted, or compressed in a
# way that this Python cannot read.
_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
)
_DAMAGE += (RuntimeError, ValueError)


class Member(NamedTuple):
    """What an archive holds under a name: "file", "folder", "link" or "device"; only files are unpacked."""

    name: str  # as the archive has it; below the target once it is chosen
    size: int  # bytes, unpacked
    open: Callable[[], BinaryIO]
    kind: str = "file"


def unpack(
    archive: str | Path,
    target: str | Path,
    progress: Callable[..., Any] = terminal_bar,
    only: Callable[[str], str | None] | None = None,
) -> int:
    """Unpack a .zip, .tar or .tar.gz file below `target`.

    The content tells the kind of archive. A file that exists with the right size is
    kept, so the same call resumes after an interruption. Every file is written
    atomically.

    Args:
        archive: The archive.
        target: Folder for the files; created if missing.
        progress: Makes a progress bar of the files; see `terminal_bar`.
        only: Called with each name (forward slashes); returns the path below the
            target, or None to leave the file out.

    Returns:
        The number of files written.

    Raises:
        FrameTableError: If the archive does not exist, a member lies outside the target
            or is no file, or the disk has too little room (nothing is written in these
            cases), or the archive is damaged (files before the damage are kept).
    """
    archive, target = Path(archive), Path(target)
    with _members(archive) as members, _damage_named(archive):
        wanted = _wanted(members, archive, only)
        places = ((member, target / member.name) for member in wanted)
        missing = [
            member
            for member, path in places
            if not path.exists() or path.stat().st_size != member.size
        ]
        packed, unpacked = archive.stat().st_size, sum(member.size for member in wanted)
        if unpacked > max(_SMALL, MOST_RATIO * packed):
            sizes = f"{readable_size(packed)} would become {readable_size(unpacked)}"
            raise _refused(
                archive,
                f"{sizes}, more than {MOST_RATIO} times as much, which no images do",
            )
        check_room(
            target, sum(member.size for member in missing), f"unpacking {archive}"
        )
        remove_abandoned(target)
        done = len(wanted) - len(missing)
        with progress(
            len(wanted), f"unpacking {archive.name}", " files", initial=done
        ) as bar:
            for member in missing:
                _write(member, target)
                bar.update()
    return len(missing)


def archives_in(source: Path) -> list[Path]:
    """The source if it is an archive, or the archives directly in it, in natural order; [] if it does not exist."""
    if not source.is_dir():
        return [source] if source.exists() else []
    return [
        entry
        for entry in visible_entries(source)
        if entry.name.lower().endswith(ENDINGS) and entry.is_file()
    ]


@contextmanager
def _members(archive: Path) -> Iterator[Iterator[Member]]:
    """Open an archive, whose content tells its kind; yield its files."""
    if not archive.is_file():
        raise FrameTableError(
            f"there is no archive {archive}; give a {', '.join(ENDINGS)} file."
        )
    with open(archive, "rb") as file:
        start = file.read(16)
    opened: zipfile.ZipFile | tarfile.TarFile | None = None
    with _damage_named(archive):
        if start.startswith(b"PK"):
            opened = zipfile.ZipFile(archive)
        else:
            try:
                # tarfile only reads here, so its extraction filters have nothing to
                # check: `_safe_name` is stricter.
                opened = tarfile.open(archive)  # noqa: SIM115
            except tarfile.TarError:
                if start.startswith(_COMPRESSED_STARTS):
                    raise
    if opened is None:
        raise FrameTableError(
            f"{archive} is no archive ({', '.join(ENDINGS)}): it begins with {start!r}. It may be a web page that was "
            "saved in place of the archive; download it again."
        )
    with opened:
        yield (
            _of_zip(opened) if isinstance(opened, zipfile.ZipFile) else _of_tar(opened)
        )


def _of_zip(file: zipfile.ZipFile) -> Iterator[Member]:
    if min((info.header_offset for info in file.infolist()), default=0) > _MARKER:
        raise zipfile.BadZipFile("another archive comes before it")
    kinds = {
        0: "file",
        stat.S_IFREG: "file",
        stat.S_IFDIR: "folder",
        stat.S_IFLNK: "link",
    }
    for info in file.infolist():
        kind = kinds.get(
            stat.S_IFMT(info.external_attr >> 16), "device"
        )  # 0 if not made on a Unix system
        folder = kind == "file" and info.filename.endswith(("/", "\\"))
        yield Member(
            info.filename,
            info.file_size,
            partial(file.open, info),
            "folder" if folder else kind,
        )


def _of_tar(file: tarfile.TarFile) -> Iterator[Member]:
    for info in file.getmembers():
        link = "link" if info.issym() or info.islnk() else "device"
        kind = "file" if info.isfile() else "folder" if info.isdir() else link
        yield Member(info.name, info.size, partial(file.extractfile, info), kind)
    # tarfile also takes a damaged header for the block of zeros that ends the list. Of
    # that block only the length can still be checked, so zeros must follow, not another
    # archive; gzip compares its checksum at the end.
    stream = file.fileobj
    ends = stream.tell() - file.offset == _BLOCK
    while part := stream.read(_CHUNK):
        ends = ends and not part.strip(b"\0")
    if not ends:
        raise tarfile.ReadError(
            f"it breaks off after {len(file.getmembers())} members, or another archive follows"
        )


@contextmanager
def _damage_named(archive: Path) -> Iterator[None]:
    """Turn what the readers raise on damaged bytes into an error that names the archive."""
    try:
        yield
    except FrameTableError:
        raise
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (
            None,
            errno.EINVAL,
        ):  # a damaged place in a .zip file
            raise
        reason = " ".join(
            f"{type(error).__name__}: {error}".split()
        )  # tarfile's messages span several lines
        raise FrameTableError(
            f"archive {archive} is damaged or incomplete ({reason}). Download it again; files that were already "
            "unpacked are complete and are kept."
        ) from error


def _wanted(
    members: Iterator[Member], archive: Path, only: Callable[[str], str | None] | None
) -> list[Member]:
    """The files to unpack under safe names, in archive order; of two with one name the last, as tar does."""

    def safe_name(name: str) -> str:
        parts = [
            part for part in name.replace("\\", "/").split("/") if part not in ("", ".")
        ]
        if name[:1] in ("/", "\\") or ".." in parts or re.match("[A-Za-z]:", name):
            raise _refused(
                archive, f"its member {name!r} lies outside the target folder"
            )
        return "/".join(parts)

    wanted: dict[str, Member] = {}
    origin: dict[str, str] = {}
    for member in members:
        name = safe_name(member.name)
        new = None if member.kind == "folder" else name if only is None else only(name)
        if new is None:
            continue
        if member.kind != "file" or not name:
            reason = (
                f"is a {member.kind}, not a file"
                if name
                else "has no name below the target folder"
            )
            raise _refused(archive, f"its member {member.name!r} {reason}")
        new = safe_name(new)
        if origin.setdefault(new, name) != name:
            raise FrameTableError(
                f"archive {archive} holds both {origin[new]} and {name}; only one can be {new}."
            )
        wanted.pop(new, None)
        wanted[new] = member._replace(name=new)
    return list(wanted.values())


def _refused(archive: Path, reason: str) -> FrameTableError:
    return FrameTableError(
        f"archive {archive} is refused, and nothing was unpacked: {reason}. Download it from its original source, or "
        "unpack it yourself and give the folder."
    )


def _write(member: Member, target: Path) -> None:
    path = target / member.name
    path.parent.mkdir(parents=True, exist_ok=True)
    length = 0
    with atomic_write(path, bulk=True) as file, member.open() as stream:
        while chunk := stream.read(_CHUNK):
            length += len(chunk)
            file.write(chunk)
        if length != member.size:
            raise EOFError(f"{member.name} has {length} of {member.size} bytes")
