"""Writes of the server that a full or broken disk refuses."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks_toybox_ilab.tables.disk_errors import WRITE_ERRORS


class SaveError(OSError):
    """A file could not be written, and nothing was changed."""


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder, and remove it with its files on exit.

    Raises:
        SaveError: the disk does not take the folder, or a file in it.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    except OSError as error:
        if error.errno not in WRITE_ERRORS:
            raise
        raise SaveError(
            f"no temporary file can be written to {tempfile.gettempdir()} "
            f"({error.strerror}), so nothing was changed; make room there, or start "
            "the server with TMPDIR set to a folder of another disk"
        ) from error
