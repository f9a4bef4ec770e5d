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
    AnswerGroup,
    Caption,
    Card,
    ClassPairs,
    confused_table,
    confusion_matrix,
    mistaken_pairs,
    thumbnail,
)
from crumb_avalanche.report.page import Cell, Matrix, Table, count_cell, render
from crumb_avalanche.runs.run_folder import MISTAKES
from crumb_avalanche.system.words import counted

MOST_MISTAKES = 200  # with images
FEW_OBJECTS = 3  # a class with fewer is learned from few examples of its looks
FEW_TESTED = 20  # images of a class; one of them more or less is 5 percentage points
WORTH_MENDING = 0.05  # share of files that could not be read
MOST_NAMED = 3  # classes that a line of advice names
MOST_PAIRS = 3  # pairs of classes whose images are shown
MOST_EXAMPLES = 3  # images of each side of a pair
# A frame that was taken out of a video, by its path in the frame table.
VIDEO_FRAME = re.compile(
    rf"{re.escape(FRAMES_FOLDER)}"
    r"/(?P<fps>[\d.]+)fps/(?P<video>.+)/(?P<number>\d+)\.png"
)
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
    source: str


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
        folder: of the run; the page is written there.
        table: its frames: path, class, object and session of each.
        predictions: arrays with an entry for each test image: ``row`` in the table,
            true ``label``, ``answer`` and ``confidence``.
        preset, strategy: of the run, by name.
        unread: number of files that were left out.
    """
    wrong = np.flatnonzero(predictions["label"] != predictions["answer"])
    confidence = predictions["confidence"][wrong]
    # Indices of the mistakes, the most confident first.
    worst_first = wrong[np.argsort(-confidence, kind="stable")]
    pairs = count_pairs(table, predictions)
    classes = counts_of_classes(table, pairs)
    n_tested = len(predictions["row"])
    learned = f"{counted(len(classes), 'class')} of {table.root}"
    further_advice = advice(classes, len(wrong), unread, preset, strategy)
    mistakes = []
    for index in worst_first[:MOST_MISTAKES].tolist():
        mistakes.append(_mistake_card(table, predictions, index))
    page = MistakesPage(
        title=f"{len(wrong):,} mistakes of {n_tested:,} test images",
        lead=f"{strategy}, preset {preset}, {learned}.",
        asked=n_tested,
        right=n_tested - len(wrong),
        wrong=len(wrong),
        unread=unread,
        # First what to film next, by the classes that are confused.
        advice=[*film_next(pairs), *further_advice],
        classes=class_table(classes),
        kinds=kinds_table(table, predictions),
        confusion=confusion_matrix(pairs) if len(wrong) else None,
        confused=confused_table(pairs),
        pictures=pair_pictures(table, predictions, pairs),
        mistakes=mistakes,
    )
    write_text(folder / MISTAKES, render("mistakes.html", page))


def count_pairs(table: FrameTable, predictions: Predictions) -> ClassPairs:
    """Count the test images by true and answered class."""
    pairs: ClassPairs = Counter()
    labels = predictions["label"].tolist()
    for label, answer in zip(labels, predictions["answer"].tolist()):
        pairs[table.classes[label], table.classes[answer]] += 1
    return pairs


def counts_of_classes(table: FrameTable, pairs: ClassPairs) -> list[ClassCounts]:
    """Count the objects, clips and images each class was learned from and tested on.

    Args:
        table: the frames of the run.
        pairs: number of test images by true and answered class.
    """
    tested: Counter[str] = Counter()  # images by true class
    for (truth, _), n_images in pairs.items():
        tested[truth] += n_images
    classes = []
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
        classes.append(class_counts)
    return classes


def class_table(classes: Sequence[ClassCounts]) -> Table:
    """Return a line for each class, the worst first: accuracy, and what was learned.

    Args:
        classes: counts of images, clips and objects of each class; ``share`` is that of
            right answers.
    """
    columns = {  # headings by name
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
            "tested": count_cell(counts.tested),
            "tested_objects": count_cell(counts.tested_objects),
            "objects": count_cell(counts.objects),
            "clips": count_cell(counts.clips),
            "images": count_cell(counts.images),
        }
        rows.append([cells[name] for name in columns])
    return Table(columns, rows)


def kinds_table(table: FrameTable, predictions: Predictions) -> Table:
    """Return a line for each kind of test image, with the share of right answers.

    The kinds are ``KINDS``: of a new object, of another clip of a learned object, or of
    a learned clip. A clip is an object in a session.

    Args:
        table: the frames of the run, for training and test.
        predictions: arrays with an entry for each test image: ``row`` in the table,
            true ``label`` and ``answer``.
    """
    learned_objects = set()
    learned_clips = set()
    for row in table.rows("train").tolist():
        learned_object = (table.labels[row], table.object_name[row])
        learned_objects.add(learned_object)
        learned_clips.add((*learned_object, table.session[row]))
    tested: Counter[int] = Counter()  # images by index in KINDS
    right: Counter[int] = Counter()
    for index, row in enumerate(predictions["row"].tolist()):
        label = predictions["label"][index]
        tested_object = (label, table.object_name[row])
        is_known_object = tested_object in learned_objects
        is_known_clip = (*tested_object, table.session[row]) in learned_clips
        # A learned clip is of a learned object, so that the sum is an index in KINDS.
        kind = is_known_object + is_known_clip
        tested[kind] += 1
        right[kind] += int(label == predictions["answer"][index])
    rows = []
    for kind in sorted(tested):
        accuracy = 100 * right[kind] / tested[kind]
        rows.append(
            [Cell(KINDS[kind]), Cell(f"{accuracy:.1f}"), count_cell(tested[kind])]
        )
    columns = {
        "kind": "test images of",
        "accuracy": "right, %",
        "tested": "test images",
    }
    return Table(columns, rows)


def pair_pictures(
    table: FrameTable, predictions: Predictions, pairs: ClassPairs
) -> list[ConfusedPair]:
    """Return the pairs of classes confused most, with images of both sides.

    Those are test images of one class that were taken for the other, and images that
    the other was learned from.

    Args:
        table: the frames of the run.
        predictions: arrays with an entry for each test image: ``row`` in the table,
            true ``label`` and ``answer``.
        pairs: number of test images by true and answered class.
    """
    confused_pairs = []
    for (truth, label), _ in mistaken_pairs(pairs).most_common(MOST_PAIRS):
        is_truth = predictions["label"] == table.classes.index(truth)
        is_label = predictions["answer"] == table.classes.index(label)
        mistaken_rows = predictions["row"][is_truth & is_label]
        learned_rows = table.rows("train", label)
        step = max(1, len(learned_rows) // MOST_EXAMPLES)
        confused_pairs.append(
            ConfusedPair(
                truth,
                label,
                mistaken=_examples(table, mistaken_rows),
                learned=_examples(table, learned_rows[::step]),
            )
        )
    return confused_pairs


def _examples(table: FrameTable, rows: np.ndarray) -> list[Example]:
    """Return the frames of the first rows as examples, ``MOST_EXAMPLES`` at most."""
    examples = []
    for row in rows[:MOST_EXAMPLES].tolist():
        source = source_of(table.path[row])
        examples.append(Example(picture_of(table, row), source))
    return examples


def picture_of(table: FrameTable, row: int) -> Markup:
    """Return the thumbnail of a frame; empty if its file changed since the run."""
    try:
        return thumbnail(table.read(row))
    except BadFrameError:
        return Markup()


def _mistake_card(table: FrameTable, predictions: Predictions, index: int) -> Card:
    """Return the card of a mistake for the page: its image with a caption.

    Cards are ordered by confidence, the largest first.

    Args:
        table: the frames of the run.
        predictions: arrays with an entry for each test image.
        index: of the test image in them.
    """
    row = int(predictions["row"][index])
    confidence = float(predictions["confidence"][index])
    source = source_of(table.path[row])
    caption = Caption(
        answer=table.classes[predictions["answer"][index]],
        confidence=confidence,
        path=source,
        source=source,
        truth=table.classes[predictions["label"][index]],
    )
    return Card(
        order=(AnswerGroup.MISTAKE, -confidence, index),
        caption=caption,
        image=picture_of(table, row),
    )


def source_of(path: str) -> str:
    """Return where the owner of the clips finds a frame: its path, as a rule.

    Of a frame that was taken out of a video, that is the video and the second.
    """
    video_frame = VIDEO_FRAME.fullmatch(path)
    if video_frame is None:
        return path
    # Frames are numbered from 1.
    second = (int(video_frame["number"]) - 1) / float(video_frame["fps"])
    return f"{video_frame['video']}, second {second:g}"


def advice(
    classes: Sequence[ClassCounts],
    mistakes: int,
    unread: int = 0,
    preset: str = "recommended",
    strategy: str = "rda",
) -> list[str]:
    """Return advice to who trains on own images, a line each, the most helpful first.

    Args:
        classes: what each was learned from and tested on.
        mistakes: number of wrong answers.
        unread: number of files that were left out.
        preset, strategy: of the run.
    """
    lines = []
    n_files = unread + sum(counts.images + counts.tested for counts in classes)
    if unread and unread >= WORTH_MENDING * n_files:  # a share of all files
        lines.append(
            "Restore or convert the files that could not be read: "
            f"{unread} of {n_files}."
        )
    lines += _advice_on_few_objects(classes)
    if preset != "recommended" and mistakes:
        lines.append(
            f"Try --preset recommended: this run had preset {preset} and strategy "
            f"{strategy}; the README compares the "
            "presets on other images than yours."
        )
    lines += _advice_on_small_tests(classes)
    return lines


def _advice_on_small_tests(classes: Sequence[ClassCounts]) -> list[str]:
    """Return advice on the classes that were tested on few images or one object.

    It is a list of one line, or of none without such classes.
    """
    uncertain_classes = []
    for counts in classes:
        is_uncertain = counts.tested < FEW_TESTED or counts.tested_objects == 1
        if counts.tested and is_uncertain:
            images = counted(counts.tested, "image")
            objects = counted(counts.tested_objects, "object")
            uncertain_classes.append(f"{counts.name} ({images} of {objects})")
    if not uncertain_classes:
        return []
    return [
        "Do not trust the accuracy of single classes too much: "
        f"{len(uncertain_classes)} of {len(classes)} were tested on fewer than "
        f"{FEW_TESTED} images or on one object, such as "
        f"{', '.join(uncertain_classes[:MOST_NAMED])}. More objects make the test "
        "firmer."
    ]


def film_next(pairs: ClassPairs) -> list[str]:
    """Return advice on the two classes that are confused most.

    It is a line, or none if no two classes are confused more than once.
    """
    mistaken = mistaken_pairs(pairs)
    for (truth, label), times in mistaken.most_common(1):
        if times > 1:
            mistakes = counted(mistaken.total(), "mistake")
            return [
                f"Film {truth} next, in another place and from the sides that tell it "
                f"from {label}: {times} of {mistakes} are {truth} taken for {label}."
            ]
    return []


def _advice_on_few_objects(classes: Sequence[ClassCounts]) -> list[str]:
    """Return advice on bad classes of few objects: a line each, the worst first.

    Their accuracy is below that of all classes together, and they have fewer objects
    than the median class, or than ``FEW_OBJECTS``.
    """
    n_tested = sum(counts.tested for counts in classes)
    n_right = sum(counts.right for counts in classes)
    accuracy = n_right / n_tested if n_tested else 1.0  # of all classes together
    median_objects = median(counts.objects for counts in classes)
    enough_objects = max(FEW_OBJECTS, median_objects)
    bad_classes = []
    for counts in classes:
        if counts.share < accuracy and counts.objects < enough_objects:
            bad_classes.append(counts)
    bad_classes.sort(key=lambda counts: (counts.share, counts.objects))
    unit = "object" if median_objects == 1 else "objects"
    lines = []
    for counts in bad_classes[:MOST_NAMED]:
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
