"""The sweep skips finished runs and survives failing ones; the table is read from the run folders."""

import csv
import json

import pytest
from called_script import called
from competitors import REMIND_SINGLE, collect, lines_of, rows_of, write_tables
from made_runs import made_run
from support.cells import Cell, verdict

from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import RunSettings


def competitors(output, *more):
    return called("competitors", "--quick", "--output", output, "--protocols", "class_iid", *more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    output = tmp_path_factory.mktemp("competitors")
    done = competitors(output, "--strategies", "slda", "chance", "--processes", "2")
    assert done.returncode == 0, done.stderr
    return output, done.stdout


def test_the_table_is_that_of_the_runs(finished):
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
    assert (rows[0]["run"], rows[0]["memory_bytes"]) == ("0", str(memory))
    assert float(rows[0]["final_accuracy"]) == pytest.approx(accuracy, abs=1e-3)
    assert (output / "competitors.png").stat().st_size > 5000


def test_finished_runs_are_skipped_and_a_failing_one_stops_no_other(finished):
    output, _ = finished
    folder = output / "class_iid"
    before = (folder / "slda" / "run0" / "result.json").stat().st_mtime_ns
    (folder / "ncm" / "run0").mkdir(parents=True)
    (folder / "ncm" / "run0" / "config.yaml").mkdir()  # so that it cannot be written
    done = competitors(output, "--strategies", "slda", "ncm", "chance")
    assert done.returncode == 1
    assert (folder / "slda" / "run0" / "result.json").stat().st_mtime_ns == before
    assert "failed: " in done.stderr and "config.yaml exists and is of another program" in done.stderr
    assert "Traceback" in (folder / "ncm" / "run0" / "error.txt").read_text()
    (folder / "ncm" / "run0" / "config.yaml").rmdir()
    done = competitors(output, "--strategies", "slda", "ncm")
    assert done.returncode == 0, done.stderr
    assert not (folder / "ncm" / "run0" / "error.txt").exists()
    assert "| ncm |" in (output / "competitors.md").read_text()


def test_a_method_without_runs_has_no_row(finished):
    output, _ = finished
    done = competitors(output, "--table-only", "--strategies", "slda", "ewc")
    assert done.returncode == 0 and "ewc" not in done.stdout
    done = competitors(output, "--table-only", "--strategies", "slda", "--precision", "bf16")
    assert done.returncode == 1 and "holds a finished run with precision='fp32', not 'bf16'" in done.stderr


def test_a_missing_run_leaves_the_numbers_of_the_others(tmp_path):
    for number in (0, 2):
        folder = made_run(tmp_path / "class_iid" / "der" / f"run{number}", 100 + number)
        (folder / "ledger.json").write_text(json.dumps({"memory_bytes": 1000 + number, "train_seconds": 5.0}))
        result = json.loads((folder / "result.json").read_text()) | {"learning_rate": 0.1}
        (folder / "result.json").write_text(json.dumps(result))
    (row,) = rows = collect(tmp_path, ["der", "ewc"], ["class_iid"], [0, 1, 2])
    assert (row.runs, row.memory, row.seconds, row.rates) == ("2", 1002, 5.0, [0.1])
    write_tables(tmp_path, rows)
    with open(tmp_path / "competitors.csv") as file:
        lines = [(line["run"], line["final_accuracy"], line["memory_bytes"]) for line in csv.DictReader(file)]
    assert lines == [("0", "50.0000", "1000"), ("2", "51.0000", "1002")]


def with_result(folder, right, **more):
    made_run(folder, right)
    (folder / "ledger.json").write_text(json.dumps({"memory_bytes": 1000, "train_seconds": 5.0}))
    result = json.loads((folder / "result.json").read_text()) | {"learning_rate": 0.1} | more
    (folder / "result.json").write_text(json.dumps(result))


def test_ranpac_is_labelled_with_its_projections_and_remind_with_its_way(tmp_path):
    with_result(tmp_path / "class_iid" / "ranpac" / "run0", 100, strategy_settings={"projection": 1640, "ridge": 1.0})
    with_result(tmp_path / "class_iid" / REMIND_SINGLE / "run0", 100)
    rows = collect(tmp_path, ["ranpac", REMIND_SINGLE], ["class_iid"], [0])
    assert [line[0] for line in lines_of(rows)[1:]] == ["ranpac (1,640 projections)", "remind, one image at a time"]
    settings = rows_of(["remind", REMIND_SINGLE], ["class_iid"], 417)
    single = settings["class_iid/" + REMIND_SINGLE]
    assert RunPlan.of(RunSettings(**single)).method["samples_at_a_time"] is True
    assert RunPlan.of(RunSettings(**single)).method["replays"] == 50
    assert RunPlan.of(RunSettings(**settings["class_iid/remind"])).method["samples_at_a_time"] is False


def test_a_run_that_diverged_counts_and_is_told_apart(tmp_path):
    for number, more in enumerate(({}, {"diverged_in_experience": 3}, {"diverged_in_experience": None})):
        with_result(tmp_path / "class_iid" / "der" / f"run{number}", 100 - 30 * number, **more)
    header, line = lines_of(collect(tmp_path, ["der"], ["class_iid"], [0, 1, 2]))
    assert dict(zip(header, line))["runs"] == "3 (1 diverged)"
    assert dict(zip(header, line))["class-iid"].startswith("35.0"), "the mean of all three"


def test_a_killed_run_is_named(tmp_path):
    cell = Cell(RunSettings(output=str(tmp_path / "run0")))
    assert verdict(cell, 0) == ""
    assert verdict(cell, -9) == "its process was killed by signal 9, perhaps for want of memory"
    assert (tmp_path / "run0" / "error.txt").exists()


@pytest.mark.slow
def test_a_quick_look_runs_every_method(tmp_path):
    from crumb_avalanche.methods.registry import STRATEGIES

    done = competitors(tmp_path, "--processes", "2")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "competitors.md").read_text().splitlines()[2:]
    assert [line.split()[1] for line in lines] == list(STRATEGIES)
