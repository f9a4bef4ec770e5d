"""Online-CIFAR100: 100 classes, 50,000 training and 10,000 test images of 32 x 32 pixels, in 20 experiences of 5.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks_toybox_ilab.datasets._generator import generator
from benchmarks_toybox_ilab.datasets._layout import Layout, image_tree, missing_images
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

LAYOUT = Layout(
    name="cifar100",
    title="CIFAR-100",
    tree="<root>/{train,test}/<class>/<image>.png, e.g. train/apple/apple_s_000022.png",
    source="https://www.cs.toronto.edu/~kriz/cifar.html; `crumb prepare cifar100` downloads and unpacks it",
    counts={"classes": 100, "train": 50_000, "test": 10_000},
    pattern=re.compile(
        r"(?P<folder>train|test)/(?P<class_name>[^/]+)/(?P<name>[^/.][^/]*)\.(?:png|jpe?g)", re.IGNORECASE
    ),
    folders=("train", "test"),
    places=("cifar100",),
)


def CIFAR100Frames(root: str | Path, paths: Iterable[str] | None = None, reference: bool = False) -> FrameTable:
    """The table of CIFAR-100: folder `train` is the training split and `test` the test split in every run.

    Every image is a clip of its own (object: its name; session "0" for training, "1" for testing; frame 0).

    Args:
        root: The folder that contains `train` and `test`, or the one that contains it as `cifar100`.
        paths: Files below root with forward slashes if they are known; None lists the folder.
        reference: Has no effect; the generator draws order and labels.

    Raises:
        FrameTableError: If the folder is missing or has another layout, or the two splits differ in their classes.
    """
    return image_tree(LAYOUT, root, paths)


def missing(paths: Iterable[str]) -> list[str]:
    """List what these files below root lack of the data set, one line per class."""
    return missing_images(LAYOUT, paths, {"train": 500, "test": 100})


@generator("class_iid", 5)
def OnlineCIFAR100(dataset_root: str | Path, reference: bool = False) -> FrameTable:
    """CIFAR-100 as an Avalanche benchmark of 20 experiences, 2,500 training images each; stream them once.

    Images are resized to the transform's size (224 x 224 pixels in the paper).

    Args:
        dataset_root: As `root` of `CIFAR100Frames`.
        protocol: "class_iid" (the paper's), "class_instance" (the same here: a clip is one image) or "offline".
        reference: Draw order and labels as the paper's code does; see `orders.ReferenceDraws`.
    """
    return CIFAR100Frames(dataset_root)
