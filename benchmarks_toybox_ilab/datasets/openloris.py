"""OpenLORIS-Object: 121 objects of 40 categories, filmed by a robot under four factors that make them hard to see.

For each factor nine segments follow one another, three for each level of difficulty,
and each shows all objects. The stream of a factor has 9 experiences, that of all four
36, each with all 121 classes: an object is a class. Clips vary in length, so there are
no totals of frames.

The list of objects and the order of the segments are those of `data.py`,
`benchmark1.py` and `benchmark2.py` in
https://github.com/lifelong-robotic-vision/OpenLORIS-Object.

She et al., "OpenLORIS-Object: A Robotic Vision Dataset and Benchmark for Lifelong Deep
Learning", ICRA 2020, arXiv:1911.06487.
"""

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from benchmarks_toybox_ilab.datasets.layout import Layout, read_lists
from benchmarks_toybox_ilab.datasets.registry import (
    DRAWN,
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    register,
)
from benchmarks_toybox_ilab.streams.orders import TABLE
from benchmarks_toybox_ilab.tables.frame import Frame, natural_key
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

# Number of objects of each category; they count from 1, but the ninth cup is cup_10.
CATEGORIES = (
    dict.fromkeys(("corkscrew", "knife", "mouse", "pot", "swimming_glasses", "tape"), 1)
    | dict.fromkeys(
        ("battery", "clamp", "cottonswab", "hat", "pencilcase", "u_disk"), 2
    )
    | dict.fromkeys(
        (
            "bracelet",
            "chopsticks",
            "comb",
            "cushion",
            "headphone",
            "key",
            "nail_clippers",
            "notebook",
        ),
        3,
    )
    | dict.fromkeys(
        (
            "plasticbag",
            "scissors",
            "socks",
            "spoon",
            "stapler",
            "thermometer",
            "tissue",
            "toothpaste",
        ),
        3,
    )
    | dict.fromkeys(("umbrella", "wallet"), 3)
    | dict.fromkeys(("bottle", "glasses", "ladle", "paper_cutter", "plug"), 4)
    | {"bowl": 5, "cup": 9, "mask": 5, "pencil": 5, "toy": 5}
)
CLASSES = tuple(
    f"{name}_{10 if (name, number) == ('cup', 9) else number:02d}"
    for name, count in sorted(CATEGORIES.items())
    for number in range(1, count + 1)
)
FACTORS = (
    "illumination",
    "occlusion",
    "pixel",
    "clutter",
)  # in the order of the stream of all
SEGMENTS = 9  # of each factor
SPLITS = ("train", "test")
MIXTURE, LISTS, BATCHES = "mixture-iros", "batches_filelists/domain/iros", 12
LISTED = re.compile(r"[^/.\s][^\s]*/(?P<name>[^/.\s][^/\s]*)\.(?i:jpe?g|png)")


def _key(image: re.Match[str], factors: tuple[str, ...]) -> tuple | None:
    split, factor, segment, class_name, name = image.groups()
    return (
        (class_name, factor, f"{split}/segment{segment}", name)
        if factor in factors
        else None
    )


def _layout(name: str, factors: tuple[str, ...]) -> Layout:
    return Layout(
        name=f"openloris_{name}",
        title=f"OpenLORIS-Object ({', '.join(factors)})",
        tree="<root>/{train,test}/<factor>/segment{1..9}/<object>/<image>.jpg, "
        "e.g. train/clutter/segment1/bottle_01/001.jpg",
        source="https://lifelong-robotic-vision.github.io/dataset/object (train.zip and test.zip)",
        pattern=re.compile(
            rf"({'|'.join(SPLITS)})/({'|'.join(FACTORS)})/segment([1-{SEGMENTS}])/({'|'.join(CLASSES)})/"
            r"([^/.][^/]*)\.(?i:jpe?g|png)"
        ),
        rule=f"the factors are {', '.join(FACTORS)}; an object is one of 40 categories and its number, as in cup_10",
        key=partial(_key, factors=factors),
        folders=SPLITS,
        places=("openloris",),
        counts={"classes": len(CLASSES)}
        | {
            f"{split}_sessions": len(CLASSES) * len(factors) * SEGMENTS
            for split in SPLITS
        },
        owner="the data set",
        classes=CLASSES,
    )


