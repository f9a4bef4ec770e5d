"""Online-CIFAR100: 100 classes, 50,000 training and 10,000 test images of 32 x 32 pixels, in 20 experiences of 5.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks_toybox_ilab.tables.class_counts import missing_images
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.image_tree import image_tree_table

LAYOUT = "<root>/{train,test}/<class>/<image>.png, e.g. train/apple/apple_s_000022.png"
SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html; `crumb prepare cifar100` downloads and unpacks it"
COUNTS = {"classes": 100, "train": 50_000, "test": 10_000}


def CIFAR100Frames(root: str | Path, paths: Iterable[str] | None = None, reference: bool = False) -> FrameTable:
    """The table of CIFAR-100: folder `train` is the training split, `test` the test split, in every run.

    Every image is a clip of its own (object: its name; session "0" in training, "1" in the test; frame 0).

    Args:
        root: The folder of `train` and `test`, or the folder that holds it as `cifar100`.
        paths: Files below root with forward slashes, where they are known already; else the folder is listed.
        reference: Changes nothing here; order and labels are the generator's.

    Raises:
        FrameTableError: If the folder is missing or laid out otherwise, or the two splits differ in their classes.
    """
    return image_tree_table(root, ("train", "test"), "cifar100", LAYOUT, paths)


def missing(paths: Iterable[str]) -> list[str]:
    """What the data set has and these files below root lack, class by class, a line each."""
    classes = COUNTS["classes"]
    return missing_images(paths, classes, {"train": COUNTS["train"] // classes, "test": COUNTS["test"] // classes})


def OnlineCIFAR100(
    dataset_root: str | Path,
    protocol: str = "class_iid",
    run: int = 0,
    train_transform: Callable | None = None,
    eval_transform: Callable | None = None,
    classes_per_experience: int = 5,
    reference: bool = False,
):
    """CIFAR-100 as an Avalanche benchmark of 20 experiences, 2,500 training images each; stream them once.

    The images are squeezed to the transform's size (224 pixels in the paper) when they are read.

    Args:
        dataset_root: As `root` of `CIFAR100Frames`.
        protocol: "class_iid" (the paper's), "class_instance" (the same thing here: a clip is one image) or "offline".
        run: The seed of the order of classes and images.
        train_transform: PIL image to tensor; None is `imagenet_transform(224)`.
        eval_transform: Likewise for the test stream.
        classes_per_experience: Classes of one experience.
        reference: Order and labels as the paper's code draws them; see `orders.ReferenceDraws`.

    Returns:
        A `protocols.FrameBenchmark` with `train_stream` and `test_stream`.
    """
    from benchmarks_toybox_ilab.streams.protocols import make_benchmark  # imports Avalanche, which takes seconds

    table = CIFAR100Frames(dataset_root)
    return make_benchmark(
        table, protocol, run, classes_per_experience, train_transform, eval_transform, reference=reference
    )
