"""Files that are there whole or not at all, whatever happens while they are written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
    try:
        unfinished.touch()
        usual = unfinished.stat().st_mode
        yield unfinished
        unfinished.chmod(usual)
        with open(unfinished, "rb+") as file:
            os.fsync(file.fileno())  # or a power cut may leave the name without the contents
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
