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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from benchmarks_toybox_ilab.tables.atomic_file import atomic_write, remove_abandoned
from benchmarks_toybox_ilab.tables.disk import check_room, readable_size
from benchmarks_toybox_ilab.tables.folders import visible_entries
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.progress import terminal_bar

# fmt: off
ENDINGS = (
    ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz",
)
# fmt: on
MOST_RATIO = 100  # of unpacked to packed bytes; of images it is at most 10

_CHUNK = 1 << 20
_SMALL = 100_000_000  # bytes that are unpacked in any case
_BLOCK = 512  # bytes of a block of a tar file
_MARKER = 4  # bytes before the first file of a .zip file that was meant to be split
# Of compressed tar files; a plain one is recognised by its header.
_COMPRESSED_STARTS = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ")
# Of archives that are not read, with what unpacks them.
_OTHER_KINDS = {
    b"7z\xbc\xaf\x27\x1c": ("a 7-Zip archive", "7z x"),
    b"Rar!\x1a\x07": ("a RAR archive", "unrar x"),
    b"\x28\xb5\x2f\xfd": ("compressed by Zstandard", "tar --zstd -xf"),
}
# What the readers raise on damaged bytes. RuntimeError: encrypted, or compressed in a
# way that this Python cannot read.
_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
    ValueError,
)


@dataclass(frozen=True)
class Member:
    """What an archive holds under a name.

    Attributes:
        name: As the archive has it; below the target once it is chosen.
        size: Bytes, unpacked.
        open: Opens it for reading.
        kind: "file", "folder", "link" or "device"; only files are unpacked.
    """

    name: str
    size: int
    open: Callable[[], BinaryIO]
    kind: str = "file"


