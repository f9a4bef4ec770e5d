"""``crumb run --family``: fair tunes the learning rate only, paper uses the settings of the paper's authors."""

import json
from dataclasses import replace

import pytest
import torch
import yaml
from learned import tensors_of

from crumb_avalanche.methods.families import PAPER, paper_method_settings, paper_settings
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.runs import session
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.session import build_model, capacity_of
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.training.labels import labels_of
from crumb_avalanche.training.lr_search import RATES, tune


def run(crumb, tiny, output, *more):
    code, out, err = crumb(*tiny, "--output", output, *more)
    assert code == 0, err
    return json.loads((output / "result.json").read_text()), out


def test_fair_tunes_and_then_learns_as_if_the_rate_had_been_given(crumb, tiny, tmp_path):
    tuned, out = run(crumb, tiny, tmp_path / "tuned", "--family", "fair", "--mem-size", "8")
    assert (
        "learning rates on held-out frames of the first experience, whose classes or objects arrive in turn" in out
        and "chosen" in out
    )
    assert sorted(trial["learning_rate"] for trial in tuned["learning_rate_trials"]) == sorted(RATES)
    assert tuned["learning_rate"] == tuned["learning_rate_trials"][0]["learning_rate"]
    assert tuned["tuning_seconds"] > 0
    rate = str(tuned["learning_rate"])
    given, _ = run(crumb, tiny, tmp_path / "given", "--learning-rate", rate, "--mem-size", "8")
    assert given["learning_rate_trials"] == [] and given["tuning_seconds"] == 0
    matrices = {(tmp_path / name / "accuracy_matrix.csv").read_bytes() for name in ("tuned", "given")}
    learned = [tensors_of(tmp_path / name) for name in ("tuned", "given")]
    assert len(matrices) == 1 and all(torch.equal(value, learned[1][name]) for name, value in learned[0].items())
    assert tuned["accuracy_after"] == given["accuracy_after"]


def test_a_rate_given_by_hand_is_not_tuned_and_closed_forms_have_none(crumb, tiny, tmp_path):
    result, _ = run(crumb, tiny, tmp_path / "a", "--family", "fair", "--learning-rate", "0.002", "--mem-size", "8")
    assert result["learning_rate"] == 0.002 and result["learning_rate_trials"] == []
    arguments = (crumb, tiny, tmp_path / "b", "--family", "fair", "--strategy", "slda", "--budget-images")
    result, _ = run(*arguments, "40")
    assert result["learning_rate"] is None and result["learning_rate_trials"] == []


def test_statistics_are_within_the_budget_too(crumb, tiny, tmp_path):
    code, _, err = crumb(*tiny, "--output", tmp_path, "--family", "fair", "--strategy", "slda")
    kept = 4 * (128 * 128 + 4 * 128 + 4)
    words = f"slda keeps {kept} bytes of statistics for 4 classes, more than the budget of {15 * 3 * 32**2}"
    assert code == 1 and words in err


def test_tuning_sees_the_first_experience_only(crumb, tiny, tmp_path, monkeypatch):
    seen = []

    def watched(make, parts, **loader):
        seen.append([sorted(set(labels_of(one.dataset))) for one in parts.train_stream])
        return tune(make, parts, **loader)

    monkeypatch.setattr(session, "tune", watched)
    fair = ("--family", "fair", "--strategy")
    result, _ = run(crumb, tiny, tmp_path / "cycle", *fair, "offline")
    assert not seen and result["learning_rate"] is None, "one cycle has its own rate"
    run(crumb, tiny, tmp_path / "offline", *fair, "offline", "--method.peak_rate", "0")
    run(crumb, tiny, tmp_path / "finetune", *fair, "finetune")
    (joint,), arrivals = seen
    assert len(joint) == 2 and arrivals == [[0, 1], [2], [3]], "its classes at once; its four objects in turn"


def test_settings_override_family_which_overrides_preset():
    settings = RunPlan.of(RunSettings(strategy="ewc", family="paper", preset="paper"))
    assert (settings.cut_layer, settings.learning_rate, settings.head_kernel) == (0, 1e-4, 3)
    assert RunPlan.of(RunSettings(strategy="ewc", family="paper", learning_rate=0.5)).learning_rate == 0.5
    usual = RunPlan.of(RunSettings(strategy="ewc"))
    assert (usual.cut_layer, usual.learning_rate, usual.head_kernel, usual.image_size) == (None, 1e-3, 1, 224)
    assert RunPlan.of(RunSettings(strategy="ewc", family="fair")).learning_rate is None


def test_settings_of_the_paper_for_some_methods():
    assert paper_settings("lwf", "core50")["learning_rate"] == 0.2
    toybox = paper_settings("lwf", "toybox")
    assert (toybox["learning_rate"], toybox["image_size"], toybox["weights"]) == (0.02, 32, "none")
    assert paper_settings("stable_sgd", "cifar100")["first_epochs"] == 25
    assert paper_method_settings("stable_sgd", "cifar100") == dict(batch_size=64, gamma=0.99, dropout=0.05)
    assert paper_method_settings("stable_sgd", "toybox") == dict(batch_size=128, gamma=0.95)
    assert paper_method_settings("ewc", "toybox") == paper_method_settings("slda", "toybox") == {}
    assert paper_method_settings("bic", "core50") == paper_method_settings("bic", "ilab") == dict(temperature=5.0)
    assert paper_method_settings("gem", "core50") == paper_method_settings("gem", "imagenet") == dict(margin=1.0)
    for name in ("si", "mas"):
        assert paper_method_settings(name, "imagenet") == dict(weight=100.0)
        assert paper_method_settings(name, "core50") == paper_method_settings(name, "toybox") == {}
        assert [paper_settings(name, "imagenet")[key] for key in ("batch_size", "first_epochs")] == [128, 20]
    assert paper_method_settings("remind", "toybox") == dict(samples_at_a_time=True, replays=50)
    for name in PAPER:  # every setting is one that the method has, of its type
        for benchmark in ("core50", *PAPER[name].on):
            STRATEGIES[name].method_settings(paper_method_settings(name, benchmark))
    assert [paper_settings("gem", name)["first_epochs"] for name in ("core50", "ilab", "imagenet")] == [10, 1, 20]
    assert paper_settings("gss", "toybox")["backbone"] == "slim_resnet18"
    assert paper_settings("crumb", "core50")["clamp_gradients"] == 10
    assert set(PAPER) < set(STRATEGIES)


