"""``mistakes.html`` of a run on own clips: what it got wrong, from how much it learned, and what would help most."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from markupsafe import Markup

from benchmarks_toybox_ilab.datasets.clip_folder import FRAMES_FOLDER
from benchmarks_toybox_ilab.tables.atomic_file import write_text
from benchmarks_toybox_ilab.tables.frame import BadFrameError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.answer import Answer
from crumb_avalanche.report.contact_sheet import (
    Card,
    confused_table,
    confusion_matrix,
    thumbnail,
)
from crumb_avalanche.report.page import Cell, Table, count, render
from crumb_avalanche.runs.run_folder import MISTAKES
from crumb_avalanche.system.progress import counted

MOST_MISTAKES = 200  # with images
FEW_OBJECTS = (
    3  # a class with fewer is learned from few examples of what it may look like
)
FEW_TESTED = 20  # images of a class; one of them more or less is 5 percentage points
UNREAD = 0.05  # share of unread files that is worth mending
# classes that a line names, pairs of classes that are shown, and images of each side of
# a pair
NAMED = 3


@dataclass(frozen=True)
class ClassCounts:
    """What a class was learned from and tested on."""

    name: str
    objects: int
    clips: int
    images: int
    tested: int  # images
    right: int
    tested_objects: int = 1

    @property
    def share(self) -> float:
        """Share of right answers; 1 without a test image."""
        return self.right / self.tested if self.tested else 1.0


def write_mistakes(
    folder: Path,
    table: FrameTable,
    predictions: dict[str, np.ndarray],
    preset: str,
    strategy: str,
    unread: int = 0,
) -> None:
    """Write the page of a finished run, whose ``predictions`` are as from ``read_predictions``."""
    pairs = Counter(
        (table.classes[label], table.classes[answer])
        for label, answer in zip(
            predictions["label"].tolist(), predictions["answer"].tolist()
        )
    )
    classes = counts_of(table, pairs)
    wrong = np.flatnonzero(predictions["label"] != predictions["answer"])
    worst = wrong[np.argsort(-predictions["confidence"][wrong], kind="stable")]
    asked, right = len(predictions["row"]), len(predictions["row"]) - len(wrong)
    page = render(
        "mistakes.html",
        title=f"{len(wrong):,} mistakes of {asked:,} test images",
        lead=f"{strategy}, preset {preset}, {counted(len(table.classes), 'class')} of {table.root}.",
        asked=asked,
        right=right,
        unread=unread,
        advice=[
            *film_next(pairs),
            *advice(classes, len(wrong), unread, preset, strategy),
        ],
        classes=class_table(classes),
        places=places_table(table, predictions),
        confusion=confusion_matrix(pairs) if len(wrong) else None,
        confused=confused_table(pairs),
        pictures=pair_pictures(table, predictions, pairs),
        mistakes=[
            _card(table, predictions, place) for place in worst[:MOST_MISTAKES].tolist()
        ],
        wrong=len(wrong),
    )
    write_text(folder / MISTAKES, page)


def counts_of(table: FrameTable, pairs: Counter[tuple[str, str]]) -> list[ClassCounts]:
    """Count what each class was learned from, and its test images by true and answered class (``pairs``)."""
    found = []
    for name in table.classes:
        train, test = (table.rows(split, name).tolist() for split in ("train", "test"))
        found.append(
            ClassCounts(
                name,
                len({table.object_name[row] for row in train}),
                len({(table.object_name[row], table.session[row]) for row in train}),
                len(train),
                sum(number for (truth, _), number in pairs.items() if truth == name),
                pairs[name, name],
                len({table.object_name[row] for row in test}),
            )
        )
    return found


def class_table(classes: list[ClassCounts]) -> Table:
    """A line for each class: accuracy, and what it was learned from; the worst first."""
    columns = {
        "class": "class",
        "accuracy": "right, %",
        "tested": "test images",
        "tested_objects": "test objects",
    }
    columns |= {
        "objects": "objects learned",
        "clips": "clips learned",
        "images": "images learned",
    }
    rows = []
    for one in sorted(classes, key=lambda one: one.share):
        numbers = (one.tested, one.tested_objects, one.objects, one.clips, one.images)
        rows.append(
            [
                Cell(one.name),
                Cell(f"{100 * one.share:.1f}" if one.tested else ""),
                *map(count, numbers),
            ]
        )
    return Table(columns, rows)


def places_table(table: FrameTable, predictions: dict[str, np.ndarray]) -> Table:
    """A line for each kind of test image: other object, other clip, or the rest of a clip that was learned."""
    learned = table.rows("train").tolist()
    objects = {(table.labels[row], table.object_name[row]) for row in learned}
    clips = {
        (table.labels[row], table.object_name[row], table.session[row])
        for row in learned
    }
    asked: Counter[int] = Counter()
    right: Counter[int] = Counter()
    for row, label, answer in zip(
        *(predictions[name].tolist() for name in ("row", "label", "answer"))
    ):
        name = table.object_name[row]
        kind = ((label, name) in objects) + ((label, name, table.session[row]) in clips)
        asked[kind] += 1
        right[kind] += label == answer
    kinds = (
        "other objects than were learned",
        "learned objects in another clip: a new background, if it was filmed in another place",
        "the rest of a clip that was learned: near copies, so hardly a test",
    )
    rows = [
        [
            Cell(kinds[kind]),
            Cell(f"{100 * right[kind] / asked[kind]:.1f}"),
            count(asked[kind]),
        ]
        for kind in sorted(asked)
    ]
    return Table(
        {"kind": "test images of", "accuracy": "right, %", "tested": "test images"},
        rows,
    )


def pair_pictures(
    table: FrameTable,
    predictions: dict[str, np.ndarray],
    pairs: Counter[tuple[str, str]],
) -> list[tuple[str, str, list, list]]:
    """Of the pairs confused most: true and answered class, some mistakes, and some of what the latter learned."""
    found = []
    for truth, label in [pair for pair, _ in pairs.most_common() if len(set(pair)) > 1][
        :NAMED
    ]:
        numbers = table.classes.index(truth), table.classes.index(label)
        wrong = (predictions["label"] == numbers[0]) & (
            predictions["answer"] == numbers[1]
        )
        learned = table.rows("train", label)
        learned = learned[:: max(1, len(learned) // NAMED)][:NAMED]
        sides = [
            [
                (picture_of(table, row), place_of(table.path[row]))
                for row in rows.tolist()
            ]
            for rows in (predictions["row"][wrong][:NAMED], learned)
        ]
        found.append((truth, label, *sides))
    return found


def picture_of(table: FrameTable, row: int) -> Markup:
    """Return the thumbnail of a frame, empty if its file changed since the run read it."""
    try:
        return thumbnail(table.read(row))
    except BadFrameError:
        return Markup()


def _card(table: FrameTable, predictions: dict[str, np.ndarray], place: int) -> Card:
    row, confidence = (
        int(predictions["row"][place]),
        float(predictions["confidence"][place]),
    )
    truth, label = (
        table.classes[predictions[name][place]] for name in ("label", "answer")
    )
    answer = Answer(label, confidence, None, (), place_of(table.path[row]), truth)
    return Card((False, -confidence, place), answer, picture_of(table, row))


def place_of(path: str) -> str:
    """Return where an owner finds a frame: of one that was taken out of a video, the video and the second."""
    taken = re.fullmatch(
        rf"{re.escape(FRAMES_FOLDER)}/([\d.]+)fps/(.+)/(\d+)\.png", path
    )
    return (
        path
        if taken is None
        else f"{taken[2]}, second {(int(taken[3]) - 1) / float(taken[1]):g}"
    )


def advice(
    classes: Sequence[ClassCounts],
    mistakes: int,
    unread: int = 0,
    preset: str = "recommended",
    strategy: str = "rda",
) -> list[str]:
    """Return what would help most, the most helpful first as far as the counts tell; ``unread`` files were left out."""
    found = []
    read = sum(one.images + one.tested for one in classes)
    if unread >= UNREAD * (read + unread):
        found.append(
            f"Restore or convert the files that could not be read: {unread} of {read + unread}."
        )
    found += _few_objects(classes)
    if preset != "recommended" and mistakes:
        found.append(
            f"Try --preset recommended: this run had preset {preset} and strategy {strategy}; the README compares the "
            "presets on other images than yours."
        )
    uncertain = [
        one
        for one in classes
        if one.tested and (one.tested < FEW_TESTED or one.tested_objects == 1)
    ]
    if uncertain:
        tested = ", ".join(
            f"{one.name} ({counted(one.tested, 'image')} of {counted(one.tested_objects, 'object')})"
            for one in uncertain[:NAMED]
        )
        found.append(
            f"Do not trust the accuracy of single classes too much: {len(uncertain)} of {len(classes)} were tested on "
            f"fewer than {FEW_TESTED} images or on one object, such as {tested}. More objects make the test firmer."
        )
    return found


def film_next(pairs: Counter[tuple[str, str]]) -> list[str]:
    """Name the pair of classes that is confused most, if it is more than one image."""
    wrong = Counter(
        {pair: number for pair, number in pairs.items() if pair[0] != pair[1]}
    )
    ((truth, label), number), *_ = wrong.most_common(1) or [(("", ""), 0)]
    if number < 2:
        return []
    return [
        f"Film {truth} next, in another place and from the sides that tell it from {label}: {number} of "
        f"{counted(wrong.total(), 'mistake')} are {truth} taken for {label}."
    ]


def _few_objects(classes: Sequence[ClassCounts]) -> list[str]:
    """Name the classes with fewer right answers than all together and fewer objects than most, the worst first."""
    tested = sum(one.tested for one in classes)
    overall = sum(one.right for one in classes) / tested if tested else 1.0
    usual = median(one.objects for one in classes)
    few = [
        one
        for one in classes
        if one.share < overall and one.objects < max(FEW_OBJECTS, usual)
    ]
    return [
        f"Show other objects of {one.name}: {one.right} of {one.tested} test images right, learned from "
        f"{counted(one.objects, 'object')} in {counted(one.clips, 'clip')} ({counted(one.images, 'image')}); the "
        f"median of the classes is {usual:g} object{'s' * (usual != 1)}."
        for one in sorted(few, key=lambda one: (one.share, one.objects))[:NAMED]
    ]
