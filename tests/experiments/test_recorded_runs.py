"""Runs of a table in a CSV file, which count as finished without their folders."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from called_script import made_run
from support.common_options import common_options, parser_for
from support.findings import Cell, find
from support.recorded_runs import (
    COLUMNS,
    RecordedRun,
    RecordedRuns,
    read_recorded,
    write_recorded,
)
from support.runs import (
    FinishedRun,
    planned_text,
    settings_hash,
    settings_text,
)

from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import RunSettings, flat
from crumb_avalanche.system.folder_lock import FolderInUseError, locked_file

RUN = RecordedRun(
    row="Ours",
    benchmark="eth80",
    protocol="class_instance",
    number=3,
    final=82.5,
    seconds=12.3,
    learning_rate=0.003,
    split="abc",
    test_images="def",
    commit="46a1cb66",
    cpu="A CPU, AVX2",
    accuracy_after=(90.0, None, 82.5),
    per_experience=(80.0, 85.0),
    batches=np.array([83.0, 82.0]),
    settings="strategy=crumb replay_weight=5.0",
)


@pytest.fixture
def path(tmp_path):
    """A file with one recorded run."""
    path = tmp_path / "table_runs.csv"
    write_recorded(path, [RUN])
    return path


def test_a_file_holds_runs_unchanged(path):
    (run,) = read_recorded(path)
    assert run == RUN
    assert run.batches.tolist() == [83, 82]
    assert not run.joint


def test_a_run_without_predictions_is_held(path):
    write_recorded(path, [replace(RUN, batches=None, seconds=None, learning_rate=None)])
    (run,) = read_recorded(path)
    assert (run.batches, run.seconds, run.learning_rate) == (None, None, None)


def test_a_joint_run_is_known_by_its_line(path):
    write_recorded(path, [replace(RUN, accuracy_after=(82.5,))])
    assert read_recorded(path)[0].joint


def test_a_run_is_found_by_what_decides_it(path):
    recorded = RecordedRuns(path)
    assert recorded.get("eth80", 3, RUN.settings) == RUN


@pytest.mark.parametrize(
    "key",
    [
        ("core50", 3, RUN.settings),
        ("eth80", 4, RUN.settings),
        ("eth80", 3, "strategy=crumb replay_weight=1.0"),
    ],
    ids=["benchmark", "number", "settings"],
)
def test_another_run_is_not_found(path, key):
    assert RecordedRuns(path).get(*key) is None


@pytest.mark.parametrize(
    "tables, same", [(1, True), (2, False)], ids=["default", "changed"]
)
def test_a_setting_newer_than_the_run_agrees_by_default(path, tables, same):
    planned = f"{RUN.settings} codebook_tables={tables}"
    run = RecordedRuns(path).get("eth80", 3, planned)
    assert (run == RUN) is same


def test_a_setting_of_the_method_newer_than_the_run_agrees_by_default(path):
    recorded = RecordedRuns(path)
    assert recorded.get("eth80", 3, f"{RUN.settings} method.readout=head") == RUN
    assert recorded.get("eth80", 3, f"{RUN.settings} method.readout=none") is None


def test_a_setting_that_is_gone_does_not_agree(path):
    name_of_last = RUN.settings.rpartition(" ")[0]
    assert RecordedRuns(path).get("eth80", 3, name_of_last) is None


def test_a_new_run_has_a_line_of_its_own(path):
    recorded = RecordedRuns(path)
    recorded.add(replace(RUN, final=60.0))
    recorded.add(replace(RUN, number=4))
    runs = read_recorded(path)
    assert [(run.number, run.final) for run in runs] == [(3, 60.0), (4, 82.5)]


def test_a_run_of_other_settings_replaces_no_line(path):
    changed = replace(RUN, settings="strategy=crumb replay_weight=1.0")
    with pytest.raises(ValueError, match=r"run 3 of 'Ours'.*give another --recorded"):
        RecordedRuns(path).add(changed)
    assert read_recorded(path) == [RUN]


@pytest.mark.parametrize("name", ["split", "test_images"])
def test_a_run_of_other_frames_is_not_added(path, name):
    other = replace(RUN, row="Image replay", settings="strategy=image_replay")
    with pytest.raises(ValueError, match=r"'Image replay'.*other frames than .*'Ours'"):
        RecordedRuns(path).add(replace(other, **{name: "of another data set"}))
    assert read_recorded(path) == [RUN]


def test_runs_of_another_number_have_other_frames(path):
    RecordedRuns(path).add(replace(RUN, number=4, split="of run 4"))
    assert [run.number for run in read_recorded(path)] == [3, 4]


def test_lines_of_another_process_stay(path):
    first = RecordedRuns(path)
    second = RecordedRuns(path)
    first.add(replace(RUN, number=4))
    second.add(replace(RUN, number=5))
    assert [run.number for run in read_recorded(path)] == [3, 4, 5]


def test_a_file_is_locked_while_it_is_changed(path, monkeypatch):
    monkeypatch.setattr("support.recorded_runs.PATIENCE", 0.0)
    with (
        locked_file(path),
        pytest.raises(FolderInUseError, match="is being changed by another process"),
    ):
        RecordedRuns(path).add(replace(RUN, number=4))


def test_a_line_that_is_cut_off_is_named(path):
    text = path.read_text()
    path.write_text(text[: text.index(",46a1cb66")])
    with pytest.raises(ValueError, match=r"line 2 of .* cut off; restore the line, or"):
        read_recorded(path)


def test_a_line_without_a_number_is_named(path):
    path.write_text(path.read_text().replace("82.5,12.3", "much,12.3"))
    with pytest.raises(ValueError, match=r"line 2 of .* is damaged: could not convert"):
        read_recorded(path)


def test_edited_settings_are_refused(path):
    path.write_text(path.read_text().replace("weight=5.0", "weight=1.0"))
    with pytest.raises(ValueError, match="run 3 of 'Ours' has settings that do not"):
        read_recorded(path)


def test_other_columns_are_refused(path):
    path.write_text("row,run\nOurs,0\n")
    with pytest.raises(ValueError, match="has the columns row, run; recorded runs"):
        read_recorded(path)


def test_a_line_says_what_its_folder_says(tmp_path):
    folder = made_run(tmp_path / "run3", 160)
    run = FinishedRun(folder, 3, json.loads((folder / "result.json").read_text()))
    line = RecordedRun.of("Ours", "eth80", "class_instance", run)
    assert line.final == 80
    assert line.learning_rate == 0.003
    assert line.accuracy_after == (90, 80)
    assert line.batches.tolist() == run.batches.tolist()
    assert line.test_images == run.test_images
    assert len(line.line) == len(COLUMNS)


@pytest.fixture
def settings(weights_file):
    """Settings of a run that takes weights from a file."""
    return RunSettings(benchmark="toy_shapes", weights=str(weights_file))


def test_planned_settings_name_a_file_by_its_content(settings, tmp_path):
    elsewhere = tmp_path / "copies" / Path(settings.weights).name
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(Path(settings.weights).read_bytes())
    listed = planned_text(settings)
    assert listed == planned_text(replace(settings, weights=str(elsewhere)))
    assert f"weights={elsewhere.name}@" in listed


def test_the_preset_is_always_listed(settings):
    assert planned_text(settings).startswith("preset=paper ")


def test_a_space_in_a_file_name_separates_nothing(settings, tmp_path):
    spaced = tmp_path / "my weights.npz"
    spaced.write_bytes(Path(settings.weights).read_bytes())
    listed = planned_text(replace(settings, weights=str(spaced)))
    words = [word for word in listed.split(" ") if word.startswith("weights=")]
    assert words[0].startswith("weights=my%20weights.npz@")
    assert all("=" in word for word in listed.split(" "))


def test_the_replay_weight_is_always_listed(settings):
    assert "replay_weight=5.0" in planned_text(settings).split()


@pytest.mark.parametrize("change", [{"replay_weight": 1.0}, {"protocol": "class_iid"}])
def test_what_changes_a_result_is_listed(settings, change):
    changed = replace(settings, **change)
    assert planned_text(changed) != planned_text(settings)


@pytest.mark.parametrize("change", [{"threads": 2}, {"output": "x"}, {"run": 3}])
def test_what_changes_no_settings_is_left_out(settings, change):
    changed = replace(settings, **change)
    assert planned_text(changed) == planned_text(settings)


def test_a_finished_run_lists_what_was_planned(settings, tmp_path):
    plan = RunPlan.of(settings)
    folder = made_run(tmp_path / "run0", 160)
    (folder / "config.yaml").write_text(str(plan))
    listed = FinishedRun(folder, 0, {"provenance": {}}).settings
    assert listed == settings_text(flat(vars(plan)), {})


# A whole table, whose runs are handmade.


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A function that makes a table of two runs, and the numbers that it ran."""
    ran = []

    def sweep(runs, engine, output, *, finished, **work):
        for run in runs:
            folder = made_run(Path(run.output), 160 + run.run)
            (folder / "config.yaml").write_text(str(RunPlan.of(run)))
            ran.append(run.run)
            finished(run)
        return {}

    monkeypatch.setattr("support.common_options.sweep", sweep)
    monkeypatch.setattr("support.common_options.tidy_if_finished", lambda run: True)

    def make(output, *more):
        ran.clear()
        words = ["--output", str(tmp_path / output), "--weights", "none", *more]
        words += ["--benchmark", "toy_shapes", "--recorded", str(tmp_path / "runs.csv")]
        options = common_options(
            parser_for("Doc.", "x", several=True).parse_args(words)
        )
        folder = options.output / "ours"
        cell = Cell("Ours", "toy_shapes", "class_instance", folder, {"mem_size": 9})
        (finding,), _ = options.run_cells([cell])
        return finding, list(ran)

    return make


