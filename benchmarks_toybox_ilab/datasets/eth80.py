"""ETH-80: 8 classes x 10 objects x 41 views on a grid around the object.

A small set of real images.

Leibe and Schiele, "Analyzing Appearance and Contour Based Methods for Object
Categorization", CVPR 2003.
"""

import re
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
from benchmarks_toybox_ilab.tables.frame import (
    Frame,
    FrameTableError,
    natural_key,
)
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.numbers import whole_number

CLASSES = ("apple", "car", "cow", "cup", "dog", "horse", "pear", "tomato")
# of an object; the cars are numbered 1, 2, 3, 5, 6, 7, 9, 11, 12, 14
OBJECT_NUMBERS = range(1, 15)
TEST_OBJECTS = 2  # per class and run


def _key_of_image(image: re.Match[str]) -> tuple:
    """Return class, object, ring of views and azimuth of an image of ETH-80."""
    return (*image.group("class_name", "object", "ring"), int(image["azimuth"]))


# Numbers of the folders of classes in the repository that `LAYOUT.source` names.
CLASS_FOLDERS = tuple(str(number) for number in range(1, len(CLASSES) + 1))
_VIEW = (
    rf"(?P<object>(?P<class_name>{'|'.join(CLASSES)})\d+)"
    r"-(?P<ring>\d{3})-(?P<azimuth>\d{3})\.(?i:jpe?g|png)"
)
_ARCHIVED_VIEW = re.compile(
    rf"(?:^|/)(?:\d+/\d+|(?:{'|'.join(CLASSES)})\d+)/({_VIEW})$", re.ASCII
)


def _unpacked_path(name: str) -> str | None:
    """Return where a view of ETH-80 in an archive goes, below the root.

    None for other files, such as the masks.
    """
    view = _ARCHIVED_VIEW.search(name)
    return view and f"{view['object']}/{view[1]}"


LAYOUT = Layout(
    name="eth80",
    title="ETH-80",
    tree="<root>/<object>/<object>-EEE-AAA.jpg, e.g. apple1/apple1-090-022.jpg, or "
    "<root>/<number of class>/<number>/<object>-EEE-AAA.png, e.g. "
    "1/1/apple1-090-022.png",
    source="Leibe & Schiele, CVPR 2003; 256 px copy at "
    "https://github.com/Kai-Xuan/ETH-80, whose ETH-80-master.zip `crumb prepare eth80 "
    "--source ETH-80-master.zip` unpacks",
    pattern=re.compile(
        # A folder of a name is that of the object.
        rf"(?:(?P<folder>[a-z]+\d+)(?=/(?P=folder)-)|\d+/\d+)/{_VIEW}",
        re.ASCII,
    ),
    ignored=re.compile("(?:[^/]+/)+maps/.*"),  # the masks of the distribution
    rule=f"an object is a class ({', '.join(CLASSES)}) and a number, EEE its polar "
    "angle and AAA the azimuth in three digits each",
    key=_key_of_image,
    folders=(
        *(f"{name}{number}" for name in CLASSES for number in OBJECT_NUMBERS),
        *CLASS_FOLDERS,
    ),
    needs_all_folders=False,
    inner_folders=("ETH-80-master", "ETH-80"),
    counts={"classes": 8, "train": 2_624, "test": 656},
    owner="the data set",
    classes=CLASSES,
    archived=_unpacked_path,
)


def ETH80Frames(root: str | Path, run: int = 0) -> FrameTable:
    """Make the table of ETH-80: 3,280 frames; two objects of each class are held out.

    A clip is one ring of views (one polar angle) around one object, sorted by azimuth:
    1 to 16 turntable images, not video. All views are used. The test objects
    of a class are at these positions of its objects in natural order: 0 and 1 in run 0,
    2 and 3 in run 1, to 8 and 9 in run 4; 0 and 5 in run 5, 1 and 6 in run 6, to 4 and
    9 in run 9; run 10 repeats run 0. So ten runs have ten different test splits, and
    every object is held out once in runs 0 to 4 and once in runs 5 to 9. In a class of
    n other than ten objects, positions are modulo n, and the two of runs 5 to 9 are
    n // 2 apart.

    Args:
        root: Folder of the data set.
        run: Chooses the test objects.

    Raises:
        FrameTableError: If there is no data set, or a class has fewer than 3 objects.
        ValueError: If run is not a whole number of at least 0.
    """
    run = whole_number("run", run, 0)
    root, images = LAYOUT.find_images(root)
    frames = []
    # `rings_of_object` holds the path of each image by object, ring and azimuth.
    for class_name, rings_of_object in LAYOUT.clips(images).items():
        objects = sorted(rings_of_object, key=natural_key)
        if len(objects) <= TEST_OBJECTS:
            raise FrameTableError(
                f"class {class_name!r} in {root} has only {len(objects)} objects "
                f"({', '.join(objects)}), but {TEST_OBJECTS} are held out and at least "
                "one must remain for training; complete the data."
            )
        held_out = _test_objects(objects, run)
        for name in objects:
            split = "test" if name in held_out else "train"
            for ring, path_of_azimuth in sorted(rings_of_object[name].items()):
                for azimuth, path in sorted(path_of_azimuth.items()):
                    frames.append(
                        Frame(
                            path=path,
                            class_name=class_name,
                            object_name=name,
                            session=ring,
                            frame=azimuth,
                            split=split,
                        )
                    )
    return LAYOUT.table(frames, root)


def _test_objects(objects: list[str], run: int) -> set[str]:
    """Return the names of the two test objects of a class of ETH-80 in a run.

    In runs 0 to 4 they are neighbours, each object once; in runs 5 to 9 they are half
    the number of objects apart. Then the runs repeat.
    """
    split_number = run % 10
    if split_number < 5:
        first = 2 * split_number
        second = first + 1
    else:
        first = split_number - 5
        second = first + len(objects) // 2
    return {objects[first % len(objects)], objects[second % len(objects)]}


BENCHMARK = register(
    Benchmark(
        LAYOUT, ETH80Frames, classes_per_experience=2, batch_size=21, budget_images=15
    )
)


@shows_keywords
def ETH80(
    dataset_root: str | Path | None = None, **host: Unpack[StreamKeywords]
) -> FrameBenchmark:
    """Make ETH-80 as an Avalanche benchmark of 4 experiences of 2 classes.

    See `Benchmark.stream`.
    """
    return BENCHMARK.stream(dataset_root, **host)
