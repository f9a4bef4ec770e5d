"""Streams of lessons for calibration and unknown classes, and what a run measures."""

import argparse
import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from support.common_options import QUICK, QUICK_FOLDER
from torch import Tensor

from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.calibration_error import expected_calibration_error
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.learner.learner import LOOKS, Learner

PHOTOS_OF_LESSON = 20  # for classes that are one clip
CLASSES_AT_A_TIME = 2
BATCH = 16  # images whose features are computed at once
METHODS = ("rda", "slda", "ncm", "ranpac")


class Stream(NamedTuple):
    """A data set.

    Attributes:
        name: of the data set.
        tables: table of frames by number of the run.
        left_out: number of classes left out where unknown classes are measured.
    """

    name: str
    tables: Callable[[int], FrameTable]
    left_out: int


@dataclass(frozen=True)
class Measured:
    """What one run measures, all shares from 0 to 1.

    Attributes:
        accuracy: on held-out images of the classes taught.
        ece: expected calibration error of their probabilities.
        ece_usual: the same with the usual temperature of the closed form.
        known_rejected: share of them that is called unknown.
        unknown_rejected: share of the images of other classes that is called unknown;
            None without such images.
        auroc: area under the ROC curve for unknown classes; None likewise.
    """

    accuracy: float
    ece: float
    ece_usual: float
    known_rejected: float
    unknown_rejected: float | None
    auroc: float | None


def cached_features(
    learner: Learner,
    images: Callable[[], Iterator[Tensor]],
    folder: Path | None,
    key: object,
) -> Tensor:
    """Compute features of images as the learner does, or read those of an earlier call.

    Args:
        learner: whose features.
        images: function that yields batches of what the learner computes of images; it
            is called only if no features are stored.
        folder: where features are stored; None stores none.
        key: stands for the images, such as `files_key`.

    Returns:
        Features in float32; where they are stored, rounded to half precision, also by
        the call that computes them.
    """
    if folder is None:
        return _computed_features(learner, images)
    network = learner.network
    made_with = (
        network.backbone,
        network.sha256,
        network.image_size,
        learner.looks,
        learner.features,
        str(learner.runtime),
        key,
    )
    # A file for each network, settings and images.
    name = hashlib.sha256(repr(made_with).encode()).hexdigest()[:16]
    path = folder / f"{name}.npy"
    if path.exists():
        return torch.from_numpy(np.load(path)).float()
    features = _computed_features(learner, images).half()
    with atomic_write(path) as file:
        np.save(file, features.numpy())
    return features.float()


