"""OpenLORIS-Object: 121 objects of 40 categories, filmed by a robot.

Four factors make them hard to see. For each factor nine segments follow one another,
three for each level of difficulty, and each shows all objects. The stream of a factor
has 9 experiences, that of all four 36, each with all 121 classes: an object is a class.
Clips vary in length, so there are no totals of frames.

The list of objects and the order of the segments are those of `data.py`,
`benchmark1.py` and `benchmark2.py` in
https://github.com/lifelong-robotic-vision/OpenLORIS-Object.

She et al., "OpenLORIS-Object: A Robotic Vision Dataset and Benchmark for Lifelong Deep
Learning", ICRA 2020, arXiv:1911.06487.
"""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from benchmarks_toybox_ilab.datasets.layout import Layout, Listed, read_lists
from benchmarks_toybox_ilab.datasets.registry import (
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    given_keywords,
    register,
    shows_keywords,
)
from benchmarks_toybox_ilab.streams.orders import TABLE
from benchmarks_toybox_ilab.tables.frame import Frame, natural_key
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

# Number of objects of each category; they count from 1, but the ninth cup is cup_10.
# fmt: off
_BY_NUMBER = {
    1: ("corkscrew", "knife", "mouse", "pot", "swimming_glasses", "tape"),
    2: ("battery", "clamp", "cottonswab", "hat", "pencilcase", "u_disk"),
    3: (
        "bracelet", "chopsticks", "comb", "cushion", "headphone", "key",
        "nail_clippers", "notebook", "plasticbag", "scissors", "socks", "spoon",
        "stapler", "thermometer", "tissue", "toothpaste", "umbrella", "wallet",
    ),
    4: ("bottle", "glasses", "ladle", "paper_cutter", "plug"),
    5: ("bowl", "mask", "pencil", "toy"),
    9: ("cup",),
}
# fmt: on
CATEGORIES = {name: count for count, names in _BY_NUMBER.items() for name in names}


def _names_of_objects() -> Iterator[str]:
    """Yield the names of all objects of OpenLORIS, such as cup_01, by category."""
    for name, count in sorted(CATEGORIES.items()):
        for number in range(1, count + 1):
            if (name, number) == ("cup", 9):
                number = 10
            yield f"{name}_{number:02d}"


CLASSES = tuple(_names_of_objects())
# in the order of the stream of all
FACTORS = ("illumination", "occlusion", "pixel", "clutter")
SEGMENTS = 9  # of each factor
SPLITS = ("train", "test")
# The 12 batches that mix all factors, by text lists.
MIXTURE = "mixture-iros"
LISTS = "batches_filelists/domain/iros"
BATCHES = 12
LISTED = re.compile(r"[^/.\s][^\s]*/(?P<name>[^/.\s][^/\s]*)\.(?i:jpe?g|png)")


def _key_of_image(image: re.Match[str], factors: tuple[str, ...]) -> tuple | None:
    """Return what an image of OpenLORIS shows; None if its factor is not one of these.

    Class, factor, a clip such as `train/segment3`, and name of the image.
    """
    split, factor, segment, class_name, name = image.groups()
    if factor not in factors:
        return None
    return class_name, factor, f"{split}/segment{segment}", name


def _layout(name: str, factors: tuple[str, ...]) -> Layout:
    """Return the layout of a stream of OpenLORIS: how its files lie in folders.

    Args:
        name: Name of the stream, such as "clutter", or "sequence" for all factors.
        factors: Its factors in order; images of other factors are not used.
    """
    # A segment of a factor is a session of each class.
    n_sessions = len(CLASSES) * len(factors) * SEGMENTS
    return Layout(
        name=f"openloris_{name}",
        title=f"OpenLORIS-Object ({', '.join(factors)})",
        tree="<root>/{train,test}/<factor>/segment{1..9}/<object>/<image>.jpg, "
        "e.g. train/clutter/segment1/bottle_01/001.jpg",
        source="https://lifelong-robotic-vision.github.io/dataset/object (train.zip "
        "and test.zip)",
        pattern=re.compile(
            rf"({'|'.join(SPLITS)})/({'|'.join(FACTORS)})/segment([1-{SEGMENTS}])/"
            rf"({'|'.join(CLASSES)})/([^/.][^/]*)\.(?i:jpe?g|png)"
        ),
        rule=f"the factors are {', '.join(FACTORS)}; an object is one of 40 categories "
        "and its number, as in cup_10",
        key=partial(_key_of_image, factors=factors),
        folders=SPLITS,
        inner_folders=("openloris",),
        counts={
            "classes": len(CLASSES),
            "train_sessions": n_sessions,
            "test_sessions": n_sessions,
        },
        owner="the data set",  # whose counts these are, in messages
        classes=CLASSES,
    )


STREAMS: dict[str, tuple[str, ...]] = {"sequence": FACTORS}
STREAMS |= {factor: (factor,) for factor in FACTORS}
"""Factors of each stream by the name that the official code gives it."""
LAYOUTS = {name: _layout(name, factors) for name, factors in STREAMS.items()}