def unpack(
    archive: str | Path,
    target: str | Path,
    progress: Callable[..., Any] = terminal_bar,
    only: Callable[[str], str | None] | None = None,
) -> int:
    """Unpack a .zip or .tar file, plain or compressed, below `target`.

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
    archive = Path(archive)
    target = Path(target)
    with _opened_archive(archive) as members, _damage_as_error(archive):
        chosen_members = _choose_members(members, archive, only)
        missing = []
        for member in chosen_members:
            if not _is_unpacked_member(member, target):
                missing.append(member)
        _check_ratio(archive, chosen_members)  # raises for an archive bomb
        check_room(target, _total_size(missing), f"unpacking {archive}")
        remove_abandoned(target)
        n_unpacked = len(chosen_members) - len(missing)
        title = f"unpacking {archive.name}"
        with progress(len(chosen_members), title, " files", initial=n_unpacked) as bar:
            for member in missing:
                _unpack_member(member, target)
                bar.update()
    return len(missing)


def archives_in(source: Path) -> list[Path]:
    """Return the archives of a download: the file itself, or those in the folder.

    They are in natural order; there are none if the source does not exist.
    """
    if not source.is_dir():
        return [source] if source.exists() else []
    archives = []
    for entry in visible_entries(source):
        if entry.name.lower().endswith(ENDINGS) and entry.is_file():
            archives.append(entry)
    return archives


def names_in(archive: Path) -> list[str]:
    """Return the names of the files in an archive, with forward slashes.

    Raises:
        FrameTableError: If it is no archive, or damaged.
    """
    with _opened_archive(archive) as members, _damage_as_error(archive):
        names = []
        for member in members:
            if member.kind == "file":
                names.append(member.name.replace("\\", "/"))
        return names


def _is_unpacked_member(member: Member, target: Path) -> bool:
    """Whether a file of an archive exists below the target with the right size."""
    path = target / member.name
    return path.exists() and path.stat().st_size == member.size


def _total_size(members: list[Member]) -> int:
    """Return the bytes of the files of an archive when they are unpacked."""
    return sum(member.size for member in members)


def _check_ratio(archive: Path, members: list[Member]) -> None:
    """Raise for an archive that would become far larger than images do."""
    packed = archive.stat().st_size
    unpacked = _total_size(members)
    if unpacked > max(_SMALL, MOST_RATIO * packed):
        raise _refused_archive_error(
            archive,
            f"{readable_size(packed)} would become {readable_size(unpacked)}, more "
            f"than {MOST_RATIO} times as much, which no images do",
        )


@contextmanager
def _opened_archive(archive: Path) -> Iterator[Iterator[Member]]:
    """Open an archive, whose first bytes tell its kind; yield what lists its members.

    Raises:
        FrameTableError: If there is no such file, it is no .zip or .tar file, or it
            is damaged.
    """
    if not archive.is_file():
        raise FrameTableError(
            f"there is no archive {archive}; give a {', '.join(ENDINGS)} file."
        )
    with open(archive, "rb") as file:
        start = file.read(16)
    opened: zipfile.ZipFile | tarfile.TarFile | None = None
    with _damage_as_error(archive):
        if start.startswith(b"PK"):
            opened = zipfile.ZipFile(archive)
        else:
            try:
                # tarfile only reads here, so its extraction filters have nothing to
                # check: `_safe_member_name` is stricter.
                opened = tarfile.open(archive)  # noqa: SIM115
            except tarfile.TarError:
                # A compressed file is a damaged archive; anything else is no archive.
                if start.startswith(_COMPRESSED_STARTS):
                    raise
    if opened is None:
        raise _no_archive_error(archive, start)
    with opened:
        if isinstance(opened, zipfile.ZipFile):
            yield _members_of_zip(opened)
        else:
            yield _members_of_tar(opened)


def _no_archive_error(archive: Path, start: bytes) -> FrameTableError:
    """Return the error for a file that is no archive, and begins with these bytes."""
    for signature, (kind, command) in _OTHER_KINDS.items():
        if start.startswith(signature):
            return FrameTableError(
                f"{archive} is {kind}, which is not read ({', '.join(ENDINGS)} are). "
                f"Unpack it, such as by `{command} {archive.name}`, and give the "
                "folder that it was unpacked to."
            )
    return FrameTableError(
        f"{archive} is no archive ({', '.join(ENDINGS)}): it begins with {start!r}. It "
        "may be a web page that was saved in place of the archive; download it again."
    )


def _members_of_zip(file: zipfile.ZipFile) -> Iterator[Member]:
    """Yield the members of a .zip archive.

    Raises:
        BadZipFile: If another archive comes before it.
    """
    offsets = (info.header_offset for info in file.infolist())
    # Before the first file stands nothing, or the marker of a split archive.
    if min(offsets, default=0) > _MARKER:
        raise zipfile.BadZipFile("another archive comes before it")
    for info in file.infolist():
        yield Member(
            name=info.filename,
            size=info.file_size,
            # of zipfile's own type of file
            open=cast(Callable[[], BinaryIO], partial(file.open, info)),
            kind=_kind_in_zip(info),
        )


def _kind_in_zip(info: zipfile.ZipInfo) -> str:
    """Return the kind of a member of a .zip file; see `Member`."""
    unix_mode = info.external_attr >> 16
    unix_type = stat.S_IFMT(unix_mode)
    if unix_type == stat.S_IFDIR:
        return "folder"
    if unix_type == stat.S_IFLNK:
        return "link"
    if unix_type not in (0, stat.S_IFREG):  # 0 if not made on a Unix system
        return "device"
    if info.filename.endswith(("/", "\\")):
        return "folder"
    return "file"


def _members_of_tar(file: tarfile.TarFile) -> Iterator[Member]:
    """Yield the members of a .tar file, and check that it is complete."""
    for info in file.getmembers():
        yield Member(
            name=info.name,
            size=info.size,
            open=cast(Callable[[], BinaryIO], partial(file.extractfile, info)),
            kind=_kind_in_tar(info),
        )
    # tarfile also takes a damaged header for the block of zeros that ends the list. Of
    # that block only the length can still be checked, so zeros must follow, not another
    # archive; gzip compares its checksum at the end.
    stream = cast(BinaryIO, file.fileobj)
    has_last_block = stream.tell() - file.offset == _BLOCK
    ends_with_zeros = True
    while chunk := stream.read(_CHUNK):
        ends_with_zeros = ends_with_zeros and not chunk.strip(b"\0")
    if not (has_last_block and ends_with_zeros):
        raise tarfile.ReadError(
            f"it breaks off after {len(file.getmembers())} members, or another archive "
            "follows"
        )


def _kind_in_tar(info: tarfile.TarInfo) -> str:
    """Return the kind of a member of a .tar file; see `Member`."""
    if info.isfile():
        return "file"
    if info.isdir():
        return "folder"
    if info.issym() or info.islnk():
        return "link"
    return "device"


@contextmanager
def _damage_as_error(archive: Path) -> Iterator[None]:
    """Turn what readers raise on damaged bytes into an error that names the archive.

    EINVAL is raised for a damaged place in a .zip file; other errors of the system are
    no damage.
    """
    try:
        yield
    except FrameTableError:
        raise
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        # tarfile's messages span several lines
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise FrameTableError(
            f"archive {archive} is damaged or incomplete ({reason}). Download it "
            "again; files that were already unpacked are complete and are kept."
        ) from error


def _choose_members(
    members: Iterator[Member], archive: Path, only: Callable[[str], str | None] | None
) -> list[Member]:
    """Return the files to unpack, in archive order, with their paths below the target.

    Of two with one name the last is taken, as tar does.

    Args:
        members: Of the archive.
        archive: Its file, for errors.
        only: Called with the name of each file; returns its path below the target, or
            None to leave it out. None takes all files by their names.

    Raises:
        FrameTableError: If two files would have one path, one lies outside the target,
            or a member is no file.
    """
    chosen_members: dict[str, Member] = {}  # by path below the target
    name_of_path: dict[str, str] = {}  # in the archive, by path below the target
    for member in members:
        name = _safe_member_name(member.name, archive)
        if member.kind == "folder":
            continue
        path = name if only is None else only(name)
        if path is None:
            continue
        if member.kind != "file":
            reason = f"is a {member.kind}, not a file"
            raise _refused_archive_error(
                archive, f"its member {member.name!r} {reason}"
            )
        if not name:
            reason = "has no name below the target folder"
            raise _refused_archive_error(
                archive, f"its member {member.name!r} {reason}"
            )
        path = _safe_member_name(path, archive)
        # True if a file of another name has this path already.
        if name_of_path.setdefault(path, name) != name:
            raise FrameTableError(
                f"archive {archive} holds both {name_of_path[path]} and {name}; only "
                f"one can be {path}."
            )
        chosen_members.pop(path, None)  # the later one takes its own place in order
        chosen_members[path] = replace(member, name=path)
    return list(chosen_members.values())


def _safe_member_name(name: str, archive: Path) -> str:
    """Return the name of a member with forward slashes, as a path below the target.

    Raises:
        FrameTableError: If it lies outside the target; names the archive.
    """
    steps = name.replace("\\", "/").split("/")
    names = [step for step in steps if step not in ("", ".")]
    is_absolute = name[:1] in ("/", "\\") or re.match("[A-Za-z]:", name)
    if is_absolute or ".." in names:
        raise _refused_archive_error(
            archive, f"its member {name!r} lies outside the target folder"
        )
    return "/".join(names)


def _refused_archive_error(archive: Path, reason: str) -> FrameTableError:
    """Return the error for an archive that is not unpacked, for safety."""
    return FrameTableError(
        f"archive {archive} is refused, and nothing was unpacked: {reason}. Download "
        "it from its original source, or unpack it yourself and give the folder."
    )


def _unpack_member(member: Member, target: Path) -> None:
    """Write a file of an archive below the target, atomically.

    Raises:
        EOFError: If the archive holds fewer bytes of it than it says.
    """
    path = target / member.name
    path.parent.mkdir(parents=True, exist_ok=True)
    length = 0
    # bulk: not flushed to the disk, since it can be unpacked again.
    with atomic_write(path, bulk=True) as file, member.open() as stream:
        while chunk := stream.read(_CHUNK):
            length += len(chunk)
            file.write(chunk)
        if length != member.size:
            raise EOFError(f"{member.name} has {length} of {member.size} bytes")
