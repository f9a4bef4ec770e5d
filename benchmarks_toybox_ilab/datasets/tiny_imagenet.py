"""Tiny-ImageNet: 200 classes of ImageNet, 100,000 training and 10,000 test images of 64 x 64 pixels.

The test images are those of the validation set; the images of the official test set have no labels. The stream has 20
experiences of 10 classes, as many as Online-CIFAR100. Batch size (128) and memory (one raw image per class) are those
of Online-CIFAR100 too, so that results on the two streams can be compared. The paper does not have this benchmark.

Le and Yang, "Tiny ImageNet Visual Recognition Challenge", CS231N at Stanford, 2015.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks_toybox_ilab.datasets._generator import generator
from benchmarks_toybox_ilab.tables.class_counts import missing_images
from benchmarks_toybox_ilab.tables.folders import dataset_folder, files_below
from benchmarks_toybox_ilab.tables.frame import FrameTableError, whole_number
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.image_tree import EXTENSIONS, image_tree_table

LAYOUT = (
    "<root>/train/<wnid>/images/<image>.JPEG with val/images/<image>.JPEG and val/val_annotations.txt (the official "
    "layout), or <root>/{train,test}/<wnid>/<image>.jpg"
)
SOURCE = "http://cs231n.stanford.edu/tiny-imagenet-200.zip; `crumb prepare tiny_imagenet` downloads and unpacks it"
COUNTS = {"classes": 200, "train": 100_000, "test": 10_000}
FOLDER = "tiny-imagenet-200"  # in the official archive
ANNOTATIONS = "val/val_annotations.txt"

_WNID = re.compile(r"n\d{8}", re.ASCII)


def TinyImageNetFrames(root: str | Path, run: int = 0) -> FrameTable:
    """The table of Tiny-ImageNet in either layout: `train` is the training split, `val` or `test` the test split.

    Every image is a clip of its own (object: its name; session "0" for training, "1" for testing; frame 0). The class
    name is its WordNet number, such as n01443537. In the official layout, `val/val_annotations.txt` gives the classes
    of the test images, and the folder `test`, whose images have no labels, is ignored. Classes and images may be
    missing. Files have the same order in both layouts.

    Args:
        root: The folder that contains `train`, or the one that contains it as `tiny-imagenet-200` or `tiny_imagenet`.
        run: Has no effect: the splits are the same in every run.

    Raises:
        FrameTableError: If a folder or `val_annotations.txt` is missing, the layout is another one, or the splits
            differ in their classes.
        ValueError: If run is not a whole number of at least 0.
    """
    whole_number("run", run, 0)
    root = Path(root)
    if not (root / "train").is_dir() and (root / FOLDER).is_dir():
        root /= FOLDER
    official = any((place / "val").is_dir() for place in (root, root / "tiny_imagenet"))
    folders = ("train", "val" if official else "test")
    root = dataset_folder(root, folders, "tiny_imagenet", LAYOUT)
    classes = _annotated(root / ANNOTATIONS) if official else {}
    paths: list[str] = []
    for folder in folders:
        images = (path for path in files_below(root, folder) if Path(path).suffix.lower() in EXTENSIONS)
        paths += sorted(images, key=lambda path: _parts(path, classes))
    return image_tree_table(root, folders, "tiny_imagenet", LAYOUT, paths, lambda path: _parts(path, classes))


def missing(paths: Iterable[str]) -> list[str]:
    """List what these files below root lack of the data set, one line per class.

    In the official layout, test images are counted over all classes together, because their names do not tell classes.
    """
    paths = [path.replace("/images/", "/", 1) if path.startswith("train/") else path for path in paths]
    per_class = {split: COUNTS[split] // COUNTS["classes"] for split in ("train", "test")}
    if not any(path.startswith("val/") for path in paths):
        return missing_images(paths, COUNTS["classes"], per_class)
    lines = missing_images(paths, COUNTS["classes"], {"train": per_class["train"]})
    images = sum(path.startswith("val/images/") for path in paths)
    if images < COUNTS["test"]:
        lines.append(f"{images} of {COUNTS['test']} images in val/images")
    return lines if ANNOTATIONS in paths else [*lines, f"{ANNOTATIONS}, which gives the classes of val/images"]


def _annotated(file: Path) -> dict[str, str]:
    """The class of each test image by file name, from the first two columns of `val_annotations.txt`."""
    if not file.is_file():
        raise FrameTableError(
            f"there is no {file}, which gives the classes of the images in val/images. Unpack it from {FOLDER}.zip "
            "beside that folder, or remove val and give test images as test/<wnid>/<image>.jpg."
        )
    classes = {}
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if not name or not _WNID.fullmatch(wnid):
            raise FrameTableError(
                f"line {number} of {file} is {line[:80]!r}, but must begin with a file name, a tab and a class (n and "
                f"8 digits). Unpack the file again from {FOLDER}.zip."
            )
        classes[name] = wnid
    return classes


def _parts(path: str, classes: dict[str, str]) -> list[str]:
    """The folder, class and file name of an image; other numbers of parts are at the wrong depth."""
    parts = path.split("/")
    if parts[:2] == ["val", "images"] and len(parts) == 3:
        if parts[2] not in classes:
            raise FrameTableError(
                f"image {path} has no line in {ANNOTATIONS}, which gives the classes of the images in val/images. "
                f"Unpack both from {FOLDER}.zip again, or remove the image."
            )
        return ["val", classes[parts[2]], parts[2]]
    if len(parts) == 4 and parts[2] == "images":
        del parts[2]
    if len(parts) == 3 and not _WNID.fullmatch(parts[1]):
        raise FrameTableError(
            f"image {path} lies in folder {parts[1]}, which is not named like a class of ImageNet: n and 8 digits. "
            f"The layout is {LAYOUT}"
        )
    return parts


@generator("class_iid", 10)
def TinyImageNet(dataset_root: str | Path, run: int = 0) -> FrameTable:
    """Tiny-ImageNet as an Avalanche benchmark of 20 experiences, 5,000 training images each; stream them once.

    The 10,000 images of the validation set are for testing. Images are resized to the transform's size (224 x 224
    pixels). ImageNet weights were trained on these classes.

    Args:
        dataset_root: As `root` of `TinyImageNetFrames`.
        protocol: "class_iid", "class_instance" (the same here: a clip is one image) or "offline".
        run: Seed of the order of classes and images; the splits are the same in every run.
    """
    return TinyImageNetFrames(dataset_root, run)
