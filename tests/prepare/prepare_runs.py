"""Helpers that call `prepare` quietly with one worker and make archives of folders."""

import tarfile
import zipfile
from pathlib import Path

from benchmarks_toybox_ilab.prepare.core import prepare
from benchmarks_toybox_ilab.tables.frame_table import FrameTable


class Runner:
    """Call `prepare` with one worker and collect its output.

    Attributes:
        said: The lines of output.
    """

    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self, name: str, root: Path, source: Path | None = None, **arguments: object) -> list[str]:
        return prepare(name, root, source, **{"workers": 1, "say": self.said.append, **arguments})


def pack(archive: Path, folder: Path, below: str = "") -> Path:
    """An archive of all files of a folder, .zip or .tar.gz by its name, in the folder `below`."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = {path: f"{below}{path.relative_to(folder).as_posix()}" for path in files}
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as packed:
            for path, name in names.items():
                packed.write(path, name)
    else:
        with tarfile.open(archive, "w:gz") as packed:
            for path, name in names.items():
                packed.add(path, name)
    return archive


def files(folder: Path) -> list[str]:
    """Names of all files below a folder but the hashes of index files."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".sha256")
    return sorted(path.relative_to(folder).as_posix() for path in found)


def read_csv(root: Path, name: str) -> FrameTable:
    """The table that was written, relative to the root."""
    table = FrameTable.from_csv(root / f"{name}.csv", root)
    assert table.read(0).size
    return table
