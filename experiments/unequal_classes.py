"""Teach classes of 1 to 200 images, and test them alike: does a class's own covariance harm the small ones?

    python experiments/unequal_classes.py --dataset-root ETH80 --weights WEIGHTS --features FOLDER

Class sizes grow geometrically from 1 to 200, in another order of classes in each run; small classes have less than 20.
Difference: the row minus `own 0`, with 95 % interval by Student's t over runs. With --json, one object:
{row: {"small": accuracy of each run, "all": ...}}.
"""

import argparse
import json

import numpy as np
import torch
from support.common_options import QUICK_BENCHMARK, run_script
from support.open_set import add_network_options, features_of, learner_of
from support.statistics import interval

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.runs.tables import table as text_table

LEAST, MOST, SMALL = 1, 200, 20
ALONE = "own 0"
ROWS: dict[str, dict[str, float]] = {
    ALONE: {"own": 0.0},
    "recommended": {},
    "share n / (n + 5) of own": {"own_images": 5.0},
    "own 0.3": {"own": 0.3},
}


def sizes_of(classes: int, run: int) -> np.ndarray:
    """Return the number of images of each class, geometric from 1 to 200 in random order."""
    sizes = np.geomspace(LEAST, MOST, classes).round().astype(int)
    return np.random.default_rng(run).permutation(sizes)


def accuracies(
    frames: FrameTable, features: torch.Tensor, kept: int, budget: int, run: int, changes: dict[str, float]
) -> tuple[float, float]:
    """Return the accuracy in percent on small classes and on all, the mean over classes of each."""
    sizes, draws, length = sizes_of(len(frames.classes), run), np.random.default_rng(1000 + run), features.shape[1]
    chosen = [draws.permutation(frames.rows("train", name))[:size] for name, size in zip(frames.classes, sizes)]
    labels = torch.arange(len(chosen)).repeat_interleave(torch.tensor([len(rows) for rows in chosen]))
    usual = RegularizedDiscriminant.for_budget(length, budget, kept)
    statistics = RegularizedDiscriminant(**{**usual.settings, "n_classes": len(chosen), **changes})
    statistics.make_room(len(chosen), budget, length)
    statistics.update(features[np.concatenate(chosen)], labels)
    test = frames.rows("test")
    right = statistics.scores(features[test]).argmax(1).numpy() == frames.labels[test]
    each = np.array([100 * right[frames.labels[test] == label].mean() for label in range(len(chosen))])
    return float(each[sizes < SMALL].mean()), float(each.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--benchmark", default="eth80", help="name of a benchmark, as for crumb run")
    parser.add_argument("--dataset-root", metavar="DIR", help="folder of its images")
    parser.add_argument("--runs", type=int, default=10, help="runs, each with a split of its own")
    add_network_options(parser)
    parser.set_defaults(looks="1")
    chosen = parser.parse_args()
    runs = 2 if chosen.quick else chosen.runs
    entry = get_benchmark(QUICK_BENCHMARK if chosen.quick else chosen.benchmark)
    learner = learner_of(chosen, "rda")
    tables = [entry.table(chosen.dataset_root, run) for run in range(runs)]
    kept, budget = learner._classifier.kept, learner.budget_bytes
    features = features_of(learner, tables[0], chosen.features)
    found = {
        row: [accuracies(frames, features, kept, budget, run, changes) for run, frames in enumerate(tables)]
        for row, changes in ROWS.items()
    }
    if chosen.json:
        print(json.dumps({row: dict(zip(("small", "all"), zip(*pairs))) for row, pairs in found.items()}))
        return
    lines = []
    for row, pairs in found.items():
        line = [row]
        for values, alone in zip(zip(*pairs), zip(*found[ALONE])):
            mean, half = interval([mine - its for mine, its in zip(values, alone)])
            line += [f"{np.mean(values):.1f}", "" if row == ALONE else f"{mean:+.1f} ± {half:.1f}"]
        lines.append([*line, " ".join(f"{pair[0]:.1f}" for pair in pairs)])
    header = ["row", "small classes", "difference", "all classes", "difference", "small classes in each run"]
    print(text_table(header, lines))


if __name__ == "__main__":
    run_script(main)
