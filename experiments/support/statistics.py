"""Statistics of tables: the run as unit, Holm's correction, tests of supplement S4.

Test images of one trained network are no replicates of its training, so their number
says nothing about how a difference would change in another run: a verdict takes one
difference for each run, or for each split where runs share one. The paper's own tests,
on batches of 100 test images, are given beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

BATCH = 100  # test images
FIRST_TASK_CUTS = (80.0, 60.0, 40.0)  # percent

Columns = Mapping[
    str, np.ndarray
]  # `row`, `label` and `answer` of each test image, sorted by row


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for their number by Holm's step-down rule.

    None stays None and does not count.
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        corrected[index] = largest
    return corrected


@dataclass(frozen=True)
class Comparison:
    """A test of the paper.

    Attributes:
        pairs: number of pairs.
        difference: mean of second minus first.
        p: two-sided p-value; None with too few pairs.
    """

    pairs: int
    difference: float
    p: float | None


def paired_t_test(first: np.ndarray, second: np.ndarray) -> Comparison:
    """Do Student's t-test on the differences of pairs.

    Equal differences other than zero have no variance, and a p of 0.
    """
    difference = np.asarray(second, float) - np.asarray(first, float)
    mean = float(difference.mean()) if len(difference) else 0.0
    if len(difference) < 2:
        p = None
    elif np.ptp(difference) == 0:
        p = float(mean == 0)
    else:
        p = float(stats.ttest_rel(second, first).pvalue)
    return Comparison(len(difference), mean, p)


def wilcoxon_test(first: np.ndarray, second: np.ndarray) -> Comparison:
    """Do Wilcoxon's signed-rank test on pairs (shape bias).

    Pairs of equal values are left out.
    """
    difference = np.asarray(second, float) - np.asarray(first, float)
    if not difference.any():
        return Comparison(len(difference), 0.0, 1.0 if len(difference) else None)
    p = float(stats.wilcoxon(difference, zero_method="wilcox").pvalue)
    return Comparison(len(difference), float(difference.mean()), p)


def fixed_batches(images: int, size: int = BATCH, seed: int = 0) -> np.ndarray:
    """Draw whole batches of image positions, `(batches, size)`.

    They are the same for all methods and runs.
    """
    order = np.random.default_rng(seed).permutation(images)
    size = min(size, images)
    return order[: images // size * size].reshape(-1, size)


def batch_accuracies(columns: Columns) -> np.ndarray:
    """Accuracy on each of the fixed batches in percent, `(batches,)`."""
    right = columns["answer"] == columns["label"]
    return 100 * right[fixed_batches(len(right))].mean(axis=1)


def relative_drops(accuracies: np.ndarray, perturbed: np.ndarray) -> np.ndarray:
    """Compute (unperturbed - perturbed) / unperturbed for each batch.

    NaN where the unperturbed accuracy is 0.
    """
    before = np.asarray(accuracies, float)
    after = np.asarray(perturbed, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(before > 0, (before - after) / before, np.nan)


def first_task_filter(
    first_accuracies: Sequence[float],
) -> tuple[tuple[int, ...], float | None]:
    """Leave out runs that failed on their first task (supplement, "Data cleaning").

    A run of a method has to reach 80 % after the first experience; if no run does,
    60 %; if none does, 40 %.

    Returns:
        Indices of the runs that pass, and the required accuracy; None if none passes.
    """
    for cut in FIRST_TASK_CUTS:
        passed = tuple(
            index for index, accuracy in enumerate(first_accuracies) if accuracy >= cut
        )
        if passed:
            return passed, cut
    return (), None
