"""Measure building a stream of ImageNet's size beside Avalanche, and reading a stream beside torchvision.

    python experiments/bench_streams.py --images FOLDER_OF_CLASS_FOLDERS

With --json it prints one object and nothing else. Figures:
  build_seconds, build_bytes              1,331,167 made-up names to a frame table and a benchmark of 10 x 100 classes:
                                          time, and peak of resident memory above what the imports took
  avalanche_seconds, avalanche_bytes      the same names to Avalanche's own `paths_benchmark`
  read_ratio                              images/s of a stream (2 loader processes) by images/s of a bare torchvision
                                          ImageFolder loader of the same files and transform; only with --images
Each of the first two is built in a process of its own.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path

from support.bench import bench_parser, fastest, in_new_process, report
from support.memory import resident

from benchmarks_toybox_ilab.tables.text import safe_output

CLASSES, TRAIN, TEST = 1000, 1_281_167, 50


def names(train: int):
    """Yield file names in the form of ImageNet, ``train`` of them training images."""
    wordnet = [f"n{1_440_764 + 13_571 * number:08d}" for number in range(CLASSES)]
    for number, name in enumerate(wordnet):
        for image in range(train // CLASSES + (number < train % CLASSES)):
            yield f"train/{name}/{name}_{7 * image}.JPEG"
    for number, name in enumerate(wordnet):
        for image in range(TEST):
            yield f"val/{name}/ILSVRC2012_val_{TEST * number + image + 1:08d}.JPEG"


def build_ours(train: int):
    """Build a benchmark from the names through the frame table."""
    from benchmarks_toybox_ilab.datasets.imagenet import ImageNetFrames
    from benchmarks_toybox_ilab.streams.protocols import make_benchmark

    return make_benchmark(ImageNetFrames("/imagenet", paths=names(train)), "class_iid", 0, 100)


def build_avalanche(train: int):
    """Build a benchmark from the names through Avalanche's lists of (path, label)."""
    from avalanche.benchmarks.scenarios.deprecated.generators import paths_benchmark

    labels: dict[str, int] = {}
    streams = {"train": [[] for _ in range(10)], "val": [[] for _ in range(10)]}
    for path in names(train):
        split, name, _ = path.split("/")
        label = labels.setdefault(name, len(labels))
        streams[split][label // 100].append((f"/imagenet/{path}", label))
    return paths_benchmark(streams["train"], streams["val"], task_labels=[0] * 10)


def cost(kind: str, train: int) -> dict[str, float]:
    """Measure seconds and bytes of a build in this process, without imports."""
    import avalanche.benchmarks.scenarios.deprecated.generators  # noqa: F401

    import benchmarks_toybox_ilab.streams.protocols  # noqa: F401

    before, start = resident("VmRSS"), time.perf_counter()
    benchmark = {"build": build_ours, "avalanche": build_avalanche}[kind](train)
    seconds = time.perf_counter() - start
    assert sum(len(experience.dataset) for experience in benchmark.train_stream) == train
    return {f"{kind}_seconds": seconds, f"{kind}_bytes": resident("VmHWM") - before}


def read_ratio(folder: str, images: int, rounds: int) -> float:
    """Images/s of a stream / images/s of a bare loader, on the same files in the same order."""
    import torch
    from torch.utils.data import DataLoader, Subset
    from torchvision.datasets import ImageFolder

    from benchmarks_toybox_ilab.streams.protocols import make_benchmark
    from benchmarks_toybox_ilab.streams.torch_dataset import imagenet_transform
    from benchmarks_toybox_ilab.tables.frame import Frame
    from benchmarks_toybox_ilab.tables.frame_table import FrameTable

    torch.set_num_threads(1)
    bare = ImageFolder(folder, imagenet_transform())
    files = [(str(Path(path).relative_to(folder)), bare.classes[label]) for path, label in bare.samples]
    frames = [Frame(path, name, path, "0", 0, "train") for path, name in files]
    # Every class needs a test frame; these are never read.
    frames += [Frame(f"{name}/never_read", name, "x", "1", 0, "test") for name in bare.classes]
    stream = make_benchmark(FrameTable(frames, folder), "class_iid", 0, len(bare.classes)).train_stream[0].dataset
    order = list(stream.frame_row)[:images]

    def read(dataset, **arguments):
        for _ in DataLoader(dataset, batch_size=32, num_workers=2, **arguments):
            pass

    ours = partial(read, stream.subset(list(range(len(order)))), collate_fn=stream.collate_fn)
    found = fastest({"plain": partial(read, Subset(bare, order)), "ours": ours}, rounds)
    return found["plain"] / found["ours"]


def main() -> None:
    parser = bench_parser(__doc__, repeats=3)
    parser.add_argument("--images", help="folder of class folders of images, to measure reading")
    parser.add_argument("--count", type=int, default=3000, help="images read in each round")
    parser.add_argument("--train", type=int, default=TRAIN, help="number of training images to build with")
    parser.add_argument("--quick", action="store_true", help="build with 10,000 training images")
    parser.add_argument("--child", choices=["build", "avalanche"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    train, figures = 10_000 if options.quick else options.train, {}
    if options.child:
        print(json.dumps(cost(options.child, train)))
        return
    for kind in ("build", "avalanche"):
        figures |= in_new_process(__file__, "--child", kind, "--train", train)
    if options.images:
        figures["read_ratio"] = read_ratio(options.images, options.count, options.repeats)
    report(options, figures)


if __name__ == "__main__":
    with safe_output():
        main()
