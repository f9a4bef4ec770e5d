"""Streams of lessons for calibration and unknown classes, and what one run of them measures."""

import argparse
import copy
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from support.common_options import QUICK
from torch import Tensor

from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.confidence import expected_calibration_error
from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.learner.learner import LOOKS, Learner

LESSON = 20  # photos of a lesson, for classes that are one clip
METHODS = ("rda", "slda", "ncm", "ranpac")


class Stream(NamedTuple):
    """A data set, the table of each run, and the number of classes left out where unknown classes are measured."""

    name: str
    tables: Callable[[int], FrameTable]
    left_out: int


@dataclass(frozen=True)
class Measured:
    """What one run measures, all shares from 0 to 1."""

    accuracy: float  # on held-out images of the classes taught
    ece: float  # expected calibration error of their probabilities
    ece_usual: float  # the same with the usual temperature of the closed form
    known_rejected: float  # share of them that is called unknown
    unknown_rejected: (
        float | None
    )  # share of the images of other classes that is called unknown
    auroc: float | None  # area under the ROC curve for unknown classes


def kept_features(
    learner: Learner,
    images: Callable[[], Iterator[Tensor]],
    folder: Path | None,
    key: object,
) -> Tensor:
    """Features of images as the learner computes them, or those that an earlier call kept for this key.

    Args:
        images: function that yields batches of what the learner computes of images.
        folder: where features are kept; None keeps none.
        key: stands for the images.
    """
    network = learner.network
    settings = (
        network.backbone,
        network.sha256,
        network.image_size,
        learner.looks,
        learner.features,
        key,
    )
    name = hashlib.sha256(repr(settings).encode()).hexdigest()[:16]
    file = None if folder is None else folder / f"{name}.npy"
    if file is not None and file.exists():
        return torch.from_numpy(np.load(file)).float()
    features = torch.cat(
        [learner._classifier.compute(network.model, some) for some in images()]
    )
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, features.half().numpy())
    return features


def features_of(learner: Learner, table: FrameTable, folder: Path | None) -> Tensor:
    """Features `(N, ...)` of all rows of a table; see `kept_features`."""

    def images() -> Iterator[Tensor]:
        for start in range(0, len(table), 16):
            yield torch.stack(
                [
                    learner._transform(table.read(row))
                    for row in range(start, min(start + 16, len(table)))
                ]
            )

    return kept_features(learner, images, folder, (str(table.root), *table.path))


def lessons_of(
    table: FrameTable, taught: Sequence[int], seed: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield label and rows of each lesson: two classes at a time, their objects in random order.

    A lesson is all clips of an object; of a class with one clip it is 20 photos, drawn
    at random.
    """
    draws = np.random.default_rng(seed)
    order = draws.permutation(np.asarray(taught))
    for start in range(0, len(order), 2):
        lessons = []
        for label in order[start : start + 2].tolist():
            objects: dict[str, list[int]] = {}
            clips = table.clips(table.rows("train", table.classes[label]))
            for clip in clips:
                objects.setdefault(table.object_name[clip[0]], []).extend(clip.tolist())
            parts = [np.array(rows) for rows in objects.values()]
            if len(clips) == 1:
                parts = np.array_split(
                    draws.permutation(parts[0]), max(1, len(parts[0]) // LESSON)
                )
            lessons += [(label, part) for part in parts]
        yield from (lessons[place] for place in draws.permutation(len(lessons)))


def taught(
    empty: Classifier, names: Sequence[str], lessons: Iterator[tuple[int, Tensor]]
) -> Classifier:
    """Return a copy of a classifier without classes that was taught labels with features, each asked before."""
    classifier = copy.deepcopy(empty)
    for label, values in lessons:
        number, _ = classifier.number_of(names[label])
        classifier.predict_before_learning(values, number)
        classifier.learn(values, number)
    return classifier


def right(classifier: Classifier, asked: Evidence, names: Sequence[str]) -> np.ndarray:
    """Whether the answers to images, from their evidence, are the true names, `(B,)` bool."""
    answers = [
        classifier.names[label]
        for label in asked.labels[asked.scores.argmax(1)].tolist()
    ]
    return np.array(answers) == np.array(names)


def run_stream(
    empty: Classifier,
    table: FrameTable,
    features: Tensor,
    unknown: Sequence[int],
    seed: int,
) -> Measured:
    """Teach all classes but `unknown`, lesson by lesson, and measure on held-out images.

    Args:
        empty: a classifier without classes.
        table, features: table of the run, and features of its rows.
        unknown: labels of the classes left out.
        seed: order of the lessons.
    """
    known_labels = [
        label for label in range(len(table.classes)) if label not in set(unknown)
    ]
    lessons = (
        (label, features[rows]) for label, rows in lessons_of(table, known_labels, seed)
    )
    classifier = taught(empty, table.classes, lessons)
    test = table.rows("test")
    held_out = test[np.isin(table.labels[test], known_labels)]
    known = classifier.evidence(features[held_out])
    correct = torch.from_numpy(
        right(classifier, known, np.array(table.classes)[table.labels[held_out]])
    )
    familiar, others = (
        classifier.confidence.familiarity(known),
        np.setdiff1d(test, held_out),
    )
    rejected = area = None
    if len(others):
        strange = classifier.confidence.familiarity(
            classifier.evidence(features[others])
        )
        rejected, area = float((strange < 0).double().mean()), auroc(familiar, strange)
    return Measured(
        float(correct.double().mean()),
        expected_calibration_error(
            classifier.confidence.probabilities(known).amax(1), correct
        ),
        expected_calibration_error(known.scores.softmax(1).amax(1), correct),
        float((familiar < 0).double().mean()),
        rejected,
        area,
    )


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Return the probability that a known image has a larger score than an unknown one; ties count half."""
    ranks = stats.rankdata(torch.cat([known, unknown]).numpy())
    count = len(known)
    return float(
        (ranks[:count].sum() - count * (count + 1) / 2) / (count * len(unknown))
    )


def add_network_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `learner_of` reads, and those of the output."""
    parser.add_argument(
        "--backbone", default="squeezenet1_0", help="network of the learner"
    )
    parser.add_argument(
        "--weights", default="torchvision", help="its weights, as for crumb run"
    )
    parser.add_argument(
        "--looks",
        default=",".join(map(str, LOOKS)),
        help="of the learner, such as 0.75,0.5",
    )
    parser.add_argument(
        "--runtime", default="torch", help="what computes features, as for crumb teach"
    )
    parser.add_argument(
        "--features",
        type=Path,
        metavar="DIR",
        help="folder that keeps features for later calls",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="rendered shapes, a tiny network, one or two runs",
    )


def learner_of(chosen: argparse.Namespace, method: str) -> Learner:
    """A learner of the options, without classes, that has drawn its images of nothing."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network = (
        (QUICK["backbone"], None, QUICK["image_size"])
        if chosen.quick
        else (chosen.backbone, chosen.weights)
    )
    learner = Learner(
        method, *network, looks=[float(share) for share in chosen.looks.split(",")]
    )
    learner.use_runtime(chosen.runtime)
    learner._classifier.draw_nothing(learner.network.model)
    return learner
