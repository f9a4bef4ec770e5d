"""iCubWorld Transformations: 20 classes x 10 objects x 5 clips of things that a person shows to a robot.

800 training clips (four transformations of each object) and 200 test clips (a mix of them), at one frame a second, in
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

PARTS = ("part1", "part2", "part3", "part4")  # as the data set comes; they mean nothing
CLASSES = (
    *("bodylotion", "book", "cellphone", "flower", "glass", "hairbrush", "hairclip", "mouse", "mug", "ovenglove"),
    *("pencilcase", "perfume", "remote", "ringbinder", "soapdispenser", "sodabottle", "sprayer", "squeezer"),
    *("sunglasses", "wallet"),
)
OBJECTS = 10  # of each class
TRANSFORMATIONS = ("MIX", "ROT2D", "ROT3D", "SCALE", "TRANSL")
TEST_TRANSFORMATION = "MIX"
STEP = 10  # positions from one frame to the next that is used: 10 a second become one

_IMAGE = re.compile(r".*\.jpg", re.IGNORECASE | re.DOTALL)
_HIDDEN = re.compile(r"(?:^|/)(?:\.|__MACOSX/)")
_FILE = re.compile(
    rf"(?:(?:{'|'.join(PARTS)})/)?({'|'.join(CLASSES)})/\1([1-9]|{OBJECTS})"
    rf"/({'|'.join(TRANSFORMATIONS)})/(day\d+)/(left|right)/(\d{{8}})\.(?i:jpg)",
    re.ASCII,
)


class _Image(NamedTuple):
    """A file of the left camera, and what its name says."""

    path: str
    class_name: str
    number: int
    transformation: str
    day: str
    frame: int


def ICubFrames(root: str | Path, paths: Iterable[str] | None = None, reference: bool = False) -> FrameTable:
    """The table of iCubWorld Transformations: the clips MIX are the test split, in every run.

    A clip is one transformation of one object, seen by the left camera on the first day that has such images. Its files
    are sorted by number, and those at the positions 0, 10, 20, ... are used: positions, so it does not matter which
    numbers are missing. The frame is the number of the file. Parts, classes, objects and clips that are not there are
    not asked for.

    Args:
        root: The folder of the parts, or of all categories without parts, or the folder that holds it as `icub`.
        paths: Files below root with forward slashes, where they are known already; else the folder is listed.
        reference: Take for the first day that of the published code, which sorts their names as text: day10 before
            day2. By default day2 comes before day10.

    Raises:
        FrameTableError: If the folder is missing or holds no images of the left camera, an image lies in a folder or
            has a name that iCubWorld Transformations does not have, a frame comes twice, or a class has no training
            frames.
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
            raise FrameTableError(
                f"{image.path} and {files[image.frame]} are the same frame; keep one file for each frame."
            )
        files[image.frame] = image.path
    if not clips:
        raise FrameTableError(
            f"{root} holds no images of the left camera of iCubWorld Transformations. They are laid out as {LAYOUT}"
        )
    frames = []
    for (class_name, number, transformation), days in sorted(clips.items(), key=lambda clip: clip[0]):
        files = days[min(days, key=None if reference else natural_key)]
        split = "test" if transformation == TEST_TRANSFORMATION else "train"
        for frame in sorted(files)[::STEP]:
            frames.append(Frame(files[frame], class_name, f"{class_name}{number}", transformation, frame, split))
    return FrameTable(frames, root, name="icub")


def listing_order(root: str | Path) -> list[str]:
    """The categories in the order in which the system lists their folders, part by part.

    The published code numbers the classes like that, so its order of classes can be had again only where the data lie,
    and differs from one machine to the next.

    Args:
        root: As of `ICubFrames`.

    Raises:
        FrameTableError: If the folder is missing or laid out otherwise.
    """
    root = _data_folder(Path(root))
    folders = [folder for folder in (*(root / part for part in PARTS), root) if folder.is_dir()]
    listed = (name for folder in folders for name in os.listdir(folder) if (folder / name).is_dir())
    return list(dict.fromkeys(name for name in listed if name in CLASSES))


def class_groups(table: FrameTable, reference: bool = False) -> list[list[str]] | None:
    """The classes before they are shuffled, as `protocols.plan_stream` takes them.

    By `reference` in `listing_order`, for which the table's root has to be there, else None: by name.
    """
    # The folder of a category may be there and hold nothing that is used.
    return [[name for name in listing_order(table.root) if name in table.classes]] if reference else None


def missing(paths: Iterable[str]) -> list[str]:
    """What the paper's data set has and these files below root lack, object by object, a line each.

    A clip is there if the left camera has an image of it on any day; lengths of clips are not known, so none is short.

    Raises:
        FrameTableError: If an image lies in a folder or has a name that iCubWorld Transformations does not have.
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
    """The images of the left camera; those of the right one are checked too, and left out."""
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
    """Raise the error of an image that has no place in the layout: the first of its folders that is wrong, by name."""
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
        f"image {path} is not named as a frame of iCubWorld Transformations: {LAYOUT} Rename it or move it away."
    )


def _check_name(path: str, level: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise FrameTableError(
            f"image {path} lies in {level} folder {name!r}, but iCubWorld Transformations has only "
            f"{', '.join(known)} there. Rename the folder, or move it away."
        )


def _data_folder(root: Path) -> Path:
    """The folder that holds parts or categories; any of them will do, because not all have to be there."""
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
        reference: Follow the paper's code: the first day is the first as text; order and labels are drawn as in
            `orders.ReferenceDraws`, from the classes in `listing_order` instead of by name.
    """
    return ICubFrames(dataset_root, reference=reference)
