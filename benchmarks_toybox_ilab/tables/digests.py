"""Digests of the contents of files."""

import hashlib
import stat
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO


def digest_of(paths: Iterable[Path]) -> str:
    """SHA-256 over the contents of files, in their order.

    Raises:
        OSError: If a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would block; what reads the images refuses it
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
