"""Room on the disk: looked at before a long job starts, not found out when it stops."""

import shutil
from pathlib import Path

from benchmarks_toybox_ilab.tables.frame import FrameTableError


def check_room(folder: Path, needed: int, job: str) -> None:
    """Raise unless the disk of `folder` has room for `needed` more bytes.

    Args:
        folder: Where the files will go; it need not exist yet.
        needed: Bytes still to be written.
        job: What for, as the beginning of a sentence: "unpacking a.zip".

    Raises:
        FrameTableError: If there is too little room; says how much is needed and how much is free.
    """
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if needed > free:
        raise FrameTableError(
            f"{job} needs {readable_size(needed)} more, but only {readable_size(free)} are free at {folder}. Make room "
            "there and give the same command again, which goes on where it stopped, or choose a folder on another disk."
        )


def readable_size(count: int) -> str:
    """A number of bytes in the unit that fits: 12 bytes, 3.4 MB, 25.1 GB."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
