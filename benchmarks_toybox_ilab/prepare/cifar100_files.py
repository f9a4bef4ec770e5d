"""Convert CIFAR-100 from its distribution (pickles in a .tar.gz) to a tree of PNG images."""

import pickle
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

from PIL import Image

from benchmarks_toybox_ilab.prepare.download import DownloadError, md5_of
from benchmarks_toybox_ilab.tables.disk import atomic_write, check_room
from benchmarks_toybox_ilab.tables.frame import FrameTableError

ARCHIVE = "cifar-100-python.tar.gz"

_PLAIN_NAME = re.compile(r"[\w\-]+(?:\.png)?", re.ASCII)
_BYTES_OF_ALL = 700_000_000  # archive, pickles, and 60,000 small files of at least one disk block each


def is_distribution(file: Path) -> bool:
    """Whether a file is the .tar.gz of CIFAR-100, by its checksum.

    Raises:
        FrameTableError: If it has the name of that file, but another checksum.
    """
    from torchvision.datasets import CIFAR100  # imports torch, which takes seconds

    got = md5_of(file)
    if got != CIFAR100.tgz_md5 and file.name == ARCHIVE:
        raise FrameTableError(
            f"{file} has the MD5 checksum {got}, but {CIFAR100.tgz_md5} is expected: it is damaged or "
            f"incomplete. Download it again: {CIFAR100.url}"
        )
    return got == CIFAR100.tgz_md5


def write_cifar100(
    root: Path,
    archive: Path | None = None,
    workers: int = 2,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Write CIFAR-100 as `root/{train,test}/<class>/<original name>.png`, losslessly; existing images are kept.

    torchvision downloads, verifies and unpacks it in `root/.download`.

    Args:
        root: Folder for the two folders; created if missing.
        archive: The .tar.gz if it has been downloaded.
        workers: Number of threads.
        progress: Called with (images done, total number of images) after each image.

    Returns:
        The number of images written.

    Raises:
        DownloadError: If it cannot be downloaded.
        FrameTableError: If the disk has too little room.
    """
    from torchvision.datasets import CIFAR100  # imports torch, which takes seconds

    folder = root / ".download"
    if not (folder / CIFAR100.base_folder).is_dir():
        check_room(root, _BYTES_OF_ALL, "CIFAR-100")
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / ARCHIVE
    if archive is not None and not (own.exists() and md5_of(own) == CIFAR100.tgz_md5):
        with open(archive, "rb") as source, atomic_write(own, bulk=True) as copy:
            shutil.copyfileobj(source, copy)
    try:
        splits = {name: CIFAR100(folder, train=name == "train", download=True) for name in ("train", "test")}
    except (OSError, RuntimeError, HTTPException) as error:  # torchvision raises RuntimeError for wrong checksums
        raise DownloadError(
            f"cannot download {CIFAR100.url}: {error}. Run the same command again, or download {ARCHIVE} "
            "elsewhere and give it with --source."
        ) from error
    jobs = []
    for split, data in splits.items():
        names = _names(folder / CIFAR100.base_folder / split, data.targets)
        for pixels, label, name in zip(data.data, data.targets, names, strict=True):
            jobs.append((root / split / data.classes[label] / name, pixels))
    with ThreadPoolExecutor(workers) as pool:
        written = 0
        for done, new in enumerate(pool.map(_write, jobs), 1):
            written += new
            if progress is not None:
                progress(done, len(jobs))
    return written


def _names(pickled: Path, labels: list[int]) -> list[str]:
    """A file name for each image of a split: the original name, or the image's number if there is none."""
    with open(pickled, "rb") as file:
        given = pickle.load(file, encoding="latin1").get("filenames", ())  # torchvision has verified its checksum
    if len(given) != len(labels) or not all(map(_PLAIN_NAME.fullmatch, given)):
        return [f"{number:05d}.png" for number in range(len(labels))]
    taken: set[tuple[int, str]] = set()
    names = []
    for number, (label, name) in enumerate(zip(labels, given, strict=True)):
        stem = name.removesuffix(".png")
        if (label, stem) in taken:
            stem = f"{stem}_{number:05d}"
        taken.add((label, stem))
        names.append(f"{stem}.png")
    return names


def _write(job: tuple[Path, object]) -> bool:
    """Write an image atomically unless it exists; whether it was written."""
    path, pixels = job
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, bulk=True) as file:
        Image.fromarray(pixels).save(file, "PNG")
    return True
