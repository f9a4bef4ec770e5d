"""What a session builds from a plan: tuned rates, capacities, and the networks of the paper's authors."""

from functools import partial

import pytest
import torch
import yaml
from learned import tensors_of

from benchmarks_toybox_ilab.catalog import BENCHMARKS
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.runs import session
from crumb_avalanche.runs.plan import RunPlan, paper_settings, rows
from crumb_avalanche.runs.session import build_model, capacity_of
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.training.avalanche_fixes import labels_of
from crumb_avalanche.training.lr_search import tune

PAPER = list(rows()["paper"])


def test_fair_tunes_and_then_learns_as_if_the_rate_had_been_given(ran, tmp_path, monkeypatch):
    monkeypatch.setattr(session, "tune", partial(tune, rates=(1e-3, 1e-2)))
    tuned, out = ran(tmp_path / "tuned", "--family", "fair", "--mem-size", "8", "--first-epochs", "1")
    assert "learning rates on held-out frames of the first experience" in out and "chosen" in out
    assert sorted(trial["learning_rate"] for trial in tuned["learning_rate_trials"]) == [1e-3, 1e-2]
    assert tuned["learning_rate"] == tuned["learning_rate_trials"][0]["learning_rate"]
    assert tuned["tuning_seconds"] > 0
    rate = str(tuned["learning_rate"])
    given, _ = ran(tmp_path / "given", "--learning-rate", rate, "--mem-size", "8", "--first-epochs", "1")
    assert given["learning_rate_trials"] == [] and given["tuning_seconds"] == 0
    matrices = {(tmp_path / name / "accuracy_matrix.csv").read_bytes() for name in ("tuned", "given")}
    learned = [tensors_of(tmp_path / name) for name in ("tuned", "given")]
    assert len(matrices) == 1 and all(torch.equal(value, learned[1][name]) for name, value in learned[0].items())
    assert tuned["accuracy_after"] == given["accuracy_after"]


def test_closed_forms_have_no_rate_and_their_statistics_are_within_the_budget(ran, refused, tiny, tmp_path):
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
    assert len(joint) == 2 and arrivals == [[0, 1], [2], [3]], "its classes at once; its four objects in turn"


@pytest.mark.parametrize("strategy", PAPER)
def test_every_row_of_the_paper_builds_its_network(strategy):
    settings = RunPlan.of(RunSettings(strategy=strategy, benchmark="core50", family="paper", weights="none"))
    model = build_model(settings, 10, STRATEGIES[strategy].codebook)
    whole = strategy not in ("crumb", "image_replay", "memory_recall", "remind")
    frozen = sum(parameter.numel() for parameter in model.feature_extractor.parameters())
    assert (frozen == 0) == whole
    assert model.map_shape == ((3, settings.image_size, settings.image_size) if whole else (512, 13, 13))
    assert model.n_classes == 10


# (images * 150,528 - 256 * 16) / 5,408; supplement, S5.
MEMORIES = {"core50": 417, "toybox": 417, "ilab": 417, "icub": 834, "ilab_core50": 834, "cifar100": 2782}
MEMORIES["imagenet"] = 278_342


@pytest.mark.parametrize(
    ("benchmark", "strategy", "family", "size"),
    [
        *((benchmark, "crumb", None, size) for benchmark, size in MEMORIES.items()),
        *((name, "image_replay", None, BENCHMARKS[name].budget_images) for name in ("core50", "imagenet")),
        ("core50", "icarl", "paper", 15),  # images; supplement, S5: its old network is not counted
        ("core50", "remind", "paper", 417),  # its codebooks are not counted
        ("core50", "crumb", "fair", (15 * 3 * 224**2 - 4 * 256 * 16) // 5408),  # the codebook at its four bytes a value
        ("core50", "rainbow_memory", "paper", 15 * 224**2 // 128**2),  # the paper counts images of 224 pixels
    ],
)
def test_what_a_budget_buys(benchmark, strategy, family, size):
    plan = RunPlan.of(RunSettings(strategy=strategy, benchmark=benchmark, family=family, weights="none"))
    assert capacity_of(plan, STRATEGIES[strategy], build_model(plan, 10, STRATEGIES[strategy].codebook)) == size


QUICK = ("icarl",)
ROWS = [name for name in PAPER if name not in ("crumb", "remind", *QUICK)]


@pytest.mark.parametrize("strategy", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in ROWS)])
def test_every_row_of_the_paper_runs_on_small_images(done, tiny, tmp_path, strategy):
    """At a low rate: at the row's own, up to 0.2, the CPU's rounding decides whether an untrained network diverges."""
    arguments = [argument for argument in tiny if argument not in ("--backbone", "small_cnn", "--first-epochs", "2")]
    given = {"learning_rate": 1e-4, "budget_images": 8, "first_epochs": 1}
    if strategy == "aanets":  # running statistics of batch norms need some batches before they can be relied on
        given["first_epochs"] = 8
    if strategy == "memory_recall":
        given["image_size"] = 64
    flags = [text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", value)]
    done(*arguments, "--output", tmp_path, "--family", "paper", "--strategy", strategy, *flags)
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    row = paper_settings(strategy, "clip_folder")
    assert written["method"].items() >= row.pop("method").items()
    row |= {"weights": "none", "image_size": 32, "batch_size": 8} | given  # of the command line
    assert {name: written[name] for name in row} == row
