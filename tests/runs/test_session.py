"""What a session builds from a plan: rates, capacities and networks."""

from functools import partial

import pytest
import yaml
from fake_runs import tensors_of
from flags import flags
from small_models import same_tensors

from benchmarks_toybox_ilab.catalog import BENCHMARKS
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.runs import session
from crumb_avalanche.runs.model import build_model, capacity_of
from crumb_avalanche.runs.plan import RunPlan, paper_settings, presets_file
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.training.avalanche_fixes import labels_of
from crumb_avalanche.training.lr_search import tune

PAPER = list(presets_file()["paper"])
SPLIT = ("crumb", "image_replay", "memory_recall", "remind")  # rows that freeze layers


@pytest.fixture
def tuned(ran, tmp_path, monkeypatch):
    """The result of a run that tunes its rate of two, and what it printed."""
    monkeypatch.setattr(session, "tune", partial(tune, rates=(1e-3, 1e-2)))
    settings = flags(family="fair", mem_size=8, first_epochs=1)
    return ran(tmp_path / "tuned", *settings)


@pytest.mark.parametrize(
    "words", ["learning rates on held-out frames of the first experience", "chosen"]
)
def test_fair_prints_the_trials(tuned, words):
    _, out = tuned
    assert words in out


def test_fair_keeps_the_trials(tuned):
    result, _ = tuned
    rates = [trial["learning_rate"] for trial in result["learning_rate_trials"]]
    assert sorted(rates) == [1e-3, 1e-2]
    assert result["learning_rate"] == rates[0]
    assert result["tuning_seconds"] > 0


def test_fair_learns_as_with_a_given_rate(tuned, ran, tmp_path):
    tuned_result, _ = tuned
    rate = tuned_result["learning_rate"]
    settings = flags(learning_rate=rate, mem_size=8, first_epochs=1)
    result, _ = ran(tmp_path / "given", *settings)
    assert result["learning_rate_trials"] == []
    assert result["tuning_seconds"] == 0
    assert result["accuracy_after"] == tuned_result["accuracy_after"]
    learned = tensors_of(tmp_path / "given")
    expected = tensors_of(tmp_path / "tuned")
    assert same_tensors(expected, learned)


FAIR_SLDA = flags(family="fair", strategy="slda")


def test_closed_forms_have_no_rate(ran, tmp_path):
    result, _ = ran(tmp_path, *FAIR_SLDA, *flags(budget_images=40))
    assert result["learning_rate"] is None
    assert result["learning_rate_trials"] == []


def test_statistics_are_within_the_budget(refused, tiny, tmp_path):
    statistics = 4 * (128 * 128 + 4 * 128 + 4)
    words = (
        f"slda keeps {statistics} bytes of statistics for 4 classes, more than the "
        f"budget of {15 * 3 * 32**2}"
    )
    refused(words, *tiny, *FAIR_SLDA, *flags(output=tmp_path))


@pytest.fixture
def tuned_on(ran, tmp_path, monkeypatch):
    """Do a run that tunes its rate; return the classes of the experiences it sees."""
    classes = []

    def watched(learner, stream, **loader):
        for experience in stream.train_stream:
            classes.append(sorted(set(labels_of(experience.dataset))))
        return tune(learner, stream, rates=(1e-3,), **loader)

    def call(**settings):
        monkeypatch.setattr(session, "tune", watched)
        ran(tmp_path, *flags(settings, first_epochs=1, family="fair"))
        return classes

    return call


def test_one_cycle_has_its_own_rate(tuned_on):
    assert tuned_on(strategy="offline") == []


def test_a_bound_is_tuned_on_two_classes_at_once(tuned_on):
    (classes,) = tuned_on(strategy="offline", **{"method.peak_rate": 0})
    assert len(classes) == 2


def test_a_stream_is_tuned_on_four_objects_in_turn(tuned_on):
    assert tuned_on(strategy="finetune") == [[0, 1], [2], [3]]


def test_a_memory_of_each_experience_limits_their_number(tuned_on):
    assert tuned_on(strategy="gem", mem_size=2) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("strategy", PAPER)
def test_rows_of_the_paper_build_their_network(strategy):
    plan = RunPlan.of(
        RunSettings(
            strategy=strategy, benchmark="core50", family="paper", weights="none"
        )
    )
    model = build_model(plan, 10, STRATEGIES[strategy].codebook)
    frozen = list(model.feature_extractor.parameters())
    shape = (512, 13, 13)
    if strategy not in SPLIT:
        shape = (3, plan.image_size, plan.image_size)
    assert bool(frozen) == (strategy in SPLIT)
    assert model.map_shape == shape
    assert model.n_classes == 10


# (images * 150,528 - 256 * 16) / 5,408; supplement, S5.
MEMORIES = {
    "core50": 417,
    "toybox": 417,
    "ilab": 417,
    "icub": 834,
    "ilab_core50": 834,
    "cifar100": 2782,
    "imagenet": 278_342,
}


def capacity(benchmark, strategy, family=None):
    """The memories that the benchmark's budget buys."""
    entry = STRATEGIES[strategy]
    plan = RunPlan.of(
        RunSettings(
            strategy=strategy, benchmark=benchmark, family=family, weights="none"
        )
    )
    return capacity_of(plan, entry, build_model(plan, 10, entry.codebook))


@pytest.mark.parametrize(("benchmark", "size"), MEMORIES.items())
def test_memories_are_those_of_the_paper(benchmark, size):
    assert capacity(benchmark, "crumb") == size


@pytest.mark.parametrize("benchmark", ["core50", "imagenet"])
def test_a_budget_buys_its_images(benchmark):
    images = BENCHMARKS[benchmark].budget_images
    assert capacity(benchmark, "image_replay") == images


@pytest.mark.parametrize(
    ("strategy", "family", "size"),
    [
        # Images; supplement, S5: its old network is not counted.
        ("icarl", "paper", 15),
        # Its codebooks are not counted.
        ("remind", "paper", 417),
        # The codebook counts at its four bytes a value.
        ("crumb", "fair", (15 * 3 * 224**2 - 4 * 256 * 16) // 5408),
        # The paper counts images of 224 pixels.
        ("rainbow_memory", "paper", 15 * 224**2 // 128**2),
    ],
)
def test_what_a_family_counts(strategy, family, size):
    assert capacity("core50", strategy, family) == size


QUICK = ("icarl",)
SLOW = [name for name in PAPER if name not in ("crumb", "remind", *QUICK)]


@pytest.mark.parametrize(
    "strategy", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_rows_of_the_paper_run_on_small_images(done, clips, tmp_path, strategy):
    """At a low rate: at the row's own, up to 0.2, the CPU's rounding decides whether an
    untrained network diverges.
    """
    settings = {
        "weights": "none",
        "image_size": 32,
        "batch_size": 8,
        "learning_rate": 1e-4,
        "budget_images": 8,
        "first_epochs": 1,
    }
    # Running statistics of batch norms need some batches before they can be relied on.
    if strategy == "aanets":
        settings["first_epochs"] = 8
    if strategy == "memory_recall":
        settings["image_size"] = 64
    changed = flags(
        benchmark="clip_folder",
        dataset_root=clips,
        preset="paper",
        family="paper",
        strategy=strategy,
        threads=1,
        progress=False,
        output=tmp_path,
    )
    done("run", *changed, *flags(**settings))
    written = yaml.safe_load((tmp_path / "config.yaml").read_text())
    row = paper_settings(strategy, "clip_folder")
    assert written["method"].items() >= row.pop("method").items()
    expected = row | settings
    assert {name: written[name] for name in expected} == expected
