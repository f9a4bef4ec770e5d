"""Compare a learner taught in lessons, or merged from two, with a run; and rules for classes of 1 to 200 images.

    python experiments/taught_learner.py --benchmark eth80 --dataset-root ETH80
    --weights FILE --feature-cache CACHE

In each run the training objects of the split are taught, and held-out ones are asked
photo by photo:
  run       `crumb run --preset recommended` on the split taught
  `Learner("recommended", looks=(1.0,))`, taught half of the classes in one lesson and
  the others in a second merged    two learners, each taught half of the objects of
  every class, merged into one own ...   the same statistics of classes of 1 to 200
  images, geometric, in another order of classes in each run, with
            other shares of a class's own covariance; `small` are classes of less than
            20 images; mean over classes
Differences are in the same runs, with 95 % interval by Student's t over runs, or over
splits where runs share one. The features of a learner are computed once for all runs.
Writes `taught_learner.csv` and `.md` to --output.
"""

from collections.abc import Iterable

import numpy as np
import torch
from support.common_options import common_options, parser_for, run_script
from support.findings import Cell
from support.open_set import features_of, right, taught
from support.statistics import paired
from support.sweep import exit_code
from support.tables import each_text, interval_text, write_table
from torch import Tensor

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.tables import mean_text

REFERENCES = {"taught": "run", "merged": "taught"}  # row: what it is compared with
LEAST, MOST, SMALL = 1, 200, 20
ALONE = "own 0"
RULES: dict[str, dict[str, float]] = {
    ALONE: {"own": 0.0},
    "own 0.1, recommended": {},
    "own n / (n + 5)": {"own_images": 5.0},
    "own 0.3": {"own": 0.3},
}
HEADER = ["row", "accuracy", "difference", "95 % interval", "of the runs"]


def halves(frames: FrameTable, rows: Iterable[int]) -> tuple[list[int], list[int]]:
    """Split rows into two halves of the objects of each class."""
    objects: dict[str, dict[str, int]] = {}
    parts: tuple[list[int], list[int]] = [], []
    for row in rows:
        known = objects.setdefault(frames[row].class_name, {})
        parts[known.setdefault(frames[row].object_name, len(known)) % 2].append(row)
    return parts


def taught_rows(
    empty: Classifier, frames: FrameTable, features: Tensor
) -> dict[str, float]:
    """Return the accuracy in percent of the rows `taught` and `merged` on the held-out photos."""
    train, test, half = (
        frames.rows("train"),
        frames.rows("test"),
        len(frames.classes) // 2,
    )
    lessons = [train[frames.labels[train] < half], train[frames.labels[train] >= half]]

    def learner(*parts: Iterable[int]) -> Classifier:
        clips = [clip for rows in parts for clip in frames.clips(rows)]
        return taught(
            empty,
            frames.classes,
            ((frames.labels[clip[0]], features[clip]) for clip in clips),
        )

    merged, apart = map(learner, halves(frames, train.tolist()))
    merged.merge(apart)
    both, names = (
        {"taught": learner(*lessons), "merged": merged},
        np.array(frames.class_name)[test],
    )
    return {
        name: 100 * float(right(one, one.evidence(features[test]), names).mean())
        for name, one in both.items()
    }


def unequal_rows(
    empty: Classifier, frames: FrameTable, features: Tensor, run: int
) -> dict[str, float]:
    """Return the accuracy in percent of each rule on small classes and on all."""
    sizes = np.geomspace(LEAST, MOST, len(frames.classes)).round().astype(int)
    sizes = np.random.default_rng(run).permutation(sizes)
    draws, length = np.random.default_rng(1000 + run), features.shape[1]
    chosen = [
        draws.permutation(frames.rows("train", name))[:size]
        for name, size in zip(frames.classes, sizes)
    ]
    labels = torch.arange(len(chosen)).repeat_interleave(
        torch.tensor([len(rows) for rows in chosen])
    )
    usual = RegularizedDiscriminant.for_budget(
        length, empty.budget_bytes, empty.kept
    ).settings
    test, found = frames.rows("test"), {}
    for rule, changes in RULES.items():
        statistics = RegularizedDiscriminant(
            **{**usual, "n_classes": len(chosen), **changes}
        )
        statistics.make_room(len(chosen), empty.budget_bytes, length)
        statistics.update(features[np.concatenate(chosen)], labels)
        right = (
            statistics.scores(features[test]).argmax(1).numpy() == frames.labels[test]
        )
        each = np.array(
            [
                100 * right[frames.labels[test] == label].mean()
                for label in range(len(chosen))
            ]
        )
        found |= {
            f"{rule}, small": float(each[sizes < SMALL].mean()),
            f"{rule}, all": float(each.mean()),
        }
    return found


def lines_of(
    found: dict[str, dict[int, float]], splits: dict[int, str]
) -> list[list[str]]:
    """Return a line of text for each row."""
    lines = []
    for name, values in found.items():
        reference = REFERENCES.get(name, name)
        if name.startswith("own"):
            reference = f"{ALONE}, {name.rpartition(', ')[2]}"
        compared = (
            None if reference == name else paired(found[reference], values, splits)
        )
        difference = "" if compared is None else f"{compared.mean:+.2f} to {reference}"
        line = [name, mean_text(list(values.values())), difference]
        lines.append([*line, interval_text(compared), each_text(compared)])
    return lines


def main() -> int:
    options = common_options(parser_for(__doc__, "runs/taught_learner").parse_args())
    benchmark, root = options.benchmark, options.roots[options.benchmark]
    settings = {
        "preset": "recommended",
        **({"relu_logits": False, "head_kernel": 1} if options.quick else {}),
    }
    (finding,), failed = options.found(
        [Cell("run", benchmark, "", options.output / "run", settings)]
    )
    found = {"run": {run.number: run.final for run in finding.runs}}
    splits = {run.number: run.split for run in finding.runs}
    if found["run"]:
        torch.set_num_threads(1)
        plan, tables = (
            RunPlan.of(options.settings(benchmark)),
            get_benchmark(benchmark).table,
        )
        weights = None if plan.weights == "none" else plan.weights
        learner = Learner(
            "recommended", plan.backbone, weights, plan.image_size, looks=(1.0,)
        )
        empty, features = (
            learner._classifier,
            features_of(learner, tables(root, 0), None),
        )  # runs have the same rows
        for run in splits:
            frames = tables(root, run)
            own = taught_rows(empty, frames, features) | unequal_rows(
                empty, frames, features, run
            )
            for name, value in own.items():
                found.setdefault(name, {})[run] = value
        csv_rows = [
            [row, run, f"{value:.4f}", splits[run]]
            for row, some in found.items()
            for run, value in some.items()
        ]
        header = ["row", "run", "accuracy", "frame_table_sha256"]
        write_table(
            options.output,
            "taught_learner",
            HEADER,
            lines_of(found, splits),
            [header, *csv_rows],
        )
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
