"""iLab-2M-Light: 14 classes of toy vehicles x 28 objects x 8 backgrounds on a turntable, stills of several cameras.

35,280 training images (6 backgrounds of each object) and 11,760 test images (2 backgrounds), 15 per background, in 7
experiences of 2 classes. The order within a background is a sweep over cameras and rotations, not a video.

Borji, Izadi and Itti, "iLab-20M: A Large-Scale Controlled Object Dataset to Investigate Deep Learning", CVPR 2016.
"""

import hashlib
import random
import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks_toybox_ilab.datasets._generator import generator
from benchmarks_toybox_ilab.tables.folders import dataset_folder, files_below
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

LAYOUT = "<root>/train_img/<class>-iNNNN-bNNNN-cNN-rNN-lN-fN.jpg, e.g. train_img/boat-i0001-b0003-c02-r03-l0-f2.jpg"
SOURCE = "http://ilab.usc.edu/ilab2m/iLab-2M-Light.tar.gz"
COUNTS = {"classes": 14, "train": 35_280, "test": 11_760}

FOLDER = "iLab-2M-Light"
# The paper's class number is the position, from 1; "semi" has a number (11) but is not used.
CATEGORIES = (
    *("boat", "bus", "car", "equip", "f1car", "heli", "mil", "monster"),
    *("pickup", "plane", "semi", "tank", "train", "ufo", "van"),
)
UNUSED_CLASS = "semi"
CLASSES = tuple(name for name in CATEGORIES if name != UNUSED_CLASS)
OBJECTS = 28  # per class
SESSIONS = 8  # per object
TEST_POSITIONS = (4, 8)  # among the sessions of an object, from 1
FRAMES = 15  # per session

_FILE = re.compile(r"([a-z0-9]+)-i(\d+)-b(\d+)-c(\d+)-r(\d+)-l(\d+)(?:-f(\d+))?\.(?i:jpe?g)", re.ASCII)
_IMAGE = re.compile(r"[^.].*\.jpe?g", re.IGNORECASE | re.DOTALL)
_LISTED = 8  # objects of a class that are listed one by one

_View = tuple[int, int, int, int]  # camera, rotation, light, focus
_Objects = dict[int, dict[int, dict[_View, str]]]  # path by object number, background number and view


def ILabFrames(root: str | Path, paths: Iterable[str] | None = None, reference: bool = False) -> FrameTable:
    """The table of iLab-2M-Light: 28 objects per class, 8 sessions per object, 15 images per session.

    A session is one background behind one object; its images are numbered from 0 by camera, rotation, light and focus.
    Sessions need at least 15 images; each object that has enough of them uses its first 8, and each class its first 28
    such objects. The fourth and the eighth session of an object are the test split in every run. Class "semi" is left
    out. Classes may be missing or have fewer objects.

    The 15 images are consecutive. The first is chosen by the SHA-256 of "class/object/session" (its first 8 bytes as a
    big-endian number, modulo the number of possible starts), so each session is independent of the others.

    Args:
        root: The folder that contains `train_img`, or the one that contains it as `iLab-2M-Light`, or `train_img`
            itself. The images lie in `train_img` or in one folder per class there.
        paths: Files below root with forward slashes if they are known; None lists the folder.
        reference: Draw the starts with Python's generator, seeded with 0, for the sorted sessions. The published code
            draws them from that generator in the order in which pandas groups its index file; whether the draws agree
            file by file is not verified.

    Raises:
        FrameTableError: If the folder is missing or has another layout, an image is not named like one of iLab or
            belongs to another class, or a class has no object with 8 sessions of 15 images.
    """
    root = Path(root)
    if paths is None:
        root, folder = _data_folder(root)
        paths = files_below(root, folder)
    generator = random.Random(0) if reference else None
    frames = []
    for class_name, objects in _found(paths).items():
        usable = {number: kept for number in sorted(objects) if (kept := _usable_sessions(objects[number]))}
        if not usable:
            raise FrameTableError(
                f"class {class_name!r} in {root} has {len(objects)} objects, none with {SESSIONS} sessions "
                f"(backgrounds) of at least {FRAMES} images, but only such objects are used. Complete the class, or "
                "move its images away."
            )
        for number, sessions in list(usable.items())[:OBJECTS]:
            for position, background in enumerate(sessions, 1):
                names = class_name, f"i{number:04d}", f"b{background:04d}"
                views = [path for _, path in sorted(objects[number][background].items())]
                start = _window_start("/".join(names), len(views) - FRAMES + 1, generator)
                split = "test" if position in TEST_POSITIONS else "train"
                frames += [Frame(views[frame], *names, frame, split) for frame in range(start, start + FRAMES)]
    if not frames:
        raise FrameTableError(f"{root} holds no images of {FOLDER}; the layout is {LAYOUT}")
    return FrameTable(frames, root, name="ilab")


