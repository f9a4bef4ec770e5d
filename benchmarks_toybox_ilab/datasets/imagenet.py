"""Online-ImageNet: 1000 classes, 1,281,167 training and 50,000 test images, in 10 experiences of 100 classes.

The test images are those of the validation set.

Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge", International Journal of Computer Vision 115,
2015.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks_toybox_ilab.datasets._generator import generator
from benchmarks_toybox_ilab.datasets._layout import Layout, image_tree, missing_images
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

LAYOUT = Layout(
    name="imagenet",
    title="ImageNet",
    tree="<root>/{train,val}/<wnid>/<image>.JPEG, e.g. train/n01440764/n01440764_10026.JPEG",
    source="https://image-net.org/challenges/LSVRC/2012/ (ILSVRC2012; needs an account)",
    counts={"classes": 1000, "train": 1_281_167, "test": 50_000},
    pattern=re.compile(
        r"(?P<folder>train|val)/(?P<class_name>n[0-9]{8})/(?P<name>[^/.][^/]*)\.(?i:jpe?g|png)",
    ),
    folders=("train", "val"),
    places=("imagenet",),
    rule="<wnid> is the class: n and 8 digits. Images of val must lie in one folder per class too, and only the labels "
    'in the development kit name the classes: torchvision.datasets.ImageNet(root, split="val") sorts them if '
    "ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz lie in its root",
)


def ImageNetFrames(root: str | Path, paths: Iterable[str] | None = None, reference: bool = False) -> FrameTable:
    """The table of ImageNet: folder `train` is the training split and `val` the test split in every run.

    Every image is a clip of its own (object: its name; session "0" for training, "1" for testing; frame 0). The class
    name is its WordNet number, such as n01440764. Classes may be missing.

    Args:
        root: The folder that contains `train` and `val`, or the one that contains it as `imagenet`.
        paths: Files below root with forward slashes if they are known; None lists the folder.
        reference: Has no effect; the generator draws order and labels.

    Raises:
        FrameTableError: If the folder is missing or has another layout, an image does not fit it (such as those of
            `val` if they are not sorted into classes), or a class has no training images.
    """
    return image_tree(LAYOUT, root, paths)


def missing(paths: Iterable[str]) -> list[str]:
    """List what these files below root lack of the data set, one line per class.

    Training images are counted over all classes together, because their number varies between classes.
    """
    images = [path for path in paths if LAYOUT.pattern.fullmatch(path)]
    lines = missing_images(LAYOUT, images, {"train": None, "val": 50})
    train = sum(path.startswith("train/") for path in images)
    whole = LAYOUT.counts["train"]
    return lines if train >= whole else [*lines, f"{train} of {whole} training images"]


@generator("class_iid", 100)
def OnlineImageNet(dataset_root: str | Path, reference: bool = False) -> FrameTable:
    """ImageNet as an Avalanche benchmark of 10 experiences, about 128,000 training images each; stream them once.

    The 50,000 images of the validation set are for testing. Images are resized to the transform's size without keeping
    the aspect ratio (224 x 224 pixels in the paper).

    Args:
        dataset_root: As `root` of `ImageNetFrames`.
        protocol: "class_iid" (the paper's), "class_instance" (the same here: a clip is one image) or "offline".
        reference: Draw order and labels as the paper's code does; see `orders.ReferenceDraws`.
    """
    return ImageNetFrames(dataset_root)
