"""Plans: which source decides a setting, and what a plan says of itself."""

from dataclasses import FrozenInstanceError, fields, replace

import pytest
import yaml

from benchmarks_toybox_ilab.catalog import BENCHMARKS
from crumb_avalanche.runs.plan import RunPlan, paper_settings, presets_file
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, RunSettings


def plan_of(**settings):
    return RunPlan.of(RunSettings(**settings))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("classes_per_experience", 5),
        ("batch_size", 128),
        ("budget", 100 * 3 * 224**2),
        ("capacity", None),
        ("budget_given", False),
    ],
)
def test_the_benchmark_fills_in_its_values(name, value):
    assert getattr(plan_of(benchmark="cifar100"), name) == value


@pytest.mark.parametrize(
    ("name", "value"), [("batch_size", 7), ("budget", 1000), ("budget_given", True)]
)
def test_settings_go_before_the_benchmark(name, value):
    plan = plan_of(benchmark="cifar100", batch_size=7, budget_bytes=1000)
    assert getattr(plan, name) == value


@pytest.mark.parametrize(
    ("settings", "source"),
    [
        (dict(preset="reference"), "preset reference"),
        (dict(preset="reference", relu_logits=False), "preset reference"),
        (dict(family="paper"), "family paper"),
        (dict(relu_logits=True, head_kernel=1), "these settings"),
    ],
)
@pytest.mark.parametrize("backbone", ["efficientnet_lite0", "resnet18", "timm:vgg11"])
def test_heads_of_squeezenet_alone(backbone, settings, source):
    words = (
        f"of {source} are for the last convolution of SqueezeNet, and {backbone} ends "
        "in a linear layer: give --relu-logits false --head-kernel 1"
    )
    with pytest.raises(ValueError, match=words):
        plan_of(backbone=backbone, **settings)


@pytest.mark.parametrize(
    ("strategy", "name", "value"),
    [("remind", "weight_decay", 0.0), ("stable_sgd", "momentum", 0.5)],
)
def test_a_setting_that_a_method_has_of_its_own(strategy, name, value):
    words = f"--{name.replace('_', '-')} {value} has no effect on {strategy}"
    with pytest.raises(ValueError, match=f"{words}.*give --method.{name} {value}"):
        plan_of(strategy=strategy, **{name: value})
    plan = plan_of(strategy=strategy, method={name: value})
    assert plan.method[name] == value


def test_the_usual_head_of_another_backbone():
    plan = plan_of(
        preset="reference", backbone="resnet18", relu_logits=False, head_kernel=1
    )
    assert plan.clamp_gradients == 10


SETTINGS = [
    RunSettings(),
    RunSettings(benchmark="clip_folder", method={"own": 0.5}),
    RunSettings(strategy="slda", family="fair"),
    RunSettings(
        strategy="stable_sgd", family="paper", benchmark="cifar100", mem_size=3
    ),
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_printed_plan_reads_back(settings):
    plan = RunPlan.of(settings)
    read = RunSettings(**yaml.safe_load(str(replace(plan, capacity=417))))
    assert RunPlan.of(read) == plan
    assert RunPlan.of(read).sha256 == plan.sha256


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_plan_of_a_plan_is_the_same(settings):
    plan = RunPlan.of(settings)
    assert RunPlan.of(plan) == plan


@pytest.mark.parametrize(
    "changes", [{"capacity": 3}, {"output": "elsewhere", "threads": 3}]
)
def test_the_hash_leaves_out_what_changes_no_result(changes):
    plan = plan_of()
    assert replace(plan, **changes).sha256 == plan.sha256


@pytest.mark.parametrize("changes", [{"run": 1}, {"method": {"x": 1}}])
def test_the_hash_covers_what_changes_a_result(changes):
    plan = plan_of()
    assert replace(plan, **changes).sha256 != plan.sha256


def test_settings_left_out_of_the_hash_exist():
    assert {entry.name for entry in fields(RunPlan)} > NON_RESULT_SETTINGS


def test_a_plan_does_not_change():
    plan = plan_of()
    with pytest.raises(FrozenInstanceError):
        plan.run = 3


STILL_OPEN = {
    "dataset_root",
    "runs",
    "budget_images",
    "budget_bytes",
    "mem_size",
    "feature_cache",
    "family",
    "fps",
    "cut_layer",
    "pretrained",
    "capacity",
    "replay_limit",
    "memories_per_image",
    "replay_compute",
}


def test_a_plan_leaves_optional_settings_open():
    values = vars(plan_of())
    assert {name for name, value in values.items() if value is None} == STILL_OPEN


def test_what_a_plan_leaves_open_is_open_in_settings():
    values = vars(RunSettings())
    unset = {name for name, value in values.items() if value is None}
    assert unset > STILL_OPEN - {"capacity"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strategy", "crumb"),
        ("replay_compute", 1.4),
        ("codebook_dim", 32),
        ("codebook_search", "distance"),
        ("codebook_init", "kmeans"),
        ("codebook_filter", True),
        ("fine_tuning", True),
        ("budget", 15 * 3 * 224**2),
    ],
)
def test_tuned_is_crumb_with_more_training(name, value):
    plan = plan_of(benchmark="clip_folder", preset="tuned")
    assert getattr(plan, name) == value


@pytest.mark.parametrize(
    ("settings", "length"),
    [
        (dict(backbone="efficientnet_lite0"), 8),
        (dict(backbone="mobilenet_v2"), 4),
        (dict(backbone="resnet18"), 8),
        (dict(memories_per_image=50), 16),
        (dict(codebook_dim=64), 64),
    ],
)
def test_row_length_follows_from_the_map(settings, length):
    assert plan_of(preset="tuned", **settings).codebook_dim == length


