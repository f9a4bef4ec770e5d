"""Free disk space, files that are written atomically, and digests of the contents of files."""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, BinaryIO

from benchmarks_toybox_ilab.tables.frame import FrameTableError


def check_room(folder: Path, needed: int, job: str) -> None:
    """Raise if the disk of `folder` has too little room for `needed` more bytes.

    Args:
        folder: Where the files will go; it need not exist yet.
        needed: Number of bytes still to be written.
        job: What needs the room, as the beginning of a sentence: "unpacking a.zip".

    Raises:
        FrameTableError: If there is too little room; says how much is needed and how
            much is free.
    """
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed > free:
        raise FrameTableError(
            f"{job} needs {readable_size(needed)} more, but only {readable_size(free)} are free at {folder}. Make room "
            "there and run the same command again, which resumes, or choose a folder on another disk."
        )


def readable_size(count: int) -> str:
    """A number of bytes with its unit: 12 bytes, 3.4 MB, 25.1 GB."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


@contextmanager
def atomic_write(
    path: str | Path, mode: str = "wb", bulk: bool = False, **options: Any
) -> Iterator[IO[Any]]:
    """Open a file for writing that replaces `path` at the end of the `with` block.

    An error in the block keeps what was at `path` and removes the unfinished, hidden
    file beside it. Of a symbolic link, the file that it leads to is replaced; an
    existing file keeps its permissions.

    Args:
        path: The file, whose folder must exist.
        mode: Mode to open it in, "w" or "wb".
        bulk: Whether this is one of many files that a single process writes and can
            write again. The file is then not flushed to the disk, which takes
            milliseconds, and replaces an unfinished one that a killed process left.
        **options: Further arguments of `open`.
    """
    path = Path(os.path.realpath(path))
    unfinished = path.with_name(
        f".{path.name}.part" if bulk else f".{path.name}.{os.getpid()}.part"
    )
    try:
        with open(unfinished, mode, **options) as file:
            yield file
            if not bulk:
                file.flush()
                os.fsync(
                    file.fileno()
                )  # or a power failure may leave the name without the content
        if not bulk and path.exists():
            shutil.copymode(path, unfinished)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def digest_of(paths: Iterable[Path]) -> str:
    """SHA-256 over the contents of files, in their order.

    Raises:
        OSError: If a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        if not stat.S_ISREG(
            status.st_mode
        ):  # a pipe would block; what reads the images refuses it
            digest.update(b"not a regular file")
            continue
        digest.update(_content(str(path), status.st_mtime_ns, status.st_size))
    return digest.hexdigest()


@lru_cache(maxsize=2**17)
def _content(path: str, changed: int, size: int) -> bytes:
    """SHA-256 of a file; cached by modification time and size because a process asks several times."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        add_rest(digest, file)
    return digest.digest()


def add_rest(digest: Any, file: BinaryIO) -> None:
    """Update a digest of `hashlib` with what is left of an open file, in parts; `file_digest` needs Python 3.11."""
    while part := file.read(2**20):
        digest.update(part)
