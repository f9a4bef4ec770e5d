"""A learner whose budget becomes too small keeps the features of the head's input."""

import numpy as np
import pytest
import torch
from small_lessons import images

from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods.directions import ClassDirections
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.system.tensor_file import tensor_bytes
from crumb_avalanche.system.value_types import StateError

CLASSES = 24
FIT = 21  # classes with all features


@pytest.fixture
def small(make):
    """A function that makes a learner with room for all features of 21 classes."""
    length = make()._classifier.length
    class_bytes = RegularizedDiscriminant.bytes_of(1, length)
    class_bytes += 8 * ClassDirections.bytes_of_one(length, True)
    return lambda: make(budget_bytes=FIT * class_bytes)


def teach(learner, numbers):
    """Teach five images of each class; return what was given up for it."""
    notes = []
    for number in numbers:
        notes += learner.teach(images(number, 5), f"c{number}").notes
    return notes


def taught(learner, numbers):
    teach(learner, numbers)
    return learner


def labels(learner, numbers):
    return [learner.predict(images(n, 3, seed=1)).label for n in numbers]


def accuracy(learner, numbers):
    expected = [f"c{number}" for number in numbers]
    return np.mean(np.array(labels(learner, numbers)) == expected)


def length(learner):
    return learner._classifier.length


def test_all_features_fit(small):
    learner = small()
    notes = teach(learner, range(FIT))
    assert not any("feature" in note for note in notes)
    assert length(learner) > learner._classifier.head_length
    assert accuracy(learner, range(FIT)) > 0.9


def test_features_are_dropped_once(small):
    """The lesson says so."""
    learner = taught(small(), range(FIT))
    before = length(learner)
    notes = teach(learner, range(FIT, CLASSES))
    after = learner._classifier.head_length
    assert [note for note in notes if "feature" in note] == [
        f"{before - after} of {before} features, those of the feature map, are given "
        "up, and with them what was recorded of the confidence"
    ]
    assert length(learner) == after
    assert learner.bytes <= learner.budget_bytes
    assert len(learner.classes) == CLASSES
    assert accuracy(learner, range(CLASSES)) > 0.9


def test_statistics_of_the_heads_features(small):
    """Means of the features that stay equal those of a learner without others."""
    learner = taught(small(), range(CLASSES))
    alone = Learner.__new__(Learner)
    moments = vars(learner._classifier.features.of_head())
    alone._set_up("rda", learner.network, 4_000_000, moments)
    taught(alone, range(CLASSES))
    torch.testing.assert_close(
        learner._classifier.statistics.classes.tensors(),
        alone._classifier.statistics.classes.tensors(),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.fixture(params=["as it is", "loaded"])
def narrowed(small, tmp_path, request):
    """A learner that has given up features, maybe after saving and loading."""
    learner = taught(small(), range(FIT + 1))
    if request.param == "as it is":
        return learner
    learner.save(tmp_path / "a.safetensors")
    return Learner.load(tmp_path / "a.safetensors")


def test_answers_after_loading(small, tmp_path):
    learner = taught(small(), range(FIT + 1))
    learner.save(tmp_path / "a.safetensors")
    loaded = Learner.load(tmp_path / "a.safetensors")
    assert labels(loaded, range(FIT + 1)) == labels(learner, range(FIT + 1))
    assert length(loaded) == length(learner)
    assert loaded.features == learner.features


def test_undo_brings_features_back(narrowed, small):
    full = taught(small(), range(FIT))
    assert length(narrowed) < length(full)
    narrowed.undo()
    assert length(narrowed) == length(full)
    asked = [images(number, 2, seed=2) for number in range(FIT)]
    assert list(map(narrowed.predict, asked)) == list(map(full.predict, asked))


def test_features_are_dropped_again(narrowed):
    narrowed.undo()
    before = length(narrowed)
    teach(narrowed, range(FIT, FIT + 2))
    assert length(narrowed) < before


@pytest.mark.parametrize("narrow_first", [True, False])
def test_merge_with_other_features(small, narrow_first):
    narrow = taught(small(), range(FIT + 1))
    full = taught(small(), range(18, CLASSES))
    assert length(narrow) < length(full)
    learner, merged = (narrow, full) if narrow_first else (full, narrow)
    before = (length(merged), merged.bytes)
    learner.merge(merged)
    assert (length(merged), merged.bytes) == before
    assert length(learner) == learner._classifier.head_length
    assert learner.bytes <= learner.budget_bytes
    assert len(learner.classes) == CLASSES
    assert accuracy(learner, range(CLASSES)) > 0.9


def test_export_after_features_are_dropped(small, tmp_path):
    pytest.importorskip("onnxruntime")
    from crumb_avalanche.learner.export import export_onnx

    learner = taught(small(), range(CLASSES))
    asked = np.concatenate([images(number, 2, seed=3) for number in range(CLASSES)])
    parity = export_onnx(learner, tmp_path / "a.onnx", list(asked))
    assert parity.holds
    assert parity.score_error < 1e-3
    assert parity.other_labels == 0


def test_a_state_of_another_length(small):
    state = taught(small(), range(3))._classifier.state_dict()
    state["statistics"][0]["settings"]["length"] -= 1
    with pytest.raises((StateError, RuntimeError)):
        small()._classifier.load_state_dict(state)


@pytest.mark.slow
def test_a_thousand_classes():
    """Gaussian features of SqueezeNet's numbers fit into the usual budget."""
    budget = 2_941_700
    length = 2560
    classifier = Classifier("rda", FeatureMoments(), length, budget, head_length=512)
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(1000, length, generator=generator) / 2

    def draw(number, count):
        return means[number] + torch.randn(count, length, generator=generator)

    for number in range(1000):
        features = draw(number, 5)
        classifier.learn(features, classifier.ensure_class(f"c{number}")[0])
    assert tensor_bytes(classifier.tensors()) <= budget
    assert classifier.length == 512
    asked = range(0, 1000, 10)
    features = torch.cat([draw(number, 1) for number in asked])
    *rankings, _ = classifier.ranked(classifier.evidence(features))
    answers = [ranking[0][0] for ranking, _ in rankings]
    expected = [f"c{number}" for number in asked]
    assert sum(map(str.__eq__, answers, expected)) >= 95