STREAMS = {"sequence": FACTORS} | {factor: (factor,) for factor in FACTORS}
"""Factors of each stream by the name that the official code gives it."""
LAYOUTS = {name: _layout(name, factors) for name, factors in STREAMS.items()}


def OpenLORISFrames(
    root: str | Path, paths: Iterable[str] | None = None, factor: str = "clutter"
) -> FrameTable:
    """The table of OpenLORIS-Object: the official `train` and `test` folders in every run; `validation` is not used.

    A session is a segment, named task1 to task9, or to task36 for all factors:
    illumination, occlusion, pixel, clutter. A frame is the position of the image among
    those of its object and segment, in natural order of their names. Objects and
    segments may be missing.

    Args:
        root, paths: See `Layout.read`.
        factor: "clutter", "illumination", "occlusion" or "pixel"; "sequence" is all of
            them.

    Raises:
        ValueError: If the factor is unknown.
    """
    if factor not in LAYOUTS:
        raise ValueError(f"unknown factor {factor!r}; known are {', '.join(LAYOUTS)}.")
    layout = LAYOUTS[factor]
    root, images = layout.read(root, paths)
    frames = []
    for class_name, factors in layout.clips(images).items():
        for position, one in enumerate(STREAMS[factor]):
            clips = factors.get(one, {})
            for clip, files in sorted(
                clips.items(), key=lambda item: (item[0].startswith("test"), item[0])
            ):
                split, segment = clip.split("/segment")
                session = f"task{SEGMENTS * position + int(segment)}"
                for frame, name in enumerate(sorted(files, key=natural_key)):
                    frames.append(
                        Frame(
                            files[name], class_name, class_name, session, frame, split
                        )
                    )
    return layout.table(frames, root)


BENCHMARKS = {
    name: register(
        Benchmark(
            layout,
            partial(OpenLORISFrames, factor=name),
            None,
            32,
            len(CLASSES),
            protocol="class_iid",
        )
    )
    for name, layout in LAYOUTS.items()
}


def OpenLORISListedFrames(root: str | Path) -> FrameTable:
    """The table of the 12 batches that mix all factors, from the text lists that Avalanche downloads with the images.

    Sessions are "batch0" to "batch11" for training and "test", rows in the order of the
    lists. Classes are the labels of the lists. An object is the folder of an image.

    Args:
        root: The folder that contains `batches_filelists`, `train` and `test`.

    Raises:
        FrameTableError: If a list is missing, or a line of one is invalid.
    """

    def names(image: re.Match[str], label: int, line: int) -> tuple[str, str, int]:
        return str(label), image[0].rpartition("/")[0], line

    frames, classes = read_lists(
        Path(root) / LISTS, ".txt", BATCHES, LISTED, "train/cup_10/001.jpg 34", names
    )
    return FrameTable(frames, root, name=f"openloris_{MIXTURE}", classes=classes)


def OpenLORIS(
    dataset_root: str | Path | None = None,
    *,
    factor: str = "clutter",
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """OpenLORIS-Object as an Avalanche benchmark of 9 experiences (36 for "sequence") with all 121 classes each.

    Args:
        dataset_root, host: See `Benchmark.stream`. Lists leave nothing to draw or
            divide.
        factor: As in `OpenLORISFrames`; or "mixture-iros", the 12 batches of the
            competition at IROS 2019 with one test experience, as Avalanche's generator
            has them.

    Raises:
        ValueError: If the factor is unknown, or a keyword does not fit it.
    """
    if factor == MIXTURE:
        if drawn := [name for name in DRAWN if host.get(name) is not None]:
            raise ValueError(
                f"{' and '.join(drawn)} cannot be given with factor {MIXTURE!r}: its lists fix the order."
            )
        listed = Benchmark(
            LAYOUTS["sequence"],
            OpenLORISListedFrames,
            None,
            32,
            len(CLASSES),
            protocol=TABLE,
        )
        return listed.stream(dataset_root, {}, **host)
    if factor not in BENCHMARKS:
        raise ValueError(
            f"unknown factor {factor!r}; known are {', '.join(BENCHMARKS)}, {MIXTURE}."
        )
    return BENCHMARKS[factor].stream(dataset_root, **host)
