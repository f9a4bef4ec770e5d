"""Plans: which source decides a setting, and printed plans read back."""

from dataclasses import FrozenInstanceError, fields, replace

import pytest
import yaml

from benchmarks_toybox_ilab.catalog import BENCHMARKS
from crumb_avalanche.runs.plan import RunPlan, paper_settings, rows
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, RunSettings, as_dict


def test_the_benchmark_fills_in_its_own_values():
    plan = RunPlan.of(RunSettings(benchmark="cifar100"))
    assert (plan.classes_per_experience, plan.batch_size) == (5, 128)
    assert plan.budget == 100 * 3 * 224**2 and plan.capacity is None and not plan.budget_given
    given = RunPlan.of(RunSettings(benchmark="cifar100", batch_size=7, budget_bytes=1000))
    assert (given.batch_size, given.budget) == (7, 1000) and given.budget_given


@pytest.mark.parametrize(
    "settings",
    [
        RunSettings(),
        RunSettings(benchmark="clip_folder", method={"own": 0.5}),
        RunSettings(strategy="slda", family="fair"),
        RunSettings(strategy="stable_sgd", family="paper", benchmark="cifar100", mem_size=3),
    ],
)
def test_a_printed_plan_reads_back_as_the_same_plan(settings):
    plan = RunPlan.of(settings)
    read = RunSettings(**yaml.safe_load(str(replace(plan, capacity=417))))
    assert RunPlan.of(read) == plan == RunPlan.of(plan) and RunPlan.of(read).sha256 == plan.sha256


def test_the_hash_covers_settings_that_change_a_result():
    plan = RunPlan.of(RunSettings())
    assert replace(plan, capacity=3).sha256 == plan.sha256 == replace(plan, output="elsewhere", threads=3).sha256
    assert len({plan.sha256, replace(plan, run=1).sha256, replace(plan, method={**plan.method, "x": 1}).sha256}) == 3
    assert {item.name for item in fields(RunPlan)} > NON_RESULT_SETTINGS
    with pytest.raises(FrozenInstanceError):
        plan.run = 3


def test_a_plan_leaves_only_optional_settings_at_none():
    plan, settings = as_dict(RunPlan.of(RunSettings())), as_dict(RunSettings())
    still_open = {name for name, value in plan.items() if value is None}
    assert still_open == {
        *("dataset_root", "runs", "budget_images", "budget_bytes", "mem_size", "feature_cache", "family", "fps"),
        *("cut_layer", "pretrained", "capacity", "replay_compute"),
    }
    assert {name for name, value in settings.items() if value is None} > still_open - {"capacity"}


def test_tuned_is_crumb_with_more_training_and_a_readout_of_its_memories():
    tuned, paper = (RunPlan.of(RunSettings(benchmark="clip_folder", preset=name)) for name in ("tuned", "paper"))
    assert tuned.strategy == "crumb" and tuned.replay_compute == tuned.learning.replay_compute == 1.4
    assert (tuned.codebook_dim, tuned.method["readout"], tuned.budget) == (64, "closed_form", paper.budget)
    assert RunPlan.of(RunSettings(preset="tuned", method={"readout": "head"})).method["readout"] == "head"
    assert "readout" not in RunPlan.of(RunSettings(preset="tuned", strategy="remind")).method
    # Replay weighs five times, or once where classes weigh the same without it.
    weights = [RunPlan.of(RunSettings(preset=name)).replay_weight for name in ("paper", "tuned")]
    given = RunPlan.of(RunSettings(preset="tuned", replay_compute=1.0, learning_rate=1e-2, replay_weight=3.0))
    assert weights == [5, 1] and (given.replay_compute, given.learning_rate, given.replay_weight) == (1, 1e-2, 3)


def test_settings_override_family_which_overrides_preset():
    paper = dict(strategy="ewc", family="paper")
    plan = RunPlan.of(RunSettings(**paper, preset="reference"))
    assert (plan.cut_layer, plan.learning_rate, plan.head_kernel, plan.clamp_gradients) == (0, 1e-4, 3, 0)
    assert RunPlan.of(RunSettings(**paper, learning_rate=0.5)).learning_rate == 0.5
    usual = RunPlan.of(RunSettings(strategy="ewc"))
    assert (usual.cut_layer, usual.learning_rate, usual.head_kernel, usual.image_size) == (None, 1e-3, 1, 224)
    assert RunPlan.of(RunSettings(strategy="ewc", family="fair")).learning_rate is None
    own, fair = (RunPlan.of(RunSettings(benchmark="clip_folder", family=family)) for family in (None, "fair"))
    assert [(one.preset, one.strategy) for one in (own, fair)] == [("recommended", "rda"), ("paper", "crumb")]
    assert RunPlan.of(RunSettings(benchmark="clip_folder", preset="paper")).strategy == "crumb"
    sgd = dict(strategy="stable_sgd", benchmark="toybox")
    usual = RunPlan.of(RunSettings(**sgd)).method
    assert RunPlan.of(RunSettings(**sgd, family="paper")).method == {**usual, "batch_size": 128, "gamma": 0.95}
    mine = RunPlan.of(RunSettings(**sgd, family="paper", method=dict(gamma=0.5)))
    assert mine.method == {**usual, "batch_size": 128, "gamma": 0.5}


@pytest.mark.parametrize("strategy", rows()["paper"])
def test_every_row_of_the_paper_is_a_plan(strategy):
    assert set(rows()["paper"][strategy].get("where", ())) <= BENCHMARKS.keys()
    for benchmark in BENCHMARKS:
        plan = RunPlan.of(RunSettings(strategy=strategy, benchmark=benchmark, family="paper"))
        row = paper_settings(strategy, benchmark)
        assert plan.method.items() >= row.pop("method").items()
        assert {name: getattr(plan, name) for name in row} == row


def test_rows_of_the_paper_by_hand():
    for strategy, benchmark, settings in (
        ("lwf", "core50", dict(learning_rate=0.2, image_size=32, weights="none", method={})),
        ("lwf", "toybox", dict(learning_rate=0.02)),
        ("stable_sgd", "cifar100", dict(first_epochs=25, method=dict(batch_size=64, gamma=0.99, dropout=0.05))),
        ("mas", "imagenet", dict(batch_size=128, first_epochs=20, method=dict(weight=100.0))),
        ("gem", "ilab", dict(first_epochs=1, learning_rate=1e-4, method=dict(margin=1.0))),
        ("gss", "toybox", dict(backbone="slim_resnet18", batch_size=100)),
        ("crumb", "core50", dict(clamp_gradients=10, cut_layer=None, selection_rule="reference")),
    ):
        assert paper_settings(strategy, benchmark).items() >= settings.items()
    with pytest.raises(ValueError, match=r"did not run slda, so the family 'paper' has no settings .* ran crumb"):
        paper_settings("slda", "core50")
