"""The statistics of tables, by hand on few numbers and on made data with a known answer."""

import csv
import math

import numpy as np
import pytest
import verdicts
from called_script import called
from support.statistics import (
    Comparison,
    Paired,
    first_task_filter,
    fixed_batches,
    holm,
    interval,
    paired,
    paired_t_test,
    relative_drops,
    wilcoxon_test,
)


def test_batches_are_the_same_in_every_call_and_hold_each_image_once():
    batches = fixed_batches(2250)
    assert batches.shape == (22, 100) and len(np.unique(batches)) == 2200 and batches.max() < 2250
    np.testing.assert_array_equal(batches, fixed_batches(2250))
    assert not np.array_equal(np.sort(batches[0]), np.arange(100)), "images in order are no random batch"
    assert fixed_batches(30).shape == (1, 30)


def test_t_test_by_hand():
    # Differences 1, 2, 0, 3: mean 1.5, variance 5/3, t = 1.5 / sqrt(5/12) = 2.324 at 3 degrees of freedom, where the
    # distribution function is 1/2 + (u / (1 + u^2) + atan u) / pi with u = t / sqrt 3, u^2 = 1.8.
    u = math.sqrt(1.8)
    p = 2 * (0.5 - (u / 2.8 + math.atan(u)) / math.pi)
    test = paired_t_test(np.array([1, 2, 3, 4]), np.array([2, 4, 3, 7]))
    assert (test.pairs, test.difference, test.p) == (4, 1.5, pytest.approx(p)) and p == pytest.approx(0.1027, abs=1e-4)


def test_wilcoxon_by_hand():
    # The negative difference has rank 3; of the 32 signs of five ranks 5 have a sum up to 3, on either side.
    test = wilcoxon_test(np.zeros(5), np.array([1, 2, -3, 4, 5]))
    assert test.p == pytest.approx(10 / 32) and test.difference == pytest.approx(1.8)


def test_tests_without_variance_or_pairs():
    one = np.array([1.0, 2.0])
    assert paired_t_test(one, one) == wilcoxon_test(one, one) == Comparison(2, 0.0, 1.0)
    assert paired_t_test(one, one + 3) == Comparison(2, 3.0, 0.0)
    assert paired_t_test(one[:1], one[:1]).p is None
    assert paired_t_test(one[:0], one[:0]) == wilcoxon_test(one[:0], one[:0]) == Comparison(0, 0.0, None)


def test_relative_drops_and_holm_by_hand():
    drops = relative_drops(np.array([80.0, 50.0, 0.0]), np.array([60.0, 60.0, 0.0]))
    np.testing.assert_allclose(drops, [0.25, -0.2, np.nan])
    assert holm([0.01, 0.04, 0.03, None]) == pytest.approx([0.03, 0.06, 0.06, None])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == [] and holm([None]) == [None]


def test_first_task_filter():
    assert first_task_filter([85, 79.9, 80]) == ((0, 2), 80) and first_task_filter([70, 50]) == ((0,), 60)
    assert first_task_filter([41, 30, 59]) == ((0, 2), 40)
    assert first_task_filter([10, 20]) == first_task_filter([]) == ((), None)


def test_an_interval_by_hand():
    found = paired(dict.fromkeys(range(5), 50.0), {run: 51.0 + run for run in range(6)}, dict.fromkeys(range(6), "one"))
    assert found.differences == {0: 1, 1: 2, 2: 3, 3: 4, 4: 5} and found.units == (1, 2, 3, 4, 5)
    # Standard deviation sqrt(2.5), so standard error sqrt(0.5); t with four degrees of freedom: 2.776.
    assert found.mean == 3 and found.interval == pytest.approx((3 - 1.963, 3 + 1.963), abs=1e-3)
    assert found.p == pytest.approx(0.0132, abs=1e-4)  # t = 3 / sqrt(0.5) = 4.243
    assert math.isnan(interval([1.0])[1])


def test_runs_that_share_a_split_are_one_unit():
    ours, others = dict.fromkeys(range(4), 10.0), {0: 11.0, 1: 14.0, 2: 13.0, 3: 12.0}
    found = paired(ours, others, {0: "a", 1: "b", 2: "a", 3: "b"})
    assert found.units == (2, 3) and list(found.differences.values()) == [1, 4, 3, 2]
    assert found.mean == 2.5 and found.interval == pytest.approx((2.5 - 12.706 * 0.5, 2.5 + 12.706 * 0.5), abs=1e-3)
    assert paired(ours, others, dict.fromkeys(range(4), "a")).units == (1, 4, 3, 2), "a fixed test set"


def test_verdicts():
    assert paired({0: 1.0}, {1: 2.0}, {0: "", 1: ""}) is None
    one = paired({0: 1.0}, {0: 2.0}, {0: ""})
    assert (one.mean, one.interval, one.p, one.verdict(None)) == (1, None, None, "not decided")
    five = (5.0, 5.1, 5.2, 5.3, 5.4)
    assert Paired({}, five[:4]).verdict(1e-5) == "not decided"
    assert Paired({}, five).verdict(1e-5) == "higher" and Paired({}, five).verdict(0.05) == "not shown"
    assert Paired({}, tuple(-value for value in five)).verdict(1e-5) == "lower"
    assert Paired({}, (0.0,) * 5).p == 1 and Paired({}, (2.0,) * 5).p == 0, "no variance"


def test_the_published_table_is_that_of_the_recorded_runs(tmp_path):
    done = called("verdicts", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    published = (verdicts.TABLES / "verdicts.csv").read_text()
    assert (tmp_path / "verdicts.csv").read_text() == published
    fewer = [line for line in csv.DictReader(published.splitlines()) if int(line["units"]) < 5]
    assert fewer and all(line["verdict"] == "not decided" for line in fewer)
