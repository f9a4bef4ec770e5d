"""CRUMB as one more expert: temperature and weight from predictions before learning."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from crumb_as_expert import CRUMBS, OURS, Objects, Pair, temperature_of, weights_of
from scipy.special import log_softmax
from support.before_learning import OUTPUTS, read_outputs, record

from crumb_avalanche.methods.closed_form import NO_DENSITY
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run import run_once
from crumb_avalanche.runs.settings import RunSettings

LABELS = np.arange(400) % 4
OBJECTS = Objects.of(LABELS, np.arange(400))


def scores(right, seed=0):
    """Log-probabilities of an expert that is right on a share of the images, and says so."""
    draws = np.random.default_rng(seed)
    answers = np.where(draws.random(len(LABELS)) < right, LABELS, draws.integers(0, 4, len(LABELS)))
    return log_softmax(np.eye(4)[answers] * 3, axis=1)


def outputs(before, test, labels=LABELS):
    found = dict(before=before, head_before=before, test=test, head_test=test, labels=labels, test_labels=LABELS)
    return SimpleNamespace(**found, objects=np.arange(400) // 2, memory_bytes=100, split="split", plan="plan")


def test_each_object_counts_once():
    objects = Objects.of(np.array([0, 1, 1, 1]), np.array([7, 9, 9, 9]))
    assert objects.accuracy(np.eye(2)[[0, 0, 0, 0]]) == pytest.approx(50)
    assert objects.likelihood(np.log([[0.5, 0.5], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1]])) == pytest.approx(np.log(0.05))


def test_the_temperature_is_that_of_the_highest_likelihood():
    assert temperature_of(scores(1.0), OBJECTS) < 0.1 and temperature_of(scores(0.0), OBJECTS) > 10
    truth = np.log([0.4, 0.3, 0.2, 0.1])
    drawn = (truth + np.random.default_rng(0).gumbel(size=(400, 4))).argmax(1)
    assert 7 < temperature_of(np.tile(10 * truth, (400, 1)), Objects.of(drawn, np.arange(400))) < 14


@pytest.mark.parametrize("ours, other, low, high", [(0.9, 0.1, 0.0, 0.2), (0.1, 0.9, 0.55, 1.0)])
def test_the_better_expert_gets_the_weight(ours, other, low, high):
    weights = weights_of(scores(ours), scores(other, 1), OBJECTS)
    assert weights.pop("equal weights") == 0.5
    assert set(weights) == {"learned weight", "by accuracy"} and all(low <= one <= high for one in weights.values())


def test_rows_count_the_bytes_of_both_and_the_images_whose_class_was_known():
    before = scores(1.0)
    before[:10, :] = NO_DENSITY  # as before the first image of their class
    pair = Pair("toys", 3, outputs(before, scores(0.9)), outputs(scores(0.2, 1), scores(0.2, 2)))
    assert pair.objects.accuracy(pair.outputs[OURS][0]) == pytest.approx(100) and len(pair.objects.labels) == 390
    rows = [(one.row, one.weight, one.memory_bytes) for one in pair.of_each(" x")]
    assert rows == [(f"{OURS} x", 0, 100), (f"{CRUMBS[0]} x", 1, 100), (f"{CRUMBS[1]} x", 1, 100)]
    together = pair.of_both()
    assert {one.memory_bytes for one in together} == {200} and len(together) == 12
    best = next(one for one in together if one.row == f"both, {CRUMBS[0]}, best on the test")
    assert best.accuracy == max(one.accuracy for one in together)
    with pytest.raises(ValueError, match="give both the same stream"):
        Pair("toys", 3, outputs(before, before), outputs(before, before, LABELS[::-1]))


@pytest.mark.parametrize("preset", ["recommended", "tuned"])
def test_predictions_before_learning_change_nothing(preset, clips, tmp_path):
    settings = RunSettings(
        **dict(benchmark="clip_folder", dataset_root=str(clips), weights="none", backbone="small_cnn", image_size=32),
        **dict(classes_per_experience=1, first_epochs=1, preset=preset, protocol="class_instance", run=0, threads=1),
        **dict(batch_size=5, progress=False, output=str(tmp_path / "a")),
    )
    record(settings)
    found = read_outputs(tmp_path / "a" / OUTPUTS)
    result = run_once(RunPlan.of(replace(settings, output=str(tmp_path / "b"))), verbose=False)
    assert 100 * (found.test.argmax(1) == found.test_labels).mean() == pytest.approx(result["final_accuracy"], abs=1e-4)
    assert found.split == result["frame_table_sha256"]
    assert (np.unique(found.objects, return_counts=True)[1] == 10).all(), "all frames of each object, once"
    truth = found.before[np.arange(len(found.labels)), found.labels]
    first = [np.flatnonzero(found.labels == label)[0] for label in np.unique(found.labels)]
    assert (truth[first] < NO_DENSITY / 2).all(), "no image of these classes was learned yet"
    assert (truth > NO_DENSITY / 2).any(), "of some objects the class was known"
    with pytest.raises(ValueError, match="made with other settings; use another --output"):
        record(replace(settings, budget_bytes=40_000))