def test_method_settings_override_those_of_the_family():
    settings = RunSettings(strategy="stable_sgd", benchmark="toybox", family="paper")
    usual = RunPlan.of(RunSettings(strategy="stable_sgd", benchmark="toybox")).method
    assert RunPlan.of(settings).method == {**usual, "batch_size": 128, "gamma": 0.95}
    mine = RunPlan.of(replace(settings, method=dict(gamma=0.5)))
    assert mine.method == {**usual, "batch_size": 128, "gamma": 0.5}


def test_a_method_without_settings_of_the_paper_is_refused(crumb, tiny, tmp_path):
    code, _, err = crumb(*tiny, "--output", tmp_path, "--family", "paper", "--strategy", "slda")
    assert code == 1 and "did not run slda, so the family 'paper' has no settings for it; they ran crumb, image" in err


@pytest.mark.parametrize("strategy", PAPER)
def test_every_row_of_the_paper_builds_its_network(strategy):
    settings = RunPlan.of(RunSettings(strategy=strategy, benchmark="core50", family="paper", weights="none"))
    model = build_model(settings, 10, STRATEGIES[strategy].codebook)
    whole = strategy not in ("crumb", "image_replay", "memory_recall", "remind")
    frozen = sum(parameter.numel() for parameter in model.feature_extractor.parameters())
    assert (frozen == 0) == whole
    assert model.map_shape == ((3, settings.image_size, settings.image_size) if whole else (512, 13, 13))
    assert model.n_classes == 10


def test_the_paper_budget_counts_images_of_224_pixels():
    plan = RunPlan.of(RunSettings(strategy="rainbow_memory", benchmark="core50", family="paper"))
    size = capacity_of(plan, STRATEGIES["rainbow_memory"], build_model(plan, 10, False))
    assert size == 15 * 224**2 // 128**2


def test_the_paper_counts_codebooks_of_crumb_only():
    """Supplement, S5: 15 images for iCaRL on CORe50, its old network not counted; 417 maps for CRUMB and REMIND."""
    sizes = {}
    for strategy in ("icarl", "crumb", "remind"):
        settings = RunPlan.of(RunSettings(strategy=strategy, benchmark="core50", family="paper", weights="none"))
        model = build_model(settings, 10, STRATEGIES[strategy].codebook)
        sizes[strategy] = capacity_of(settings, STRATEGIES[strategy], model)
    fair = RunPlan.of(RunSettings(strategy="crumb", benchmark="core50", family="fair", weights="none"))
    model = build_model(fair, 10, True)
    exact = capacity_of(fair, STRATEGIES["crumb"], model)
    assert exact == (15 * 3 * 224**2 - 4 * 256 * 16) // 5408 == 414  # the codebook at its four bytes a value
    assert sizes == {"icarl": 15, "crumb": 417, "remind": 417}


@pytest.mark.parametrize("strategy", PAPER)
def test_every_row_of_the_paper_sets_its_learning_rate(strategy):
    rate = RunPlan.of(RunSettings(strategy=strategy, benchmark="clip_folder", family="paper")).learning_rate
    assert rate == pytest.approx(paper_settings(strategy, "clip_folder")["learning_rate"])


LONG = ("aanets", "rainbow_memory")
ROWS = [name for name in PAPER if name not in ("crumb", "remind", *LONG)]


@pytest.mark.parametrize("strategy", [*ROWS, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)])
def test_every_row_of_the_paper_runs_on_small_images(crumb, tiny, tmp_path, strategy):
    """The network of the row learns from images of 32 pixels (64 for Memory Recall).

    At a low rate: at the row's own, up to 0.2, the CPU's rounding decides whether an untrained network diverges.
    """
    arguments = [argument for argument in tiny if argument not in ("--backbone", "small_cnn", "--first-epochs", "2")]
    given = {"learning_rate": 1e-4, "budget_images": 8, "first_epochs": 1}
    if strategy == "aanets":  # running statistics of batch norms need some batches before they can be relied on
        given["first_epochs"] = 8
    if strategy == "memory_recall":
        given["image_size"] = 64
    flags = [text for name, value in given.items() for text in (f"--{name.replace('_', '-')}", value)]
    result, _ = run(crumb, arguments, tmp_path, "--family", "paper", "--strategy", strategy, *flags)
    assert len(result["accuracy_after"]) == (1 if strategy == "offline" else 2)
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    chosen = {"weights": "none", "image_size": 32, "batch_size": 8}  # by the command line of `tiny`
    for name, value in (paper_settings(strategy, "clip_folder") | chosen | given).items():
        assert written[name] == (pytest.approx(value) if isinstance(value, float) else value), name
