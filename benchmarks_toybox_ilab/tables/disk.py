"""Free disk space, and digests of the contents of files."""

import hashlib
import shutil
import stat
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from benchmarks_toybox_ilab.tables.frame import FrameTableError

# Bytes of each unit, and from how many on a size is written in it: below, one digit
# behind the point would round it to 1000.0 of the smaller unit.
_UNITS = {
    "GB": (10**9, 10**9 - 50_000),
    "MB": (10**6, 10**6 - 50),
    "kB": (10**3, 10**3),
}


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
    existing = folder.absolute()  # in the end the nearest folder that exists
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise FrameTableError(
            f"{job} needs {readable_size(needed)} more, but only {readable_size(free)} "
            f"are free at {folder}. Make room there and run the same command again, "
            "which resumes, or choose a folder on another disk."
        )


def readable_size(count: int) -> str:
    """Return a number of bytes with its unit: 12 bytes, 3.4 MB, 25.1 GB."""
    for unit, (size, least) in _UNITS.items():
        if count >= least:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def files_digest(paths: Iterable[Path]) -> str:
    """Return the SHA-256 over the contents of files in their order, in hexadecimal.

    Raises:
        OSError: If a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            # Time and size are part of the cache's key: a changed file is read again.
            digest_of_file = _cached_content_digest(
                str(path), changed_ns=status.st_mtime_ns, size=status.st_size
            )
            digest.update(digest_of_file)
        else:
            # A pipe would block; what reads the images refuses it.
            digest.update(b"not a regular file")
    return digest.hexdigest()


@lru_cache(maxsize=2**17)
def _cached_content_digest(path: str, changed_ns: int, size: int) -> bytes:
    """Return the SHA-256 of the content of a file, 32 bytes.

    Cached, because a process asks several times.

    Args:
        path: The file.
        changed_ns: Its modification time, so that a changed file is read again.
        size: Its size in bytes, for the same reason.
    """
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        add_rest(digest, file)
    return digest.digest()


def add_rest(digest: Any, file: BinaryIO) -> None:
    """Update a digest of `hashlib` with the rest of an open file, in parts.

    `hashlib.file_digest` needs Python 3.11.
    """
    while block := file.read(2**20):
        digest.update(block)
