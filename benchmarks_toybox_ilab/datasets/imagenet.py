"""Online-ImageNet: 1000 classes, 1,281,167 training and 50,000 test images, in 10 experiences of 100 classes.

The test images are those of the validation set.

Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge", International Journal of Computer Vision 115,
2015.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks_toybox_ilab.datasets._generator import generator
from benchmarks_toybox_ilab.tables.class_counts import missing_images
from benchmarks_toybox_ilab.tables.folders import dataset_folder, files_below
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.image_tree import image_tree_table

LAYOUT = "<root>/{train,val}/<wnid>/<image>.JPEG, e.g. train/n01440764/n01440764_10026.JPEG"
SOURCE = "https://image-net.org/challenges/LSVRC/2012/ (ILSVRC2012; needs an account)"
COUNTS = {"classes": 1000, "train": 1_281_167, "test": 50_000}
FOLDERS = ("train", "val")

_VAL_IMAGES = 50  # per class
_IN_PLACE = re.compile(r"(?:train|val)/n\d{8}/[^/]+", re.ASCII)
_FLAT = re.compile(r"val/[^/.][^/]*\.jpe?g", re.IGNORECASE)
_OTHER_CLASS = re.compile(r"(?:train|val)/(?P<class_name>[^/]+)/[^/.][^/]*\.(?:jpe?g|png)", re.IGNORECASE)
_HOW_TO_SORT = (
    "lie in val itself, but must lie in one folder per class, and only the labels in the development kit name the "
    'classes. torchvision.datasets.ImageNet(root, split="val") sorts them if ILSVRC2012_img_val.tar and '
    "ILSVRC2012_devkit_t12.tar.gz lie in its root"
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
        FrameTableError: If the folder is missing or has another layout, the images of `val` are not sorted into
            classes, or a class has no training images.
    """
    root = Path(root)
    if paths is None:
        root = dataset_folder(root, FOLDERS, "imagenet", LAYOUT)
        paths = (path for folder in FOLDERS for path in files_below(root, folder))
    return image_tree_table(root, FOLDERS, "imagenet", LAYOUT, _checked(paths))


def missing(paths: Iterable[str]) -> list[str]:
    """List what these files below root lack of the data set, one line per class.

    Training images are counted over all classes together, because their number varies between classes.
    """
    paths = list(paths)
    flat = sum(_FLAT.fullmatch(path) is not None for path in paths)
    lines = [f"{flat} images {_HOW_TO_SORT}"] if flat else []
    lines += missing_images(paths, COUNTS["classes"], {"train": None, "val": _VAL_IMAGES})
    train = sum(path.startswith("train/") and path.lower().endswith((".jpeg", ".jpg")) for path in paths)
    if train < COUNTS["train"]:
        lines.append(f"{train} of {COUNTS['train']} training images")
    return lines


def _checked(paths: Iterable[str]) -> Iterator[str]:
    """Yield the paths; raise at an image in val itself or in a folder that is no class of ImageNet."""
    for path in paths:
        if not _IN_PLACE.fullmatch(path):
            if _FLAT.fullmatch(path):
                raise FrameTableError(f"images such as {path} {_HOW_TO_SORT}. The layout is {LAYOUT}")
            if match := _OTHER_CLASS.fullmatch(path):
                raise FrameTableError(
                    f"image {path} lies in folder {match['class_name']}, which is not named like a class of ImageNet: "
                    f"n and 8 digits. The layout is {LAYOUT}"
                )
        yield path


@generator("class_iid", 100)
def OnlineImageNet(dataset_root: str | Path, reference: bool = False) -> FrameTable:
    """ImageNet as an Avalanche benchmark of 10 experiences, about 128,000 training images each; stream them once.

    The 50,000 images of the validation set are for testing. Images are resized to the transform's size without keeping
    the aspect ratio (224 x 224 pixels in the paper).

    Russakovsky et al., "ImageNet Large Scale Visual Recognition Challenge", IJCV 2015, https://image-net.org

    Args:
        dataset_root: As `root` of `ImageNetFrames`.
        protocol: "class_iid" (the paper's), "class_instance" (the same here: a clip is one image) or "offline".
        reference: Draw order and labels as the paper's code does; see `orders.ReferenceDraws`.
    """
    return ImageNetFrames(dataset_root)
