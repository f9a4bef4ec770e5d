r"""Novelty detection along a stream, as the authors of Stream-51 score it.

    python experiments/novelty.py --dataset-root STREAM51 --weights WEIGHTS --features FOLDER

A learner is taught class after class, in the official orders for Stream-51, each class clip after clip. After every ten
classes and after the last it answers all test images: of taught classes, of classes that come later, and the novel
images of Stream-51. Measured are the accuracy on those of taught classes, and the area under the ROC curve of a score
that should be larger for them than for all others: the largest probability, as in the published figures, and the
learner's own score. The published figures of the streaming method draw 500 images of each side. Writes `novelty.csv` to
--output.
"""

import argparse
import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from support.common_options import QUICK_BENCHMARK, run_script
from support.open_set import add_network_options, auroc, features_of, learner_of, taught
from torch import Tensor

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.datasets.stream51 import Stream51Novel, class_order
from benchmarks_toybox_ilab.streams.protocols import plan_stream
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import table as text_table

HEADER = ["run", "classes taught", "accuracy", "AUROC of probabilities", "AUROC of the learner's score"]


def measured(
    empty: Classifier,
    frames: FrameTable,
    features: Tensor,
    novel: Tensor,
    run: int,
    every: int,
    order: Sequence[int] | None = None,
) -> Iterator[list]:
    """Yield the values of `HEADER` after every so many classes and after the last; AUROC is None without other images.

    Args:
        empty: a classifier without classes.
        frames, features: table of the stream, and features of its rows.
        novel: features of images of classes that are never taught, or no rows.
        run: seed of the order of classes and clips.
        every: number of classes.
        order: labels in another order than that of the seed.
    """
    parts = plan_stream(frames, "class_instance", run, 1, fixed_class_order=order).train
    classifier = copy.deepcopy(empty)
    tests = frames.rows("test")
    for start in range(0, len(parts), every):
        rows = np.concatenate(parts[start : start + every])
        first = [
            place for place in range(1, len(rows)) if clip_of(frames, rows[place]) != clip_of(frames, rows[place - 1])
        ]
        clips = np.split(rows, first)
        classifier = taught(classifier, frames.classes, ((frames.labels[clip[0]], features[clip]) for clip in clips))
        known = np.isin(frames.labels[tests], [frames.labels[part[0]] for part in parts[: start + every]])
        evidence = classifier.evidence(features[tests[known]])
        others = torch.cat([features[tests[~known]], novel])
        answers = [classifier.names[label] for label in evidence.labels[evidence.scores.argmax(1)].tolist()]
        right = np.array(answers) == np.array(frames.class_name)[tests[known]]
        areas: list[float | None] = [None, None]
        if len(others):
            strange = classifier.evidence(others)
            scores = [one.scores.softmax(1).amax(1) for one in (evidence, strange)]
            own = [classifier.confidence.familiarity(one) for one in (evidence, strange)]
            areas = [auroc(*scores), auroc(*own)]
        yield [run, min(start + every, len(parts)), float(right.mean()), *areas]


def clip_of(frames: FrameTable, row: int) -> tuple[str, str, str]:
    """The names of the clip of a row."""
    return frames.class_name[row], frames.object_name[row], frames.session[row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--benchmark", default="stream51", help="any benchmark; novel images has stream51 alone")
    parser.add_argument("--dataset-root", metavar="DIR", help="its folder")
    parser.add_argument("--method", default="slda", help="closed form of the learner")
    parser.add_argument("--runs", type=int, default=3, help="number of orders")
    parser.add_argument("--every", type=int, default=10, help="number of classes between two measurements")
    parser.add_argument("--output", default="runs/novelty", help="folder of the table")
    add_network_options(parser)
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.benchmark, chosen.runs, chosen.every = QUICK_BENCHMARK, 1, 4
    learner = learner_of(chosen, chosen.method)
    lines = []
    for run in range(chosen.runs):
        frames = get_benchmark(chosen.benchmark).table(chosen.dataset_root, run)
        features = features_of(learner, frames, chosen.features)
        novel, order = features[:0], None
        if chosen.benchmark == "stream51":
            order = class_order(10 * (run + 1))  # the seeds of the published runs are 10, 20 and 30
            novel = features_of(learner, Stream51Novel(chosen.dataset_root), chosen.features)
        lines += list(measured(learner._classifier, frames, features, novel, run, chosen.every, order))
    cells = [[value if value is None or type(value) is int else round(value, 4) for value in line] for line in lines]
    write_csv(Path(chosen.output) / "novelty.csv", [HEADER, *cells])
    if chosen.json:
        print(json.dumps({"accuracy": cells[-1][2], "auroc": cells[-1][3]}))
    else:
        print(text_table(HEADER, [["" if cell is None else str(cell) for cell in line] for line in cells]))


if __name__ == "__main__":
    run_script(main)
