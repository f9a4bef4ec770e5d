"""A folder in the hands of one process: whoever else wants it is told who has it."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked
    fcntl = None

LOCK = "lock"
PATIENCE = 0.3  # seconds: who only asks whether a folder is in use holds it for a moment


class FolderInUseError(RuntimeError):
    """Another worker holds the folder."""


@contextlib.contextmanager
def locked(folder: Path, flag: str = "--output") -> Iterator[None]:
    """Hold a folder for this process alone, and make it if need be; ``lock`` in it says ``pid host`` meanwhile.

    The operating system lets go of the lock when its process ends, in whatever way, so that none is ever stale.

    Args:
        folder: to be held.
        flag: the option that chooses it, for the error.

    Raises:
        FolderInUseError: somebody holds it; says who.
    """
    if fcntl is None:
        yield
        return
    path = folder / LOCK
    until = time.monotonic() + PATIENCE
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = open(path, "a+")  # noqa: SIM115 (closing it lets go)
        except (FileExistsError, FileNotFoundError):
            if time.monotonic() > until:
                raise
            continue  # the one before took the folder away between our two calls
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            file.close()
            if time.monotonic() < until:
                time.sleep(PATIENCE / 10)
                continue
            raise FolderInUseError(
                f"{folder} is in use by process {holder or 'unknown'}; wait for its end, or choose another {flag}"
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                break
        file.close()  # the one before took its file away between our two calls
    try:
        file.truncate(0)
        file.write(f"{os.getpid()} {socket.gethostname()}\n")
        file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()


def in_use(folder: Path) -> bool:
    """Whether somebody holds the folder now."""
    if fcntl is None:
        return False
    try:
        with open(folder / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
