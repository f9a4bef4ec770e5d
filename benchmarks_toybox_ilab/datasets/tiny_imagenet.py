"""Tiny-ImageNet: 200 classes of ImageNet, 100,000 training and 10,000 test images of 64 x 64 pixels.

The test images are those of the validation set; the images of the official test set
have no labels. The stream has 20 experiences of 10 classes, as many as Online-CIFAR100.
Batch size (128) and memory (one raw image per class) are those of Online-CIFAR100 too,
so that results on the two streams can be compared. The paper does not have this
benchmark.

Le and Yang, "Tiny ImageNet Visual Recognition Challenge", CS231N at Stanford, 2015.
"""

import re
from dataclasses import replace
from pathlib import Path

from benchmarks_toybox_ilab.datasets.layout import Layout, single_image
from benchmarks_toybox_ilab.datasets.registry import (
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    register,
)
from benchmarks_toybox_ilab.tables.frame import FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

FOLDER = "tiny-imagenet-200"  # in the official archive
ANNOTATIONS = "val/val_annotations.txt"
LAYOUT = Layout(
    name="tiny_imagenet",
    title="Tiny-ImageNet",
    tree="<root>/train/<wnid>/images/<image>.JPEG with val/images/<image>.JPEG and val/val_annotations.txt (the "
    "official layout), or <root>/{train,test}/<wnid>/<image>.jpg",
    source="http://cs231n.stanford.edu/tiny-imagenet-200.zip; `crumb prepare tiny_imagenet` downloads and unpacks it",
    pattern=re.compile(
        r"(?P<folder>train|val|test)/(?P<class_name>n[0-9]{8}|(?<=val/)images)/(?:(?<=\d/)images/)?"
        rf"(?P<name>[^/.][^/]*)\.(?i:jpe?g|png)|{ANNOTATIONS}"
    ),
    rule="<wnid> is the class: n and 8 digits",
    folders=("train", "val", "test"),
    places=(FOLDER,),
    counts={"classes": 200, "train": 100_000, "test": 10_000},
    owner="the data set",
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    md5="90528d7ca1a48142e341f4ef8d21d0de",
)


def TinyImageNetFrames(root: str | Path) -> FrameTable:
    """The table of Tiny-ImageNet in either layout: `train` is the training split, `val` or `test` the test split.

    Every image is a clip of its own, see `layout.single_image`. The class name is its
    WordNet number, such as n01443537. In the official layout, `val/val_annotations.txt`
    gives the classes of the test images, and the folder `test`, whose images have no
    labels, is ignored. Classes and images may be missing. Files have the same order in
    both layouts, and the splits in every run. See `Layout.read` for root and errors.

    Raises:
        FrameTableError: Also if an image of `val` has no line in `val_annotations.txt`.
    """
    found = LAYOUT.find(Path(root)) or Path(root)
    official = (found / "val").is_dir()
    layout = replace(LAYOUT, folders=("train", "val" if official else "test"))
    found, images = layout.read(root)
    classes = _annotated(found / ANNOTATIONS) if official else {}
    frames = []
    for image in images:
        if image["folder"] is None:  # the annotations
            continue
        class_name = image["class_name"]
        if class_name == "images":
            file = image[0].rpartition("/")[2]
            if file not in classes:
                raise FrameTableError(
                    f"image {image[0]} has no line in {ANNOTATIONS}, which gives the classes of the images in "
                    f"val/images. Unpack both from {FOLDER}.zip again, or remove the image."
                )
            class_name = classes[file]
        frames.append(single_image(image, class_name))
    frames.sort(
        key=lambda row: (row.session, row.class_name, row.path.rpartition("/")[2])
    )
    return FrameTable(frames, found, name="tiny_imagenet")


def _annotated(file: Path) -> dict[str, str]:
    """The class of each test image by file name, from the first two columns of `val_annotations.txt`."""
    if not file.is_file():
        raise FrameTableError(
            f"there is no {file}, which gives the classes of the images in val/images. Unpack it from {FOLDER}.zip "
            "beside that folder, or remove val and give test images as test/<wnid>/<image>.jpg."
        )
    classes = {}
    for number, line in enumerate(
        file.read_text(encoding="utf-8", errors="replace").splitlines(), 1
    ):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if (
            not name
            or not re.fullmatch("n[0-9]{8}", wnid)
            or classes.setdefault(name, wnid) != wnid
        ):
            raise FrameTableError(
                f"line {number} of {file} is {line[:80]!r}, but must begin with a file name, a tab and its one class "
                f"(n and 8 digits). Unpack the file again from {FOLDER}.zip."
            )
    return classes


BENCHMARK = register(
    Benchmark(LAYOUT, TinyImageNetFrames, 10, 128, 200, protocol="class_iid")
)


def TinyImageNet(
    dataset_root: str | Path | None = None,
    *,
    download: bool = False,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Tiny-ImageNet as an Avalanche benchmark of 20 experiences, 5,000 training images each; stream them once.

    The protocol is class_iid by default. ImageNet weights were trained on these
    classes. See `Benchmark.stream`; the data set has 240 MB.
    """
    return BENCHMARK.stream(dataset_root, None, download, **host)
