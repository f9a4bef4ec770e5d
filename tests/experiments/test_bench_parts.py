"""The profile of a stream image has all its parts for each preset; the values are not tested."""

import csv

import pytest
from called_script import called


@pytest.mark.slow
def test_each_row_has_all_parts_and_a_picture(tmp_path):
    done = called("bench_parts", "--quick", "--cpu-time", "--threads", "1", "--pixels", "40", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {row.pop("preset"): row for row in csv.DictReader((tmp_path / "parts.csv").open())}
    assert list(rows) == ["paper", "tuned", "recommended"]
    for preset, row in rows.items():
        assert row.pop("pixels") == "40"
        assert all(float(row[part]) > 0 for part in ("decode", "resize", "F", "P", "rest"))
        assert (float(row["search"]) > 0) == (float(row["replay"]) > 0) == (preset != "recommended")
    assert (tmp_path / "parts.png").stat().st_size > 1000


@pytest.mark.slow
def test_strategies_stand_beside_presets(tmp_path):
    words = ("--quick", "--threads", "1", "--pixels", "40", "--presets", "recommended", "slda", "offline")
    done = called("bench_parts", *words, "--name", "methods", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {row["preset"]: float(row["F"]) for row in csv.DictReader((tmp_path / "methods.csv").open())}
    assert list(rows) == ["recommended", "slda", "offline"]
    assert rows["offline"] > 3 * rows["slda"] > 0  # ten epochs