def OpenLORISFrames(
    root: str | Path, paths: Iterable[str] | None = None, factor: str = "clutter"
) -> FrameTable:
    """Make the table of OpenLORIS-Object.

    The splits are the official `train` and `test` folders in every run; `validation` is
    not used. A session is a segment, named task1 to task9, or to task36 for all
    factors: illumination, occlusion, pixel, clutter. A frame is the position of the
    image among those of its object and segment, in natural order of their names.
    Objects and segments may be missing.

    Args:
        root: Folder of the data set.
        paths: Files below root, if they are known; None lists the folder.
        factor: "clutter", "illumination", "occlusion" or "pixel"; "sequence" is all of
            them.

    Raises:
        ValueError: If the factor is unknown.
    """
    if factor not in LAYOUTS:
        raise ValueError(f"unknown factor {factor!r}; known are {', '.join(LAYOUTS)}.")
    layout = LAYOUTS[factor]
    root, images = layout.find_images(root, paths)
    frames = []
    # `clips_of_factor` holds the path of each image by factor, clip (such as
    # "train/segment1") and name.
    for class_name, clips_of_factor in layout.clips(images).items():
        for position, factor_name in enumerate(STREAMS[factor]):
            clips = clips_of_factor.get(factor_name, {})
            for clip in sorted(clips, key=_clip_sort_key):
                split, segment = clip.split("/segment")
                session = f"task{SEGMENTS * position + int(segment)}"
                path_of_name = clips[clip]
                for frame, name in enumerate(sorted(path_of_name, key=natural_key)):
                    frames.append(
                        Frame(
                            path=path_of_name[name],
                            class_name=class_name,
                            object_name=class_name,  # a class is one object
                            session=session,
                            frame=frame,
                            split=split,
                        )
                    )
    return layout.table(frames, root)


def _clip_sort_key(clip: str) -> tuple[bool, str]:
    """Return what the clips of an OpenLORIS object are sorted by: training comes first.

    Args:
        clip: Split and segment, such as `train/segment3`.
    """
    return clip.startswith("test"), clip


BENCHMARKS = {
    name: register(
        Benchmark(
            layout,
            partial(OpenLORISFrames, factor=name),
            classes_per_experience=None,
            batch_size=32,
            budget_images=len(CLASSES),
            protocol="class_iid",
            host_folder="openloris",
        )
    )
    for name, layout in LAYOUTS.items()
}


def OpenLORISListedFrames(root: str | Path) -> FrameTable:
    """Make the table of the 12 batches that mix all factors.

    From the text lists that Avalanche downloads with the images. Sessions are "batch0"
    to "batch11" for training and "test", rows in the order of the lists. Classes are
    the labels of the lists. An object is the folder of an image.

    Args:
        root: The folder that contains `batches_filelists`, `train` and `test`.

    Raises:
        FrameTableError: If a list is missing, or a line of one is invalid.
    """

    def listed_image(image: re.Match[str], label: int, line: int) -> Listed:
        """Return class, object and frame of an image by its path, label and line."""
        folder = image[0].rpartition("/")[0]
        return Listed(class_name=str(label), object_name=folder, frame=line)

    lists = read_lists(
        Path(root) / LISTS,
        ending=".txt",
        n_batches=BATCHES,
        pattern=LISTED,
        example="train/cup_10/001.jpg 34",
        describe_image=listed_image,
    )
    name = f"openloris_{MIXTURE}"
    return FrameTable(lists.frames, root, name=name, classes=lists.classes)


@shows_keywords
def OpenLORIS(
    dataset_root: str | Path | None = None,
    *,
    factor: str = "clutter",
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Make OpenLORIS-Object as an Avalanche benchmark of 9 experiences.

    There are 36 for "sequence". Each has all 121 classes.

    Args:
        dataset_root: Folder of the data set; None is where Avalanche keeps it.
        factor: As in `OpenLORISFrames`; or "mixture-iros", the 12 batches of the
            competition at IROS 2019 with one test experience, as Avalanche's generator
            has them.
        **host: Keywords of every stream, see `StreamKeywords`. The lists of
            "mixture-iros" leave nothing to draw or divide.

    Raises:
        ValueError: If the factor is unknown, or a keyword does not fit it.
    """
    if factor == MIXTURE:
        useless = given_keywords(host)  # names of those that a caller gave a value
        if useless:
            raise ValueError(
                f"{' and '.join(useless)} cannot be given with factor {MIXTURE!r}: its "
                "lists fix the order."
            )
        listed = Benchmark(
            LAYOUTS["sequence"],
            OpenLORISListedFrames,
            classes_per_experience=None,
            batch_size=32,
            budget_images=len(CLASSES),
            protocol=TABLE,  # experiences and order as in the table
            host_folder="openloris",  # where Avalanche keeps it
        )
        return listed.stream(dataset_root, {}, **host)
    if factor not in BENCHMARKS:
        raise ValueError(
            f"unknown factor {factor!r}; known are {', '.join(BENCHMARKS)}, {MIXTURE}."
        )
    return BENCHMARKS[factor].stream(dataset_root, **host)