def test_every_run_is_added_to_the_file(table, tmp_path):
    finding, ran = table("here", "--runs", "0-1")
    assert ran == [0, 1] and finding.finals == [80.0, 80.5]
    assert [run.final for run in read_recorded(tmp_path / "runs.csv")] == [80.0, 80.5]


def test_recorded_runs_are_not_done_elsewhere(table):
    table("here", "--runs", "0-1")
    finding, ran = table("elsewhere", "--runs", "0-2")
    assert ran == [2]
    assert finding.finals == [80.0, 80.5, 81.0]


def test_runs_of_other_settings_are_refused(table):
    table("here", "--runs", "0")
    with pytest.raises(ValueError, match=r"run 0 of 'Ours' .* not replaced by one of"):
        table("elsewhere", "--runs", "0", "--replay-weight", "1")


def test_a_recorded_run_goes_before_a_folder(table, tmp_path):
    """A folder of other settings is no part of the table."""
    table("here", "--runs", "0")
    made_run(tmp_path / "elsewhere" / "ours" / "run0", 20)
    finding, ran = table("elsewhere", "--runs", "0")
    assert ran == [] and finding.finals == [80.0]


def test_finished_folders_are_added(table, tmp_path):
    table("here", "--runs", "0")
    (tmp_path / "runs.csv").unlink()
    _, ran = table("here", "--runs", "0", "--table-only")
    assert ran == [] and len(read_recorded(tmp_path / "runs.csv")) == 1


def test_recorded_runs_are_tested_as_folders_are(table, tmp_path):
    """The paper's test needs batches of test images, which lines have too."""
    for number in (0, 1):
        made_run(tmp_path / "a" / f"run{number}", 160 + number)
        made_run(tmp_path / "b" / f"run{number}", 120)
    first = Cell("A", "x", "class_iid", tmp_path / "a", reference=tmp_path / "a")
    second = replace(first, row="B", folder=tmp_path / "b")
    from_folders = find([first, second], [0, 1])

    def lines(cell, numbers):
        (finding,) = find([replace(cell, reference=None)], numbers)
        return [RecordedRun.of("x", "x", "x", run) for run in finding.runs]

    from_lines = find([first, second], [0, 1], lines)
    assert from_lines[1].s4 == from_folders[1].s4
    assert from_lines[1].paired == from_folders[1].paired
    assert from_lines[1].s4_filtered_holm == from_folders[1].s4_filtered_holm


def test_the_hash_is_that_of_the_settings():
    expected = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
    assert settings_hash("foo") == expected
