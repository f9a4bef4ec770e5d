"""Files that are there whole or not at all, whatever happens while they are written."""

import errno
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)  # the system's numbers for it
_LONG_AGO = 3600  # seconds; of a process that we do not see, perhaps one on another machine


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Write to the path that is given; it takes the place of ``path`` at the end of the ``with`` block.

    An error in the block, such as a full disk, leaves what was at ``path`` and removes the unfinished file. Folders
    above ``path`` are made. Whoever may read new files of this process may read it: safetensors alone would make files
    for their owner only, of no use to a robot's service or to colleagues on a cluster.

    Args:
        path: of the file, which may exist.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")  # two processes may write the same
    _remove_left_behind(path, unfinished)
    try:
        unfinished.touch()
        usual = unfinished.stat().st_mode
        yield unfinished
        unfinished.chmod(usual)
        with open(unfinished, "rb+") as file:
            os.fsync(file.fileno())  # or a power cut may leave the name without the contents
        os.replace(unfinished, path)
        _keep_name(path.parent)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _keep_name(folder: Path) -> None:
    """Have a folder's new names outlast a power cut, where the system can do so."""
    with suppress(OSError):  # Windows opens no folder, and some file systems refuse
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_left_behind(path: Path, own: Path) -> None:
    """Remove what killed processes left unfinished of a file: one of our own number, and old ones of no process."""
    if own.is_file():  # its permissions need not be the usual ones
        own.unlink()
    if os.name != "posix":  # elsewhere, asking after a process may end it
        return
    name = re.compile(rf"{re.escape(path.name)}\.(\d{{1,9}})\.part")
    # One that is gone meanwhile or belongs to somebody else is no reason not to write ours.
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            match = name.fullmatch(entry.name)
            if match and time.time() - entry.stat().st_mtime > _LONG_AGO and not _lives(int(match[1])):
                os.unlink(entry.path)


def _lives(process: int) -> bool:
    """Whether there is a process of that number on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return True
