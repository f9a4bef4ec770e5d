"""Plans, which source decides a setting, and what a session builds from them: rates, capacities, networks."""

from dataclasses import FrozenInstanceError, fields, replace
from functools import partial

import pytest
import torch
import yaml
from fake_runs import tensors_of

from benchmarks_toybox_ilab.catalog import BENCHMARKS
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.runs import session
from crumb_avalanche.runs.plan import RunPlan, paper_settings, rows
from crumb_avalanche.runs.session import build_model, capacity_of
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, RunSettings
from crumb_avalanche.training.avalanche_fixes import labels_of
from crumb_avalanche.training.lr_search import tune

PAPER = list(rows()["paper"])


def test_fair_tunes_and_then_learns_as_if_the_rate_had_been_given(
    ran, tmp_path, monkeypatch
):
    monkeypatch.setattr(session, "tune", partial(tune, rates=(1e-3, 1e-2)))
    tuned, out = ran(
        tmp_path / "tuned", "--family", "fair", "--mem-size", "8", "--first-epochs", "1"
    )
    assert (
        "learning rates on held-out frames of the first experience" in out
        and "chosen" in out
    )
    assert sorted(
        trial["learning_rate"] for trial in tuned["learning_rate_trials"]
    ) == [1e-3, 1e-2]
    assert tuned["learning_rate"] == tuned["learning_rate_trials"][0]["learning_rate"]
    assert tuned["tuning_seconds"] > 0
    rate = str(tuned["learning_rate"])
    given, _ = ran(
        tmp_path / "given",
        "--learning-rate",
        rate,
        "--mem-size",
        "8",
        "--first-epochs",
        "1",
    )
    assert given["learning_rate_trials"] == [] and given["tuning_seconds"] == 0
    matrices = {
        (tmp_path / name / "accuracy_matrix.csv").read_bytes()
        for name in ("tuned", "given")
    }
    learned = [tensors_of(tmp_path / name) for name in ("tuned", "given")]
    assert len(matrices) == 1 and all(
        torch.equal(value, learned[1][name]) for name, value in learned[0].items()
    )
    assert tuned["accuracy_after"] == given["accuracy_after"]


def test_closed_forms_have_no_rate_and_their_statistics_are_within_the_budget(
    ran, refused, tiny, tmp_path
):
    fair = ("--family", "fair", "--strategy", "slda")
    result, _ = ran(tmp_path / "a", *fair, "--budget-images", "40")
    assert result["learning_rate"] is None and result["learning_rate_trials"] == []
    kept = 4 * (128 * 128 + 4 * 128 + 4)
    words = f"slda keeps {kept} bytes of statistics for 4 classes, more than the budget of {15 * 3 * 32**2}"
    refused(words, *tiny, "--output", tmp_path / "b", *fair)


def test_tuning_sees_the_first_experience_only(ran, tmp_path, monkeypatch):
    seen = []

    def watched(make, parts, **loader):
        seen.append([sorted(set(labels_of(one.dataset))) for one in parts.train_stream])
        return tune(make, parts, rates=(1e-3,), **loader)

    monkeypatch.setattr(session, "tune", watched)
    fair = ("--first-epochs", "1", "--family", "fair", "--strategy")
    result, _ = ran(tmp_path / "cycle", *fair, "offline")
    assert not seen and result["learning_rate"] is None, "one cycle has its own rate"
    ran(tmp_path / "offline", *fair, "offline", "--method.peak_rate", "0")
    ran(tmp_path / "finetune", *fair, "finetune")
    (joint,), arrivals = seen
    assert len(joint) == 2 and arrivals == [[0, 1], [2], [3]], (
        "its classes at once; its four objects in turn"
    )


@pytest.mark.parametrize("strategy", PAPER)
def test_every_row_of_the_paper_builds_its_network(strategy):
    settings = RunPlan.of(
        RunSettings(
            strategy=strategy, benchmark="core50", family="paper", weights="none"
        )
    )
    model = build_model(settings, 10, STRATEGIES[strategy].codebook)
    whole = strategy not in ("crumb", "image_replay", "memory_recall", "remind")
    frozen = sum(
        parameter.numel() for parameter in model.feature_extractor.parameters()
    )
    assert (frozen == 0) == whole
    assert model.map_shape == (
        (3, settings.image_size, settings.image_size) if whole else (512, 13, 13)
    )
    assert model.n_classes == 10


# (images * 150,528 - 256 * 16) / 5,408; supplement, S5.
MEMORIES = {
    "core50": 417,
    "toybox": 417,
    "ilab": 417,
    "icub": 834,
    "ilab_core50": 834,
    "cifar100": 2782,
}
MEMORIES["imagenet"] = 278_342


