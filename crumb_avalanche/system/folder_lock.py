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
    """Hold the lock of a folder in the ``with`` block; the folder is created if absent.

    The operating system releases the lock when the process ends, even if it is killed;
    a process that was forked meanwhile does not hold it. Where the system has no locks,
    a file with the number of the process stands for one; the next process on the same
    computer removes that of a dead one.

    Args:
        folder: to lock.
        flag: the command line option that chooses the folder, for the error.

    Raises:
        FolderInUseError: another process holds it.
    """
    lock = _acquire_lock(
        folder / LOCK,
        problem=f"{folder} is in use by another process",
        cure=f"wait for its end, or choose another {flag}",
    )
    with _lock_released_at_end(lock):
        yield


@contextlib.contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold the lock of a file, ``.NAME.lock`` beside what a link leads to.

    Readers need no lock if the file is replaced atomically. See ``locked``. Warns of
    other names (hard links) of the file, which keep its earlier content.

    Raises:
        FolderInUseError: another process holds it.
        OSError: it cannot be replaced; see ``check_replaceable``.
    """
    target = Path(os.path.realpath(path))
    lock = _acquire_lock(
        target.parent / f".{target.name}.{LOCK}",
        problem=f"{path} is being changed by another process",
        cure="wait for its end, or stop it if it is crumb serve or crumb connect",
    )
    with _lock_released_at_end(lock):
        file_status = check_replaceable(target)  # None if there is no file yet
        if file_status is not None and file_status.st_nlink > 1:
            warnings.warn(
                f"{path} has other names (hard links), which keep the content of now; "
                "use symbolic links instead",
                stacklevel=3,
            )
        yield


@contextlib.contextmanager
def output_file(
    path: Path, kind: str, is_kind: Callable[[Path], bool], flag: str = "--output"
) -> Iterator[None]:
    """Hold the lock of a file that a command writes, in a ``with`` block.

    Args:
        path: the file.
        kind: what the command writes, with its article: "a page".
        is_kind: whether the content of a file is of that kind.
        flag: the command line option that chooses the file, for the error.

    Raises:
        FileExistsError: the path exists and holds something else, so it stays as it is.
    """
    with locked_file(path):
        has_content = path.exists() and path.stat().st_size > 0
        if has_content and not is_kind(path):
            raise FileExistsError(
                f"{path} exists and is not {kind}, so it stays as it is: choose "
                f"another {flag}"
            )
        yield


def in_use(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder.

    The lock file of a process that was killed is removed.
    """
    # A marker stands for a lock where the system has none.
    has_lock_file = (folder / LOCK).exists() or (folder / MARKER).exists()
    if not has_lock_file:
        return False
    try:
        lock = _try_lock(folder / LOCK, patience=0)
    except Timeout:
        return True
    (folder / LOCK).unlink(missing_ok=True)  # of a killed process
    lock.release()
    return False


def _acquire_lock(path: Path, problem: str, cure: str) -> BaseFileLock:
    """Acquire a lock file and return it, or raise an error that says who holds it.

    Args:
        path: the lock file; missing folders are created.
        problem: of one who finds it locked, for the error: what is in use.
        cure: what to do then, for the error.

    Raises:
        FolderInUseError: another process holds it.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return _try_lock(path, PATIENCE)
        except FileNotFoundError:
            # The previous holder removed the folder after it was created here.
            if time.monotonic() > deadline:
                raise
        except Timeout as timeout:
            raise FolderInUseError(
                f"{problem}, which holds {timeout.lock_file}; {cure}"
            ) from None


def _try_lock(path: Path, patience: float) -> BaseFileLock:
    """Acquire and return a lock file, or a marker beside it where there are no locks.

    They differ in name because an empty lock file that a killed process left would be a
    marker of nobody, for ever.

    Args:
        path: the lock file; missing folders are created.
        patience: seconds to wait for another process.

    Raises:
        Timeout: it was held for all of ``patience``, in seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    interval = PATIENCE / 10
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(timeout=patience, poll_interval=interval)
    except OSError as error:
        if error.errno not in NO_FLOCK:
            raise
    else:
        return lock
    path.unlink(missing_ok=True)
    marker = SoftFileLock(path.with_name(path.name.removesuffix(LOCK) + MARKER))
    # Not at once: the first try removes the marker of a dead process.
    marker.acquire(timeout=PATIENCE, poll_interval=interval)
    return marker


@contextlib.contextmanager
def _lock_released_at_end(lock: BaseFileLock) -> Iterator[None]:
    """Release a lock at the end of the block, and remove its file.

    A forked process that leaves the block leaves its parent's lock alone.
    """
    holder = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == holder:
            if isinstance(lock, FileLock):
                # Before the release: afterwards it may be the next holder's. On Windows
                # the release removes it.
                with contextlib.suppress(OSError):
                    os.unlink(lock.lock_file)
            lock.release()
