r"""Novelty detection along a stream, as the authors of Stream-51 score it.

    python experiments/novelty.py --dataset-root STREAM51 --weights WEIGHTS \
        --features FOLDER

A learner is taught class after class, in the official orders for Stream-51. After every
ten classes and after the last it answers all test images, and the novel ones of
Stream-51. Measured are the accuracy on those of taught classes, and the area under the
ROC curve of a score that should be larger for them than for all others: the largest
probability, as in the published figures, which draw 500 images of each side, and the
learner's own. Writes `novelty.csv` to --output.
"""

import argparse
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from support.common_options import QUICK_BENCHMARK, run_script
from support.open_set import (
    add_network_options,
    auroc,
    confidence_margin,
    features_of,
    learner_of,
    output_of,
    right,
    teach_copy,
)

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.datasets.stream51 import Stream51Novel, class_order
from benchmarks_toybox_ilab.streams.protocols import plan_stream
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import format_table, number

HEADER = [
    "run",
    "classes taught",
    "accuracy",
    "AUROC of probabilities",
    "AUROC of the learner's score",
]


@dataclass(frozen=True)
class Stage:
    """What is measured after some classes were taught.

    Attributes:
        classes: number of classes taught.
        accuracy: on test images of these classes.
        auroc: of the largest probability; None without other images.
        auroc_of_learner: of the learner's own score; None likewise.
    """

    classes: int
    accuracy: float
    auroc: float | None
    auroc_of_learner: float | None

    @property
    def cells(self) -> list[str]:
        """Values of `HEADER`, but for the run."""
        figures = (self.accuracy, self.auroc, self.auroc_of_learner)
        return [str(self.classes), *(number(value, ".4f") for value in figures)]


@dataclass(frozen=True)
class Order:
    """What a run is taught.

    Attributes:
        frames: table of the stream.
        features: of its rows.
        novel: features of images of classes that are never taught, or no rows.
        rows: rows of each class, in the order in which the classes are taught.
    """

    frames: FrameTable
    features: torch.Tensor
    novel: torch.Tensor
    rows: list[np.ndarray]


def teach(classifier: Classifier, order: Order, classes: Sequence) -> Classifier:
    """Teach the clips of some classes to a copy of a classifier."""
    frames = order.frames
    clips = chain.from_iterable(map(frames.clips, classes))
    lessons = ((frames.labels[clip[0]], order.features[clip]) for clip in clips)
    return teach_copy(classifier, frames.classes, lessons)


def measured(empty: Classifier, order: Order, every: int) -> Iterator[Stage]:
    """Measure after each `every` classes and after the last.

    Args:
        empty: a classifier without classes.
        order: what it is taught.
        every: number of classes between two measurements.
    """
    classifier = copy.deepcopy(empty)
    for start in range(0, len(order.rows), every):
        classifier = teach(classifier, order, order.rows[start : start + every])
        classes = min(start + every, len(order.rows))
        yield measure_stage(classifier, order, classes)


def measure_stage(classifier: Classifier, order: Order, n_taught: int) -> Stage:
    """Measure a classifier on all test images, and the novel ones.

    Args:
        classifier: that was taught.
        order: of the classes of its stream.
        n_taught: number of classes taught, the first of the order.
    """
    frames = order.frames
    test = frames.rows("test")
    taught_labels = [frames.labels[rows[0]] for rows in order.rows[:n_taught]]
    is_taught = np.isin(frames.labels[test], taught_labels)
    known = classifier.evidence(order.features[test[is_taught]])
    names = np.array(frames.class_name)[test[is_taught]]
    accuracy = float(right(classifier, known, names).mean())
    unknown_features = torch.cat([order.features[test[~is_taught]], order.novel])
    if not len(unknown_features):
        return Stage(n_taught, accuracy, auroc=None, auroc_of_learner=None)
    unknown = classifier.evidence(unknown_features)
    return Stage(
        n_taught,
        accuracy,
        auroc=auroc(largest_probability(known), largest_probability(unknown)),
        auroc_of_learner=auroc(
            confidence_margin(classifier, known), confidence_margin(classifier, unknown)
        ),
    )


def largest_probability(evidence: Evidence) -> torch.Tensor:
    """The largest probability of each image, `(N,)`."""
    return evidence.scores.softmax(1).amax(1)


def order_of(chosen: argparse.Namespace, learner: Learner, run: int) -> Order:
    """What a run is taught; Stream-51 has official orders, and novel images."""
    root = chosen.dataset_root
    frames = get_benchmark(chosen.benchmark).table(root, run)
    features = features_of(learner, frames, chosen.features)
    novel = features[:0]
    class_groups = None
    if chosen.benchmark == "stream51":
        # The seeds of the published runs are 10, 20 and 30.
        class_groups = class_order(10 * (run + 1))
        novel = features_of(learner, Stream51Novel(root), chosen.features)
    plan = plan_stream(frames, "class_instance", run, 1, fixed_class_order=class_groups)
    return Order(frames, features, novel, plan.train)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--benchmark",
        default="stream51",
        help="any benchmark; novel images has stream51 alone",
    )
    add("--dataset-root", metavar="DIR", help="its folder")
    add("--method", default="slda", help="closed form of the learner")
    add("--runs", type=int, default=3, help="number of orders")
    add(
        "--every",
        type=int,
        default=10,
        help="number of classes between two measurements",
    )
    add("--output", default="runs/novelty", help="folder of the table")
    add_network_options(parser)
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.benchmark = QUICK_BENCHMARK
        chosen.runs = 1
        chosen.every = 4
    learner = learner_of(chosen, chosen.method)
    lines = []
    for run in range(chosen.runs):
        order = order_of(chosen, learner, run)
        for stage in measured(learner._classifier, order, chosen.every):
            lines.append([str(run), *stage.cells])
    write_csv(output_of(chosen) / "novelty.csv", [HEADER, *lines])
    print(format_table(HEADER, lines))


if __name__ == "__main__":
    run_script(main)
