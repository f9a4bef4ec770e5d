"""Ways in which a disk fails, as context managers; some need a small disk of their own."""

import contextlib
import ctypes
import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
from support.faults.forked import disk_error, unwatch, watch_changes

DISK = 16 * 2**20  # bytes; an interrupted run leaves three copies of its network, of about 1 MB each
NEW_NAMESPACE, PRIVATE, REMOUNT, READ_ONLY, DETACH = 0x20000, 0x44000, 32, 1, 2  # of Linux


@contextlib.contextmanager
def failing(folder: Path, number: int, count: int, once: bool) -> Iterator[None]:
    """Fail at a change of files below a folder, and at all later ones."""
    done = 0

    def watch(event: str, path: str) -> None:
        nonlocal done
        if path.startswith(str(folder)) and event not in ("os.remove", "os.rmdir", "shutil.rmtree"):
            done += 1
            if done == count + 1 or (done > count and not once):
                raise disk_error(number, path)

    watch_changes(watch)
    try:
        yield
    finally:
        unwatch(watch)


@contextlib.contextmanager
def failing_sync(number: int) -> Iterator[None]:
    """Fail when files are flushed to the disk, as quotas and remote disks do."""
    with mock.patch("os.fsync", side_effect=lambda handle: (_ for _ in ()).throw(disk_error(number, None))):
        yield


@contextlib.contextmanager
def size_limit(size: int) -> Iterator[None]:
    """Limit the size of files, as ``ulimit -f`` and some file systems do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def filled(folder: Path, room: int) -> Iterator[None]:
    """Fill a small disk but for some room."""
    filler = folder / "filler"
    with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
        free = os.statvfs(folder)
        file.write(np.zeros(max(0, free.f_bavail * free.f_frsize - room), np.uint8).data)
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a small disk read-only."""
    gc.collect()  # closes files that an earlier error left open
    system("mount", None, str(folder).encode(), None, REMOUNT | READ_ONLY, None)
    try:
        yield
    finally:
        system("mount", None, str(folder).encode(), None, REMOUNT, None)


def mount_small_disk(folder: Path) -> bool:
    """Mount a disk in memory that only this process sees, and that ends with it; returns whether it could be."""
    try:
        system("unshare", NEW_NAMESPACE)
        system("mount", b"none", b"/", None, PRIVATE, None)
        system("mount", b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"size={DISK}".encode())
    except (OSError, AttributeError):
        return False
    return True


def system(name: str, *arguments: object) -> None:
    """Call a function of the C library that returns 0 where it succeeds."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