def test_tuned_trains_at_its_compute():
    assert plan_of(preset="tuned").learning.replay_compute == 1.4


@pytest.mark.parametrize(
    "settings",
    [
        dict(preset="paper"),
        dict(preset="reference"),
        dict(preset="tuned", weights="none"),
        dict(preset="tuned", pretrained="file.safetensors"),
        dict(preset="tuned", fine_tuning=False),
    ],
    ids=["paper", "reference", "random weights", "crumb pretrain", "by request"],
)
def test_what_is_trained_as_in_the_paper(settings):
    assert plan_of(**settings).fine_tuning is False


def test_small_images_are_enlarged_where_rows_are_chosen():
    """Rows of maps of 128 pixels, in the bytes of an image of 64."""
    settings = dict(backbone="mobilenet_v2", weights="package", image_size=64)
    assert plan_of(preset="tuned", **settings).codebook_dim == 16
    assert plan_of(preset="tuned", fine_tuning=False, **settings).codebook_dim == 4


@pytest.mark.parametrize(
    ("method", "readout"), [({}, "closed_form"), ({"readout": "head"}, "head")]
)
def test_tuned_answers_from_its_memories(method, readout):
    assert plan_of(preset="tuned", method=method).method["readout"] == readout


def test_only_crumb_has_a_readout():
    assert "readout" not in plan_of(preset="tuned", strategy="remind").method


# Replay weighs five times, or once where classes weigh the same without it.
@pytest.mark.parametrize(("preset", "weight"), [("paper", 5), ("tuned", 1)])
def test_the_weight_of_replay(preset, weight):
    assert plan_of(preset=preset).replay_weight == weight


@pytest.mark.parametrize(
    ("name", "value"),
    [("replay_compute", 1.0), ("learning_rate", 1e-2), ("replay_weight", 3.0)],
)
def test_settings_go_before_the_preset(name, value):
    assert getattr(plan_of(preset="tuned", **{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cut_layer", 0),
        ("learning_rate", 1e-4),
        ("head_kernel", 3),
        ("clamp_gradients", 0),
    ],
)
def test_the_family_goes_before_the_preset(name, value):
    plan = plan_of(strategy="ewc", family="paper", preset="reference")
    assert getattr(plan, name) == value


def test_settings_go_before_the_family():
    plan = plan_of(strategy="ewc", family="paper", learning_rate=0.5)
    assert plan.learning_rate == 0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cut_layer", None),
        ("learning_rate", 1e-3),
        ("head_kernel", 1),
        ("image_size", 224),
    ],
)
def test_defaults_without_a_family(name, value):
    assert getattr(plan_of(strategy="ewc"), name) == value


def test_fair_leaves_the_rate_open():
    assert plan_of(strategy="ewc", family="fair").learning_rate is None


@pytest.mark.parametrize(
    ("settings", "preset", "strategy"),
    [
        ({}, "recommended", "rda"),
        ({"family": "fair"}, "paper", "crumb"),
        ({"preset": "paper"}, "paper", "crumb"),
    ],
)
def test_the_preset_of_own_clips(settings, preset, strategy):
    plan = plan_of(benchmark="clip_folder", **settings)
    assert (plan.preset, plan.strategy) == (preset, strategy)


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({}, {}),
        ({"family": "paper"}, {"batch_size": 128, "gamma": 0.95}),
        (
            {"family": "paper", "method": {"gamma": 0.5}},
            {"batch_size": 128, "gamma": 0.5},
        ),
    ],
)
def test_settings_of_a_method(settings, changes):
    usual = plan_of(strategy="stable_sgd", benchmark="toybox").method
    plan = plan_of(strategy="stable_sgd", benchmark="toybox", **settings)
    assert plan.method == {**usual, **changes}


@pytest.mark.parametrize("benchmark", BENCHMARKS)
@pytest.mark.parametrize("strategy", presets_file()["paper"])
def test_every_row_of_the_paper_is_a_plan(strategy, benchmark):
    plan = plan_of(strategy=strategy, benchmark=benchmark, family="paper")
    row = paper_settings(strategy, benchmark)
    assert plan.method.items() >= row.pop("method").items()
    assert vars(plan).items() >= row.items()


@pytest.mark.parametrize("strategy", presets_file()["paper"])
def test_rows_of_the_paper_name_benchmarks(strategy):
    assert set(presets_file()["paper"][strategy].get("where", ())) <= BENCHMARKS.keys()


@pytest.mark.parametrize(
    ("strategy", "benchmark", "settings"),
    [
        (
            "lwf",
            "core50",
            {"learning_rate": 0.2, "image_size": 32, "weights": "none", "method": {}},
        ),
        ("lwf", "toybox", {"learning_rate": 0.02}),
        (
            "stable_sgd",
            "cifar100",
            {
                "first_epochs": 25,
                "method": {"batch_size": 64, "gamma": 0.99, "dropout": 0.05},
            },
        ),
        (
            "mas",
            "imagenet",
            {"batch_size": 128, "first_epochs": 20, "method": {"weight": 100.0}},
        ),
        (
            "gem",
            "ilab",
            {"first_epochs": 1, "learning_rate": 1e-4, "method": {"margin": 1.0}},
        ),
        ("gss", "toybox", {"backbone": "slim_resnet18", "batch_size": 100}),
        (
            "crumb",
            "core50",
            {"clamp_gradients": 10, "cut_layer": None, "selection_rule": "reference"},
        ),
    ],
)
def test_rows_of_the_paper_by_hand(strategy, benchmark, settings):
    assert paper_settings(strategy, benchmark).items() >= settings.items()


def test_methods_of_others_have_no_row():
    words = "did not run slda, so the family 'paper' has no settings .* ran crumb"
    with pytest.raises(ValueError, match=words):
        paper_settings("slda", "core50")
