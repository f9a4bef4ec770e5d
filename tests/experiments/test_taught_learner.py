"""Halves of objects, the table of runs, and the whole script on rendered shapes."""

import csv

import pytest
from called_script import called
from taught_learner import halves, lines_of

from benchmarks_toybox_ilab.tables.frame import Frame
from benchmarks_toybox_ilab.tables.frame_table import FrameTable


def frames(objects):
    return FrameTable(
        Frame(f"{name}/{thing}/{number}.png", name, thing, "1", number, "train")
        for name, things in objects.items()
        for thing in things
        for number in range(2)
    )


def test_each_half_has_objects_of_every_class():
    table = frames({"cup": ("c1", "c2", "c3"), "pear": ("p1", "p2")})
    first, second = halves(table, range(len(table)))
    assert {table[row].object_name for row in first} == {"c1", "c3", "p1"}
    assert {table[row].object_name for row in second} == {"c2", "p2"}
    assert sorted(first + second) == list(range(len(table)))


def test_the_table_compares_the_same_runs():
    found = {"run": {0: 90.0, 1: 92.0, 2: 91.0}, "taught": {0: 91.0, 2: 93.0}}
    splits = {0: "a", 1: "b", 2: "c"}
    run, taught = lines_of(found, splits)
    assert run[2:] == ["", "", ""] and taught[2:] == ["+1.50 to run", "-4.9 to +7.9", "+1.0 +2.0"]


@pytest.mark.slow
def test_quick(tmp_path):
    done = called("taught_learner", "--quick", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "taught_learner.csv") as file:
        found = {row["row"]: float(row["accuracy"]) for row in csv.DictReader(file)}
    assert found["taught"] == pytest.approx(found["merged"], abs=5) and found["taught"] > 30  # chance: 25
    again = called("taught_learner", "--quick", "--output", tmp_path)
    assert again.returncode == 0 and "run 0: " not in again.stdout, "finished runs are skipped"
