"""Atomic writes: a file is complete or absent, even after a crash.

A file is written under a hidden, random name beside it, ``.NAME.RANDOM.part``, and
renamed at the end. The writer holds the operating system's lock of the unfinished file,
which ends with its process, so that others tell an abandoned file from one that is
being written, whatever its age: also in another container, where numbers of processes
and threads repeat.
"""

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from benchmarks_toybox_ilab.tables.disk_errors import WRITE_ERRORS

try:
    import fcntl
except ImportError:  # Windows, which lets nobody remove an open file
    fcntl = None  # type: ignore[assignment]

PART = re.compile(r"\.(?P<stem>.+)\.[0-9a-f]{16}\.part", re.DOTALL)
# Characters of a file's name that its unfinished file repeats: both names fit in the
# 255 bytes that file systems allow.
_STEM_LENGTH = 40
# Where nothing can be locked: seconds after which an unfinished file counts as
# abandoned.
_OLD_SECONDS = 3600
_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


@contextmanager
def atomic_write(
    path: str | os.PathLike,
    mode: str = "wb",
    *,
    bulk: bool = False,
    permissions: int | None = None,
    **options: Any,
) -> Iterator[IO[Any]]:
    """Open a file for writing that replaces ``path`` at the end of the ``with`` block.

    An error in the block, such as a full disk, leaves ``path`` unchanged and removes
    the unfinished file. Of a symbolic link, the file that it leads to is replaced. An
    existing file keeps its permissions, and owner and group as far as this process may
    set them. Unfinished files that killed writers of ``path`` left are removed.

    Args:
        path: the file; missing parent folders are created.
        mode: "wb" or "w".
        bulk: whether this is one of many files that can be written again. It is not
            flushed to the disk, which takes milliseconds, and what killed writers left
            is not looked for; ``remove_abandoned`` does that for a folder.
        permissions: of the file, which nobody else can read earlier; default those of
            the existing file, or of any new file of this process.
        **options: further arguments of ``open``, such as ``encoding``.

    Raises:
        OSError: the path is a folder, a pipe or a device, this process may not write to
            it, or the disk fails; names the path.
    """
    path = Path(os.path.realpath(path))  # of a link, the file that it leads to
    path.parent.mkdir(parents=True, exist_ok=True)
    # Status of the file that is there, or None; raises if it cannot be replaced.
    replaced = check_replaceable(path)
    if not bulk:
        _remove_abandoned_of(path)
    if permissions is None:
        # Of an existing file, nobody else reads until it is known who may.
        first_permissions = 0o666 if replaced is None else 0o600
    else:
        first_permissions = permissions
    writer_process = os.getpid()
    # The descriptor `claim` holds the lock that says that the file is being written.
    unfinished, claim = _create_claimed(path, first_permissions)
    try:
        # Closes a copy of the descriptor, which keeps the claim.
        with os.fdopen(_writing_descriptor(claim), mode, **options) as file:
            yield file
            file.flush()
            if not bulk:
                # Or a power cut may leave the name without the contents.
                os.fsync(file.fileno())
        if permissions is not None:
            unfinished.chmod(permissions)  # which the umask may have narrowed
        elif replaced is not None:
            permissions_of_replaced = _take_over_owner(unfinished, replaced)
            unfinished.chmod(permissions_of_replaced)
        os.replace(unfinished, path)
        if not bulk:
            _sync_folder(path.parent)
    except BaseException as error:
        if os.getpid() == writer_process:  # a forked process may leave the block, too
            unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError):
            _name_path_in_error(error, unfinished, path)
        raise
    finally:
        if fcntl is not None:
            os.close(claim)  # after the renaming: until then the file is claimed


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write a text file atomically, as UTF-8."""
    with atomic_write(path, "w", encoding="utf-8") as file:
        file.write(text)


def check_replaceable(path: Path) -> os.stat_result | None:
    """Return the status of a file that is to be replaced; ``None`` if there is none.

    Raises:
        OSError: it is a folder, a pipe or a device, or this process may not write to
            it.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(
            f"{path} is a folder, which no file replaces; give the path of a file"
        )
    if not stat.S_ISREG(status.st_mode):
        raise FileExistsError(
            f"{path} is a pipe or a device, which no file replaces; give the path of a "
            "file"
        )
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return status


