"""Plans: which source decides a setting, and printed plans read back."""

import ast
import subprocess
import sys
from dataclasses import FrozenInstanceError, asdict, fields, replace
from pathlib import Path

import pytest
import yaml

import crumb_avalanche
from benchmarks_toybox_ilab.catalog import BENCHMARKS
from crumb_avalanche.runs.plan import RunPlan, paper_settings, rows
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, RunSettings, as_dict
from crumb_avalanche.training.replay_settings import ReplaySettings


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


def test_a_wrong_name_is_refused_before_torch_is_loaded():
    code = "import sys; from crumb_avalanche.cli import main; main({!r}); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code.format(["run", "--strategy", "ewk"])], capture_output=True, text=True, check=True
    )
    assert "known are aanets, bic" in done.stderr and done.stdout.strip() == "False"


def literal_defaults(path):
    """(name, file) of each default of a parameter or of a class's field that is a literal."""
    for node in ast.walk(ast.parse(path.read_text())):
        pairs = []
        if isinstance(node, ast.FunctionDef):
            arguments = node.args.posonlyargs + node.args.args
            pairs = list(zip(arguments[::-1], node.args.defaults[::-1]))
            pairs += [(arg, value) for arg, value in zip(node.args.kwonlyargs, node.args.kw_defaults) if value]
            pairs = [(arg.arg, value) for arg, value in pairs]
        elif isinstance(node, ast.ClassDef):
            pairs = [
                (part.target.id, part.value) for part in node.body if isinstance(part, ast.AnnAssign) and part.value
            ]
        yield from (
            (name, path.stem) for name, value in pairs if isinstance(value, ast.Constant) and value.value is not None
        )


def test_each_default_of_losses_and_replay_is_defined_once():
    names = {name for name, value in asdict(ReplaySettings()).items() if value is not None}
    found = [pair for path in Path(crumb_avalanche.__file__).parent.rglob("*.py") for pair in literal_defaults(path)]
    # Pretraining has the same two losses with weights of its own.
    pretraining = {(name, file) for name in names for file in ("pretraining", "command_settings")}
    assert sorted(pair for pair in found if pair[0] in names and pair not in pretraining) == sorted(
        (name, "replay_settings") for name in names
    )
    assert ("run", "settings") in found  # the walk sees defaults


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
    given = RunPlan.of(RunSettings(preset="tuned", replay_compute=1.0, learning_rate=1e-2))
    assert (given.replay_compute, given.learning_rate) == (1, 1e-2)


@pytest.mark.parametrize(
    ("given", "weight"),
    [({}, 5), ({"preset": "tuned"}, 1), ({"replay_compute": 2.0}, 1), ({"preset": "tuned", "replay_weight": 3.0}, 3)],
)
def test_replay_weighs_five_times_unless_classes_weigh_the_same_without_it(given, weight):
    assert RunPlan.of(RunSettings(**given)).replay_weight == weight


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


@pytest.mark.parametrize(
    ("strategy", "benchmark", "settings"),
    [
        ("lwf", "core50", dict(learning_rate=0.2, image_size=32, weights="none", method={})),
        ("lwf", "toybox", dict(learning_rate=0.02)),
        ("stable_sgd", "cifar100", dict(first_epochs=25, method=dict(batch_size=64, gamma=0.99, dropout=0.05))),
        ("mas", "imagenet", dict(batch_size=128, first_epochs=20, method=dict(weight=100.0))),
        ("mas", "core50", dict(learning_rate=1e-3, method={})),
        ("gem", "ilab", dict(first_epochs=1, learning_rate=1e-4, method=dict(margin=1.0))),
        ("gss", "toybox", dict(backbone="slim_resnet18", batch_size=100)),
        ("crumb", "core50", dict(clamp_gradients=10, cut_layer=None, selection_rule="reference")),
        ("rainbow_memory", "core50", dict(image_size=128, learning_rate=0.004)),
    ],
)
def test_rows_of_the_paper(strategy, benchmark, settings):
    assert paper_settings(strategy, benchmark).items() >= settings.items()


def test_a_method_without_a_row_of_the_paper_is_refused():
    with pytest.raises(ValueError, match=r"did not run slda, so the family 'paper' has no settings .* ran crumb"):
        paper_settings("slda", "core50")
