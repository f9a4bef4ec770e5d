"""The comparison runs, and its figures follow their definitions; their values are not tested."""

import csv
import importlib.util
import json
import statistics
import sys
from pathlib import Path

import pytest
import torch

from crumb_avalanche.runs.plan import RunPlan

SCRIPT = Path(__file__).parents[2] / "experiments" / "task_incremental.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("task_incremental", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["task_incremental"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    torch.set_num_threads(1)
    yield module
    del sys.modules["task_incremental"]


@pytest.mark.filterwarnings("ignore:the plastic layers have no dropout")
@pytest.mark.slow
def test_quick_run_measures_all_methods_and_is_not_repeated(script, tmp_path, capsys, monkeypatch):
    arguments = ["--quick", "--threads", "1", "--output", str(tmp_path)]
    script.main(arguments)
    first = capsys.readouterr().out
    names = [method.strategy for method in script.METHODS]
    assert names == ["finetune", "ewc", "si", "mas", "lwf", "stable_sgd"]
    for name in names:
        assert first.count(f"run 0, {name}: ") == 1 and f"\n{name} " in first
    assert (tmp_path / "report.png").stat().st_size > 10_000
    with open(tmp_path / "table.csv") as file:
        rows = {(row["method"], row["figure"]): row for row in csv.DictReader(file)}
    assert set(rows) == {(name, figure) for name in names for figure in script.FIGURES}
    plain = None
    for name in names:
        figures = json.loads((tmp_path / f"{name}_run0.json").read_text())["figures"]
        plain = plain or figures
        before, after = figures["after_learning"], figures["after_the_stream"]
        assert len(before) == len(after) == 2 and before[-1] == after[-1]  # tested with the same weights
        assert figures["task_incremental"] == pytest.approx(statistics.fmean(after))
        assert figures["forgetting"] == pytest.approx(before[0] - after[0])
        # A hint takes wrong answers away; as many test images belong to each experience.
        assert figures["task_incremental"] >= figures["class_incremental"]
        for figure in script.FIGURES:
            row = rows[name, figure]
            assert float(row["mean"]) == pytest.approx(figures[figure], abs=1e-3) and row["runs"] == "1"
            assert float(row["minus_finetune"]) == pytest.approx(figures[figure] - plain[figure], abs=1e-3)

    monkeypatch.setattr(script, "measure", None)  # nothing is measured again
    script.main([*arguments, "--methods", "lwf"])
    assert "run 0, lwf: " in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"lwf_run0\.json was made with other settings; choose another --output"):
        monkeypatch.setattr(script, "METHODS", (script.Method("finetune"), script.Method("lwf", {"alpha": 7.0})))
        script.main([*arguments, "--methods", "lwf"])


def test_differences_are_within_a_run(script):
    def run(value):
        return dict.fromkeys(script.FIGURES, value)

    figures = {"finetune": [run(10.0), run(30.0)], "ewc": [run(14.0), run(36.0)]}
    row = script.rows_of(figures)[-1]
    assert (row["method"], row["mean"], row["minus_finetune"]) == ("ewc", 25.0, 5.0)
    assert row["std"] == pytest.approx(22 / 2**0.5) and row["minus_finetune_std"] == pytest.approx(2**0.5)


def test_one_run_has_no_deviation(script):
    (row, *_) = script.rows_of({"finetune": [dict.fromkeys(script.FIGURES, 10.0)]})
    assert row["std"] is None and row["minus_finetune_std"] is None and row["mean"] == 10.0


def test_unknown_methods_are_refused(script):
    assert [method.strategy for method in script.chosen_methods("si, lwf")] == ["finetune", "si", "lwf"]
    with pytest.raises(ValueError, match="no method ewk here; known are finetune, ewc, si, mas, lwf, stable_sgd"):
        script.chosen_methods("ewk")


def test_a_stream_may_be_shortened(script):
    changes = {**script.QUICK, "classes_per_experience": 2}
    settings = RunPlan.of(script.RunSettings(**changes, strategy="finetune", threads=1))
    figures = script.measure(settings, script.Method("finetune"), experiences=2)
    assert len(figures["after_learning"]) == len(figures["after_the_stream"]) == 2  # of five
    with pytest.raises(ValueError, match="the stream has 1 experience, so nothing can be forgotten; give"):
        script.measure(settings, script.Method("finetune"), experiences=1)


def test_strengths_replace_the_defaults(script):
    methods = script.with_strengths(list(script.METHODS), "si=10000, lwf=10")
    assert {method.strategy: method.settings for method in methods} == {
        **{method.strategy: method.settings for method in script.METHODS},
        "si": {"weight": 10000.0},
        "lwf": {"alpha": 10.0},
    }
    assert script.with_strengths(methods, None) == methods


@pytest.mark.parametrize(
    "text, words",
    [
        ("si", "--strengths has 'si', but needs NAME=NUMBER, such as si=10000"),
        ("si=much", "--strengths has 'si=much', but needs NAME=NUMBER"),
        ("finetune=1", "--strengths has 'finetune', but those with a strength are ewc, si, mas, lwf"),
    ],
)
def test_wrong_strengths_are_refused(script, text, words):
    with pytest.raises(ValueError, match=words):
        script.with_strengths(list(script.METHODS), text)
