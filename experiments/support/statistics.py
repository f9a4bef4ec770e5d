"""Statistics of tables: the run as the unit, Holm's correction, and the paper's tests (supplement, S4).

Test images of one trained network are no replicates of its training, so their number
says nothing about how a difference would change in another run: a verdict takes one
difference for each run, or for each split where runs share one. The paper's own tests,
on batches of 100 test images, are given beside it.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from scipy import stats

LEAST_UNITS = 5  # runs or splits before a verdict
LEVEL = 0.05  # of Holm's p-values, for a verdict
BATCH = 100
FIRST_TASK_CUTS = (80.0, 60.0, 40.0)  # percent

Columns = Mapping[
    str, np.ndarray
]  # `row`, `label` and `answer` of each test image, sorted by row


@dataclass(frozen=True)
class Paired:
    """Differences in points of two methods by run, second minus first, and the independent ones among them (units)."""

    differences: dict[int, float]
    units: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over units."""
        return fmean(self.units)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean by Student's t; None with a single unit."""
        if len(self.units) < 2:
            return None
        mean, half = interval(self.units)
        return mean - half, mean + half

    @property
    def p(self) -> float | None:
        """Two-sided p-value of Student's t-test over units; None with a single unit."""
        if len(self.units) < 2:
            return None
        if len(set(self.units)) == 1:  # no variance
            return float(self.mean == 0)
        return float(stats.ttest_1samp(self.units, 0.0).pvalue)

    def verdict(self, p_holm: float | None) -> str:
        """What the comparison decides at a p-value that is corrected for the family that it is claimed with."""
        if len(self.units) < LEAST_UNITS or p_holm is None:
            return "not decided"
        if p_holm >= LEVEL:
            return "not shown"
        return "higher" if self.mean > 0 else "lower"


def paired(
    ours: Mapping[int, float],
    others: Mapping[int, float],
    splits: Mapping[int, Hashable],
) -> Paired | None:
    """Compare accuracies in percent of two methods by run number; None without a run that both have.

    Runs of one split, such as the hash of a table of frames, count as one unit, unless
    all runs have the same: then the test set is fixed, and what differs between runs is
    the unit.
    """
    differences = {
        number: others[number] - value
        for number, value in ours.items()
        if number in others
    }
    if not differences:
        return None
    groups: dict[Hashable, list[float]] = {}
    for number, difference in differences.items():
        groups.setdefault(splits[number], []).append(difference)
    units = (
        list(differences.values()) if len(groups) == 1 else map(fmean, groups.values())
    )
    return Paired(differences, tuple(units))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half of its 95 % interval (Student's t over runs; nan for one run)."""
    if len(values) < 2:
        return fmean(values), float("nan")
    return fmean(values), float(
        stats.t.ppf(0.975, len(values) - 1) * stdev(values) / len(values) ** 0.5
    )


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for their number by Holm's step-down rule; None stays None and does not count."""
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        corrected[place] = largest
    return corrected


@dataclass(frozen=True)
class Comparison:
    """A test of the paper: number of pairs, mean of second minus first, two-sided p-value; None with too few pairs."""

    pairs: int
    difference: float
    p: float | None


def paired_t_test(first: np.ndarray, second: np.ndarray) -> Comparison:
    """Student's t-test on the differences of pairs; equal ones other than zero have no variance, and a p of 0."""
    difference = np.asarray(second, float) - np.asarray(first, float)
    mean = float(difference.mean()) if len(difference) else 0.0
    if len(difference) < 2:
        return Comparison(len(difference), mean, None)
    if np.ptp(difference) == 0:
        return Comparison(len(difference), mean, 1.0 if mean == 0 else 0.0)
    return Comparison(
        len(difference), mean, float(stats.ttest_rel(second, first).pvalue)
    )


def wilcoxon_test(first: np.ndarray, second: np.ndarray) -> Comparison:
    """Wilcoxon's signed-rank test on pairs (shape bias), without pairs of equal values."""
    difference = np.asarray(second, float) - np.asarray(first, float)
    if not difference.any():
        return Comparison(len(difference), 0.0, 1.0 if len(difference) else None)
    p = float(stats.wilcoxon(difference, zero_method="wilcox").pvalue)
    return Comparison(len(difference), float(difference.mean()), p)


def fixed_batches(images: int, size: int = BATCH, seed: int = 0) -> np.ndarray:
    """Draw whole batches of image positions, `(batches, size)`, the same for all methods and runs."""
    order = np.random.default_rng(seed).permutation(images)
    size = min(size, images)
    return order[: images // size * size].reshape(-1, size)


def batch_accuracies(columns: Columns) -> np.ndarray:
    """Accuracy on each of the fixed batches in percent, `(batches,)`."""
    right = columns["answer"] == columns["label"]
    return 100 * right[fixed_batches(len(right))].mean(axis=1)


def relative_drops(accuracies: np.ndarray, perturbed: np.ndarray) -> np.ndarray:
    """(unperturbed - perturbed) / unperturbed for each batch; NaN where the unperturbed accuracy is 0."""
    accuracies, perturbed = np.asarray(accuracies, float), np.asarray(perturbed, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(accuracies > 0, (accuracies - perturbed) / accuracies, np.nan)


def first_task_filter(
    first_accuracies: Sequence[float],
) -> tuple[tuple[int, ...], float | None]:
    """Leave out runs that failed on their first task (supplement, "Data cleaning").

    A run of a method has to reach 80 % after the first experience; if no run does, 60
    %; if none does, 40 %. Returns the indices of the kept runs, and the required
    accuracy; None if none is kept.
    """
    for cut in FIRST_TASK_CUTS:
        kept = tuple(
            place for place, accuracy in enumerate(first_accuracies) if accuracy >= cut
        )
        if kept:
            return kept, cut
    return (), None
