"""``mistakes.html`` of a run on own clips: what was wrong, and what would help most."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from markupsafe import Markup

from benchmarks_toybox_ilab.datasets.clip_folder import FRAMES_FOLDER
from benchmarks_toybox_ilab.tables.atomic_file import write_text
from benchmarks_toybox_ilab.tables.frame import BadFrameError
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.report.contact_sheet import (
    Caption,
    Card,
    Group,
    Pairs,
    confused_table,
    confusion_matrix,
    mistaken,
    thumbnail,
)
from crumb_avalanche.report.page import Cell, Matrix, Table, count, render
from crumb_avalanche.runs.run_folder import MISTAKES
from crumb_avalanche.system.words import counted

MOST_MISTAKES = 200  # with images
FEW_OBJECTS = 3  # a class with fewer is learned from few examples of its looks
FEW_TESTED = 20  # images of a class; one of them more or less is 5 percentage points
WORTH_MENDING = 0.05  # share of files that could not be read
MOST_NAMED = 3  # classes that a line of advice names
MOST_PAIRS = 3  # pairs of classes whose images are shown
MOST_EXAMPLES = 3  # images of each side of a pair
# Kinds of test images, from far from what was learned to near.
KINDS = (
    "other objects than were learned",
    "learned objects in another clip: a new background, if it was filmed in another "
    "place",
    "the rest of a clip that was learned: near copies, so hardly a test",
)

Predictions = Mapping[str, np.ndarray]  # as read_predictions returns


@dataclass(frozen=True)
class ClassCounts:
    """What a class was learned from and tested on.

    Attributes:
        name: of the class.
        objects, clips, images: that it was learned from.
        tested: test images, ``right`` of them with the right answer.
        tested_objects: objects that the test images show.
    """

    name: str
    objects: int
    clips: int
    images: int
    tested: int
    right: int
    tested_objects: int = 1

    @property
    def share(self) -> float:
        """Share of right answers; 1 without a test image."""
        return self.right / self.tested if self.tested else 1.0


@dataclass(frozen=True)
class Example:
    """An image on the page: its thumbnail, and where its owner finds it.

    The thumbnail is empty if the file changed since the run read it.
    """

    image: Markup
    place: str


@dataclass(frozen=True)
class ConfusedPair:
    """Two classes that are confused, with images of both sides.

    Attributes:
        truth, label: true and answered class.
        mistaken: test images of the former that were taken for the latter.
        learned: images that the latter was learned from.
    """

    truth: str
    label: str
    mistaken: list[Example]
    learned: list[Example]


@dataclass(frozen=True)
class MistakesPage:
    """What ``mistakes.html`` shows.

    Attributes:
        title, lead: head of the page.
        asked: test images; ``right`` and ``wrong`` are the numbers of answers.
        unread: files that were left out.
        advice: what would help most, the most helpful first.
        classes: a line for each class.
        kinds: a line for each kind of test image.
        confusion: ``None`` without a mistake, or with too many classes.
        confused: a line for each pair of classes that were mistaken.
        pictures: of the pairs confused most.
        mistakes: the most confident ones.
    """

    title: str
    lead: str
    asked: int
    right: int
    wrong: int
    unread: int
    advice: list[str]
    classes: Table
    kinds: Table
    confusion: Matrix | None
    confused: Table
    pictures: list[ConfusedPair]
    mistakes: list[Card]


def write_mistakes(
    folder: Path,
    table: FrameTable,
    predictions: Predictions,
    preset: str,
    strategy: str,
    unread: int = 0,
) -> None:
    """Write ``mistakes.html`` of a finished run, for who trains on own images.

    It says what would help most, and shows the mistakes.

    Args:
        folder: of the run.
        table: its frames.
        predictions: as from ``read_predictions``.
        preset, strategy: of the run.
        unread: number of files that were left out.
    """
    wrong = np.flatnonzero(predictions["label"] != predictions["answer"])
    worst_first = wrong[np.argsort(-predictions["confidence"][wrong], kind="stable")]
    pairs = pairs_of(table, predictions)
    classes = counts_of(table, pairs)
    n_tested = len(predictions["row"])
    learned = f"{counted(len(classes), 'class')} of {table.root}"
    further_advice = advice(classes, len(wrong), unread, preset, strategy)
    mistakes = []
    for index in worst_first[:MOST_MISTAKES].tolist():
        mistakes.append(_card(table, predictions, index))
    page = MistakesPage(
        title=f"{len(wrong):,} mistakes of {n_tested:,} test images",
        lead=f"{strategy}, preset {preset}, {learned}.",
        asked=n_tested,
        right=n_tested - len(wrong),
        wrong=len(wrong),
        unread=unread,
        advice=[*film_next(pairs), *further_advice],
        classes=class_table(classes),
        kinds=kinds_table(table, predictions),
        confusion=confusion_matrix(pairs) if len(wrong) else None,
        confused=confused_table(pairs),
        pictures=pair_pictures(table, predictions, pairs),
        mistakes=mistakes,
    )
    write_text(folder / MISTAKES, render("mistakes.html", page))


def pairs_of(table: FrameTable, predictions: Predictions) -> Pairs:
    """Count the test images by true and answered class."""
    pairs: Pairs = Counter()
    labels = predictions["label"].tolist()
    for label, answer in zip(labels, predictions["answer"].tolist()):
        pairs[table.classes[label], table.classes[answer]] += 1
    return pairs


def counts_of(table: FrameTable, pairs: Pairs) -> list[ClassCounts]:
    """Count what each class was learned from and tested on.

    ``pairs`` are the test images by true and answered class.
    """
    tested: Counter[str] = Counter()
    for (truth, _), number in pairs.items():
        tested[truth] += number
    counts = []
    for name in table.classes:
        clips = set()
        objects = set()
        training_rows = table.rows("train", name).tolist()
        for row in training_rows:
            clips.add((table.object_name[row], table.session[row]))
            objects.add(table.object_name[row])
        tested_objects = set()
        for row in table.rows("test", name).tolist():
            tested_objects.add(table.object_name[row])
        class_counts = ClassCounts(
            name,
            objects=len(objects),
            clips=len(clips),
            images=len(training_rows),
            tested=tested[name],
            right=pairs[name, name],
            tested_objects=len(tested_objects),
        )
        counts.append(class_counts)
    return counts


def class_table(classes: Sequence[ClassCounts]) -> Table:
    """Return a line for each class, the worst first: accuracy, and what was learned."""
    columns = {
        "class": "class",
        "accuracy": "right, %",
        "tested": "test images",
        "tested_objects": "test objects",
        "objects": "objects learned",
        "clips": "clips learned",
        "images": "images learned",
    }
    rows = []
    for counts in sorted(classes, key=lambda counts: counts.share):
        accuracy = f"{100 * counts.share:.1f}" if counts.tested else ""
        cells = {
            "class": Cell(counts.name),
            "accuracy": Cell(accuracy),
            "tested": count(counts.tested),
            "tested_objects": count(counts.tested_objects),
            "objects": count(counts.objects),
            "clips": count(counts.clips),
            "images": count(counts.images),
        }
        rows.append([cells[name] for name in columns])
    return Table(columns, rows)


def kinds_table(table: FrameTable, predictions: Predictions) -> Table:
    """Return a line for each kind of test image, see ``KINDS``."""
    objects = set()
    clips = set()
    for row in table.rows("train").tolist():
        learned_object = (table.labels[row], table.object_name[row])
        objects.add(learned_object)
        clips.add((*learned_object, table.session[row]))
    tested: Counter[int] = Counter()
    right: Counter[int] = Counter()
    for index, row in enumerate(predictions["row"].tolist()):
        label = predictions["label"][index]
        tested_object = (label, table.object_name[row])
        is_known_object = tested_object in objects
        is_known_clip = (*tested_object, table.session[row]) in clips
        # An index of KINDS: a learned clip is of a learned object.
        kind = is_known_object + is_known_clip
        tested[kind] += 1
        right[kind] += int(label == predictions["answer"][index])
    rows = []
    for kind in sorted(tested):
        accuracy = 100 * right[kind] / tested[kind]
        rows.append([Cell(KINDS[kind]), Cell(f"{accuracy:.1f}"), count(tested[kind])])
    columns = {
        "kind": "test images of",
        "accuracy": "right, %",
        "tested": "test images",
    }
    return Table(columns, rows)


def pair_pictures(
    table: FrameTable, predictions: Predictions, pairs: Pairs
) -> list[ConfusedPair]:
    """Return the pairs confused most, with images of both sides."""
    confused = []
    for (truth, label), _ in mistaken(pairs).most_common(MOST_PAIRS):
        is_truth = predictions["label"] == table.classes.index(truth)
        is_label = predictions["answer"] == table.classes.index(label)
        wrong = predictions["row"][is_truth & is_label]
        learned = table.rows("train", label)
        step = max(1, len(learned) // MOST_EXAMPLES)
        confused.append(
            ConfusedPair(
                truth,
                label,
                mistaken=_examples(table, wrong),
                learned=_examples(table, learned[::step]),
            )
        )
    return confused


def _examples(table: FrameTable, rows: np.ndarray) -> list[Example]:
    """Return the first of some rows of a frame table as examples."""
    examples = []
    for row in rows[:MOST_EXAMPLES].tolist():
        examples.append(Example(picture_of(table, row), place_of(table.path[row])))
    return examples


def picture_of(table: FrameTable, row: int) -> Markup:
    """Return the thumbnail of a frame; empty if its file changed since the run."""
    try:
        return thumbnail(table.read(row))
    except BadFrameError:
        return Markup()


def _card(table: FrameTable, predictions: Predictions, index: int) -> Card:
    """Return a mistake with its image; the most confident come first."""
    row = int(predictions["row"][index])
    confidence = float(predictions["confidence"][index])
    path = place_of(table.path[row])
    caption = Caption(
        answer=table.classes[predictions["answer"][index]],
        confidence=confidence,
        path=path,
        place=path,
        truth=table.classes[predictions["label"][index]],
    )
    return Card(
        order=(Group.MISTAKE, -confidence, index),
        caption=caption,
        image=picture_of(table, row),
    )


def place_of(path: str) -> str:
    """Return where an owner finds a frame.

    Of one that was taken out of a video, that is the video and the second.
    """
    taken = re.fullmatch(
        rf"{re.escape(FRAMES_FOLDER)}/(?P<fps>[\d.]+)fps/(?P<video>.+)/(?P<number>\d+)\.png",
        path,
    )
    if taken is None:
        return path
    second = (int(taken["number"]) - 1) / float(taken["fps"])
    return f"{taken['video']}, second {second:g}"


def advice(
    classes: Sequence[ClassCounts],
    mistakes: int,
    unread: int = 0,
    preset: str = "recommended",
    strategy: str = "rda",
) -> list[str]:
    """Return what would help most, the most helpful first as far as the counts tell.

    ``unread`` is the number of files that were left out.
    """
    lines = []
    files = unread + sum(counts.images + counts.tested for counts in classes)
    if unread and unread >= WORTH_MENDING * files:
        lines.append(
            f"Restore or convert the files that could not be read: {unread} of {files}."
        )
    lines += _few_objects(classes)
    if preset != "recommended" and mistakes:
        lines.append(
            f"Try --preset recommended: this run had preset {preset} and strategy "
            f"{strategy}; the README compares the "
            "presets on other images than yours."
        )
    lines += _uncertain(classes)
    return lines


def _uncertain(classes: Sequence[ClassCounts]) -> list[str]:
    """Name classes that were tested on few images or one object."""
    uncertain = []
    for counts in classes:
        is_uncertain = counts.tested < FEW_TESTED or counts.tested_objects == 1
        if counts.tested and is_uncertain:
            images = counted(counts.tested, "image")
            objects = counted(counts.tested_objects, "object")
            uncertain.append(f"{counts.name} ({images} of {objects})")
    if not uncertain:
        return []
    return [
        f"Do not trust the accuracy of single classes too much: {len(uncertain)} of "
        f"{len(classes)} were tested on "
        f"fewer than {FEW_TESTED} images or on one object, such as "
        f"{', '.join(uncertain[:MOST_NAMED])}. More objects "
        "make the test firmer."
    ]


def film_next(pairs: Pairs) -> list[str]:
    """Name the pair of classes that is confused most, if it is more than one image."""
    wrong = mistaken(pairs)
    for (truth, label), number in wrong.most_common(1):
        if number > 1:
            mistakes = counted(wrong.total(), "mistake")
            return [
                f"Film {truth} next, in another place and from the sides that tell it "
                f"from {label}: {number} of "
                f"{mistakes} are {truth} taken for {label}."
            ]
    return []


def _few_objects(classes: Sequence[ClassCounts]) -> list[str]:
    """Name bad classes of few objects, the worst first.

    Their accuracy is below that of all classes together, and they have fewer objects
    than the median class.
    """
    tested = sum(counts.tested for counts in classes)
    right = sum(counts.right for counts in classes)
    accuracy = right / tested if tested else 1.0
    median_objects = median(counts.objects for counts in classes)
    bad = [counts for counts in classes if counts.share < accuracy]
    few = max(FEW_OBJECTS, median_objects)
    bad_and_few = [counts for counts in bad if counts.objects < few]
    bad_and_few.sort(key=lambda counts: (counts.share, counts.objects))
    unit = "object" if median_objects == 1 else "objects"
    lines = []
    for counts in bad_and_few[:MOST_NAMED]:
        objects = counted(counts.objects, "object")
        clips = counted(counts.clips, "clip")
        images = counted(counts.images, "image")
        lines.append(
            f"Show other objects of {counts.name}: {counts.right} of {counts.tested} "
            "test images right, learned from "
            f"{objects} in {clips} ({images}); the median of the classes is "
            f"{median_objects:g} {unit}."
        )
    return lines