def files_key(paths: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    """Path, size and time of change in nanoseconds of files, each once.

    A path without a file, such as that of a rendered image, has 0 and 0.
    """
    key = []
    for path in dict.fromkeys(paths):
        size = 0
        changed_ns = 0
        if path.is_file():
            status = path.stat()
            size = status.st_size
            changed_ns = status.st_mtime_ns
        key.append((str(path.absolute()), size, changed_ns))
    return tuple(key)


def _computed_features(
    learner: Learner, images: Callable[[], Iterator[Tensor]]
) -> Tensor:
    """Features of all images, `(N, ...)`."""
    return torch.cat([learner._compute(batch, learner.looks) for batch in images()])


def features_of(learner: Learner, table: FrameTable, folder: Path | None) -> Tensor:
    """Features `(N, ...)` of all rows of a table; see `cached_features`."""

    def images() -> Iterator[Tensor]:
        for start in range(0, len(table), BATCH):
            rows = range(start, min(start + BATCH, len(table)))
            yield torch.stack([learner._transform(table.read(row)) for row in rows])

    key: object = None
    if folder is not None:
        root = Path(table.root)
        key = (table.path, files_key(root / path for path in table.path))
    return cached_features(learner, images, folder, key)


Lesson = tuple[int, np.ndarray]  # label and rows


def lessons_of(table: FrameTable, taught: Sequence[int], seed: int) -> Iterator[Lesson]:
    """Yield lessons, two classes at a time, their objects in random order.

    A lesson is all clips of an object; of a class with one clip it is 20 photos, drawn
    at random.

    Args:
        table: of the stream.
        taught: labels of the classes.
        seed: of the order.
    """
    draws = np.random.default_rng(seed)
    order = draws.permutation(np.asarray(taught))
    for start in range(0, len(order), CLASSES_AT_A_TIME):
        lessons: list[Lesson] = []
        for label in order[start : start + CLASSES_AT_A_TIME].tolist():
            lessons += _lessons_of_class(table, label, draws)
        for index in draws.permutation(len(lessons)):
            yield lessons[index]


def _lessons_of_class(
    table: FrameTable, label: int, draws: np.random.Generator
) -> list[Lesson]:
    """The lessons of a class: its objects, or parts of its only clip."""
    clips = table.clips(table.rows("train", table.classes[label]))
    by_object: dict[str, list[int]] = {}
    for clip in clips:
        by_object.setdefault(table.object_name[clip[0]], []).extend(clip.tolist())
    groups = [np.array(rows) for rows in by_object.values()]
    if len(clips) == 1:
        photos = draws.permutation(groups[0])
        groups = np.array_split(photos, max(1, len(photos) // PHOTOS_OF_LESSON))
    return [(label, rows) for rows in groups]


def teach_copy(
    empty: Classifier, names: Sequence[str], lessons: Iterable[tuple[int, Tensor]]
) -> Classifier:
    """Teach a copy of a classifier, which is asked before each lesson.

    Args:
        empty: the classifier; it is not changed.
        names: of the classes, by label.
        lessons: label and features of each lesson.
    """
    classifier = copy.deepcopy(empty)
    for label, features in lessons:
        # Added if it is new; the number of the class in this classifier.
        number, _ = classifier.ensure_class(names[label])
        classifier.begin_lesson()
        # Its answers calibrate the classifier, as those of a learner do.
        classifier.predict_before_learning(features, number)
        classifier.learn(features, number)
        classifier.end_lesson()
    return classifier


def right(
    classifier: Classifier, evidence: Evidence, names: Sequence[str]
) -> np.ndarray:
    """Whether the answers to images, from their evidence, are the true names.

    Returns:
        `(B,)` bool.
    """
    labels = evidence.class_of_column[evidence.scores.argmax(1)].tolist()
    answers = [classifier.classes.names[label] for label in labels]
    return np.array(answers) == np.array(names)


def run_stream(
    empty: Classifier,
    table: FrameTable,
    features: Tensor,
    unknown: Sequence[int],
    seed: int,
) -> Measured:
    """Teach all classes but `unknown`, lesson by lesson, and measure on test images.

    Args:
        empty: a classifier without classes.
        table: of the run.
        features: of its rows.
        unknown: labels of the classes left out.
        seed: order of the lessons.
    """
    labels = np.arange(len(table.classes))
    taught_labels = np.setdiff1d(labels, unknown).tolist()
    lessons = []
    for label, rows in lessons_of(table, taught_labels, seed):
        lessons.append((label, features[rows]))
    classifier = teach_copy(empty, table.classes, lessons)
    test_rows = table.rows("test")
    is_known = np.isin(table.labels[test_rows], taught_labels)
    known_rows = test_rows[is_known]
    unknown_rows = np.setdiff1d(test_rows, known_rows)
    evidence = classifier.evidence(features[known_rows])
    names = np.array(table.classes)[table.labels[known_rows]]
    correct = torch.from_numpy(right(classifier, evidence, names))
    known = confidence_margin(classifier, evidence)
    unknown_rejected = None
    area = None
    if len(unknown_rows):
        unknown_evidence = classifier.evidence(features[unknown_rows])
        unknown_margins = confidence_margin(classifier, unknown_evidence)
        unknown_rejected = share_below_zero(unknown_margins)
        area = auroc(known, unknown_margins)
    calibrated = classifier.confidence.probabilities(evidence).amax(1)
    uncalibrated = evidence.scores.softmax(1).amax(1)
    return Measured(
        accuracy=float(correct.double().mean()),
        ece=expected_calibration_error(calibrated, correct),
        ece_usual=expected_calibration_error(uncalibrated, correct),
        known_rejected=share_below_zero(known),
        unknown_rejected=unknown_rejected,
        auroc=area,
    )


def confidence_margin(classifier: Classifier, evidence: Evidence) -> Tensor:
    """Confidence minus the least of a name, `(B,)`: below 0 for unknown images."""
    confidence = classifier.confidence.probabilities(evidence).amax(1)
    return confidence - classifier.strict


def share_below_zero(values: Tensor) -> float:
    """Share of values that are negative, such as confidence margins of unknown images."""
    return float((values < 0).double().mean())


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Probability that a known image has a larger score than an unknown one.

    Ties count half.
    """
    ranks = stats.rankdata(torch.cat([known, unknown]).numpy())
    count = len(known)
    pairs_won = ranks[:count].sum() - count * (count + 1) / 2
    return float(pairs_won / (count * len(unknown)))


def add_network_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `learner_of` reads, and those of the output."""
    add = parser.add_argument
    add("--backbone", default="squeezenet1_0", help="network of the learner")
    add("--weights", default="torchvision", help="its weights, as for crumb run")
    add(
        "--looks",
        default=",".join(str(look) for look in LOOKS),
        help="of the learner, such as 0.75,0.5",
    )
    add("--runtime", default="torch", help="what computes features, as for crumb teach")
    add(
        "--features",
        type=Path,
        metavar="DIR",
        help="folder that stores features for later calls",
    )
    add(
        "--quick",
        action="store_true",
        help="rendered shapes, a tiny network, one or two runs",
    )


def learner_of(chosen: argparse.Namespace, method: str) -> Learner:
    """A learner of the options, without classes, that has drawn its empty images."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    looks = [float(share) for share in chosen.looks.split(",")]
    if chosen.quick:
        backbone = QUICK["backbone"]
        learner = Learner(method, backbone, None, QUICK["image_size"], looks=looks)
    else:
        learner = Learner(method, chosen.backbone, chosen.weights, looks=looks)
    learner.use_runtime(chosen.runtime)
    learner._classifier.draw_nothing(learner.network.model)
    return learner


def output_of(chosen: argparse.Namespace) -> Path:
    """The folder of a command line's tables, of which --quick has one of its own."""
    output = Path(chosen.output)
    return output / QUICK_FOLDER if chosen.quick else output
