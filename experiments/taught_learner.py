r"""Compare a learner taught in lessons, or merged from two, with a run.

    python experiments/taught_learner.py --benchmark eth80 --dataset-root ETH80 \
        --weights FILE --feature-cache CACHE

In each run the training objects of the split are taught, and held-out ones are asked
photo by photo:

  run       `crumb run --preset recommended` on the split
  taught    `Learner("recommended")`, taught half of the classes in one lesson and the
            others in a second
  merged    two learners, each taught half of the objects of every class, merged into
            one
  own ...   the same statistics of whole images of classes of 1 to 200 images,
            geometric, in another order of classes in each run, with other shares of a
            class's own covariance; `small` are classes of less than 20 images; mean
            over classes

Differences are in the same runs, with 95 % interval by Student's t over runs, or over
splits where runs share one. The features of a learner are computed once for all runs.
Writes `taught_learner.csv` and `.md` to --output.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from support.common_options import (
    CommonOptions,
    common_options,
    parser_for,
    run_script,
)
from support.findings import Cell, Finding, finals_of, splits_of
from support.open_set import features_of, right, teach_copy
from support.sweep import exit_code
from support.tables import each_text, interval_text, write_table
from torch import Tensor

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.report.paired import paired
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.tables import mean_text

TABLE = "taught_learner"
REFERENCES = {"taught": "run", "merged": "taught"}  # row: what it is compared with
FEWEST_IMAGES = 1  # of a class
MOST_IMAGES = 200
SMALL = 20  # a class of fewer images is small
ALONE = "own 0"
# Settings of the statistics that differ from the learner's, by the name of the rule.
RULES: dict[str, dict[str, float]] = {
    ALONE: {"own": 0.0},
    "own 0.1, recommended": {},
    "own n / (n + 5)": {"own_images": 5.0},
    "own 0.3": {"own": 0.3},
}
HEADER = ["row", "accuracy", "difference", "95 % interval", "of the runs"]
CSV_HEADER = ["row", "run", "accuracy", "frame_table_sha256"]


@dataclass(frozen=True)
class Taught:
    """What all runs are taught with.

    Attributes:
        empty: a classifier without classes.
        features: of all rows of the table ``(N, ...)``; runs have the same rows.
    """

    empty: Classifier
    features: Tensor

    def learner(self, frames: FrameTable, *lessons: Iterable[int]) -> Classifier:
        """A classifier that was taught the clips of these rows, lesson by lesson."""
        clips = chain.from_iterable(map(frames.clips, lessons))
        pairs = ((frames.labels[clip[0]], self.features[clip]) for clip in clips)
        return teach_copy(self.empty, frames.classes, pairs)


def halves(frames: FrameTable, rows: Iterable[int]) -> tuple[list[int], list[int]]:
    """Split rows into two halves of the objects of each class."""
    numbers: dict[str, dict[str, int]] = {}  # of the objects of each class
    first: list[int] = []
    second: list[int] = []
    for row in rows:
        frame = frames[row]
        objects = numbers.setdefault(frame.class_name, {})
        number = objects.setdefault(frame.object_name, len(objects))
        half = second if number % 2 else first
        half.append(row)
    return first, second


def taught_rows(source: Taught, frames: FrameTable) -> dict[str, float]:
    """Accuracy in percent of the rows `taught` and `merged` on the held-out photos."""
    train = frames.rows("train")
    half = len(frames.classes) // 2
    is_first = frames.labels[train] < half
    first_objects, second_objects = halves(frames, train.tolist())
    merged = source.learner(frames, first_objects)
    merged.merge(source.learner(frames, second_objects))
    classifiers = {
        "taught": source.learner(frames, train[is_first], train[~is_first]),
        "merged": merged,
    }
    test = frames.rows("test")
    names = np.array(frames.class_name)[test]
    accuracies = {}
    for row, classifier in classifiers.items():
        evidence = classifier.evidence(source.features[test])
        accuracies[row] = 100 * float(right(classifier, evidence, names).mean())
    return accuracies


@dataclass(frozen=True)
class UnequalClasses:
    """Training images of classes of unequal sizes.

    Attributes:
        rows: rows of the table, by class.
        sizes: number of images wanted of each class; a class may have fewer.
    """

    rows: list[np.ndarray]
    sizes: np.ndarray

    @classmethod
    def draw(cls, frames: FrameTable, run: int) -> "UnequalClasses":
        """Draw the size of each class, and its images."""
        sizes = np.geomspace(FEWEST_IMAGES, MOST_IMAGES, len(frames.classes))
        order = np.random.default_rng(run)
        sizes = order.permutation(sizes.round().astype(int))
        images = np.random.default_rng(1000 + run)
        rows = [
            images.permutation(frames.rows("train", name))[:size]
            for name, size in zip(frames.classes, sizes)
        ]
        return cls(rows, sizes)

    @property
    def labels(self) -> Tensor:
        """Label of each drawn image, `(N,)` int64."""
        counts = torch.tensor([len(rows) for rows in self.rows])
        return torch.arange(len(self.rows)).repeat_interleave(counts)


def unequal_rows(source: Taught, frames: FrameTable, run: int) -> dict[str, float]:
    """Accuracy in percent of each rule on small classes and on all."""
    classes = UnequalClasses.draw(frames, run)
    count = len(classes.rows)
    length = source.empty.length
    of_whole_images = source.features[:, :length]  # the first view
    features = of_whole_images[np.concatenate(classes.rows)]
    test = frames.rows("test")
    budget = source.empty.budget_bytes
    usual = RegularizedDiscriminant.for_budget(length, budget, source.empty.head_length)
    accuracies = {}
    for rule, changes in RULES.items():
        settings = {**usual.settings, "n_classes": count, **changes}
        statistics = RegularizedDiscriminant(**settings)
        statistics.make_room(count, budget, length)
        statistics.update(features, classes.labels)
        answers = statistics.scores(of_whole_images[test]).argmax(1).numpy()
        is_right = answers == frames.labels[test]
        of_class = np.array(
            [
                100 * is_right[frames.labels[test] == label].mean()
                for label in range(count)
            ]
        )
        is_small = classes.sizes < SMALL
        accuracies[f"{rule}, small"] = float(of_class[is_small].mean())
        accuracies[f"{rule}, all"] = float(of_class.mean())
    return accuracies


def reference_of(row: str) -> str:
    """Name of the row that a row is compared with; its own if with none."""
    if row.startswith("own"):
        return f"{ALONE}, {row.rpartition(', ')[2]}"
    return REFERENCES.get(row, row)


def lines_of(
    accuracies: dict[str, dict[int, float]], splits: dict[int, str]
) -> list[list[str]]:
    """Make the lines of the table: values of `HEADER` for each row.

    Args:
        accuracies: in percent, by row and number of the run.
        splits: hash of the table of frames by number of the run.
    """
    lines = []
    for row, values in accuracies.items():
        reference = reference_of(row)
        comparison = None
        difference = ""
        if reference != row:
            comparison = paired(accuracies[reference], values, splits)
        if comparison is not None:
            difference = f"{comparison.mean:+.2f} to {reference}"
        lines.append(
            [
                row,
                mean_text(list(values.values())),
                difference,
                interval_text(comparison),
                each_text(comparison),
            ]
        )
    return lines


def source_of(options: CommonOptions) -> Taught:
    """The classifier and features of the learner of the options."""
    torch.set_num_threads(1)
    benchmark = options.benchmark
    plan = RunPlan.of(options.settings(benchmark))
    weights = None if plan.weights == "none" else plan.weights
    learner = Learner("recommended", plan.backbone, weights, plan.image_size)
    frames = get_benchmark(benchmark).table(options.roots[benchmark], 0)
    features = features_of(learner, frames, None)
    return Taught(learner._classifier, features)


def accuracies_of(
    options: CommonOptions, finding: Finding
) -> dict[str, dict[int, float]]:
    """Accuracy in percent of each row by number of the run."""
    accuracies = {"run": finals_of(finding.runs)}
    source = source_of(options)
    benchmark = options.benchmark
    table_of = get_benchmark(benchmark).table
    for number in accuracies["run"]:
        frames = table_of(options.roots[benchmark], number)
        rows = taught_rows(source, frames) | unequal_rows(source, frames, number)
        for row, accuracy in rows.items():
            accuracies.setdefault(row, {})[number] = accuracy
    return accuracies


def main() -> int:
    options = common_options(parser_for(__doc__, f"runs/{TABLE}").parse_args())
    settings: dict[str, object] = {"preset": "recommended"}
    if options.quick:
        settings |= {"relu_logits": False, "head_kernel": 1}
    cell = Cell("run", options.benchmark, "", options.output / "run", settings)
    (finding,), failed = options.run_cells([cell])
    if finding.runs:
        splits = splits_of(finding.runs)
        accuracies = accuracies_of(options, finding)
        csv_rows: list[list[object]] = [list(CSV_HEADER)]
        for row, values in accuracies.items():
            for number, accuracy in values.items():
                csv_rows.append([row, number, f"{accuracy:.4f}", splits[number]])
        lines = lines_of(accuracies, splits)
        write_table(options.output, TABLE, HEADER, lines, csv_rows)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
