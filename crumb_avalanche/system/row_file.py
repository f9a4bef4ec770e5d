"""A file of rows of equal size, read and written in place."""

import os
from pathlib import Path
from typing import Any

import numpy as np


class RowFile:
    """Rows of ``row_bytes`` bytes each in a file that several processes may share.

    Reads and writes are plain system calls: pages of a memory map would count as memory of the process, and a full disk
    or a file truncated by another process would end it with SIGBUS instead of an ``OSError``.

    Args:
        path: an existing file.
        row_bytes: size of a row.
        writable: open for writing, too.
    """

    def __init__(self, path: str | os.PathLike, row_bytes: int, writable: bool = False):
        self.path = Path(path)
        self.row_bytes = row_bytes
        self._open("r+b" if writable else "rb")

    def _open(self, mode: str) -> None:
        self._file: Any = open(self.path, mode, buffering=0)  # noqa: SIM115 - close() does

    def __getstate__(self) -> dict[str, Any]:  # for loader processes that are not forked; they only read
        return {**self.__dict__, "_file": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open("rb")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read_into(self, values: np.ndarray, row: int) -> int:
        """Read as many rows as an array holds, from ``row`` on; returns the number of bytes read.

        Raises:
            OSError: the file cannot be read.
        """
        place = int(row) * self.row_bytes
        if hasattr(os, "preadv"):  # leaves alone the position in the file, which forked loader processes share
            return os.preadv(self._file.fileno(), [values.data], place)
        self._file.seek(place)
        return self._file.readinto(values.data)

    def write(self, values: np.ndarray, row: int) -> None:
        """Write a contiguous array of rows, from ``row`` on.

        Raises:
            OSError: for instance, the disk is full; a part may be written.
        """
        rest = values.data.cast("B")
        self._file.seek(int(row) * self.row_bytes)
        while rest:  # a nearly full disk takes a part first
            rest = rest[self._file.write(rest) :]


def resize(path: Path, size: int) -> bool:
    """Set the size of a file, with zeros at its end, or create it; returns whether it had the size before."""
    with open(path, "ab") as file:
        complete = file.tell() == size
        file.truncate(size)
    return complete
