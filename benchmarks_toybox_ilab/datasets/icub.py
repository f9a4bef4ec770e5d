"""iCubWorld Transformations: objects that a person shows to a robot.

20 classes x 10 objects x 5 clips. 800 training clips (four transformations of each
object) and 200 test clips (a mix of them), at one frame per second, in 10 experiences
of 2 classes. Clips vary in length, so there are no totals of frames.

Pasquale, Ciliberto, Odone, Rosasco and Natale, "Are we done with object recognition?
The iCub robot's perspective", Robotics and Autonomous Systems 112, 2019.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from benchmarks_toybox_ilab.datasets.layout import Layout, paper_order
from benchmarks_toybox_ilab.datasets.registry import (
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    register,
    shows_keywords,
)
from benchmarks_toybox_ilab.tables.frame import Frame, natural_key
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

PARTS = ("part1", "part2", "part3", "part4")  # as distributed, without a meaning
# fmt: off
CLASSES = (
    "bodylotion", "book", "cellphone", "flower", "glass",
    "hairbrush", "hairclip", "mouse", "mug", "ovenglove",
    "pencilcase", "perfume", "remote", "ringbinder", "soapdispenser",
    "sodabottle", "sprayer", "squeezer", "sunglasses", "wallet",
)
# fmt: on
OBJECTS_PER_CLASS = 10
TRANSFORMATIONS = ("MIX", "ROT2D", "ROT3D", "SCALE", "TRANSL")
TEST_TRANSFORMATION = "MIX"
STEP = 10  # use every tenth frame: 10 per second become one


def _key_of_image(image: re.Match[str]) -> tuple | None:
    """Return what a left image of iCubWorld shows; None for those of the other camera.

    Class, object, transformation, and day with the number of the file.
    """
    class_name, number, transformation, day, camera, frame = image.groups()
    if camera != "left":
        return None
    return class_name, int(number), transformation, (day, int(frame))


LAYOUT = Layout(
    name="icub",
    title="iCubWorld Transformations",
    tree="<root>/part{1..4}/<category>/<object>/<transformation>/day<d>/{left,right}/"
    "<8 digits>.jpg, e.g. part3/mug/mug1/ROT2D/day4/left/00000012.jpg",
    source="https://robotology.github.io/iCubWorld/#icubworld-transformations-modal",
    pattern=re.compile(
        rf"(?:(?:{'|'.join(PARTS)})/)?({'|'.join(CLASSES)})/\1([1-9]|{OBJECTS_PER_CLASS})"
        rf"/({'|'.join(TRANSFORMATIONS)})/(day\d+)/(left|right)/(\d{{8}})\.(?i:jpg)",
        re.ASCII,
    ),
    rule=f"the categories are {', '.join(CLASSES)}, with objects 1 to "
    f"{OBJECTS_PER_CLASS} each; "
    f"the transformations are {', '.join(TRANSFORMATIONS)}",
    key=_key_of_image,
    folders=(*PARTS, *CLASSES),
    needs_all_folders=False,
    counts={"classes": 20, "train_clips": 800, "test_clips": 200},
    classes=CLASSES,
)


def ICubFrames(
    root: str | Path, paths: Iterable[str] | None = None, reference: bool = False
) -> FrameTable:
    """Make the table of iCubWorld Transformations.

    The clips MIX are the test split in every run. A clip is one transformation of one
    object, seen by the left camera on the first day that has such images. Its files are
    sorted by number, and those at positions 0, 10, 20, ... are used, so numbers may be
    missing. The frame is the number of the file. Parts, classes, objects and clips may
    be missing.

    Args:
        root: Folder of the data set; it may contain all categories without parts.
        paths: Files below root, if they are known; None lists the folder.
        reference: Choose the first day as the published code does, which sorts the
            names as text: day10 before day2. By default day2 comes before day10.
    """
    root, images = LAYOUT.find_images(root, paths)
    frames = []
    # `objects` holds the path of each image by object, transformation, and day with
    # number of the file.
    for class_name, objects in LAYOUT.clips(images).items():
        for number, clips in sorted(objects.items()):
            for transformation, path_of in sorted(clips.items()):
                split = "test" if transformation == TEST_TRANSFORMATION else "train"
                frames_of_day: dict[str, list[int]] = {}  # numbers of the files
                for day, frame in path_of:
                    frames_of_day.setdefault(day, []).append(frame)
                # None compares the names of days as text.
                day_order = None if reference else natural_key
                first_day = min(frames_of_day, key=day_order)
                for frame in sorted(frames_of_day[first_day])[::STEP]:
                    frames.append(
                        Frame(
                            path=path_of[first_day, frame],
                            class_name=class_name,
                            object_name=f"{class_name}{number}",
                            session=transformation,
                            frame=frame,
                            split=split,
                        )
                    )
    return LAYOUT.table(frames, root)


def listing_order(root: str | Path) -> list[str]:
    """Return the classes of iCubWorld in the order in which a disk lists their folders.

    Part by part. The published code numbers the classes so, and its order of classes
    depends on the machine that holds the data.

    Args:
        root: Folder of the data set.
    """
    top = LAYOUT.folder(Path(root))
    folders = [top / name for name in PARTS]
    names: dict[str, None] = {}  # ordered, each once
    for folder in (*folders, top):
        if folder.is_dir():
            for name in os.listdir(folder):
                if name in CLASSES and (folder / name).is_dir():
                    names[name] = None
    return list(names)


def class_groups(table: FrameTable, reference: bool = False) -> list[list[str]] | None:
    """Return the groups of classes that `protocols.plan_stream` takes.

    With `reference` it is one group in `listing_order`, for which the root is read;
    without, None: classes are sorted by name.
    """
    if not reference or table.root is None:
        return None
    # The folder of a category may exist without any frame that is used.
    return paper_order(listing_order(table.root))(table, True)


BENCHMARK = register(
    Benchmark(
        LAYOUT,
        ICubFrames,
        classes_per_experience=2,
        batch_size=21,
        budget_images=30,
        class_groups=class_groups,
    )
)


@shows_keywords
def ICub(
    dataset_root: str | Path | None = None,
    *,
    reference: bool = False,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Make iCubWorld Transformations as an Avalanche benchmark of 10 experiences.

    Each has 80 training clips. See `Benchmark.stream`.
    """
    return BENCHMARK.stream(dataset_root, {"reference": reference}, **host)
