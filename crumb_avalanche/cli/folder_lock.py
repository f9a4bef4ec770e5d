"""A folder in the hands of one process: whoever else wants it is told who has it."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked
    fcntl = None

LOCK = "lock"


class FolderInUseError(RuntimeError):
    """Another worker holds the folder."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone, and make it if need be; ``lock`` in it says ``pid host`` meanwhile.

    The operating system lets go of the lock when its process ends, in whatever way, so that none is ever stale.

    Raises:
        FolderInUseError: somebody holds it; says who.
    """
    if fcntl is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    while True:
        file = open(path, "a+")  # noqa: SIM115 (closing it lets go)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            file.close()
            raise FolderInUseError(
                f"{folder} is in use by process {holder or 'unknown'}; wait for its end, or choose another --output"
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
