"""Exclusive locks of a folder, and of a file that is about to be replaced."""

import contextlib
import errno
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from benchmarks_toybox_ilab.tables.atomic_file import check_replaceable

LOCK = "lock"
MARKER = f"{LOCK}.marker"  # the lock where a file system has no flock
PATIENCE = 0.3  # seconds; in_use holds the lock for a moment
# Errors of flock on file systems without it, and on network disks whose lock service is
# down.
NO_FLOCK = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)


class FolderInUseError(RuntimeError):
    """Another process holds the folder or file."""


@contextlib.contextmanager
def locked(folder: Path, flag: str = "--output") -> Iterator[None]:
    """Hold the lock of a folder, which is created if absent; raise FolderInUseError if another process holds it.

    The operating system releases the lock when the process ends, even if it is killed.
    Where it has no locks, a file with the number of the process stands for one; the
    next process on the same computer removes that of a dead one. ``flag`` is the
    command line option that chooses the folder, for the error.
    """
    with _held(
        folder / LOCK,
        f"{folder} is in use by another process",
        f", or choose another {flag}",
    ):
        yield


@contextlib.contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold the lock of a file, ``.NAME.lock`` beside what a link leads to; see ``locked``.

    Readers need no lock if the file is replaced atomically. Warns of other names (hard
    links) of the file, which keep its earlier content. OSError: it cannot be replaced;
    see ``check_replaceable``.
    """
    real = Path(os.path.realpath(path))
    with _held(
        real.parent / f".{real.name}.{LOCK}",
        f"{path} is being changed by another process",
        "",
    ):
        if (found := check_replaceable(real)) is not None and found.st_nlink > 1:
            warnings.warn(
                f"{path} has other names (hard links), which keep the content of now; use symbolic links instead",
                stacklevel=3,
            )
        yield


@contextlib.contextmanager
def output_file(
    path: Path, kind: str, is_kind: Callable[[Path], bool], flag: str = "--output"
) -> Iterator[None]:
    """Hold the lock of a file that a command writes; see ``locked_file``.

    FileExistsError: the path exists and ``is_kind`` says that it is not the ``kind`` of
    file that the command writes, so it stays as it is.
    """
    with locked_file(path):
        if path.exists() and path.stat().st_size and not is_kind(path):
            raise FileExistsError(
                f"{path} exists and is not {kind}, so it stays as it is: choose another {flag}"
            )
        yield


@contextlib.contextmanager
def _held(path: Path, state: str, more: str) -> Iterator[None]:
    """Hold a lock file; the error says the ``state`` of what is locked, and what ``more`` to do than to wait."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            lock = _acquired(path, PATIENCE)
            break
        except (
            FileNotFoundError
        ):  # the previous holder removed the folder after it was created here
            if time.monotonic() > deadline:
                raise
        except Timeout as held:
            raise FolderInUseError(
                f"{state}, which holds {held.lock_file}; wait for its end{more}"
            ) from None
    try:
        yield
    finally:
        if isinstance(lock, FileLock):
            with contextlib.suppress(OSError):  # on Windows the release removes it
                # before the release: afterwards it may be the next holder's
                path.unlink()
        lock.release()


def _acquired(path: Path, patience: float) -> BaseFileLock:
    """Acquire a lock file, or the marker beside it where the file system has no locks; raise Timeout if it is held.

    They differ in name because an empty lock file that a killed process left would be a
    marker of nobody, for ever.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock: BaseFileLock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(timeout=patience, poll_interval=PATIENCE / 10)
    except OSError as error:
        if error.errno not in NO_FLOCK:
            raise
        path.unlink(missing_ok=True)
        lock = SoftFileLock(path.with_name(path.name.removesuffix(LOCK) + MARKER))
        lock.acquire(
            timeout=PATIENCE, poll_interval=PATIENCE / 10
        )  # not 0: the first try removes a dead process's
    return lock


def in_use(folder: Path) -> bool:
    """Whether a process holds the lock of the folder."""
    if not any((folder / name).exists() for name in (LOCK, MARKER)):
        return False
    try:
        lock = _acquired(folder / LOCK, 0)
    except Timeout:
        return True
    (folder / LOCK).unlink(missing_ok=True)  # of a killed process
    lock.release()
    return False
