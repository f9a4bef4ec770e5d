"""Recorded runs that are done again, and what is said of their digits."""

from dataclasses import replace
from pathlib import Path

import pytest
from called_script import called
from repeat import (
    Repeated,
    chosen_runs,
    kind_of,
    path_of,
    settings_of,
    table_name,
    value_of,
)
from support.recorded_runs import RecordedRun, read_recorded, write_recorded
from support.runs import FinishedRun, planned_text

from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import RunSettings, result_settings

QUICK = ["--quick", "--strategies", "finetune", "--processes", "0"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A table of one short run of two rows."""
    folder = tmp_path_factory.mktemp("table")
    process = called("table1_accuracy", *QUICK, "--output", folder)
    assert process.returncode == 0, process.stderr
    return folder / "table1_runs.csv"


def test_a_run_repeats_to_the_last_digit(recorded, tmp_path):
    process = called("repeat", recorded, "--processes", "0", "--output", tmp_path)
    assert process.returncode == 0, process.stderr
    header, line = (tmp_path / "repeat.csv").read_text().splitlines()
    assert header.startswith("row,run,recorded,repeated,digits that came back,verdict")
    assert ",all,equal," in line


def test_settings_are_read_back_as_they_were(recorded, tmp_path):
    (run,) = read_recorded(recorded)
    settings = settings_of(run, [], None, tmp_path)
    assert planned_text(settings) == run.settings


def test_settings_of_a_method_are_read_back(tmp_path):
    settings = RunSettings(
        benchmark="toy_shapes",
        strategy="gem",
        weights="none",
        family="fair",
        learning_rate=1e-5,
        method={"margin": 1.0},
    )
    line = planned_text(settings)
    run = made(settings=line, benchmark="toy_shapes")
    assert planned_text(settings_of(run, [], None, tmp_path)) == line


@pytest.mark.parametrize(
    "given",
    [
        {"preset": "tuned"},
        {"preset": "recommended", "method": {"looks": "1"}},
        {"preset": "reference", "family": "fair"},
        {"strategy": "offline", "mem_size": 9, "precision": "bf16"},
        {"strategy": "gem", "family": "fair"},
        {"strategy": "crumb", "family": "paper"},
        {"strategy": "stable_sgd", "family": "fair"},
        {"classes_per_experience": 3, "batch_size": 7, "replay_limit": 4},
    ],
)
def test_a_line_repeats_the_plan_of_its_run(given, tmp_path):
    planned = RunSettings(benchmark="toy_shapes", weights="none", **given)
    run = made(settings=planned_text(planned), benchmark="toy_shapes")
    repeated = settings_of(run, [], None, tmp_path)
    plan = RunPlan.of(planned)
    plan_again = RunPlan.of(repeated)
    assert result_settings(vars(plan_again)) == result_settings(vars(plan))


def test_a_file_with_a_space_in_its_name_is_found(tmp_path):
    run = made(settings="preset=paper strategy=crumb weights=my%20w.npz@01234567")
    settings = settings_of(run, [tmp_path / "my w.npz"], None, tmp_path)
    assert settings.weights == str(tmp_path / "my w.npz")


def test_runs_of_two_tables_have_folders_of_their_own():
    assert table_name(Path("results/table1_runs.csv")) == "table1"
    assert table_name(Path("x/table1_cifar100_runs.csv")) == "table1_cifar100"


def test_a_repetition_of_other_settings_is_refused(recorded, tmp_path):
    words = ["--processes", "0", "--output", tmp_path]
    assert called("repeat", recorded, *words).returncode == 0
    (config,) = tmp_path.glob("table1/*/run0/config.yaml")
    config.write_text(config.read_text().replace("momentum: 0.9", "momentum: 0.5"))
    process = called("repeat", recorded, "--table-only", *words)
    assert process.returncode == 1 and "run0" in process.stderr, process.stdout


def made(**changes):
    """A recorded run of CRUMB."""
    run = RecordedRun(
        row="Ours",
        benchmark="eth80",
        protocol="class_instance",
        number=0,
        final=72.4085,
        seconds=1.0,
        learning_rate=0.001,
        split="abc",
        test_images="def",
        commit="46a1cb66",
        cpu="A, AVX2",
        accuracy_after=(72.4085,),
        per_experience=(72.4085,),
        batches=None,
        settings="strategy=crumb weights=w.npz@01234567",
    )
    return replace(run, **changes)


def again(final, cpu="A, AVX2", split="abc"):
    """The same run, done again."""
    result = {"final_accuracy": final, "frame_table_sha256": split}
    return FinishedRun(Path("x"), 0, {**result, "versions": {"cpu": cpu}})


@pytest.mark.parametrize(
    ("final", "digits"),
    [(72.4085, "all"), (72.4091, "72.40"), (72.5, "72."), (12.5, "none")],
)
def test_digits_that_came_back(final, digits):
    assert Repeated(made(), again(final), "training").digits == digits


@pytest.mark.parametrize(
    ("run", "kind", "verdict"),
    [
        (again(72.4085), "training", "equal"),
        (again(72.4085, "B, AVX512"), "closed form", "equal"),
        (again(72.0), "training", "differs on the same CPU"),
        (again(80.0, "B"), "training", "within 10 points (training, another CPU)"),
        (again(83.0, "B"), "training", "more than 10 points off"),
        (again(72.0, "B"), "closed form", "within 0.5 points"),
        (again(74.0, "B"), "closed form", "more than 0.5 points off"),
        (again(74.0, "B"), "joint training", "within 3 points"),
        (again(72.4085, split="other"), "training", "other frames"),
        (None, "training", "not run"),
    ],
)
def test_verdict_of_a_repetition(run, kind, verdict):
    assert Repeated(made(), run, kind).verdict.startswith(verdict)


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [("crumb", "training"), ("slda", "closed form"), ("offline", "joint training")],
)
def test_kind_of_a_method(strategy, kind):
    assert kind_of(strategy) == kind


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5.0", 5.0),
        ("1e-05", 1e-5),
        ("False", False),
        ("None", None),
        ("crumb", "crumb"),
        ("9", 9),
        ("1,0.6", "1,0.6"),
    ],
)
def test_values_of_settings(text, value):
    assert value_of(text) == value


def test_a_file_is_taken_by_its_name(tmp_path):
    settings = settings_of(made(), [tmp_path / "w.npz"], "ETH80", tmp_path)
    assert settings.weights == str(tmp_path / "w.npz")
    assert settings.dataset_root == "ETH80"


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"started from w\.npz, which is not among"):
        settings_of(made(), [], None, tmp_path)


def test_a_setting_that_is_gone_is_named(tmp_path):
    run = made(settings="strategy=crumb storing_rule=every_jth")
    with pytest.raises(ValueError, match="made with storing_rule, which crumb run"):
        settings_of(run, [], None, tmp_path)


def test_rows_and_numbers_are_chosen(tmp_path):
    path = tmp_path / "a_runs.csv"
    runs = [made(number=number, row=row) for row in "AB" for number in (0, 5)]
    write_recorded(path, runs)
    assert chosen_runs(path, ["B"], [5, 6]) == [made(number=5, row="B")]
    with pytest.raises(ValueError, match="has no row 'C'; its rows are A, B"):
        chosen_runs(path, ["C"], [0])
    with pytest.raises(ValueError, match=r"has none of the runs \[9\]"):
        chosen_runs(path, None, [9])


def test_an_unknown_table_is_named():
    with pytest.raises(ValueError, match="there is no table 'nonsense'; recorded are"):
        path_of("nonsense")
