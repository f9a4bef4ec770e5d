"""The run as the unit: by hand, with runs that share a split, and on made data with a known answer."""

import csv

import numpy as np
import pytest
import verdicts
from called_script import called
from scipy import stats
from support.run_statistics import Paired, mcnemar, paired, verdict
from verdicts import FAMILIES, Family, comparisons


def test_an_interval_by_hand():
    found = paired(dict.fromkeys(range(5), 50.0), {run: 51.0 + run for run in range(6)}, dict.fromkeys(range(6), "one"))
    assert found.differences == {0: 1, 1: 2, 2: 3, 3: 4, 4: 5} and found.units == (1, 2, 3, 4, 5)
    # Standard deviation sqrt(2.5), so standard error sqrt(0.5); t with four degrees of freedom: 2.776.
    assert found.mean == 3 and found.interval == pytest.approx((3 - 1.963, 3 + 1.963), abs=1e-3)
    assert found.p == pytest.approx(0.0132, abs=1e-4)  # t = 3 / sqrt(0.5) = 4.243


def test_runs_that_share_a_split_are_one_unit():
    ours, others = dict.fromkeys(range(4), 10.0), {0: 11.0, 1: 14.0, 2: 13.0, 3: 12.0}
    found = paired(ours, others, {0: "a", 1: "b", 2: "a", 3: "b"})
    assert found.units == (2, 3) and list(found.differences.values()) == [1, 4, 3, 2]
    assert found.mean == 2.5 and found.interval == pytest.approx((2.5 - 12.706 * 0.5, 2.5 + 12.706 * 0.5), abs=1e-3)
    assert paired(ours, others, dict.fromkeys(range(4), "a")).units == (1, 4, 3, 2), "a fixed test set"


def test_too_few_runs():
    assert paired({0: 1.0}, {1: 2.0}, {0: "", 1: ""}) is None
    one = paired({0: 1.0}, {0: 2.0}, {0: ""})
    assert (one.mean, one.interval, one.p) == (1, None, None) and verdict(one, None) == "not decided"
    four = Paired({}, (5.0, 5.1, 5.2, 5.3))
    assert verdict(four, 1e-5) == "not decided"
    assert verdict(Paired({}, (*four.units, 5.4)), 1e-5) == "higher"
    assert verdict(Paired({}, tuple(-value for value in (*four.units, 5.4))), 1e-5) == "lower"
    assert verdict(Paired({}, (*four.units, 5.4)), 0.05) == "not shown"


def test_equal_differences_have_no_variance():
    assert Paired({}, (0.0,) * 5).p == 1 and Paired({}, (2.0,) * 5).p == 0


def test_intervals_cover_the_truth_where_runs_share_splits():
    """Five splits of deviation 3, two runs each of deviation 1: the truth, 2, lies in 95 % of the intervals."""
    draws, covered, naive = np.random.default_rng(0), 0, 0
    splits = {run: run % 5 for run in range(10)}
    for _ in range(1000):
        effects = 2 + np.tile(draws.normal(0, 3, 5), 2) + draws.normal(0, 1, 10)
        found = paired(dict.fromkeys(range(10), 0.0), dict(enumerate(effects)), splits)
        low, high = found.interval
        covered += low <= 2 <= high
        low, high = Paired({}, tuple(effects)).interval
        naive += low <= 2 <= high
    assert 935 <= covered <= 970  # 950 +- 2 deviations of a binomial
    assert naive < 900, "as if the ten runs were independent"


def test_mcnemar_by_hand():
    # 1 and 7 discordant pairs: twice the sum of C(8, 0) and C(8, 1), by 2^8.
    first = np.array([1] * 5 + [1] + [0] * 7 + [0] * 4, bool)
    second = np.array([1] * 5 + [0] + [1] * 7 + [0] * 4, bool)
    assert mcnemar(first, second) == pytest.approx(2 * 9 / 256)
    assert mcnemar(first, first) == 1
    with pytest.raises(ValueError, match="17 and 3 test images"):
        mcnemar(first, second[:3])


def made(path, lines):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([["row", "run", "accuracy", "frame_table"], *lines])
    return path


def test_a_family_is_corrected_together(tmp_path):
    draws = np.random.default_rng(1)
    rows = {"Ours": 0, "near": 0.1, "far": 10}
    lines = [(name, run, 50 + shift + draws.normal(), "one") for name, shift in rows.items() for run in range(6)]
    near, far = comparisons(Family("made", made(tmp_path / "runs.csv", [*lines, ("same", 0, lines[0][2], "one")])))[:2]
    ours, other = ([value for name, _, value, _ in lines if name == wanted] for wanted in ("Ours", "far"))
    assert (near.row, far.row, far.reference) == ("near", "far", "Ours")
    assert far.found.p == pytest.approx(stats.ttest_rel(other, ours).pvalue)
    assert far.p_holm == pytest.approx(2 * far.found.p) and verdict(far.found, far.p_holm) == "higher"
    assert verdict(near.found, near.p_holm) == "not shown"


def test_numbers_of_memories_have_their_own_reference(tmp_path):
    values = {"n=1 Ours": 5, "n=1 images": 6, "n=2 Ours": 7, "n=2 images": 9}
    lines = [(name, run, value, "") for name, value in values.items() for run in range(2)]
    found = comparisons(Family("made", made(tmp_path / "runs.csv", lines)))
    expected = [("n=1 images", "n=1 Ours", 1), ("n=2 images", "n=2 Ours", 2)]
    assert [(one.row, one.reference, one.found.mean) for one in found] == expected


def test_the_published_table_is_that_of_the_recorded_runs(tmp_path):
    done = called("verdicts", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    published = (verdicts.TABLES / "verdicts.csv").read_text()
    assert (tmp_path / "verdicts.csv").read_text() == published
    for family in FAMILIES:
        assert f"\n{family.name}," in published or f'\n"{family.name}",' in published
    fewer = [line for line in csv.DictReader(published.splitlines()) if int(line["units"]) < 5]
    assert fewer and all(line["verdict"] == "not decided" for line in fewer)


def test_no_document_has_a_p_value_over_batches():
    """Columns of the published tables whose unit is a batch of test images say so in their names."""
    for path in verdicts.TABLES.glob("*.csv"):
        header = path.read_text().partition("\n")[0]
        for column in ("pairs", "p", "batch_difference"):
            assert column not in header.split(",") or "units" in header, f"{path.name}: {column}"