@pytest.mark.parametrize(
    ("benchmark", "strategy", "family", "size"),
    [
        *((benchmark, "crumb", None, size) for benchmark, size in MEMORIES.items()),
        *(
            (name, "image_replay", None, BENCHMARKS[name].budget_images)
            for name in ("core50", "imagenet")
        ),
        (
            "core50",
            "icarl",
            "paper",
            15,
        ),  # images; supplement, S5: its old network is not counted
        ("core50", "remind", "paper", 417),  # its codebooks are not counted
        (
            "core50",
            "crumb",
            "fair",
            (15 * 3 * 224**2 - 4 * 256 * 16) // 5408,
        ),  # the codebook at its four bytes a value
        (
            "core50",
            "rainbow_memory",
            "paper",
            15 * 224**2 // 128**2,
        ),  # the paper counts images of 224 pixels
    ],
)
def test_what_a_budget_buys(benchmark, strategy, family, size):
    plan = RunPlan.of(
        RunSettings(
            strategy=strategy, benchmark=benchmark, family=family, weights="none"
        )
    )
    assert (
        capacity_of(
            plan,
            STRATEGIES[strategy],
            build_model(plan, 10, STRATEGIES[strategy].codebook),
        )
        == size
    )


QUICK = ("icarl",)
ROWS = [name for name in PAPER if name not in ("crumb", "remind", *QUICK)]


@pytest.mark.parametrize(
    "strategy", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in ROWS)]
)
def test_every_row_of_the_paper_runs_on_small_images(done, tiny, tmp_path, strategy):
    """At a low rate: at the row's own, up to 0.2, the CPU's rounding decides whether an untrained network diverges."""
    arguments = [
        argument
        for argument in tiny
        if argument not in ("--backbone", "small_cnn", "--first-epochs", "2")
    ]
    given = {"learning_rate": 1e-4, "budget_images": 8, "first_epochs": 1}
    if (
        strategy == "aanets"
        # running statistics of batch norms need some batches before they can be relied on
    ):
        given["first_epochs"] = 8
    if strategy == "memory_recall":
        given["image_size"] = 64
    flags = [
        text
        for name, value in given.items()
        for text in (f"--{name.replace('_', '-')}", value)
    ]
    done(
        *arguments,
        "--output",
        tmp_path,
        "--family",
        "paper",
        "--strategy",
        strategy,
        *flags,
    )
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    row = paper_settings(strategy, "clip_folder")
    assert written["method"].items() >= row.pop("method").items()
    row |= {
        "weights": "none",
        "image_size": 32,
        "batch_size": 8,
    } | given  # of the command line
    assert {name: written[name] for name in row} == row


def test_the_benchmark_fills_in_its_own_values():
    plan = RunPlan.of(RunSettings(benchmark="cifar100"))
    assert (plan.classes_per_experience, plan.batch_size) == (5, 128)
    assert (
        plan.budget == 100 * 3 * 224**2
        and plan.capacity is None
        and not plan.budget_given
    )
    given = RunPlan.of(
        RunSettings(benchmark="cifar100", batch_size=7, budget_bytes=1000)
    )
    assert (given.batch_size, given.budget) == (7, 1000) and given.budget_given


@pytest.mark.parametrize(
    "settings",
    [
        RunSettings(),
        RunSettings(benchmark="clip_folder", method={"own": 0.5}),
        RunSettings(strategy="slda", family="fair"),
        RunSettings(
            strategy="stable_sgd", family="paper", benchmark="cifar100", mem_size=3
        ),
    ],
)
def test_a_printed_plan_reads_back_as_the_same_plan(settings):
    plan = RunPlan.of(settings)
    read = RunSettings(**yaml.safe_load(str(replace(plan, capacity=417))))
    assert (
        RunPlan.of(read) == plan == RunPlan.of(plan)
        and RunPlan.of(read).sha256 == plan.sha256
    )


def test_the_hash_covers_settings_that_change_a_result():
    plan = RunPlan.of(RunSettings())
    assert (
        replace(plan, capacity=3).sha256
        == plan.sha256
        == replace(plan, output="elsewhere", threads=3).sha256
    )
    assert (
        len(
            {
                plan.sha256,
                replace(plan, run=1).sha256,
                replace(plan, method={**plan.method, "x": 1}).sha256,
            }
        )
        == 3
    )
    assert {item.name for item in fields(RunPlan)} > NON_RESULT_SETTINGS
    with pytest.raises(FrozenInstanceError):
        plan.run = 3


def test_a_plan_leaves_only_optional_settings_at_none():
    plan, settings = vars(RunPlan.of(RunSettings())), vars(RunSettings())
    still_open = {name for name, value in plan.items() if value is None}
    assert still_open == {
        *(
            "dataset_root",
            "runs",
            "budget_images",
            "budget_bytes",
            "mem_size",
            "feature_cache",
            "family",
            "fps",
        ),
        *("cut_layer", "pretrained", "capacity", "replay_compute"),
    }
    assert {name for name, value in settings.items() if value is None} > still_open - {
        "capacity"
    }


