"""The comparison runs, and its figures follow their definitions; their values are not tested."""

import pytest
import task_incremental as script

from crumb_avalanche.runs.plan import RunPlan


def test_differences_are_within_a_run():
    def run(value):
        return dict.fromkeys(script.FIGURES, value)

    figures = {"finetune": [run(10.0), run(30.0)], "ewc": [run(14.0), run(36.0)]}
    row = script.rows_of(figures)[-1]
    assert (row["method"], row["mean"], row["minus_finetune"]) == ("ewc", 25.0, 5.0)
    assert row["std"] == pytest.approx(22 / 2**0.5) and row["minus_finetune_std"] == pytest.approx(2**0.5)


def test_one_run_has_no_deviation():
    (row, *_) = script.rows_of({"finetune": [dict.fromkeys(script.FIGURES, 10.0)]})
    assert row["std"] is None and row["minus_finetune_std"] is None and row["mean"] == 10.0


def test_unknown_methods_are_refused():
    assert [method.strategy for method in script.chosen_methods("si, lwf")] == ["finetune", "si", "lwf"]
    with pytest.raises(ValueError, match="no method ewk here; known are finetune, ewc, si, mas, lwf, stable_sgd"):
        script.chosen_methods("ewk")


def test_a_stream_may_be_shortened():
    changes = {**script.QUICK, "classes_per_experience": 2}
    settings = RunPlan.of(script.RunSettings(**changes, strategy="finetune", threads=1))
    figures = script.measure(settings, script.Method("finetune"), experiences=2)
    assert len(figures["after_learning"]) == len(figures["after_the_stream"]) == 2  # of five
    with pytest.raises(ValueError, match="the stream has 1 experience, so nothing can be forgotten; give"):
        script.measure(settings, script.Method("finetune"), experiences=1)


def test_strengths_replace_the_defaults():
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
def test_wrong_strengths_are_refused(text, words):
    with pytest.raises(ValueError, match=words):
        script.with_strengths(list(script.METHODS), text)
