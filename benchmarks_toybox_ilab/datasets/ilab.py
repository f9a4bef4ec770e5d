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
from benchmarks_toybox_ilab.datasets._layout import Layout, missing_objects
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

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

_LISTED = 8  # short sessions of an object that are listed one by one


def _key(image: re.Match[str]) -> tuple | None:
    class_name, *digits = image.groups("0")
    if class_name in ("0", UNUSED_CLASS):  # "0": an image of test_img
        return None
    number, background, *view = map(int, digits)
    return class_name, number, background, tuple(view)  # camera, rotation, light, focus


LAYOUT = Layout(
    name="ilab",
    title=FOLDER,
    tree="<root>/train_img/<class>-iNNNN-bNNNN-cNN-rNN-lN-fN.jpg, e.g. train_img/boat-i0001-b0003-c02-r03-l0-f2.jpg",
    source="http://ilab.usc.edu/ilab2m/iLab-2M-Light.tar.gz",
    counts={"classes": 14, "train": 35_280, "test": 11_760},
    # The paper splits train_img, and does not use test_img.
    pattern=re.compile(
        rf"(?:{FOLDER}/)?(?:test_img/.*|(?:train_img/)?(?:(?={'|'.join(f'{c}/{c}-' for c in CATEGORIES)})[a-z0-9]+/)?"
        rf"(?P<class_name>{'|'.join(CATEGORIES)})-i(\d+)-b(\d+)-c(\d+)-r(\d+)-l(\d+)(?:-f(\d+))?\.(?i:jpe?g))",
        re.ASCII,
    ),
    folders=("train_img",),
    key=_key,
    places=(FOLDER, "ilab"),
    inside=True,
    rule=f"images lie in train_img or in train_img/<class>, and the classes are {', '.join(CATEGORIES)}",
)


def ILabFrames(root: str | Path, paths: Iterable[str] | None = None, reference: bool = False) -> FrameTable:
    """The table of iLab-2M-Light: 28 objects per class, 8 sessions per object, 15 images per session.

    A session is one background behind one object; its images are numbered from 0 by camera, rotation, light and focus.
    Sessions need at least 15 images; each object that has enough of them uses its first 8, and each class its first 28
    such objects. The fourth and the eighth session of an object are the test split in every run. Class "semi" is left
    out. Classes may be missing or have fewer objects.

    The 15 images are consecutive. The first is chosen by the SHA-256 of "class/object/session" (its first 8 bytes as a
    big-endian number, modulo the number of possible starts), so each session is independent of the others.

    Args:
        root: The folder that contains `train_img`, or the one that contains it as `iLab-2M-Light` or `ilab`, or
            `train_img` itself. The images lie in `train_img` or in one folder per class there.
        paths: Files below root with forward slashes if they are known; None lists the folder.
        reference: Draw the starts with Python's generator, seeded with 0, for the sorted sessions. The published code
            draws them from that generator in the order in which pandas groups its index file; whether the draws agree
            file by file is not verified.

    Raises:
        FrameTableError: If the folder is missing or has another layout, an image does not fit it, a view is repeated,
            or a class has no object with 8 sessions of 15 images.
    """
    root, images = LAYOUT.read(root, paths)
    generator = random.Random(0) if reference else None
    frames = []
    for class_name, objects in LAYOUT.clips(images).items():
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
    return LAYOUT.table(frames, root)


def missing(paths: Iterable[str]) -> list[str]:
    """List what these files lack of the paper's data set; see `missing_objects`.

    A class is complete with 28 objects that have eight sessions of 15 images.
    """
    found, known = LAYOUT.clips(LAYOUT.images(paths)), dict.fromkeys(CLASSES, ())
    return missing_objects(found, known, OBJECTS, (), lambda _: _gaps, lambda name, number: f"{name}/i{number:04d}")


def _usable_sessions(sessions: dict[int, dict[tuple, str]]) -> list[int]:
    """The first sessions with enough images, by number; [] if the object has too few of them."""
    enough = sorted(background for background, views in sessions.items() if len(views) >= FRAMES)
    return enough[:SESSIONS] if len(enough) >= SESSIONS else []


def _window_start(clip: str, starts: int, generator: random.Random | None) -> int:
    if generator is not None:
        return generator.randint(0, starts - 1)
    return int.from_bytes(hashlib.sha256(clip.encode()).digest()[:8], "big") % starts


def _gaps(sessions: dict[int, dict[tuple, str]]) -> str:
    """What is missing from an object, in words; "" if it has enough sessions."""
    short = [f"b{number:04d} has {len(views)}" for number, views in sorted(sessions.items()) if len(views) < FRAMES]
    full = len(sessions) - len(short)
    if full >= SESSIONS:
        return ""
    listed = short[:_LISTED] + ([f"{len(short) - _LISTED} more"] if len(short) > _LISTED else [])
    return f"{full} of {SESSIONS} sessions of {FRAMES} images" + (f"; short: {', '.join(listed)}" if short else "")


@generator()
def ILab(dataset_root: str | Path, reference: bool = False) -> FrameTable:
    """iLab-2M-Light as an Avalanche benchmark of 7 experiences, 5,040 training images each.

    Split: of the 8 sessions (backgrounds) of each of the 392 objects, the fourth and the eighth are for testing in
    every run. Images are resized to the transform's size without keeping the aspect ratio (224 x 224 pixels in the
    paper).

    Args:
        dataset_root: As `root` of `ILabFrames`.
        reference: Draw the 15 images of each session, order and labels as the paper's code does; see `ILabFrames` and
            `orders.ReferenceDraws`.
    """
    return ILabFrames(dataset_root, reference=reference)
