"""The tables of a report as CSV: numbers, and what is empty."""

import csv

from fake_runs import fake_run, report, sweep

from crumb_avalanche.report.page import Cell, Table, setting


def lines_of(path) -> list[dict]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_one_line_for_each_run(tmp_path):
    report(sweep(tmp_path / "runs"), output=tmp_path / "out")
    lines = lines_of(tmp_path / "out" / "report.csv")
    assert [line["run"] for line in lines] == ["0", "1", "2", "0"]
    assert [line["final_accuracy"] for line in lines] == ["60.00", "70.00", "80.00", "25.00"]
    first, last = lines[0], lines[-1]
    assert (first["accuracy_after_1"], first["accuracy_after_2"]) == ("100.00", "60.00")
    assert (first["memory_bytes"], first["train_seconds"]) == ("1000", "10.0")  # no thousands separator
    assert (last["strategy"], last["group"], last["folder"]) == ("finetune", "finetune", "../runs/finetune")
    assert "threads" not in first and "replay_weight" not in first  # no part of the result; the same in all


def test_what_was_not_run_is_empty(tmp_path):
    """Of 3, 2 and 1 experiences; the joint learner stands where a stream of two ends."""
    after = dict(accuracy_after=[100.0, 80.0, 70.0])
    fake_run(tmp_path / "long", result=after, rows=["0,9,,", "1,9,9,", "2,9,9,9"])
    fake_run(tmp_path / "short", strategy="finetune")
    fake_run(tmp_path / "joint", strategy="offline")
    report(tmp_path)
    names = [f"accuracy_after_{number}" for number in (1, 2, 3)]
    after = {line["strategy"]: [line[name] for name in names] for line in lines_of(tmp_path / "report.csv")}
    assert after["crumb"] == ["100.00", "80.00", "70.00"]
    assert after["finetune"] == ["100.00", "70.00", ""] and after["offline"] == ["", "70.00", ""]


def test_csv_gives_back_what_went_in(tmp_path):
    nasty = 'a\\b{c}$d&e#f|m"n[o*p, q\nr'
    rows = [[Cell(nasty), setting([1, 2])], [Cell("1,234", "1234"), Cell("")]]
    Table({"a": "A", "b": "B"}, rows).write(tmp_path / "a.csv")
    with open(tmp_path / "a.csv", newline="") as file:
        assert list(csv.reader(file)) == [["a", "b"], [nasty, "1, 2"], ["1234", ""]]
