"""Write the images of CIFAR-100 from its distribution as it was published."""

import pickle
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from benchmarks_toybox_ilab.prepare.job import Job
from benchmarks_toybox_ilab.tables.atomic_file import atomic_write, remove_abandoned
from benchmarks_toybox_ilab.tables.disk import check_room

_NEEDED_BYTES = 300_000_000  # 60,000 small files of at least one disk block each
_SPLITS = ("train", "test")


def write_cifar100(job: Job, archive: Path) -> None:
    """Write CIFAR-100 as `root/{train,test}/<class>/<original name>.png`.

    Pixels are those of the archive. Existing images are kept.

    Args:
        job: The data set to prepare.
        archive: The published archive, whose checksum was verified, because unpickling
            runs code.
    """
    check_room(job.root, _NEEDED_BYTES, "CIFAR-100")
    for split in _SPLITS:
        remove_abandoned(job.root / split)
    images = _pixels_in_archive(job.root, archive)
    with (
        job.progress(len(images), "writing images", " images") as bar,
        ThreadPoolExecutor(job.workers) as pool,
    ):
        # With the path and the pixels of each image.
        for _ in pool.map(_write_image, images, images.values()):
            bar.update()


def _pixels_in_archive(root: Path, archive: Path) -> dict[Path, np.ndarray]:
    """Return the pixels of each image of CIFAR-100, `(32, 32, 3)` uint8, by its path.

    Args:
        root: Folder that the images are to be written to.
        archive: The published archive of pickles, whose checksum was verified.
    """
    images: dict[Path, np.ndarray] = {}
    with tarfile.open(archive) as file:
        class_names = _unpickled_member(file, "meta")["fine_label_names"]
        for split in _SPLITS:
            content = _unpickled_member(file, split)
            # Rows of 3072 values, channel by channel, to (N, 32, 32, 3).
            pixels = content["data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            labels = content["fine_labels"]
            names = content["filenames"]
            for number, (label, name) in enumerate(zip(labels, names, strict=True)):
                path = root / split / class_names[label] / name
                if path in images:  # some names are used twice
                    path = path.with_stem(f"{path.stem}_{number:05d}")
                images[path] = pixels[number]
    return images


def _unpickled_member(file: tarfile.TarFile, name: str) -> dict[str, Any]:
    """Return what CIFAR-100's archive holds under a name: "meta", "train" or "test"."""
    stream = cast(Any, file.extractfile(f"cifar-100-python/{name}"))
    return pickle.load(stream, encoding="latin1")


def _write_image(path: Path, pixels: np.ndarray) -> None:
    """Write an image of CIFAR-100 as PNG, unless it exists."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, bulk=True) as file:
            Image.fromarray(pixels).save(file, "PNG")
