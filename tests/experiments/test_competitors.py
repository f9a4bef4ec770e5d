"""A sweep keeps what is finished and survives what fails; the table is made of the run folders."""

import csv
import json

import pytest
from called_script import called
from cells import Cell, verdict

from crumb_avalanche.cli.settings import RunSettings


def competitors(output, *more):
    return called("competitors", "--quick", "--output", output, "--protocols", "class_iid", *more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    output = tmp_path_factory.mktemp("competitors")
    done = competitors(output, "--strategies", "slda", "chance", "--processes", "2")
    assert done.returncode == 0, done.stderr
    return output, done.stdout


def test_the_table_is_what_the_runs_say(finished):
    output, printed = finished
    result = json.loads((output / "class_iid" / "slda" / "run0" / "result.json").read_text())
    ledger = json.loads((output / "class_iid" / "slda" / "run0" / "ledger.json").read_text())
    table = (output / "competitors.md").read_text().splitlines()
    assert table[0] == "| method | class-iid | runs | bytes kept | seconds | learning rate |"
    line = next(line for line in table if line.startswith("| slda"))
    accuracy, memory = result["final_accuracy"], ledger["memory_bytes"]
    assert line == f"| slda | {accuracy:.1f} | 1 | {memory:,} | {ledger['train_seconds']:.0f} |  |"
    assert "slda" in printed and "chance" in printed
    with open(output / "competitors.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["slda", "chance"]
    assert float(rows[0]["final_accuracy"]) == pytest.approx(accuracy, abs=1e-3)
    assert (output / "competitors.png").stat().st_size > 5000


def test_finished_runs_are_kept_and_a_failing_one_stops_no_other(finished):
    output, _ = finished
    folder = output / "class_iid"
    before = (folder / "slda" / "run0" / "result.json").stat().st_mtime_ns
    (folder / "ncm" / "run0").mkdir(parents=True)
    (folder / "ncm" / "run0" / "config.yaml").mkdir()  # so that it cannot be written
    done = competitors(output, "--strategies", "slda", "ncm", "chance")
    assert done.returncode == 1
    assert (folder / "slda" / "run0" / "result.json").stat().st_mtime_ns == before
    assert "failed: " in done.stderr and "Is a directory" in done.stderr
    assert "Traceback" in (folder / "ncm" / "run0" / "error.txt").read_text()
    (folder / "ncm" / "run0" / "config.yaml").rmdir()
    done = competitors(output, "--strategies", "slda", "ncm")
    assert done.returncode == 0, done.stderr
    assert not (folder / "ncm" / "run0" / "error.txt").exists()
    assert "| ncm |" in (output / "competitors.md").read_text()


def test_a_method_that_was_not_run_is_no_row(finished):
    output, _ = finished
    done = competitors(output, "--table-only", "--strategies", "slda", "ewc")
    assert done.returncode == 0 and "ewc" not in done.stdout


def test_a_killed_run_is_named(tmp_path):
    cell = Cell(RunSettings(output=str(tmp_path / "run0")))
    assert verdict(cell, 0) == ""
    assert verdict(cell, -9) == "its process was killed by signal 9, perhaps for want of memory"
    assert (tmp_path / "run0" / "error.txt").exists()


@pytest.mark.slow
def test_a_quick_look_runs_every_method(tmp_path):
    from crumb_avalanche.baselines.registry import STRATEGIES

    done = competitors(tmp_path, "--processes", "2")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "competitors.md").read_text().splitlines()[2:]
    assert [line.split()[1] for line in lines] == list(STRATEGIES)