def remove_abandoned(folder: str | Path) -> None:
    """Remove the unfinished files of killed writers in a folder and below it."""
    for parent, _, names in os.walk(Path(folder)):
        for name in names:
            if PART.fullmatch(name):
                _remove_if_abandoned(Path(parent, name))


def _create_claimed(path: Path, permissions: int) -> tuple[Path, int]:
    """Create and claim the unfinished file of a path; return its path and descriptor.

    The claim is a lock that ends when the descriptor is closed. Where the system has no
    locks the file is unclaimed.
    """
    while True:
        name = f".{path.name[:_STEM_LENGTH]}.{secrets.token_hex(8)}.part"
        unfinished = path.with_name(name)
        try:
            descriptor = os.open(unfinished, _CREATE_FLAGS, permissions)
        except FileExistsError:
            continue
        except OSError as error:
            _name_path_in_error(error, unfinished, path)
            raise
        # Another process may have taken the new file for an abandoned one: it has the
        # lock, or has removed the file, which then has no name in any folder. Without
        # locks on the file system, `_try_lock` returns None.
        is_claimed = _try_lock(descriptor) is not False
        is_in_folder = os.fstat(descriptor).st_nlink > 0
        if is_claimed and is_in_folder:
            return unfinished, descriptor
        os.close(descriptor)


def _writing_descriptor(claim: int) -> int:
    """Return a descriptor to write with, so that closing it keeps the claim."""
    if fcntl is None:
        return claim  # Windows replaces no file that is open a second time
    return os.dup(claim)


def _try_lock(descriptor: int) -> bool | None:
    """Lock an open file; return whether it is locked now, or another process has it.

    ``None`` where the system or the disk locks no files.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _remove_abandoned_of(path: Path) -> None:
    """Remove the unfinished files that killed writers of a path left."""
    # A folder that cannot be listed does not stop the write.
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            match = PART.fullmatch(entry.name)
            if match and match["stem"] == path.name[:_STEM_LENGTH]:
                _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(unfinished: Path) -> None:
    """Remove an unfinished file if no process writes it; keep what is not ours."""
    with contextlib.suppress(OSError):  # it vanished, or belongs to another user
        if fcntl is None:
            if _is_old(unfinished):
                unfinished.unlink()
            return
        descriptor = os.open(unfinished, os.O_RDWR | os.O_NOFOLLOW)
        try:
            # True: no writer held the lock, which is taken now. False: a writer holds
            # it. None: this file system has no locks.
            is_locked_now = _try_lock(descriptor)
            is_abandoned = is_locked_now
            if is_locked_now is None:
                is_abandoned = _is_old(unfinished)
            if is_abandoned:
                unfinished.unlink()  # while it is locked: no writer claims it
        finally:
            os.close(descriptor)  # which ends the lock


def _is_old(unfinished: Path) -> bool:
    """Whether an unfinished file was last written so long ago that it is abandoned."""
    return time.time() - unfinished.stat().st_mtime > _OLD_SECONDS


def _take_over_owner(path: Path, replaced: os.stat_result) -> int:
    """Give a file the owner and group of another; return the permissions to set.

    They are those of the other file, without the group's if the group stays another.

    Args:
        path: the file, whose owner is changed as far as this process may.
        replaced: status of the other file.
    """
    permissions = stat.S_IMODE(replaced.st_mode) & 0o777
    present = path.stat()
    owner_and_group = (present.st_uid, present.st_gid)
    is_same_owner = owner_and_group == (replaced.st_uid, replaced.st_gid)
    if is_same_owner or os.name != "posix":
        return permissions
    unchanged = -1
    # Others than root can change the group alone.
    for owner in (replaced.st_uid, unchanged):
        with contextlib.suppress(OSError):
            os.chown(path, owner, replaced.st_gid)
            return permissions
    without_group = 0o707
    return permissions & without_group


def _name_path_in_error(error: OSError, unfinished: Path, path: Path) -> None:
    """Let an error of writing name the file that was asked for."""
    is_of_unfinished = error.filename == str(unfinished)
    is_unnamed_write = error.filename is None and error.errno in WRITE_ERRORS
    if is_of_unfinished or is_unnamed_write:
        error.filename = str(path)
        if error.filename2 is not None:
            del error.filename2  # or the text of the error would name it, too


def _sync_folder(folder: Path) -> None:
    """Make new names in a folder survive a power cut, where the system supports it."""
    # Windows opens no folder, and some file systems refuse.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
