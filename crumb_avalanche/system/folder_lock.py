"""Exclusive lock of a folder, or of a file that is about to be replaced."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = "lock"
PATIENCE = 0.3  # seconds; in_use holds the lock for a moment


class FolderInUseError(RuntimeError):
    """Another process holds the folder or file."""


@contextlib.contextmanager
def locked(folder: Path, flag: str = "--output") -> Iterator[None]:
    """Hold the lock of a folder, which is created if absent; the file ``lock`` in it says ``pid host`` meanwhile.

    The operating system releases the lock when the process ends, even if it is killed.

    Args:
        folder: to hold.
        flag: the command line option that chooses the folder, for the error.

    Raises:
        FolderInUseError: another process holds it; says which.
    """
    with _held(folder / LOCK, str(folder), f"in use by process %s; wait for its end, or choose another {flag}"):
        yield


@contextlib.contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold the lock of a file, ``.NAME.lock`` beside it. Readers need none if the file is replaced atomically.

    Raises:
        FolderInUseError: another process holds it; says which.
    """
    with _held(path.parent / f".{path.name}.{LOCK}", str(path), "being changed by process %s; wait for its end"):
        yield


@contextlib.contextmanager
def _held(path: Path, what: str, state: str) -> Iterator[None]:
    """Hold a lock file, whose folder is created if absent.

    Args:
        path: the file; it says ``pid host`` meanwhile.
        what: what it locks, for the error.
        state: the rest of the error, with a place for the holder.
    """
    lock, deadline = FileLock(path), time.monotonic() + PATIENCE
    while True:
        try:
            lock.acquire(timeout=PATIENCE, poll_interval=PATIENCE / 10)
            break
        except FileNotFoundError:  # the previous holder removed the folder after it was created here
            if time.monotonic() > deadline:
                raise
        except Timeout:
            holder = "unknown"
            with contextlib.suppress(OSError):
                holder = path.read_text().strip().replace(" ", " on ") or holder
            raise FolderInUseError(f"{what} is {state % holder}") from None
    try:
        with contextlib.suppress(OSError):  # a full disk; Windows, where a locked file cannot be written to
            path.write_text(f"{os.getpid()} {socket.gethostname()}\n")
        yield
    finally:
        with contextlib.suppress(OSError):  # on Windows the release removes it
            path.unlink()  # before the release: afterwards it may be the next holder's
        lock.release()


def in_use(folder: Path) -> bool:
    """Whether a process holds the lock of the folder."""
    path = folder / LOCK
    if not path.exists():
        return False
    try:
        with FileLock(path, timeout=0):
            path.unlink(missing_ok=True)  # of a killed process
    except Timeout:
        return True
    return False
