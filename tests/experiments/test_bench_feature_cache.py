"""Runs without and with the cache are paired, their seconds summed, and differences reported."""

import csv
import json

import numpy as np
import pytest
from bench_feature_cache import HEADER, compared, with_total
from called_script import called
from made_runs import made_run


def timed_run(folder, seconds, right=100):
    """A handmade run with these seconds."""
    made_run(folder, right)
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps(result | {"seconds": seconds}))
    (folder / "accuracy_matrix.csv").write_text("a\n")


def test_seconds_are_summed_over_runs_finished_both_ways(tmp_path):
    for run, seconds in enumerate([30.0, 50.0, 99.0]):
        timed_run(tmp_path / f"without/ncm/run{run}", seconds)
    for run, seconds in enumerate([6.0, 4.0]):
        timed_run(tmp_path / f"with/ncm/run{run}", seconds)
    row = compared(tmp_path, "ncm", [0, 1, 2])
    assert row.cells() == ["ncm", "2", "80", "10", "8.0", "yes"]
    assert compared(tmp_path, "slda", [0, 1, 2]) is None


def test_a_difference_is_reported(tmp_path):
    for kind, right in (("without", 100), ("with", 101)):
        for strategy in ("ncm", "slda"):
            timed_run(tmp_path / kind / strategy / "run0", 10.0, right if strategy == "ncm" else 100)
    rows = [compared(tmp_path, strategy, [0]) for strategy in ("ncm", "slda")]
    assert "predictions" in rows[0].different
    assert any(line.startswith("result.json: final_accuracy is ") for line in rows[0].different)
    total = with_total(rows)[-1]
    assert total.cells()[:5] == ["all", "2", "20", "20", "1.0"]
    assert total.cells()[5].startswith("no: predictions")


def test_a_given_cache_is_refused(tmp_path):
    done = called("bench_feature_cache", "--quick", "--feature-cache", tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]  # Avalanche may warn before that
    assert last.startswith("error: --feature-cache cannot be given") and "leave it out" in last


@pytest.mark.slow
def test_quick(tmp_path):
    done = called("bench_feature_cache", "--quick", "--strategies", "finetune", "ncm", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "feature_cache.csv") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == HEADER
    assert [row["strategy"] for row in rows] == ["finetune", "ncm", "all"]
    assert {row["the same bits"] for row in rows} == {"yes"}
    lines = (tmp_path / "feature_cache.md").read_text().splitlines()
    assert lines[0].startswith("| strategy |") and lines[1].startswith("| --- |") and len(lines) == 5
    assert any((tmp_path / "feature_cache").iterdir())
    answers = np.load(tmp_path / "with/ncm/run0/predictions.npz")
    assert len(answers["answer"]) > 0