def missing(paths: Iterable[str]) -> list[str]:
    """List what these files below root lack of the paper's data set, one line per object.

    A class is complete with 28 objects that have eight sessions of 15 images.

    Raises:
        FrameTableError: If an image is not named like one of iLab or belongs to another class.
    """
    found = _found(paths)
    lines = []
    for class_name in CLASSES:
        objects = found.get(class_name, {})
        short = [number for number in sorted(objects) if not _usable_sessions(objects[number])]
        count = len(objects) - len(short)
        if not objects:
            lines.append(f"class {class_name}: all {OBJECTS} objects are missing")
        elif count < OBJECTS:
            lines.append(
                f"class {class_name}: {count} of {OBJECTS} objects have {SESSIONS} sessions of {FRAMES} images"
            )
            lines += [f"{class_name}/i{number:04d}: {_gaps(objects[number])}" for number in short[:_LISTED]]
            if len(short) > _LISTED:
                lines.append(f"class {class_name}: {len(short) - _LISTED} more objects are short")
    return lines


def _data_folder(root: Path) -> tuple[Path, str]:
    """The folder that paths are relative to, and the folder of the images below it ("" if they are the same)."""
    for folder in (root, root / FOLDER):
        if (folder / "train_img").is_dir():
            return folder, "train_img"
    if root.is_dir() and (
        root.absolute().name == "train_img" or any(_FILE.fullmatch(entry.name) for entry in root.iterdir())
    ):
        return root, ""
    return dataset_folder(root, ("train_img",), "ilab", LAYOUT), "train_img"


def _found(paths: Iterable[str]) -> dict[str, _Objects]:
    """The files by class (in natural order), object, background and view, without the unused class."""
    found: dict[str, _Objects] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if _IMAGE.fullmatch(name) is None:
            continue
        folders = folder.removeprefix(f"{FOLDER}/").split("/")
        if folders[0] == "test_img":  # not used by the paper, which splits train_img
            continue
        match = _FILE.fullmatch(name)
        if match is None or match[1] not in CATEGORIES:
            raise FrameTableError(
                f"{path} is not named like an image of {FOLDER}: <class>-iNNNN-bNNNN-cNN-rNN-lN-fN.jpg, with one of "
                f"the classes {', '.join(CATEGORIES)}. Rename it or move it away."
            )
        class_name, *digits = match.groups("0")
        if folders not in (["train_img"], ["train_img", class_name], [class_name], [""]):
            raise FrameTableError(
                f"{path} lies in the wrong folder; images lie in train_img or train_img/{class_name}. Move it there "
                "or away."
            )
        if class_name == UNUSED_CLASS:
            continue
        number, background, *view = map(int, digits)
        views = found.setdefault(class_name, {}).setdefault(number, {}).setdefault(background, {})
        if views.setdefault(tuple(view), path) is not path:
            raise FrameTableError(f"{path} and {views[tuple(view)]} are the same view; keep one file per view.")
    return dict(sorted(found.items()))


def _usable_sessions(sessions: dict[int, dict[_View, str]]) -> list[int]:
    """The first sessions with enough images, by number; [] if the object has too few of them."""
    enough = sorted(background for background, views in sessions.items() if len(views) >= FRAMES)
    return enough[:SESSIONS] if len(enough) >= SESSIONS else []


def _window_start(clip: str, starts: int, generator: random.Random | None) -> int:
    if generator is not None:
        return generator.randint(0, starts - 1)
    return int.from_bytes(hashlib.sha256(clip.encode()).digest()[:8], "big") % starts


def _gaps(sessions: dict[int, dict[_View, str]]) -> str:
    """What is missing from an object, in words."""
    short = [
        f"b{number:04d} has {len(sessions[number])}" for number in sorted(sessions) if len(sessions[number]) < FRAMES
    ]
    listed = short[:_LISTED] + ([f"{len(short) - _LISTED} more"] if len(short) > _LISTED else [])
    count = f"{len(sessions) - len(short)} of {SESSIONS} sessions of {FRAMES} images"
    return f"{count}; short: {', '.join(listed)}" if short else count


@generator()
def ILab(dataset_root: str | Path, reference: bool = False) -> FrameTable:
    """iLab-2M-Light as an Avalanche benchmark of 7 experiences, 5,040 training images each.

    Split: of the 8 sessions (backgrounds) of each of the 392 objects, the fourth and the eighth are for testing in
    every run. Images are resized to the transform's size without keeping the aspect ratio (224 x 224 pixels in the
    paper).

    Borji et al., "iLab-20M: A Large-Scale Controlled Object Dataset to Investigate Deep Learning", CVPR 2016,
    http://ilab.usc.edu/ilab2m/iLab-2M-Light.tar.gz

    Args:
        dataset_root: As `root` of `ILabFrames`.
        reference: Draw the 15 images of each session, order and labels as the paper's code does; see `ILabFrames` and
            `orders.ReferenceDraws`.
    """
    return ILabFrames(dataset_root, reference=reference)
