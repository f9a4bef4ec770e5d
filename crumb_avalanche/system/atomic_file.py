"""Atomic writes: a file is complete or absent, even after a crash."""

import errno
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DISK_FULL = (
    errno.ENOSPC,
    errno.EDQUOT,
)  # error numbers of a full disk and an exceeded quota
PART = re.compile(
    r"\.(\d{1,9})\.part"
)  # what follows the name of a file while a process writes it
# What to do about errors of a disk or a path, by their number.
CURES = {
    **dict.fromkeys(
        DISK_FULL, "make room on that disk and give the same command again"
    ),
    errno.EFBIG: "a limit (ulimit -f) or the file system takes no file that large: raise it, or choose another disk",
    errno.EROFS: "choose another folder, or make the disk writable",
    errno.EACCES: "change its permissions, or choose another path",
    errno.EPERM: "change its permissions, or choose another path",
    errno.ENOENT: "check the path; some folders, such as /proc, take no files",
    errno.ENOTDIR: "a part of the path is a file: choose another path",
    errno.EISDIR: "give a file",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "a link leads back to itself: choose another path",
    errno.EMFILE: "raise the limit (ulimit -n), or lower --workers",
    errno.EIO: "the disk or its connection may be failing: check it, or choose another one",
    errno.ESTALE: "the connection to the disk was lost: give the same command again",
}
_OLD = 3600  # seconds; a younger file may belong to a process that is at work


def cured(error: OSError) -> str | None:
    """Return path, reason and cure of an error of a disk or a path; ``None`` for an error of another kind."""
    if (cure := CURES.get(error.errno or 0)) is None:
        return None
    path = "" if error.filename is None else f"{error.filename}: "
    if error.errno == errno.EACCES and path and not os.path.lexists(error.filename):
        folder = os.path.dirname(os.path.abspath(error.filename))
        cure = cure.replace(
            "its permissions", f"the permissions of the folder {folder}"
        )
    return f"{path}{error.strerror or error}; {cure}"


@contextmanager
def atomic_write(path: Path, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces ``path`` when the ``with`` block ends.

    An error in the block, such as a full disk, leaves ``path`` unchanged and removes
    the temporary file. Missing parent folders are created. Of a symbolic link, the file
    that it leads to is replaced. An existing file keeps its permissions, and owner and
    group as far as this process may set them; a new one gets those of any new file of
    this process, whatever the block sets: safetensors makes files that only their owner
    can read. With ``mode`` it gets those permissions, and nobody else can read it
    earlier. OSError: see ``replaceable``, or the disk fails.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    before = replaceable(path)
    temporary = path.with_name(
        f"{path.name}.{threading.get_native_id()}.part"
    )  # two threads may write the same file
    _remove_leftovers(path, temporary)
    try:
        temporary.touch(
            mode or (0o666 if before is None else 0o600)
        )  # until it is known who may read it
        usual = temporary.stat().st_mode
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(
                file.fileno()
            )  # or a power cut may leave the name without the contents
        temporary.chmod(
            mode or (usual if before is None else _access_of(before, temporary))
        )
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replaceable(path: Path) -> os.stat_result | None:
    """Return what is known of a file that is to be replaced; ``None`` if there is none.

    OSError: it is a folder, a pipe or a device, or this process may not write to it.
    """
    try:
        before = path.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(before.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(before.st_mode):
        raise FileExistsError(
            f"{path} is a pipe or a device, which no file replaces; give the path of a file"
        )
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return before


def _access_of(before: os.stat_result, path: Path) -> int:
    """Give a file the owner and group of another one; return its permissions, without the group's if that fails."""
    mode, now = stat.S_IMODE(before.st_mode) & 0o777, path.stat()
    if (now.st_uid, now.st_gid) == (before.st_uid, before.st_gid) or os.name != "posix":
        return mode
    for owner in (
        before.st_uid,
        -1,
    ):  # -1 leaves it: others than root can change the group alone
        with suppress(OSError):
            os.chown(path, owner, before.st_gid)
            return mode
    return mode & 0o707


def _sync_folder(folder: Path) -> None:
    """Make new names in a folder survive a power cut, where the system supports it."""
    with suppress(OSError):  # Windows opens no folder, and some file systems refuse
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def _remove_leftovers(path: Path, temporary: Path) -> None:
    """Remove temporary files of killed processes: one with this thread's number, and those not written to lately."""
    if temporary.is_file():  # its permissions may be unusual
        temporary.unlink()
    # A leftover that vanished meanwhile or belongs to another user does not stop the
    # write.
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            match = entry.name.startswith(path.name) and PART.fullmatch(
                entry.name, len(path.name)
            )
            if (
                match
                and time.time() - entry.stat(follow_symlinks=False).st_mtime > _OLD
            ):
                os.unlink(entry.path)
