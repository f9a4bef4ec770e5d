"""Bring the download of a data set to its root, and say what a root lacks."""

import pickle
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks_toybox_ilab.datasets.registry import Benchmark
from benchmarks_toybox_ilab.prepare.archives import archives_in, unpack
from benchmarks_toybox_ilab.prepare.download import download, md5_of
from benchmarks_toybox_ilab.tables.disk import atomic_write, check_room, readable_size
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

DOWNLOADS = ".download"  # below the root; hidden, so tables ignore it
_CIFAR100_BYTES = 300_000_000  # 60,000 small files of at least one disk block each
_LARGE = 10**9  # bytes; reading the file list of a larger archive may take minutes

# progress(title, unit) returns a context manager whose value is called with (done, total).
Progress = Callable[[str, str], AbstractContextManager[Callable[..., object]]]


def counted(table: FrameTable) -> str:
    """The numbers of classes and images of a table, in words."""
    train, test = table.split.count("train"), table.split.count("test")
    return f"{len(table.classes)} class{'es' * (len(table.classes) != 1)}, {train} training and {test} test images"


def gaps(data: Benchmark, root: Path) -> tuple[list[str], list[str]]:
    """What exists of a data set below root, and what is missing, in words."""
    try:
        table = data.frames(root)
    except FrameTableError as error:
        return [], [str(error)]
    return [f"{data.name} in {table.root}: {counted(table)}"], data.files.missing(table)


@dataclass(frozen=True)
class Job:
    """The arguments of `core.prepare`."""

    data: Benchmark
    root: Path
    source: Path | None
    workers: int
    progress: Progress | None
    say: Callable[[str], object]

    @property
    def in_place(self) -> bool:
        """Whether the root itself is the source."""
        return self.source is None or self.source.resolve() == self.root.resolve()

    def bar(self, title: str, unit: str) -> AbstractContextManager[Callable[..., object] | None]:
        """A context manager for the `progress` argument of one step."""
        return nullcontext() if self.progress is None else self.progress(title, unit)

    def unpack(self, archive: Path, only: Callable[[str], str | None] | None = None) -> None:
        """Unpack the files that are needed below the root."""
        if archive.is_file() and archive.stat().st_size >= _LARGE:
            self.say(f"reading the file list of {archive} ({readable_size(archive.stat().st_size)})")
        with self.bar(f"unpacking {archive.name}", " files") as step:
            count = unpack(archive, self.root, step, only or self.data.files.place)
        self.say(f"{archive}: {count} file{'s' * (count != 1)} unpacked")

    def bring(self, write: Callable[[Path], object] | None = None) -> None:
        """Unpack the archives of the source or of the root, or download one; a root that is unpacked needs none.

        `write` is called with the data set's own archive, of verified content; None unpacks it.
        """
        layout = self.data.files
        name = layout.url.rpartition("/")[2]
        begun = (self.root / DOWNLOADS).exists() or (self.root / name).exists()
        there = bool(name) and self.source is None and layout.find(self.root) is not None
        if there and (not begun or not gaps(self.data, self.root)[1]):
            return  # a user has put the files there, or all are unpacked
        archives = archives_in(self.source or self.root / name)
        if name and self.source is None and not archives:
            archives = [self.root / DOWNLOADS / name]
            with self.bar(f"downloading {name}", "B") as step:
                download(layout.url, archives[0], layout.md5, step)
        for archive in archives:
            known = layout.md5 if archive.name == name or write else ""
            verified = known and (got := md5_of(archive)) == known
            if archive.name == name and not verified:
                raise FrameTableError(
                    f"{archive} has the MD5 checksum {got}, while that of {name} is {known}: it is damaged or "
                    f"incomplete. Download it: {layout.url}"
                )
            if write and verified:
                write(archive)
            else:
                self.unpack(archive)
            if archive.parent.name == DOWNLOADS:
                self.say(f"{archive} is no longer needed")
        if layout.find(self.root) is None or not (archives or self.in_place):
            raise self.nothing_there()

    def nothing_there(self) -> FrameTableError:
        """The error to raise if there is nothing to start from."""
        layout = self.data.files
        return FrameTableError(
            f"{self.source or self.root} holds nothing of {self.data.name}. Download it and give the archive, or the "
            f"folder of the archives: `crumb prepare {self.data.name} --dataset-root {self.root} --source DOWNLOADED`. "
            f"Source: {layout.source}. Final layout: {layout.tree}"
        )


def write_cifar100(job: Job, archive: Path) -> None:
    """Write CIFAR-100 as `root/{train,test}/<class>/<original name>.png`, losslessly; existing images are kept.

    The checksum of the archive is verified before, because unpickling runs code.
    """
    check_room(job.root, _CIFAR100_BYTES, "CIFAR-100")
    with tarfile.open(archive) as file:
        meta, *splits = (
            pickle.load(file.extractfile(f"cifar-100-python/{name}"), encoding="latin1")
            for name in ("meta", "train", "test")
        )
    images: dict[Path, np.ndarray] = {}
    for split, content in zip(("train", "test"), splits):
        pixels = content["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        for number, (label, name) in enumerate(zip(content["fine_labels"], content["filenames"], strict=True)):
            path = job.root / split / meta["fine_label_names"][label] / name
            unique = path if path not in images else path.with_stem(f"{path.stem}_{number:05d}")
            images[unique] = pixels[number]
    with job.bar("writing images", " images") as step, ThreadPoolExecutor(job.workers) as pool:
        for done, _ in enumerate(pool.map(_write, images, images.values()), 1):
            if step is not None:
                step(done, len(images))


def _write(path: Path, pixels: np.ndarray) -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, bulk=True) as file:
            Image.fromarray(pixels).save(file, "PNG")
