"""A learner whose budget becomes too small for all features keeps those of the head's input and goes on."""

import numpy as np
import pytest
import torch
from small_lessons import images

from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.methods.directions import ClassDirections
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.system.tensor_file import StateError, tensor_bytes

CLASSES = 24


@pytest.fixture
def small(make):
    """A learner with room for all features of 21 classes, not of 22."""
    length = make()._classifier.length
    one = RegularizedDiscriminant.bytes_of(
        1, length
    ) + 8 * ClassDirections.bytes_of_one(length, True)
    return lambda: make(budget_bytes=21 * one)


def taught(learner, numbers):
    notes = [
        note for n in numbers for note in learner.teach(images(n, 5), f"c{n}").notes
    ]
    return learner, notes


def labels(learner, numbers, seed=1):
    return [learner.predict(images(n, 3, seed=seed)).label for n in numbers]


def test_features_are_dropped_once_and_the_lesson_says_so(small):
    learner, notes = taught(small(), range(21))
    length, kept = learner._classifier.length, learner._classifier.kept
    assert length > kept and not any("feature" in note for note in notes)
    answered = labels(learner, range(21))
    learner, notes = taught(learner, range(21, CLASSES))
    assert [note for note in notes if "feature" in note] == [
        f"{length - kept} of {length} features, those of the feature map, are given up, and with them what was "
        "recorded of the confidence"
    ]
    assert learner._classifier.length == kept and learner.bytes <= learner.budget_bytes
    assert len(learner.classes) == CLASSES
    right = np.mean(
        [label == f"c{n}" for n, label in enumerate(labels(learner, range(CLASSES)))]
    )
    assert (
        right > 0.9
        and np.mean([label == f"c{n}" for n, label in enumerate(answered)]) > 0.9
    )


def test_the_statistics_are_those_of_the_heads_features(small, make):
    """Means of the features that stay equal those of a learner that never had others."""
    learner, _ = taught(small(), range(CLASSES))
    alone = Learner.__new__(Learner)
    alone._set_up(
        "rda", learner.network, 4_000_000, vars(learner._classifier.features.of_head())
    )
    taught(alone, range(CLASSES))
    for one, other in zip(
        learner._classifier.statistics.classes.tensors(),
        alone._classifier.statistics.classes.tensors(),
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_undo_brings_them_back_also_after_loading(small, tmp_path):
    learner, _ = taught(small(), range(22))
    full, _ = taught(small(), range(21))
    assert learner._classifier.length < full._classifier.length
    learner.save(tmp_path / "a.safetensors")
    again = Learner.load(tmp_path / "a.safetensors")
    assert labels(again, range(22)) == labels(learner, range(22))
    assert (
        again._classifier.length == learner._classifier.length
        and again.features == learner.features
    )
    for one in (learner, again):
        one.undo()
        assert one._classifier.length == full._classifier.length
        assert [one.predict(images(n, 2, seed=2)) for n in range(21)] == [
            full.predict(images(n, 2, seed=2)) for n in range(21)
        ]
    taught(again, range(21, 23))
    assert again._classifier.length < full._classifier.length


@pytest.mark.parametrize("first", [0, 1])
def test_learners_merge_whichever_dropped_them(small, first):
    learners = [taught(small(), range(22))[0], taught(small(), range(18, CLASSES))[0]]
    assert learners[0]._classifier.length < learners[1]._classifier.length
    one, other = learners[first], learners[1 - first]
    before = other._classifier.length, other.bytes
    one.merge(other)
    assert (other._classifier.length, other.bytes) == before
    assert (
        one._classifier.length == one._classifier.kept and one.bytes <= one.budget_bytes
    )
    right = [label == f"c{n}" for n, label in enumerate(labels(one, range(CLASSES)))]
    assert len(one.classes) == CLASSES and np.mean(right) > 0.9


def test_an_exported_file_answers_the_same(small, tmp_path):
    pytest.importorskip("onnxruntime")
    from crumb_avalanche.learner.export import export_onnx

    learner, _ = taught(small(), range(CLASSES))
    parity = export_onnx(
        learner,
        tmp_path / "a.onnx",
        [one for n in range(CLASSES) for one in images(n, 2, seed=3)],
    )
    assert parity.holds and parity.score_error < 1e-3 and parity.other_labels == 0


def test_a_state_of_another_length_is_refused(small):
    learner, _ = taught(small(), range(3))
    state = learner._classifier.state_dict()
    state["statistics"]["settings"]["length"] -= 1
    with pytest.raises((StateError, RuntimeError)):
        small()._classifier.load_state_dict(state)


@pytest.mark.slow
def test_a_thousand_classes_fit_into_the_usual_budget():
    """Gaussian features of SqueezeNet's numbers, one class after the other."""
    budget, length = 2_941_700, 2560
    known = Classifier("rda", FeatureMoments(), length, budget, kept=512)
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(1000, length, generator=generator) / 2

    def draw(number, count):
        return means[number] + torch.randn(count, length, generator=generator)

    for number in range(1000):
        known.learn(draw(number, 5), known.number_of(f"c{number}")[0])
    assert tensor_bytes(known.tensors()) <= budget and known.length == 512
    asked = range(0, 1000, 10)
    ranked = known.ranked(
        known.evidence(torch.cat([draw(number, 1) for number in asked]))
    )
    right = [names[0][0] == f"c{number}" for number, (names, _) in zip(asked, ranked)]
    assert sum(right) >= 95