def test_tuned_is_crumb_with_more_training_and_a_readout_of_its_memories():
    tuned, paper = (
        RunPlan.of(RunSettings(benchmark="clip_folder", preset=name))
        for name in ("tuned", "paper")
    )
    assert (
        tuned.strategy == "crumb"
        and tuned.replay_compute == tuned.learning.replay_compute == 1.4
    )
    assert (tuned.codebook_dim, tuned.method["readout"], tuned.budget) == (
        64,
        "closed_form",
        paper.budget,
    )
    assert (
        RunPlan.of(RunSettings(preset="tuned", method={"readout": "head"})).method[
            "readout"
        ]
        == "head"
    )
    assert (
        "readout"
        not in RunPlan.of(RunSettings(preset="tuned", strategy="remind")).method
    )
    # Replay weighs five times, or once where classes weigh the same without it.
    weights = [
        RunPlan.of(RunSettings(preset=name)).replay_weight
        for name in ("paper", "tuned")
    ]
    given = RunPlan.of(
        RunSettings(
            preset="tuned", replay_compute=1.0, learning_rate=1e-2, replay_weight=3.0
        )
    )
    assert weights == [5, 1] and (
        given.replay_compute,
        given.learning_rate,
        given.replay_weight,
    ) == (1, 1e-2, 3)


def test_settings_override_family_which_overrides_preset():
    paper = dict(strategy="ewc", family="paper")
    plan = RunPlan.of(RunSettings(**paper, preset="reference"))
    assert (
        plan.cut_layer,
        plan.learning_rate,
        plan.head_kernel,
        plan.clamp_gradients,
    ) == (0, 1e-4, 3, 0)
    assert RunPlan.of(RunSettings(**paper, learning_rate=0.5)).learning_rate == 0.5
    usual = RunPlan.of(RunSettings(strategy="ewc"))
    assert (
        usual.cut_layer,
        usual.learning_rate,
        usual.head_kernel,
        usual.image_size,
    ) == (None, 1e-3, 1, 224)
    assert RunPlan.of(RunSettings(strategy="ewc", family="fair")).learning_rate is None
    own, fair = (
        RunPlan.of(RunSettings(benchmark="clip_folder", family=family))
        for family in (None, "fair")
    )
    assert [(one.preset, one.strategy) for one in (own, fair)] == [
        ("recommended", "rda"),
        ("paper", "crumb"),
    ]
    assert (
        RunPlan.of(RunSettings(benchmark="clip_folder", preset="paper")).strategy
        == "crumb"
    )
    sgd = dict(strategy="stable_sgd", benchmark="toybox")
    usual = RunPlan.of(RunSettings(**sgd)).method
    assert RunPlan.of(RunSettings(**sgd, family="paper")).method == {
        **usual,
        "batch_size": 128,
        "gamma": 0.95,
    }
    mine = RunPlan.of(RunSettings(**sgd, family="paper", method=dict(gamma=0.5)))
    assert mine.method == {**usual, "batch_size": 128, "gamma": 0.5}


@pytest.mark.parametrize("strategy", rows()["paper"])
def test_every_row_of_the_paper_is_a_plan(strategy):
    assert set(rows()["paper"][strategy].get("where", ())) <= BENCHMARKS.keys()
    for benchmark in BENCHMARKS:
        plan = RunPlan.of(
            RunSettings(strategy=strategy, benchmark=benchmark, family="paper")
        )
        row = paper_settings(strategy, benchmark)
        assert plan.method.items() >= row.pop("method").items()
        assert {name: getattr(plan, name) for name in row} == row


def test_rows_of_the_paper_by_hand():
    for strategy, benchmark, settings in (
        (
            "lwf",
            "core50",
            dict(learning_rate=0.2, image_size=32, weights="none", method={}),
        ),
        ("lwf", "toybox", dict(learning_rate=0.02)),
        (
            "stable_sgd",
            "cifar100",
            dict(first_epochs=25, method=dict(batch_size=64, gamma=0.99, dropout=0.05)),
        ),
        (
            "mas",
            "imagenet",
            dict(batch_size=128, first_epochs=20, method=dict(weight=100.0)),
        ),
        (
            "gem",
            "ilab",
            dict(first_epochs=1, learning_rate=1e-4, method=dict(margin=1.0)),
        ),
        ("gss", "toybox", dict(backbone="slim_resnet18", batch_size=100)),
        (
            "crumb",
            "core50",
            dict(clamp_gradients=10, cut_layer=None, selection_rule="reference"),
        ),
    ):
        assert paper_settings(strategy, benchmark).items() >= settings.items()
    with pytest.raises(
        ValueError,
        match=r"did not run slda, so the family 'paper' has no settings .* ran crumb",
    ):
        paper_settings("slda", "core50")
