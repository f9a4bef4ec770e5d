"""CLEAR-10 and CLEAR-100: photos of 2004 to 2014 in ten buckets, one experience each.

Every experience has all classes.

CLEAR-10 has 10 classes and a background, CLEAR-100 has 100 classes; the numbers of
images vary. Each bucket has a training and a test set of the same time.

The layout is that of the release of 2022, as `avalanche.benchmarks.datasets.clear`
reads it; the classes of CLEAR-10 are those of `clear_10_config.json` in
https://github.com/linzhiqiu/continual-learning.

Lin, Shi, Pathak and Ramanan, "The CLEAR Benchmark: Continual LEArning on Real-World
Imagery", NeurIPS 2021 Datasets and Benchmarks, arXiv:2201.06289.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
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
from benchmarks_toybox_ilab.tables.frame import Frame
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

# fmt: off
CLEAR10_CLASSES = (
    "BACKGROUND", "baseball", "bus", "camera", "cosplay", "dress",
    "hockey", "laptop", "racing", "soccer", "sweater",
)
# fmt: on
BUCKETS = tuple(map(str, range(1, 11)))  # bucket 0 is for pretraining
SPLITS = ("train", "test")
EVALUATION = ("iid", "streaming")


def _layout(name: str, title: str, number: int, classes: str, rule: str) -> Layout:
    """Return the layout of CLEAR-10 or CLEAR-100: how its files lie in folders.

    A bucket is a set of photos of one time; there are ten, and bucket 0.

    Args:
        name, title: Name of the data set in code and in text.
        number: Number of classes.
        classes: Regular expression of their names.
        rule: What names of classes are, for the message at a file that does not fit.
    """
    # The groups of the pattern say what an image shows, see `CLEARFrames`.
    folder = (
        rf"(?P<split>{'|'.join(SPLITS)})/labeled_images/"
        rf"(?P<bucket>{'|'.join(BUCKETS)})"
    )
    image = rf"(?P<class_name>{classes})/(?P<name>[^/.][^/]*)\.(?i:jpe?g|png|gif)"
    n_sessions = number * len(BUCKETS)  # each bucket of each class is one
    return Layout(
        name=name,
        title=title,
        tree="<root>/{train,test}/labeled_images/{1..10}/<class>/<image>.jpg, "
        "e.g. train/labeled_images/1/bus/2364877.jpg",
        source=f"https://linzhiqiu.gitbook.io/the-clear-benchmark: {name}-train.zip "
        f"and {name}-test.zip, which hold the folders train and test",
        pattern=re.compile(f"{folder}/{image}"),
        # Bucket 0 is for pretraining, and the images in all_images have no labels; both
        # come with the archives.
        ignored=re.compile(r"[^/]+/(?:labeled_images/0|all_images)/.*"),
        rule=rule,
        folders=SPLITS,
        counts={
            "classes": number,
            "train_sessions": n_sessions,
            "test_sessions": n_sessions,
        },
        owner="the data set",  # whose counts these are, in messages
    )


LAYOUTS = {
    "clear10": _layout(
        name="clear10",
        title="CLEAR-10",
        number=len(CLEAR10_CLASSES),
        classes="|".join(CLEAR10_CLASSES),
        rule=f"the classes are {', '.join(CLEAR10_CLASSES)}",
    ),
    "clear100": _layout(
        name="clear100",
        title="CLEAR-100",
        number=100,
        classes="[^/]+",
        rule="every image lies in the folder of its class",
    ),
}


def CLEARFrames(
    root: str | Path,
    paths: Iterable[str] | None = None,
    data_name: str = "clear10",
    evaluation_protocol: str = "iid",
) -> FrameTable:
    """Make the table of CLEAR-10 or CLEAR-100.

    A session is a bucket, "1" to "10"; every image is a clip of its own. Images of
    bucket 0, which the official protocol uses for pretraining without labels, are left
    out. Classes and buckets may be missing.

    Args:
        root: Folder of the data set.
        paths: Files below root, if they are known; None lists the folder.
        data_name: "clear10" or "clear100".
        evaluation_protocol: In "iid" the splits are the official `train` and `test`
            folders, in every run; in "streaming" all images are for training.

    Raises:
        ValueError: If there is no data set or no protocol of that name.
    """
    _check_known("data_name", data_name, LAYOUTS)
    _check_known("evaluation_protocol", evaluation_protocol, EVALUATION)
    root, images = LAYOUTS[data_name].find_images(root, paths)
    frames = []
    for image in images:  # the match of an image's path with the layout's pattern
        frames.append(
            Frame(
                path=image[0],
                class_name=image["class_name"],
                object_name=image["name"],
                session=image["bucket"],
                frame=0,
                split=_split_of_image(image, evaluation_protocol),
            )
        )
    frames.sort(key=_row_sort_key)
    return LAYOUTS[data_name].table(frames, root)


def _check_known(keyword: str, value: str, known: Iterable[str]) -> None:
    """Raise ValueError if CLEAR has no such value of a keyword."""
    if value not in known:
        raise ValueError(f"unknown {keyword} {value!r}; known are {', '.join(known)}.")


def _split_of_image(image: re.Match[str], evaluation_protocol: str) -> str:
    """Return the split of an image of CLEAR; see `CLEARFrames`."""
    if evaluation_protocol == "streaming":
        return "train"
    return image["split"]


def _row_sort_key(frame: Frame) -> tuple[bool, int, str]:
    """Return what the rows of CLEAR are sorted by: training first, then by bucket."""
    return frame.split == "test", int(frame.session), frame.path


BENCHMARKS = {
    name: register(
        Benchmark(
            layout,
            partial(CLEARFrames, data_name=name),
            classes_per_experience=None,
            batch_size=64,
            budget_images=100,
            protocol="class_iid",
        )
    )
    for name, layout in LAYOUTS.items()
}


@shows_keywords
def CLEAR(
    dataset_root: str | Path | None = None,
    *,
    data_name: str = "clear10",
    evaluation_protocol: str = "iid",
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Make CLEAR as an Avalanche benchmark of 10 experiences with all classes each.

    Each has a test set. With the accuracy of every experience's model on all ten test
    sets, `CLEARMetric` of Avalanche gives the figures of the paper.

    Args:
        dataset_root: Folder of the data set; None is where Avalanche keeps it.
        data_name: "clear10" or "clear100".
        evaluation_protocol: "iid" tests on the official test images of a bucket. In
            "streaming", Avalanche's default, an experience and its test set both have
            all images of their bucket: test a model on those of the *next* bucket,
            which it has not seen.
        **host: Keywords of every stream, see `StreamKeywords`.

    Raises:
        ValueError: If there is no data set or no protocol of that name.
    """
    _check_known("data_name", data_name, BENCHMARKS)
    _check_known("evaluation_protocol", evaluation_protocol, EVALUATION)
    benchmark = BENCHMARKS[data_name]
    if evaluation_protocol == "streaming":
        # The test set of an experience has the training frames of its bucket.
        benchmark = replace(benchmark, test_split="train")
    arguments = {"data_name": data_name, "evaluation_protocol": evaluation_protocol}
    # The benchmark's own function of frames takes no `evaluation_protocol`.
    return replace(benchmark, frames=CLEARFrames).stream(
        dataset_root, arguments, **host
    )
