"""List and read the members of .zip, .tar and .tar.gz files, and of folders."""

import errno
import gzip
import lzma
import posixpath
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from benchmarks_toybox_ilab.tables.folders import files_below
from benchmarks_toybox_ilab.tables.frame import FrameTableError

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz")

_CHUNK = 1 << 20
_BLOCK = 512  # bytes of a block of a tar file
_LONGEST_LINK = 4096  # bytes; no system has longer paths
_LARGEST_RECORD = 1 << 20  # bytes of a long name or another record before a member of a tar file
_RECORDS = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE)
_RECORDS += (tarfile.SOLARIS_XHDTYPE,)
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
_COMPRESSED_STARTS = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ")  # of tar files; a plain one is recognised by its header
_DRIVE = re.compile(r"[A-Za-z]:")
# What the readers raise on damaged bytes. RuntimeError: encrypted, or compressed in a way that this Python cannot read.
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)
_DAMAGE += (RuntimeError, ValueError)


@dataclass(frozen=True)
class Member:
    """A file of an archive.

    Attributes:
        name: Name below the target, with forward slashes.
        size: Unpacked size in bytes.
        key: What `Archive.open` takes.
        link: For a link, returns the file that it points to, or raises if there is none; size and key are not its own.
    """

    name: str
    size: int
    key: object
    link: Callable[[], "Member"] | None = None


def open_archive(archive: Path) -> "Archive":
    """Open an archive, whose content tells its kind, or a folder as a context manager.

    Raises:
        FrameTableError: If the file does not exist, is not an archive, or is damaged.
    """
    if archive.is_dir():
        return Archive(archive)
    if not archive.is_file():
        raise FrameTableError(f"there is no archive {archive}; give a {', '.join(ENDINGS)} file or a folder.")
    with open(archive, "rb") as file:
        start = file.read(16)
    with damage_named(archive):
        if start.startswith(_ZIP_STARTS):
            return ZipArchive(archive)
        try:
            return TarArchive(archive)
        except tarfile.TarError:
            if start.startswith(_COMPRESSED_STARTS):
                raise
    raise FrameTableError(
        f"{archive} is no archive ({', '.join(ENDINGS)}): it begins with {start!r}. It may be a web page that was "
        "saved in place of the archive; download it again."
    )


@contextmanager
def damage_named(archive: Path) -> Iterator[None]:
    """Turn what the readers raise on damaged bytes into an error that names the archive."""
    try:
        yield
    except FrameTableError:
        raise
    except (*_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # a damaged place in a .zip file
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())  # tarfile's messages span several lines
        raise FrameTableError(
            f"archive {archive} is damaged or incomplete ({reason}). Download it again; files that were already "
            "unpacked are complete and are kept."
        ) from error


def safe_name(name: str, archive: Path) -> str:
    """Return the name with forward slashes; raise if it leads outside the target."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if name[:1] in ("/", "\\") or ".." in parts or _DRIVE.match(name):
        raise refused(archive, name, "lies outside the target folder")
    return "/".join(parts)


def refused(archive: Path, name: str, reason: str) -> FrameTableError:
    """The error about a member for which the whole archive is refused."""
    return FrameTableError(
        f"archive {archive} is refused, and nothing was unpacked: its member {name!r} {reason}. Download it from its "
        "original source, or unpack it yourself and give the folder."
    )


def _linked(archive: Path, name: str, link: str, folder: str, files: dict[str, Member]) -> Member:
    """The file of the archive that the link `name` points to from `folder`, under the link's name."""
    found = files.get(posixpath.normpath(posixpath.join(folder, link.replace("\\", "/"))))
    if found is None:
        raise refused(archive, name, f"is a link to {link!r}, which is no file of the archive")
    return Member(name, found.size, found.key)


class Archive:
    """A folder read like an archive; the base class of the real ones."""

    _file: zipfile.ZipFile | tarfile.TarFile | None = None

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def members(self) -> Iterator[Member]:
        """Yield the files of the archive; links, if any, after all other files."""
        for name in files_below(self._path):
            yield Member(name, (self._path / name).stat().st_size, name)

    def open(self, key: str) -> BinaryIO:
        """Open the member with this key for reading."""
        return open(self._path / key, "rb")


class ZipArchive(Archive):
    """A .zip file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = zipfile.ZipFile(path)

    def members(self) -> Iterator[Member]:
        files: dict[str, Member] = {}
        links = []
        for info in self._file.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)  # 0 if the archive was not made on a Unix system
            if kind == stat.S_IFLNK:
                links.append(info)
            elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise refused(self._path, info.filename, "is a device, not a file")
            elif kind == stat.S_IFDIR or info.filename.endswith(("/", "\\")):
                safe_name(info.filename, self._path)
            else:
                member = Member(info.filename, info.file_size, info)
                files[posixpath.normpath(info.filename)] = member
                yield member
        for info in links:
            yield Member(info.filename, 0, info, partial(self._linked, info, files))

    def _linked(self, info: zipfile.ZipInfo, files: dict[str, Member]) -> Member:
        size = max(info.file_size, info.compress_size)
        if size > _LONGEST_LINK:
            reason = f"is a link of {size} bytes, which is longer than any path ({_LONGEST_LINK} bytes)"
            raise refused(self._path, info.filename, reason)
        link = self._file.read(info).decode(errors="surrogateescape")
        return _linked(self._path, info.filename, link, posixpath.dirname(info.filename), files)

    def open(self, key: zipfile.ZipInfo) -> BinaryIO:
        return self._file.open(key)


class _Header(tarfile.TarInfo):
    """A member's header; an error for a large record (such as a long name), which tarfile would read whole."""

    @classmethod
    def frombuf(cls, *arguments: object) -> "_Header":
        header = super().frombuf(*arguments)
        if header.type in _RECORDS and not 0 <= header.size <= _LARGEST_RECORD:
            raise ValueError(f"a name or record in it has {header.size} bytes, not 0 to {_LARGEST_RECORD}")
        return header


class TarArchive(Archive):
    """A .tar file, compressed or not.

    tarfile only reads here and never writes to the disk, so its extraction filters have nothing to check: `safe_name`
    is stricter (also for .zip files) and links become copies.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = tarfile.open(path, tarinfo=_Header)  # noqa: SIM115

    def members(self) -> Iterator[Member]:
        files: dict[str, Member] = {}  # tarfile itself searches all members for the target of each link
        links = []
        for info in self._file.getmembers():
            if info.issym() or info.islnk():
                links.append(info)
            elif info.isdir():
                safe_name(info.name, self._path)
            elif info.isfile():
                member = Member(info.name, info.size, info)
                files[posixpath.normpath(info.name)] = member
                yield member
            else:
                raise refused(self._path, info.name, "is a device, not a file")
        self._check_end()
        for info in links:
            folder = posixpath.dirname(info.name) if info.issym() else ""  # a hard link holds the member's full name
            yield Member(info.name, 0, info, partial(_linked, self._path, info.name, info.linkname, folder, files))

    def _check_end(self) -> None:
        """Raise unless the list of members ended in a block of zeros: tarfile also takes a damaged header for the end.

        Only the length of that block can still be checked, so the block after it, if there is one, must be zeros.
        Reading on to the end makes gzip compare its checksum.
        """
        stream = self._file.fileobj
        if stream.tell() - self._file.offset != _BLOCK or stream.read(_BLOCK).strip(b"\0"):
            raise tarfile.ReadError(f"it breaks off after {len(self._file.getmembers())} members")
        while stream.read(_CHUNK):
            pass

    def open(self, key: tarfile.TarInfo) -> BinaryIO:
        return self._file.extractfile(key)
