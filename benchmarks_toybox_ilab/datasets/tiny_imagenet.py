"""Tiny-ImageNet: 200 classes of ImageNet in images of 64 x 64 pixels.

100,000 training and 10,000 test images. The test images are those of the validation
set; the images of the official test set have no labels. The stream has 20 experiences
of 10 classes, as many as Online-CIFAR100. Batch size (128) and memory (one raw image
per class) are those of Online-CIFAR100 too, so that results on the two streams can be
compared. The paper does not have this benchmark.

Le and Yang, "Tiny ImageNet Visual Recognition Challenge", CS231N at Stanford, 2015.
"""

import re
import warnings
from dataclasses import replace
from pathlib import Path

from benchmarks_toybox_ilab.datasets.layout import Layout, single_image
from benchmarks_toybox_ilab.datasets.registry import (
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    register,
    shows_keywords,
)
from benchmarks_toybox_ilab.streams.orders import HostDraws
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

TEST_IMAGES = "val/images"  # in the official layout
FOLDER = "tiny-imagenet-200"  # in the official archive
ANNOTATIONS = "val/val_annotations.txt"
WNIDS = "wnids.txt"  # the classes in the order of their labels
LAYOUT = Layout(
    name="tiny_imagenet",
    title="Tiny-ImageNet",
    tree="<root>/train/<wnid>/images/<image>.JPEG with val/images/<image>.JPEG and "
    "val/val_annotations.txt (the official layout), or "
    "<root>/{train,test}/<wnid>/<image>.jpg, where val may stand for test",
    source="http://cs231n.stanford.edu/tiny-imagenet-200.zip; `crumb prepare "
    "tiny_imagenet` downloads and unpacks it",
    pattern=re.compile(
        r"(?P<folder>train|val|test)/(?P<class_name>n[0-9]{8}|(?<=val/)images)/"
        r"(?:(?<=\d/)images/)?"
        rf"(?P<name>[^/.][^/]*)\.(?i:jpe?g|png)|{ANNOTATIONS}|{WNIDS}"
    ),
    rule="<wnid> is the class: n and 8 digits",
    folders=("train", "val", "test"),
    inner_folders=(FOLDER,),
    counts={"classes": 200, "train": 100_000, "test": 10_000},
    owner="the data set",
    url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    md5="90528d7ca1a48142e341f4ef8d21d0de",
)


def TinyImageNetFrames(root: str | Path) -> FrameTable:
    """Make the table of Tiny-ImageNet in either layout.

    `train` is the training split, `val` or `test` the test split. Every image is a clip
    of its own, see `layout.single_image`. The class name is its WordNet number, such as
    n01443537. In the official layout, `val/val_annotations.txt` gives the classes of
    the test images in `val/images`, and the folder `test`, whose images have no labels,
    is ignored.
    Classes and images may be missing. Files have the same order in both layouts, and
    the splits in every run.

    Args:
        root: Folder of the data set.

    Raises:
        FrameTableError: If there is no data set, or an image of `val` has no line in
            `val_annotations.txt`.
    """
    folder = LAYOUT.find(Path(root)) or Path(root)
    layout = replace(LAYOUT, folders=("train", _test_folder(folder)))
    folder, images = layout.find_images(root)
    class_of_file = {}
    if (folder / TEST_IMAGES).is_dir():
        class_of_file = _class_of_test_image(folder / ANNOTATIONS)
    frames = []
    for image in images:
        # The pattern matches the lists, too, so that they are unpacked.
        if image["folder"] is None:
            continue
        class_name = image["class_name"]
        if class_name == "images":  # a folder of all classes
            file = _file_name(image[0])
            if file not in class_of_file:
                raise FrameTableError(
                    f"image {image[0]} has no line in {ANNOTATIONS}, which gives the "
                    f"classes of the images in val/images. Unpack both from "
                    f"{FOLDER}.zip again, or remove the image."
                )
            class_name = class_of_file[file]
        frames.append(single_image(image, class_name))
    frames.sort(key=_row_sort_key)
    return FrameTable(frames, folder, name="tiny_imagenet")


def _test_folder(folder: Path) -> str:
    """Return the name of the folder of the test images of Tiny-ImageNet.

    Where it is missing, it is that of the layout that the others have.
    """
    if (folder / "val").is_dir():
        return "val"
    official_test = folder / "test" / "images"  # its images have no labels
    if (folder / "test").is_dir() and not official_test.is_dir():
        return "test"
    is_official = official_test.is_dir() or any(folder.glob("train/*/images"))
    return "val" if is_official else "test"


def _row_sort_key(frame: Frame) -> tuple[str, str, str]:
    """Return what the rows of Tiny-ImageNet are sorted by, alike in both layouts."""
    return frame.session, frame.class_name, _file_name(frame.path)


def _file_name(path: str) -> str:
    """Return the file name of an image of the data set."""
    return path.rpartition("/")[2]


def _class_of_test_image(file: Path) -> dict[str, str]:
    """Return the class of each test image of Tiny-ImageNet by its file name.

    Args:
        file: The list `val_annotations.txt`, whose first two columns they are.

    Raises:
        FrameTableError: If it is missing, or a line of it is invalid.
    """
    if not file.is_file():
        raise FrameTableError(
            f"there is no {file}, which gives the classes of the images in val/images. "
            f"Unpack it from {FOLDER}.zip beside that folder, or remove val and give "
            "test images as test/<wnid>/<image>.jpg."
        )
    classes: dict[str, str] = {}
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        name, _, columns = line.partition("\t")
        wnid = columns.partition("\t")[0]  # the class by its number in WordNet
        is_valid = name and re.fullmatch("n[0-9]{8}", wnid)
        # The second test notes the class, and is true if an earlier line has another.
        if not is_valid or classes.setdefault(name, wnid) != wnid:
            raise FrameTableError(
                f"line {number} of {file} is {line[:80]!r}, but must begin with a file "
                "name, a tab and its one class (n and 8 digits). Unpack the file again "
                f"from {FOLDER}.zip."
            )
    return classes


def _host_order(table: FrameTable, seed: int) -> list[str]:
    """Return the classes of Tiny-ImageNet as Avalanche orders them with a seed.

    It numbers them as `wnids.txt` does. Without that file, which only the official
    layout has, they are numbered by name; there it is missed with a warning.
    """
    names = list(table.classes)
    root = table.root or Path()
    file = root / WNIDS
    if (root / TEST_IMAGES).is_dir() and not file.is_file():
        warnings.warn(
            f"there is no {file}, so the classes of seed {seed} come in another order "
            f"than with Avalanche; unpack it from {FOLDER}.zip",
            stacklevel=2,
        )
    if file.is_file():
        listed = file.read_text(encoding="utf-8", errors="replace").split()
        if sorted(listed) == sorted(names):
            names = listed
    drawn = HostDraws(seed).class_order(len(names))
    return [names[position] for position in drawn]


BENCHMARK = register(
    Benchmark(
        LAYOUT,
        TinyImageNetFrames,
        classes_per_experience=10,
        batch_size=128,
        budget_images=200,
        protocol="class_iid",
        host_order=_host_order,
    )
)


@shows_keywords
def TinyImageNet(
    dataset_root: str | Path | None = None,
    *,
    download: bool = False,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Make Tiny-ImageNet as an Avalanche benchmark of 20 experiences.

    Each has 5,000 training images; stream them once. The protocol is class_iid by
    default. ImageNet weights were trained on these classes. See `Benchmark.stream`; the
    data set has 240 MB.
    """
    return BENCHMARK.stream(dataset_root, None, download, **host)
