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
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from support.common_options import QUICK_BENCHMARK, run_script
from support.open_set import (
    add_network_options,
    auroc,
    features_of,
    learner_of,
    right,
    taught,
)

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.datasets.stream51 import Stream51Novel, class_order
from benchmarks_toybox_ilab.streams.protocols import plan_stream
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import table

HEADER = [
    "run",
    "classes taught",
    "accuracy",
    "AUROC of probabilities",
    "AUROC of the learner's score",
]


def measured(
    empty: Classifier,
    frames: FrameTable,
    features: torch.Tensor,
    novel: torch.Tensor,
    parts: list,
    every: int,
) -> Iterator[list]:
    """Yield the values of `HEADER`, but for the run, after each `every` classes and after the last.

    Args:
        empty: a classifier without classes.
        frames, features: table of the stream, and features of its rows.
        novel: features of images of classes that are never taught, or no rows. AUROC is
            None without other images.
        parts: rows of each class to be taught, in order.
    """
    classifier, tests = copy.deepcopy(empty), frames.rows("test")
    for start in range(0, len(parts), every):
        clips = [
            clip for part in parts[start : start + every] for clip in frames.clips(part)
        ]
        classifier = taught(
            classifier,
            frames.classes,
            ((frames.labels[clip[0]], features[clip]) for clip in clips),
        )
        known = np.isin(
            frames.labels[tests],
            [frames.labels[part[0]] for part in parts[: start + every]],
        )
        evidence = classifier.evidence(features[tests[known]])
        others = torch.cat([features[tests[~known]], novel])
        areas: list[float | None] = [None, None]
        if len(others):
            both = (evidence, classifier.evidence(others))
            areas = [auroc(*(one.scores.softmax(1).amax(1) for one in both))]
            areas += [auroc(*(classifier.confidence.familiarity(one) for one in both))]
        correct = right(classifier, evidence, np.array(frames.class_name)[tests[known]])
        yield [min(start + every, len(parts)), float(correct.mean()), *areas]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument(
        "--benchmark",
        default="stream51",
        help="any benchmark; novel images has stream51 alone",
    )
    parser.add_argument("--dataset-root", metavar="DIR", help="its folder")
    parser.add_argument("--method", default="slda", help="closed form of the learner")
    parser.add_argument("--runs", type=int, default=3, help="number of orders")
    parser.add_argument(
        "--every",
        type=int,
        default=10,
        help="number of classes between two measurements",
    )
    parser.add_argument("--output", default="runs/novelty", help="folder of the table")
    add_network_options(parser)
    if (chosen := parser.parse_args()).quick:
        chosen.benchmark, chosen.runs, chosen.every = QUICK_BENCHMARK, 1, 4
    learner, lines = learner_of(chosen, chosen.method), [HEADER]
    for run in range(chosen.runs):
        frames = get_benchmark(chosen.benchmark).table(chosen.dataset_root, run)
        features = features_of(learner, frames, chosen.features)
        novel, order = features[:0], None
        if (
            chosen.benchmark == "stream51"
        ):  # the seeds of the published runs are 10, 20 and 30
            order = class_order(10 * (run + 1))
            novel = features_of(
                learner, Stream51Novel(chosen.dataset_root), chosen.features
            )
        parts = plan_stream(
            frames, "class_instance", run, 1, fixed_class_order=order
        ).train
        for line in measured(
            learner._classifier, frames, features, novel, parts, chosen.every
        ):
            shown = [
                ""
                if one is None
                else f"{one:.4f}"
                if isinstance(one, float)
                else str(one)
                for one in line
            ]
            lines.append([str(run), *shown])
    write_csv(Path(chosen.output) / "novelty.csv", lines)
    print(table(HEADER, lines[1:]))


if __name__ == "__main__":
    run_script(main)
