"""Measure building and reading a stream of ImageNet's size.

    python experiments/bench_streams.py --images FOLDER_OF_CLASS_FOLDERS

Building is measured beside Avalanche, reading beside torchvision. Figures: seconds and
peak bytes above the imports of a frame table and stream of 10 x 100 classes of
1,331,167 made-up names (build_seconds, build_bytes), and of Avalanche's own
`paths_benchmark` of them (avalanche_seconds, avalanche_bytes), each in a new process;
with --images, the images/s of a stream (2 loader processes) by those of a bare
torchvision ImageFolder loader of the same files and transform (read_ratio).
"""

import argparse
import json
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from avalanche.benchmarks.scenarios.deprecated.generators import paths_benchmark
from support.bench import bench_parser, fastest, in_new_process, report, resident
from support.common_options import run_script
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import ImageFolder

from benchmarks_toybox_ilab import (
    Frame,
    FrameTable,
    ImageNetFrames,
    imagenet_transform,
    make_benchmark,
)

CLASSES = 1000
TRAIN_IMAGES = 1_281_167
TEST_IMAGES = 50  # of each class
READ_IMAGES = 3000
CLASSES_PER_EXPERIENCE = 100


class File(NamedTuple):
    """A file in the form of ImageNet."""

    split: str
    label: int
    path: str


def files(train_images: int) -> Iterator[File]:
    """Yield files in the form of ImageNet, ``train_images`` of them for training."""
    for label in range(CLASSES):
        name = f"n{1_440_764 + 13_571 * label:08d}"
        images = train_images // CLASSES + (label < train_images % CLASSES)
        for image in range(images):
            yield File("train", label, f"train/{name}/{name}_{7 * image}.JPEG")
        for image in range(TEST_IMAGES):
            number = TEST_IMAGES * label + image + 1
            yield File("val", label, f"val/{name}/ILSVRC2012_val_{number:08d}.JPEG")


def build_by_table(train_images: int) -> Any:
    """Build the stream by a frame table."""
    paths = (file.path for file in files(train_images))
    frames = ImageNetFrames("/imagenet", paths=paths)
    return make_benchmark(frames, "class_iid", 0, CLASSES_PER_EXPERIENCE)


def build_by_avalanche(train_images: int) -> Any:
    """Build the stream by Avalanche's lists of paths."""
    count = CLASSES // CLASSES_PER_EXPERIENCE
    train: list[list[tuple[str, int]]] = [[] for _ in range(count)]
    test: list[list[tuple[str, int]]] = [[] for _ in range(count)]
    for file in files(train_images):
        experiences = train if file.split == "train" else test
        experience = experiences[file.label // CLASSES_PER_EXPERIENCE]
        experience.append((f"/imagenet/{file.path}", file.label))
    return paths_benchmark(train, test, task_labels=[0] * count)


BUILDERS = {"build": build_by_table, "avalanche": build_by_avalanche}


def cost(kind: str, train_images: int) -> dict[str, float]:
    """Seconds and bytes of a build in this process, without imports."""
    before = resident("VmRSS")
    start = time.perf_counter()
    benchmark = BUILDERS[kind](train_images)
    images = sum(len(experience.dataset) for experience in benchmark.train_stream)
    assert images == train_images
    seconds = time.perf_counter() - start
    return {f"{kind}_seconds": seconds, f"{kind}_bytes": resident("VmHWM") - before}


def read_ratio(folder: str, rounds: int) -> float:
    """Measure images/s of a stream / images/s of a bare loader.

    Both read the same files in the same order.

    Args:
        folder: of class folders of images.
        rounds: turns of each, of which the fastest counts.
    """
    torch.set_num_threads(1)
    image_folder = ImageFolder(folder, imagenet_transform())
    table = _table_of(image_folder)
    benchmark = make_benchmark(table, "class_iid", 0, len(image_folder.classes))
    stream = benchmark.train_stream[0].dataset
    order = list(stream.frame_row)[:READ_IMAGES]
    loading = dict(batch_size=32, num_workers=2)
    plain = DataLoader(Subset(image_folder, order), **loading)
    images = stream.subset(list(range(len(order))))
    ours = DataLoader(images, collate_fn=stream.collate_fn, **loading)
    # A deque of length 0 reads a loader to its end and keeps nothing.
    calls = {"plain": partial(deque, plain, 0), "ours": partial(deque, ours, 0)}
    seconds = fastest(calls, rounds)
    return seconds["plain"] / seconds["ours"]


def _table_of(image_folder: ImageFolder) -> FrameTable:
    """The images of a folder as training frames, in the same order."""
    frames = []
    for file, _ in image_folder.samples:
        path = Path(file).relative_to(image_folder.root)
        frames.append(Frame(str(path), path.parts[0], str(path), "0", 0, "train"))
    for name in image_folder.classes:  # each needs a test image
        frames.append(Frame(f"{name}/never_read", name, "x", "1", 0, "test"))
    return FrameTable(frames, image_folder.root)


def main() -> None:
    parser = bench_parser(__doc__, repeats=3)
    add = parser.add_argument
    add("--images", help="folder of class folders of images, to measure reading")
    add(
        "--train",
        type=int,
        default=TRAIN_IMAGES,
        help="number of training images to build with",
    )
    add("--quick", action="store_true", help="build with 10,000 training images")
    add("--child", choices=list(BUILDERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    train_images = 10_000 if options.quick else options.train
    if options.child:
        print(json.dumps(cost(options.child, train_images)))
        return
    figures: dict[str, float] = {}
    for kind in BUILDERS:
        words = ("--child", kind, "--train", train_images)
        figures |= in_new_process(__file__, *words)
    if options.images:
        figures["read_ratio"] = read_ratio(options.images, options.repeats)
    report(options, figures)


if __name__ == "__main__":
    run_script(main, smoke_test=False)
