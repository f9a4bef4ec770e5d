"""Compare two methods in the same runs, with the run or the split as the unit.

Test images of one trained network are no replicates of its training, so their number
says nothing about how a difference would change in another run.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy import stats

LEAST_UNITS = 5  # runs or splits before a verdict
LEVEL = 0.05  # of Holm's p-values, for a verdict
LEVEL_POINTS = 2.0  # within which an interval lies if two methods are level


@dataclass(frozen=True)
class Paired:
    """Differences in points of two methods, second minus first.

    Attributes:
        differences: by number of the run.
        units: the independent ones among them.
    """

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
        mean, half_width = interval(self.units)
        return mean - half_width, mean + half_width

    @property
    def p(self) -> float | None:
        """Two-sided p-value of Student's t-test over units; None with a single unit."""
        if len(self.units) < 2:
            return None
        has_no_variance = len(set(self.units)) == 1
        if has_no_variance:
            return float(self.mean == 0)
        return float(stats.ttest_1samp(self.units, 0.0).pvalue)

    def verdict(self, p_holm: float | None) -> str:
        """Return what the comparison decides: not decided, not shown, higher or lower.

        Args:
            p_holm: p-value, corrected by Holm for the family that it is claimed with;
                None with a single unit.
        """
        has_few_units = len(self.units) < LEAST_UNITS
        if has_few_units or p_holm is None:
            return "not decided"
        if p_holm >= LEVEL:
            return "not shown"
        return "higher" if self.mean > 0 else "lower"

    @property
    def standing(self) -> str:
        """What the comparison shows by itself: its verdict, or ``level``.

        Two methods are level if neither is shown to be higher, and the interval lies
        within ``LEVEL_POINTS`` either way.
        """
        verdict = self.verdict(self.p)
        if verdict != "not shown":
            return verdict
        assert self.interval is not None, "a verdict takes several units"
        is_level = max(map(abs, self.interval)) <= LEVEL_POINTS
        return "level" if is_level else "not shown"


def numbers_of_other_images(
    splits: Mapping[int, Hashable], other_splits: Mapping[int, Hashable]
) -> list[int]:
    """Return the numbers whose runs of two methods saw different splits of the data.

    Args:
        splits: hash of the table of frames of a method's runs, by number; an empty one
            or ``None`` is unknown, and agrees with all.
        other_splits: those of another method.
    """
    numbers = []
    for number in splits.keys() & other_splits.keys():
        split = splits[number]
        other_split = other_splits[number]
        if split and other_split and split != other_split:
            numbers.append(number)
    return sorted(numbers)


def paired(
    reference: Mapping[int, float],
    compared: Mapping[int, float],
    splits: Mapping[int, Hashable],
    compared_splits: Mapping[int, Hashable] | None = None,
) -> Paired | None:
    """Compare the accuracies of two methods in runs of the same number.

    These have the same seed and the same order of classes, so that their accuracies are
    compared in pairs. A unit is what counts as one observation: the mean difference of
    the runs of one split of the data, unless all runs have the same split. Then the
    test set is fixed, and each run is a unit.

    Args:
        reference: accuracy in percent of a method, by number of the run.
        compared: that of another method; differences are this one less the reference.
        splits: what runs of one split share, such as the hash of a table of frames, of
            the reference.
        compared_splits: those of the other method; ``None`` if they are known to be the
            same.

    Returns:
        The comparison; None without a run that both have.

    Raises:
        ValueError: two runs of one number saw different splits.
    """
    common = {number: splits.get(number) for number in reference if number in compared}
    other_splits = compared_splits or {}
    differing = numbers_of_other_images(common, other_splits)
    if differing:
        number = differing[0]
        raise ValueError(
            f"run {number}: the two runs that are compared saw different images (frame "
            f"tables {splits[number]} and {other_splits[number]}), and runs "
            "of one number are compared on the same ones: do one of them again on the "
            "images of the other"
        )
    differences = {}  # in points, by number of the run
    for number, accuracy in reference.items():
        if number in compared:
            differences[number] = compared[number] - accuracy
    if not differences:
        return None
    splits_of_differences = [splits[number] for number in differences]
    units = unit_means(list(differences.values()), splits_of_differences)
    return Paired(differences, tuple(units))


def unit_means(values: Sequence[float], splits: Sequence[Hashable]) -> list[float]:
    """Return the independent ones among the values of runs: the mean of each split.

    Where all runs have one split, the test set is fixed, and each run is a unit.

    Args:
        values: one of each run.
        splits: what runs of one split share, in the order of the values.
    """
    by_split: dict[Hashable, list[float]] = {}
    for value, split in zip(values, splits, strict=True):
        by_split.setdefault(split, []).append(value)
    if len(by_split) == 1:
        return list(values)
    return [fmean(values_of_split) for values_of_split in by_split.values()]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 95 % interval.

    The interval is Student's t over runs or splits; its width is NaN for one of them.
    """
    mean = fmean(values)
    if len(values) < 2:
        return mean, float("nan")
    quantile = stats.t.ppf(0.975, len(values) - 1)
    return mean, float(quantile * stdev(values) / len(values) ** 0.5)
