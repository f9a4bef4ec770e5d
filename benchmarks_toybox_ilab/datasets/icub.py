"""iCubWorld Transformations: 20 classes x 10 objects x 5 clips of objects that a person shows to a robot.

800 training clips (four transformations of each object) and 200 test clips (a mix of them), at one frame per second, in
10 experiences of 2 classes. Clips vary in length, so there are no totals of frames.

Pasquale, Ciliberto, Odone, Rosasco and Natale, "Are we done with object recognition? The iCub robot's perspective",
Robotics and Autonomous Systems 112, 2019.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from benchmarks_toybox_ilab.datasets._generator import generator
from benchmarks_toybox_ilab.tables.folders import dataset_folder, files_below
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError, natural_key
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

LAYOUT = (
    "<root>/part{1..4}/<category>/<object>/<transformation>/day<d>/{left,right}/<8 digits>.jpg, "
    "e.g. part3/mug/mug1/ROT2D/day4/left/00000012.jpg"
)
SOURCE = "https://robotology.github.io/iCubWorld/#icubworld-transformations-modal"
COUNTS = {"classes": 20, "train": None, "test": None, "train_clips": 800, "test_clips": 200}

PARTS = ("part1", "part2", "part3", "part4")  # as distributed; the parts have no meaning
CLASSES = (
    *("bodylotion", "book", "cellphone", "flower", "glass", "hairbrush", "hairclip", "mouse", "mug", "ovenglove"),
    *("pencilcase", "perfume", "remote", "ringbinder", "soapdispenser", "sodabottle", "sprayer", "squeezer"),
    *("sunglasses", "wallet"),
)
OBJECTS = 10  # per class
TRANSFORMATIONS = ("MIX", "ROT2D", "ROT3D", "SCALE", "TRANSL")
TEST_TRANSFORMATION = "MIX"
STEP = 10  # use every tenth frame: 10 per second become one

_IMAGE = re.compile(r".*\.jpg", re.IGNORECASE | re.DOTALL)
_HIDDEN = re.compile(r"(?:^|/)(?:\.|__MACOSX/)")
_FILE = re.compile(
    rf"(?:(?:{'|'.join(PARTS)})/)?({'|'.join(CLASSES)})/\1([1-9]|{OBJECTS})"
    rf"/({'|'.join(TRANSFORMATIONS)})/(day\d+)/(left|right)/(\d{{8}})\.(?i:jpg)",
    re.ASCII,
)


class _Image(NamedTuple):
    """An image of the left camera, with the parts of its path."""

    path: str
    class_name: str
    number: int
    transformation: str
    day: str
    frame: int


def ICubFrames(root: str | Path, paths: Iterable[str] | None = None, reference: bool = False) -> FrameTable:
    """The table of iCubWorld Transformations: the clips MIX are the test split in every run.

    A clip is one transformation of one object, seen by the left camera on the first day that has such images. Its files
    are sorted by number, and those at positions 0, 10, 20, ... are used, so numbers may be missing. The frame is the
    number of the file. Parts, classes, objects and clips may be missing.

    Args:
        root: The folder that contains the parts, or all categories without parts, or the one that contains it as
            `icub`.
        paths: Files below root with forward slashes if they are known; None lists the folder.
        reference: Choose the first day as the published code does, which sorts the names as text: day10 before
            day2. By default day2 comes before day10.

    Raises:
        FrameTableError: If the folder is missing or contains no images of the left camera, an image has a folder or a
            name that iCubWorld Transformations does not have, a frame is repeated, or a class has no training frames.
    """
    root = Path(root)
    if paths is None:
        root = _data_folder(root)
        paths = files_below(root)
    clips: dict[tuple[str, int, str], dict[str, dict[int, str]]] = {}
    for image in _left_images(paths):
        days = clips.setdefault((image.class_name, image.number, image.transformation), {})
        files = days.setdefault(image.day, {})
        if image.frame in files:
            raise FrameTableError(f"{image.path} and {files[image.frame]} are the same frame; keep one file per frame.")
        files[image.frame] = image.path
    if not clips:
        raise FrameTableError(
            f"{root} holds no images of the left camera of iCubWorld Transformations. The layout is {LAYOUT}"
        )
    frames = []
    for (class_name, number, transformation), days in sorted(clips.items(), key=lambda clip: clip[0]):
        files = days[min(days, key=None if reference else natural_key)]
        split = "test" if transformation == TEST_TRANSFORMATION else "train"
        for frame in sorted(files)[::STEP]:
            frames.append(Frame(files[frame], class_name, f"{class_name}{number}", transformation, frame, split))
    return FrameTable(frames, root, name="icub")


def listing_order(root: str | Path) -> list[str]:
    """The categories in the order in which the operating system lists their folders, part by part.

    The published code numbers the classes in this order, so its order of classes depends on the machine that holds the
    data.

    Args:
        root: As in `ICubFrames`.

    Raises:
        FrameTableError: If the folder is missing or has another layout.
    """
    root = _data_folder(Path(root))
    folders = [folder for folder in (*(root / part for part in PARTS), root) if folder.is_dir()]
    listed = (name for folder in folders for name in os.listdir(folder) if (folder / name).is_dir())
    return list(dict.fromkeys(name for name in listed if name in CLASSES))


def class_groups(table: FrameTable, reference: bool = False) -> list[list[str]] | None:
    """The groups of classes for `protocols.plan_stream`.

    With `reference` one group in `listing_order`, which reads the table's root; otherwise None, which sorts by name.
    """
    # The folder of a category may exist without any frame that is used.
    return [[name for name in listing_order(table.root) if name in table.classes]] if reference else None


def missing(paths: Iterable[str]) -> list[str]:
    """List what these files below root lack of the paper's data set, one line per object.

    A clip exists if the left camera has an image of it on any day; lengths of clips are unknown and are not checked.

    Raises:
        FrameTableError: If an image has a folder or a name that iCubWorld Transformations does not have.
    """
    clips = {(image.class_name, image.number, image.transformation) for image in _left_images(paths)}
    if not clips:
        return [f"all {len(CLASSES)} classes are missing"]
    objects = {(class_name, number) for class_name, number, _ in clips}
    present = {transformation for _, _, transformation in clips}
    lines = [
        f"clip {name}: all {OBJECTS * len(CLASSES)} are missing" for name in TRANSFORMATIONS if name not in present
    ]
    for class_name in CLASSES:
        absent = [number for number in range(1, OBJECTS + 1) if (class_name, number) not in objects]
        if len(absent) == OBJECTS:
            lines.append(f"class {class_name}: all {OBJECTS} objects are missing")
            continue
        if absent:
            names = ", ".join(f"{class_name}{number}" for number in absent)
            lines.append(f"class {class_name}: {len(absent)} of {OBJECTS} objects are missing: {names}")
        for number in range(1, OBJECTS + 1):
            gone = [name for name in TRANSFORMATIONS if name in present and (class_name, number, name) not in clips]
            if gone and number not in absent:
                lines.append(f"{class_name}{number}: no left-camera images of {', '.join(gone)}")
    return lines


def _left_images(paths: Iterable[str]) -> Iterator[_Image]:
    """Yield the images of the left camera; the names of the right one are checked too."""
    for path in paths:
        match = _FILE.fullmatch(path)
        if match is None:
            if _IMAGE.fullmatch(path) and not _HIDDEN.search(path):
                _reject(path)
            continue
        class_name, number, transformation, day, camera, frame = match.groups()
        if camera == "left":
            yield _Image(path, class_name, int(number), transformation, day, int(frame))


def _reject(path: str) -> NoReturn:
    """Raise for an image outside the layout; name the first of its folders that is wrong."""
    folders = path.split("/")[:-1]
    if len(folders) == 6 or (folders and folders[0] in PARTS):
        _check_name(path, "part", folders.pop(0), PARTS)
    if len(folders) == 5:
        category, object_name, transformation, _, camera = folders
        _check_name(path, "category", category, CLASSES)
        objects = tuple(f"{category}{number}" for number in range(1, OBJECTS + 1))
        _check_name(path, "object", object_name, objects)
        _check_name(path, "transformation", transformation, TRANSFORMATIONS)
        _check_name(path, "camera", camera, ("left", "right"))
    raise FrameTableError(
        f"image {path} is not named like a frame of iCubWorld Transformations: {LAYOUT} Rename it or move it away."
    )


def _check_name(path: str, level: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise FrameTableError(
            f"image {path} lies in {level} folder {name!r}, but iCubWorld Transformations has only "
            f"{', '.join(known)} there. Rename the folder, or move it away."
        )


def _data_folder(root: Path) -> Path:
    """The folder that contains any part or category; the others may be missing."""
    for folder in (root, root / "icub"):
        if any((folder / name).is_dir() for name in (*PARTS, *CLASSES)):
            return folder
    return dataset_folder(root, ("part1",), "icub", LAYOUT)


@generator(class_groups=class_groups)
def ICub(dataset_root: str | Path, reference: bool = False) -> FrameTable:
    """iCubWorld Transformations as an Avalanche benchmark of 10 experiences, 80 training clips each.

    Split: of the five clips of each of the 200 objects, MIX is for testing, and ROT2D, ROT3D, SCALE and TRANSL are for
    training in every run. Every tenth frame is used, of the left camera and of one day. Frames are resized to the
    transform's size without keeping the aspect ratio (224 x 224 pixels in the paper).

    Pasquale et al., "Are we done with object recognition? The iCub robot's perspective", Robotics and Autonomous
    Systems 112, 2019, https://robotology.github.io/iCubWorld/#icubworld-transformations-modal

    Args:
        dataset_root: As `root` of `ICubFrames`.
        reference: Follow the paper's code: the first day is the first as text; order and labels are drawn as in
            `orders.ReferenceDraws`, from the classes in `listing_order` instead of by name.
    """
    return ICubFrames(dataset_root, reference=reference)
