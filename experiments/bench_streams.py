"""Measure building a stream of ImageNet's size beside Avalanche, and reading a stream beside torchvision.

    python experiments/bench_streams.py --images FOLDER_OF_CLASS_FOLDERS

Figures: seconds and peak bytes above the imports of a frame table and stream of 10 x
100 classes of 1,331,167 made-up names (build_seconds, build_bytes), and of Avalanche's
own `paths_benchmark` of them (avalanche_seconds, avalanche_bytes), each in a new
process; with --images, the images/s of a stream (2 loader processes) by those of a bare
torchvision ImageFolder loader of the same files and transform (read_ratio).
"""

import argparse
import json
import time
from collections import deque
from pathlib import Path

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

CLASSES, TRAIN, TEST, READ = 1000, 1_281_167, 50, 3000


def files(train: int):
    """Yield split, label and name of files in the form of ImageNet, ``train`` of them training images."""
    for label in range(CLASSES):
        name = f"n{1_440_764 + 13_571 * label:08d}"
        for image in range(train // CLASSES + (label < train % CLASSES)):
            yield "train", label, f"train/{name}/{name}_{7 * image}.JPEG"
        for image in range(TEST):
            yield (
                "val",
                label,
                f"val/{name}/ILSVRC2012_val_{TEST * label + image + 1:08d}.JPEG",
            )


def cost(kind: str, train: int) -> dict[str, float]:
    """Seconds and bytes of a build in this process, without imports: by the frame table, or by Avalanche's lists."""
    before, start = resident("VmRSS"), time.perf_counter()
    if kind == "build":
        frames = ImageNetFrames("/imagenet", paths=(path for *_, path in files(train)))
        benchmark = make_benchmark(frames, "class_iid", 0, 100)
    else:
        streams = {split: [[] for _ in range(10)] for split in ("train", "val")}
        for split, label, path in files(train):
            streams[split][label // 100].append((f"/imagenet/{path}", label))
        benchmark = paths_benchmark(
            streams["train"], streams["val"], task_labels=[0] * 10
        )
    assert (
        sum(len(experience.dataset) for experience in benchmark.train_stream) == train
    )
    return {
        f"{kind}_seconds": time.perf_counter() - start,
        f"{kind}_bytes": resident("VmHWM") - before,
    }


def read_ratio(folder: str, rounds: int) -> float:
    """Images/s of a stream / images/s of a bare loader, on the same files in the same order."""
    torch.set_num_threads(1)
    bare = ImageFolder(folder, imagenet_transform())
    paths = [Path(path).relative_to(folder) for path, _ in bare.samples]
    frames = [
        Frame(str(path), path.parts[0], str(path), "0", 0, "train") for path in paths
    ]
    frames += [
        Frame(f"{name}/never_read", name, "x", "1", 0, "test") for name in bare.classes
    ]  # each needs one
    stream = (
        make_benchmark(FrameTable(frames, folder), "class_iid", 0, len(bare.classes))
        .train_stream[0]
        .dataset
    )
    order, workers = list(stream.frame_row)[:READ], dict(batch_size=32, num_workers=2)
    plain = DataLoader(Subset(bare, order), **workers)
    ours = DataLoader(
        stream.subset(list(range(len(order)))), collate_fn=stream.collate_fn, **workers
    )
    found = fastest(
        {"plain": lambda: deque(plain, 0), "ours": lambda: deque(ours, 0)}, rounds
    )
    return found["plain"] / found["ours"]


def main() -> None:
    parser = bench_parser(__doc__, repeats=3)
    parser.add_argument(
        "--images", help="folder of class folders of images, to measure reading"
    )
    parser.add_argument(
        "--train",
        type=int,
        default=TRAIN,
        help="number of training images to build with",
    )
    parser.add_argument(
        "--quick", action="store_true", help="build with 10,000 training images"
    )
    parser.add_argument(
        "--child", choices=["build", "avalanche"], help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    train, figures = 10_000 if options.quick else options.train, {}
    if options.child:
        return print(json.dumps(cost(options.child, train)))
    for kind in ("build", "avalanche"):
        figures |= in_new_process(__file__, "--child", kind, "--train", train)
    if options.images:
        figures["read_ratio"] = read_ratio(options.images, options.repeats)
    report(options, figures)


if __name__ == "__main__":
    run_script(main)
