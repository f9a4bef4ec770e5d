"""iLab followed by CORe50: 24 classes with equal numbers of clips.

iLab's 14 toy vehicles come before CORe50's 10 classes. 14,400 training images (40 clips
of each class) and 5,400 test images (15 clips), 15 images per clip, in 12 experiences
of 2 classes.

See `ilab` and `core50` for the two data sets and their references.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks_toybox_ilab.datasets import core50, ilab
from benchmarks_toybox_ilab.datasets.core50 import CORe50Frames
from benchmarks_toybox_ilab.datasets.ilab import ILabFrames
from benchmarks_toybox_ilab.datasets.layout import Layout
from benchmarks_toybox_ilab.datasets.registry import (
    Benchmark,
    FrameBenchmark,
    StreamKeywords,
    Unpack,
    register,
    shows_keywords,
)
from benchmarks_toybox_ilab.tables.frame import SPLITS, Frame, FrameTableError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

# the folders
ILAB = ilab.FOLDER
CORE50 = "core50"

LAYOUT = Layout(
    name="ilab_core50",
    title=f"{ILAB} and CORe50",
    tree=f"<root>/{ILAB} and <root>/{CORE50}, each with its own layout: "
    f"{ilab.LAYOUT.tree}; {core50.LAYOUT.tree}",
    source=f"`crumb prepare ilab --dataset-root ROOT/{ILAB}` and `crumb prepare core50 "
    f"--dataset-root ROOT/{CORE50}`",
    folders=(ILAB, CORE50),
    counts={"classes": 24, "train": 14_400, "test": 5_400},
)

# The paper numbers iLab's categories from 1, including the unused one, and CORe50's
# from 16.
_CLASS_NUMBER = {
    name: number for number, name in enumerate(ilab.CATEGORIES + core50.CLASSES, 1)
}


def ILabCORe50Frames(
    root: str | Path, paths: Iterable[str] | None = None, reference: bool = False
) -> FrameTable:
    """Make the table of iLab and CORe50 with the same number of clips in every class.

    In each split every class keeps as many of its (object, session) clips as the class
    with the fewest. Clips are ordered by the SHA-256 of "class/object/session" and the
    first ones kept, so another clip does not reorder them. Frames, names and splits are
    those of `ILabFrames` and `CORe50Frames`.

    Args:
        root: Folder that holds those of both data sets.
        paths: Files below root, if they are known; None lists the folder. Files outside
            the two folders are ignored.
        reference: Choose the clips as pandas does in the published code: permute the
            clips of a class, in natural order, by numpy's legacy generator seeded with
            the class number. Classes are numbered as there: iLab's 1 to 15, of which 11
            is semi, which is not used here, and CORe50's 16 to 25. Also passed to the
            two tables.
    """
    root = Path(root)
    if paths is None:
        root = LAYOUT.folder(root)
        ilab_paths = None  # their folders are listed
        core50_paths = None
    else:
        paths = list(paths)
        ilab_paths = _paths_below(ILAB, paths)
        core50_paths = _paths_below(CORE50, paths)
    tables = (
        ILabFrames(root / ILAB, ilab_paths, reference=reference),
        CORe50Frames(root / CORE50, core50_paths, reference=reference),
    )
    frames: list[Frame] = []
    for table in tables:
        frames += table.frames_below(root)
    joined = FrameTable(frames, root, name="ilab_core50")
    balanced_clips: list[np.ndarray] = []  # the row numbers of each, in `joined`
    for split in SPLITS:
        balanced_clips += _balanced_clips(joined, split, reference)
    # Grouped once more, which brings them into natural order.
    clips_in_order = joined.clips(np.concatenate(balanced_clips))
    rows = np.concatenate(clips_in_order)
    return FrameTable((joined[row] for row in rows), root, name=joined.name)


def _paths_below(folder: str, paths: list[str]) -> list[str]:
    """Return the paths in the folder of one of the two data sets, relative to it."""
    prefix = f"{folder}/"
    return [path.removeprefix(prefix) for path in paths if path.startswith(prefix)]


def class_groups(table: FrameTable, reference: bool = False) -> list[list[str]]:
    """Return the classes of iLab, which come first in a stream, and those of CORe50.

    Each in the paper's order. `reference` has no effect.
    """
    return [
        _classes_in_table(table, ilab.CLASSES),
        _classes_in_table(table, core50.CLASSES),
    ]


def _classes_in_table(table: FrameTable, classes: tuple[str, ...]) -> list[str]:
    """Return those of the classes of a data set that a table has."""
    return [name for name in classes if name in table.classes]


def _balanced_clips(table: FrameTable, split: str, reference: bool) -> list[np.ndarray]:
    """Choose as many clips of each class as the class with the fewest has.

    Args:
        table: The frames of both data sets.
        split: "train" or "test", whose clips are chosen from.
        reference: Choose as pandas does in the published code: permuted by numpy's
            legacy generator, seeded with the number of the class. Else the order is
            that of the SHA-256 of the clips' names.

    Returns:
        Row numbers of each chosen clip.
    """
    clips_of_class = {}
    for name in table.classes:
        clips_of_class[name] = table.clips(table.rows(split, name))
    smallest_class = min(clips_of_class, key=lambda name: len(clips_of_class[name]))
    count = len(clips_of_class[smallest_class])
    if not count:
        raise FrameTableError(
            f"class {smallest_class!r} in {table.root} has no {split} clips, so there "
            "is nothing to balance the other classes to. Complete the class."
        )
    chosen: list[np.ndarray] = []
    for name, clips in clips_of_class.items():
        if reference:  # as pandas samples rows with a seed
            generator = np.random.RandomState(_CLASS_NUMBER[name])
            order = generator.permutation(len(clips))
            ordered_clips = [clips[index] for index in order]
        else:
            ordered_clips = sorted(clips, key=lambda clip: _clip_digest(table[clip[0]]))
        chosen += ordered_clips[:count]
    return chosen


def _clip_digest(frame: Frame) -> bytes:
    """Return the SHA-256 of class, object and session, which name the frame's clip."""
    name = f"{frame.class_name}/{frame.object_name}/{frame.session}"
    return hashlib.sha256(name.encode()).digest()


BENCHMARK = register(
    Benchmark(
        LAYOUT,
        ILabCORe50Frames,
        classes_per_experience=2,
        batch_size=21,
        budget_images=30,
        class_groups=class_groups,
    )
)


@shows_keywords
def ILabCORe50(
    dataset_root: str | Path | None = None,
    *,
    reference: bool = False,
    **host: Unpack[StreamKeywords],
) -> FrameBenchmark:
    """Make iLab and CORe50 as one Avalanche benchmark of 12 experiences.

    Each has up to 1,200 training images. The 14 classes of iLab come first, then the 10
    of CORe50, each group shuffled. The published code counts iLab's unused category as
    a class and loses a real one in most runs, so that it streams 23. Here all 24 are
    streamed in every run, also with `reference`, so the order of classes is not the
    published one.

    Args:
        dataset_root: Folder that holds those of both data sets; None is where Avalanche
            keeps data.
        reference: Choose clips and draw orders as the paper's published code does.
        **host: Keywords of every stream, see `StreamKeywords`.
    """
    return BENCHMARK.stream(dataset_root, {"reference": reference}, **host)
