"""Comparisons with the run as the unit: one difference for each run, or for each split where runs share one.

Test images of one trained network are no replicates of its training, so their number says nothing about how a
difference would change in another run.
"""

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEAST_UNITS = 5  # runs or splits before a verdict
LEVEL = 0.05  # of Holm's p-values, for a verdict


@dataclass(frozen=True)
class Paired:
    """Differences of two methods in the runs that both have, in points.

    Attributes:
        differences: second minus first, by run number.
        units: the independent differences: means over the runs of one split if several splits are shared by runs,
            otherwise the runs' own.
    """

    differences: dict[int, float]
    units: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over units."""
        return statistics.fmean(self.units)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean by Student's t; None with a single unit."""
        if len(self.units) < 2:
            return None
        half = stats.t.ppf(0.975, len(self.units) - 1) * statistics.stdev(self.units) / len(self.units) ** 0.5
        return self.mean - half, self.mean + half

    @property
    def p(self) -> float | None:
        """Two-sided p-value of Student's t-test over units; None with a single unit."""
        if len(self.units) < 2:
            return None
        if len(set(self.units)) == 1:  # no variance
            return float(self.mean == 0)
        return float(stats.ttest_1samp(self.units, 0.0).pvalue)


def paired(ours: Mapping[int, float], others: Mapping[int, float], splits: Mapping[int, Hashable]) -> Paired | None:
    """Compare two methods over the runs that both have; None without any.

    Args:
        ours: accuracy in percent of one method by run number.
        others: accuracy of the other.
        splits: what a run was tested on, such as the hash of its table of frames. Runs of one split count as one unit,
            unless all runs have the same: then the test set is fixed, and what differs between runs is the unit.
    """
    numbers = [number for number in ours if number in others]
    if not numbers:
        return None
    differences = {number: others[number] - ours[number] for number in numbers}
    groups: dict[Hashable, list[float]] = {}
    for number in numbers:
        groups.setdefault(splits[number], []).append(differences[number])
    if len(groups) == 1:
        return Paired(differences, tuple(differences.values()))
    return Paired(differences, tuple(statistics.fmean(group) for group in groups.values()))


def verdict(found: Paired, p_holm: float | None) -> str:
    """Return what a comparison decides: ``higher``, ``lower``, ``not shown`` or ``not decided``.

    Args:
        found: the comparison.
        p_holm: its p-value, corrected for the family that it is claimed with.
    """
    if len(found.units) < LEAST_UNITS or p_holm is None:
        return "not decided"
    if p_holm >= LEVEL:
        return "not shown"
    return "higher" if found.mean > 0 else "lower"


def mcnemar(first: Sequence[bool] | np.ndarray, second: Sequence[bool] | np.ndarray) -> float:
    """Return the exact two-sided p-value of McNemar's test: two fixed models on one test set.

    It says whether two networks differ, not whether two ways to train them do.

    Args:
        first: whether the first model is right, by test image.
        second: the same of the second model.

    Raises:
        ValueError: the numbers of images differ.
    """
    first, second = np.asarray(first, bool), np.asarray(second, bool)
    if first.shape != second.shape:
        raise ValueError(
            f"{len(first)} and {len(second)} test images: give the answers of both models on the same ones"
        )
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    both = only_first + only_second
    return 1.0 if both == 0 else float(stats.binomtest(only_first, both).pvalue)
