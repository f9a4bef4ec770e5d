"""Accuracy against bytes: which settings are run, what is said where another method is ahead, the whole script."""

import csv

import pytest
from bytes_dial import BUDGETS, OURS, ROWS, behind, changes_of, points_of
from called_script import called
from made_runs import made_run

from crumb_avalanche.methods.registry import get_strategy


def test_rows_are_existing_settings():
    assert all(get_strategy(settings.get("strategy", OURS)) for settings in ROWS.values())
    changes = changes_of(["rda", "ncm"], [10, 20], "class_iid")
    assert list(changes) == ["rda/10", "rda/20", "ncm/0"]
    assert [one["budget_bytes"] for one in changes.values()] == [10, 20, BUDGETS[-1]]


def test_what_is_ahead_is_said(tmp_path):
    def made(row, budget, right, size, run=0):
        folder = made_run(tmp_path / "eth80" / row / str(budget) / f"run{run}", right)
        (folder / "ledger.json").write_text(f'{{"memory_bytes": {size}, "images_per_second": 50.0}}')

    made("rda", 100, 160, 90)
    made("rda", 400, 180, 300)
    made("rda", 400, 100, 300, run=1)  # no run of the others
    made("ncm", 0, 120, 50)
    made("slda", 0, 170, 200)
    made("crumb", 400, 178, 390)
    points = points_of(tmp_path, [0, 1])
    assert [(point.row, point.budget, point.bytes) for point in points] == [
        ("rda", 100, 90), ("rda", 400, 300), ("slda", 0, 200), ("ncm", 0, 50), ("crumb", 400, 390),
    ]  # fmt: skip
    slda, ncm = behind(points[:-1])
    assert slda.startswith("eth80: slda in 200 bytes is above by ") and "ncm" in ncm and "too few for us" in ncm
    assert behind(points[1:2] + points[4:]) == []


def test_quick(tmp_path):
    done = called("bytes_dial", "--quick", "--output", tmp_path, "--budgets", "10", "20000")
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "bytes_dial.csv") as file:
        found = [(line["row"], line["budget"]) for line in csv.DictReader(file)]
    assert found == [("rda", "20000"), ("slda", "0"), ("ncm", "0")], "10 bytes are too few"
    assert (tmp_path / "bytes_dial.png").stat().st_size > 10_000
    done = called("bytes_dial", "--output", tmp_path, "--preset", "reference")
    assert done.returncode == 1 and "every row has its own preset; leave it out" in done.stderr


@pytest.mark.slow
def test_quick_all_rows(tmp_path):
    done = called("bytes_dial", "--quick", "--output", tmp_path, "--budgets", "40000", "--rows", *ROWS)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "bytes_dial.csv") as file:
        assert {line["row"] for line in csv.DictReader(file)} == set(ROWS)
