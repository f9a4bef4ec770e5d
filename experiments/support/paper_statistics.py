"""The paper's statistics (supplement, S4): batches of 100 test images, paired tests, the first-task filter.

Predictions are those of `crumb_avalanche.runs.recorder.read_predictions`: `row`, `label` and `answer` of each test
image, sorted by row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

BATCH = 100
SIGNIFICANT = 0.01  # threshold of the paper
FIRST_TASK_CUTS = (80.0, 60.0, 40.0)  # percent

Columns = Mapping[str, np.ndarray]


def fixed_batches(images: int, size: int = BATCH, seed: int = 0) -> np.ndarray:
    """Draw batches of image positions without replacement; the same in every call.

    All batches are whole; the remaining images are in none. A test set smaller than one batch is one batch.

    Args:
        images: number of images in the test set.
        size: number of images in a batch.
        seed: seed of the draw, the same for all methods and runs.

    Returns:
        `(batches, size)` int64.
    """
    order = np.random.default_rng(seed).permutation(images)
    size = min(size, images)
    return order[: images // size * size].reshape(-1, size)


def batch_accuracies(columns: Columns, batches: np.ndarray) -> np.ndarray:
    """Accuracy on each batch in percent, `(batches,)`."""
    right = columns["answer"] == columns["label"]
    return 100 * right[batches].mean(axis=1)


def paired_batches(
    ours: Sequence[Columns], others: Sequence[Columns], size: int = BATCH
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies of two methods on the same batches, pooled over runs.

    Args:
        ours: predictions of one method, one entry for each run.
        others: predictions of the other method, for the same runs in the same order.
        size: number of images in a batch.

    Returns:
        Two arrays `(runs * batches,)` in percent.

    Raises:
        ValueError: different numbers of runs, or a pair of runs with different test images or labels.
    """
    if len(ours) != len(others):
        raise ValueError(f"{len(ours)} runs cannot be paired with {len(others)}: give the runs that both have")
    pairs = []
    for number, (one, other) in enumerate(zip(ours, others)):
        for name in ("row", "label"):
            if not np.array_equal(one[name], other[name]):
                raise ValueError(
                    f"pair {number}: the two runs were tested on different images ({name} differs), so their batches "
                    "cannot be paired; compare runs of the same number on the same benchmark"
                )
        batches = fixed_batches(len(one["row"]), size)
        pairs.append((batch_accuracies(one, batches), batch_accuracies(other, batches)))
    first, second = zip(*pairs) if pairs else ((), ())
    return np.concatenate([np.zeros(0), *first]), np.concatenate([np.zeros(0), *second])


@dataclass(frozen=True)
class Comparison:
    """Result of a paired test.

    Attributes:
        pairs: number of samples on each side.
        difference: mean of second minus first.
        p: two-sided p-value; 1 if all pairs are equal; None with too few pairs.
    """

    pairs: int
    difference: float
    p: float | None

    @property
    def significant(self) -> bool:
        """Whether p is below the threshold of the paper."""
        return self.p is not None and self.p < SIGNIFICANT


def paired_t_test(first: np.ndarray, second: np.ndarray) -> Comparison:
    """Student's t-test on the differences of pairs.

    Equal differences other than zero have no variance; their p is 0.
    """
    difference = np.asarray(second, float) - np.asarray(first, float)
    if len(difference) < 2:
        return Comparison(len(difference), float(difference.mean()) if len(difference) else 0.0, None)
    mean = float(difference.mean())
    if np.ptp(difference) == 0:
        return Comparison(len(difference), mean, 1.0 if mean == 0 else 0.0)
    return Comparison(len(difference), mean, float(stats.ttest_rel(second, first).pvalue))


def wilcoxon_test(first: np.ndarray, second: np.ndarray) -> Comparison:
    """Wilcoxon's signed-rank test on pairs (shape bias), without pairs of equal values."""
    difference = np.asarray(second, float) - np.asarray(first, float)
    if len(difference) == 0:
        return Comparison(0, 0.0, None)
    mean = float(difference.mean())
    if not difference.any():
        return Comparison(len(difference), mean, 1.0)
    return Comparison(len(difference), mean, float(stats.wilcoxon(difference, zero_method="wilcox").pvalue))


def relative_drops(accuracies: np.ndarray, perturbed: np.ndarray) -> np.ndarray:
    """(unperturbed - perturbed) / unperturbed for each batch; NaN where the unperturbed accuracy is 0."""
    accuracies, perturbed = np.asarray(accuracies, float), np.asarray(perturbed, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(accuracies > 0, (accuracies - perturbed) / accuracies, np.nan)


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
class Filtered:
    """The runs that the first-task filter keeps.

    Attributes:
        kept: indices of the kept runs.
        cut: required accuracy in percent; None if no run reaches the lowest cut, so that none is kept.
    """

    kept: tuple[int, ...]
    cut: float | None


def first_task_filter(first_accuracies: Sequence[float], cuts: Sequence[float] = FIRST_TASK_CUTS) -> Filtered:
    """Leave out runs that failed on their first task (supplement, "Data cleaning").

    A run has to reach 80 %; if no run of a method does, 60 %; if none does, 40 %.

    Args:
        first_accuracies: accuracies in percent after the first experience, one for each run of a method.
        cuts: required accuracies, falling.
    """
    for cut in cuts:
        kept = tuple(place for place, accuracy in enumerate(first_accuracies) if accuracy >= cut)
        if kept:
            return Filtered(kept, cut)
    return Filtered((), None)
