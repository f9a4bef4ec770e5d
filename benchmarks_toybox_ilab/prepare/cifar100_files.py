"""Convert CIFAR-100 from its distribution (pickles in a .tar.gz) to a tree of PNG images."""

import pickle
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks_toybox_ilab.prepare.job import Job
from benchmarks_toybox_ilab.tables.disk import atomic_write, check_room

_BYTES_OF_ALL = 300_000_000  # 60,000 small files of at least one disk block each


def write_cifar100(job: Job, archive: Path) -> None:
    """Write CIFAR-100 as `root/{train,test}/<class>/<original name>.png`, losslessly; existing images are kept.

    Args:
        job: The root, the number of threads, and the progress.
        archive: The .tar.gz, whose checksum is verified, because unpickling runs code.

    Raises:
        FrameTableError: If the disk has too little room.
    """
    check_room(job.root, _BYTES_OF_ALL, "CIFAR-100")
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
