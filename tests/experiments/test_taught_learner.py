"""Halves of objects, and the table of runs, of the learner that is taught in lessons."""

from taught_learner import halves, lines_of

from benchmarks_toybox_ilab.tables.frame import Frame
from benchmarks_toybox_ilab.tables.frame_table import FrameTable


def test_each_half_has_objects_of_every_class():
    objects = [("cup", name) for name in ("c1", "c2", "c3")] + [("pear", name) for name in ("p1", "p2")]
    table = FrameTable(Frame(f"{k}/{o}/{n}.png", k, o, "1", n, "train") for k, o in objects for n in range(2))
    first, second = halves(table, range(len(table)))
    assert {table[row].object_name for row in first} == {"c1", "c3", "p1"}
    assert {table[row].object_name for row in second} == {"c2", "p2"}
    assert sorted(first + second) == list(range(len(table)))


def test_the_table_compares_the_same_runs():
    found = {"run": {0: 90.0, 1: 92.0, 2: 91.0}, "taught": {0: 91.0, 2: 93.0}}
    found |= {"own 0, small": {0: 50.0}, "own 0.3, small": {0: 48.0}}
    run, taught, _, own = lines_of(found, {0: "a", 1: "b", 2: "c"})
    assert run[2:] == ["", "", ""] and taught[2:] == ["+1.50 to run", "-4.9 to +7.9", "+1.0 +2.0"]
    assert own[2:] == ["-2.00 to own 0, small", "", "-2.0"]
