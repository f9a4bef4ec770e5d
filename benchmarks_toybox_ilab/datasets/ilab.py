"""iLab-2M-Light: toy vehicles on a turntable, stills of several cameras.

14 classes x 28 objects x 8 backgrounds. 35,280 training images (6 backgrounds of each
object) and 11,760 test images (2 backgrounds), 15 per background, in 7 experiences of 2
classes. The order within a background is a sweep over cameras and rotations, not a
video.

Borji, Izadi and Itti, "iLab-20M: A Large-Scale Controlled Object Dataset to Investigate
Deep Learning", CVPR 2016.
"""

import hashlib
import random
import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import (
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    register,
    shows_keywords,
)
from benchmarks_toybox_ilab.tables.frame import Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

FOLDER = "iLab-2M-Light"
# The paper's class number is the position, from 1; "semi" has a number (11) but is not
# used.
# fmt: off
CATEGORIES = (
    "boat", "bus", "car", "equip", "f1car", "heli", "mil", "monster",
    "pickup", "plane", "semi", "tank", "train", "ufo", "van",
)
# fmt: on
UNUSED_CLASS = "semi"
CLASSES = tuple(name for name in CATEGORIES if name != UNUSED_CLASS)
OBJECTS_PER_CLASS = 28
SESSIONS = 8  # per object
TEST_POSITIONS = (4, 8)  # among the sessions of an object, from 1
FRAMES = 15  # per session


def _key_of_image(image: re.Match[str]) -> tuple | None:
    """Return class, object, background and view of an image of iLab; None if unused."""
    class_name, *digits = image.groups("0")
    if class_name == UNUSED_CLASS:
        return None
    number, background, *view = map(int, digits)
    return class_name, number, background, tuple(view)  # camera, rotation, light, focus


_ALL = "|".join(CATEGORIES)
_CLASS_FOLDER = "|".join(f"{name}/{name}-" for name in CATEGORIES)

LAYOUT = Layout(
    name="ilab",
    title=FOLDER,
    tree="<root>/train_img/<class>-iNNNN-bNNNN-cNN-rNN-lN-fN.jpg, "
    "e.g. train_img/boat-i0001-b0003-c02-r03-l0-f2.jpg",
    source="http://ilab.usc.edu/ilab2m/iLab-2M-Light.tar.gz",
    pattern=re.compile(
        rf"(?:{FOLDER}/)?(?:train_img/)?(?:(?={_CLASS_FOLDER})[a-z0-9]+/)?"
        rf"(?P<class_name>{_ALL})-i(\d+)-b(\d+)-c(\d+)-r(\d+)-l(\d+)(?:-f(\d+))?"
        r"\.(?i:jpe?g)",
        re.ASCII,
    ),
    # The paper splits train_img alone.
    ignored=re.compile(rf"(?:{FOLDER}/)?test_img/.*"),
    rule="images lie in train_img or in train_img/<class>, and the classes are "
    f"{', '.join(CATEGORIES)}",
    key=_key_of_image,
    folders=("train_img",),
    inside=True,
    inner_folders=(FOLDER,),
    counts={"classes": 14, "train": 35_280, "test": 11_760},
    classes=CLASSES,
)


def ILabFrames(
    root: str | Path, paths: Iterable[str] | None = None, reference: bool = False
) -> FrameTable:
    """Make the table of iLab-2M-Light.

    28 objects per class, 8 sessions per object, 15 images per session. A session is one
    background behind one object; its images are numbered from 0 by camera, rotation,
    light and focus. Sessions need at least 15 images; each object that has enough of
    them uses its first 8, and each class its first 28 such objects. The fourth and the
    eighth session of an object are the test split in every run. Class "semi" is left
    out. Classes may be missing or have fewer objects.

    The 15 images are consecutive. The first is chosen by the SHA-256 of
    "class/object/session" (its first 8 bytes as a big-endian number, modulo the number
    of possible starts), so each session is independent of the others.

    Args:
        root: Folder of the data set; it may also be `train_img` itself.
        paths: Files below root, if they are known; None lists the folder.
        reference: Draw the starts with Python's generator, seeded with 0, for the
            sorted sessions. The published code draws them from that generator in the
            order in which pandas groups its index file; whether the draws agree file by
            file is not verified.

    Raises:
        FrameTableError: If there is no data set, or a class has no object with 8
            sessions of 15 images.
    """
    root, images = LAYOUT.find_images(root, paths)
    # The draws go on from one session to the next.
    draw_start = random.Random(0).randrange if reference else None
    frames = []
    # `objects` holds the path of each image by object, background and view.
    for class_name, objects in LAYOUT.clips(images).items():
        sessions_of_object = {}  # the backgrounds of its sessions, by its number
        for number, sessions in sorted(objects.items()):
            long_sessions = []
            for background, path_of_view in sessions.items():
                if len(path_of_view) >= FRAMES:
                    long_sessions.append(background)
            if len(long_sessions) >= SESSIONS:
                sessions_of_object[number] = sorted(long_sessions)[:SESSIONS]
        if not sessions_of_object:
            raise FrameTableError(
                f"class {class_name!r} in {root} has {len(objects)} objects, none with "
                f"{SESSIONS} sessions (backgrounds) of at least {FRAMES} images, but "
                "only such objects are used. Complete the class, or move its images "
                "away."
            )
        for number, backgrounds in list(sessions_of_object.items())[:OBJECTS_PER_CLASS]:
            for position, background in enumerate(backgrounds, 1):
                object_name = f"i{number:04d}"
                session = f"b{background:04d}"
                views = sorted(objects[number][background].items())  # with paths
                n_starts = len(views) - FRAMES + 1
                if draw_start is None:
                    name = f"{class_name}/{object_name}/{session}"
                    start = _start_drawn_by_name(name, n_starts)
                else:
                    start = draw_start(n_starts)
                for frame in range(start, start + FRAMES):
                    _, path = views[frame]
                    frames.append(
                        Frame(
                            path=path,
                            class_name=class_name,
                            object_name=object_name,
                            session=session,
                            frame=frame,
                            split="test" if position in TEST_POSITIONS else "train",
                        )
                    )
    return LAYOUT.table(frames, root)


def _start_drawn_by_name(name: str, n_starts: int) -> int:
    """Return the position of the first image that is used of a session of iLab.

    Args:
        name: Class, object and session, from which it is drawn.
        n_starts: Number of positions to draw from.
    """
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:8], "big") % n_starts


BENCHMARK = register(
    Benchmark(
        LAYOUT, ILabFrames, classes_per_experience=2, batch_size=21, budget_images=15
    )
)


@shows_keywords
def ILab(
    dataset_root: str | Path | None = None,
    *,
    reference: bool = False,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Make iLab-2M-Light as an Avalanche benchmark of 7 experiences.

    Each has 5,040 training images. See `Benchmark.stream`.
    """
    return BENCHMARK.stream(dataset_root, {"reference": reference}, **host)
