"""The supplement's statistics, by hand on few numbers and against a plain computation on many."""

import math

import numpy as np
import pytest
from support.paper_statistics import (
    Comparison,
    Filtered,
    batch_accuracies,
    first_task_filter,
    fixed_batches,
    holm,
    paired_batches,
    paired_t_test,
    relative_drops,
    wilcoxon_test,
)


def columns(right, shift=0):
    right = np.asarray(right, bool)
    labels = np.arange(len(right)) % 3
    return {"row": np.arange(len(right)) + shift, "label": labels, "answer": np.where(right, labels, labels + 1)}


def test_batches_are_the_same_in_every_call_and_hold_each_image_once():
    batches = fixed_batches(2250)
    assert batches.shape == (22, 100)
    assert len(np.unique(batches)) == 2200 and batches.min() >= 0 and batches.max() < 2250
    np.testing.assert_array_equal(batches, fixed_batches(2250))
    assert not np.array_equal(np.sort(batches[0]), np.arange(100)), "images in order are no random batch"
    assert fixed_batches(30).shape == (1, 30)


def test_batches_by_hand():
    accuracies = batch_accuracies(columns([1, 1, 0, 0, 1, 0]), np.array([[0, 1], [2, 4], [3, 5]]))
    np.testing.assert_array_equal(accuracies, [100, 50, 0])


def test_pairs_are_pooled_over_runs():
    random = np.random.default_rng(0)
    ours = [columns(random.random(250) < 0.8) for _ in range(3)]
    others = [columns(random.random(250) < 0.6) for _ in range(3)]
    first, second = paired_batches(ours, others)
    assert len(first) == len(second) == 6
    for run in range(3):
        for batch, positions in enumerate(fixed_batches(250)):
            right = ours[run]["answer"][positions] == ours[run]["label"][positions]
            assert first[2 * run + batch] == pytest.approx(right.sum())
    assert paired_batches([], [])[0].shape == (0,)


def test_runs_that_cannot_be_paired():
    one = columns([1] * 100)
    with pytest.raises(ValueError, match=r"pair 0: the two runs were tested on different images .row differs."):
        paired_batches([one], [columns([1] * 100, shift=1)])
    with pytest.raises(ValueError, match="2 runs cannot be paired with 1: give the runs that both have"):
        paired_batches([one, one], [one])
    other = {**one, "label": one["label"] + 1}
    with pytest.raises(ValueError, match="label differs"):
        paired_batches([one], [other])


def test_t_test_by_hand():
    # Differences 1, 2, 0, 3: mean 1.5, variance 5/3, t = 1.5 / sqrt(5/12) = 2.324 at 3 degrees of freedom, where the
    # distribution function is 1/2 + (u / (1 + u^2) + atan u) / pi with u = t / sqrt 3, u^2 = 1.8.
    u = math.sqrt(1.8)
    p = 2 * (0.5 - (u / 2.8 + math.atan(u)) / math.pi)
    test = paired_t_test(np.array([1, 2, 3, 4]), np.array([2, 4, 3, 7]))
    assert test.pairs == 4 and test.difference == 1.5
    assert test.p == pytest.approx(p) and test.p == pytest.approx(0.1027, abs=1e-4)
    assert not test.significant


def slow_t_test(first, second):
    """Plain sums, and the density of Student's t integrated in small steps."""
    differences = [b - a for a, b in zip(first, second)]
    n = len(differences)
    mean = sum(differences) / n
    variance = sum((value - mean) ** 2 for value in differences) / (n - 1)
    t, freedom = abs(mean) / math.sqrt(variance / n), n - 1
    factor = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    steps = 2000
    inside = 0.0
    for step in range(steps):
        middle = (step + 0.5) * t / steps
        inside += factor * (1 + middle * middle / freedom) ** (-(freedom + 1) / 2) * t / steps
    return mean, 1 - 2 * inside


@pytest.mark.parametrize("seed", range(8))
def test_t_test_against_a_plain_one(seed):
    random = np.random.default_rng(seed)
    first = random.normal(70, 10, 20 + seed)
    second = first + random.normal(0.3 * seed, 4, len(first))
    mean, p = slow_t_test(first, second)
    test = paired_t_test(first, second)
    assert test.difference == pytest.approx(mean) and test.p == pytest.approx(p, abs=1e-5)


def test_tests_without_variance_or_pairs():
    one = np.array([1.0, 2.0])
    assert paired_t_test(one, one) == Comparison(2, 0.0, 1.0)
    assert paired_t_test(one, one + 3) == Comparison(2, 3.0, 0.0)
    assert paired_t_test(one[:1], one[:1]).p is None
    assert paired_t_test(one[:0], one[:0]) == Comparison(0, 0.0, None)
    assert wilcoxon_test(one, one) == Comparison(2, 0.0, 1.0)
    assert wilcoxon_test(one[:0], one[:0]) == Comparison(0, 0.0, None)


def test_wilcoxon_by_hand():
    # The negative difference has rank 3; of the 32 signs of five ranks 5 have a sum up to 3, on either side.
    test = wilcoxon_test(np.zeros(5), np.array([1, 2, -3, 4, 5]))
    assert test.p == pytest.approx(10 / 32) and test.difference == pytest.approx(1.8)


def test_relative_drops():
    drops = relative_drops(np.array([80.0, 50.0, 0.0]), np.array([60.0, 60.0, 0.0]))
    np.testing.assert_allclose(drops, [0.25, -0.2, np.nan])


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, None]) == pytest.approx([0.03, 0.06, 0.06, None])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == [] and holm([None]) == [None]


@pytest.mark.parametrize(
    "accuracies, kept, cut",
    [
        ([85, 79.9, 80], (0, 2), 80),
        ([70, 50], (0,), 60),
        ([41, 30, 59], (0, 2), 40),
        ([10, 20], (), None),
        ([], (), None),
    ],
)
def test_first_task_filter(accuracies, kept, cut):
    assert first_task_filter(accuracies) == Filtered(kept, cut)
