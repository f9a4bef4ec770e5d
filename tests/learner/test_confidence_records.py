"""Records: which images become some, how many are kept, and how they are forgotten, merged and stored."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_evidence import made, random_lesson, same, taught

from crumb_avalanche.learner.calibration import PER_LESSON, RIVALS, Confidence
from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.system.tensor_file import StateError


def test_what_is_no_record():
    confidence = Confidence()
    confidence.observe(made([[1.0, 2.0]], labels=[3, 5]), 4)
    assert len(confidence) == 0, "a new class has no score"
    confidence.observe(made([[1.0]]), 0)
    assert len(confidence) == 0, "a single class is always right"
    confidence.observe(made([[1.0, 2.0]] * 100, labels=[3, 5]), 5)
    assert len(confidence) == PER_LESSON


@given(st.integers(1, 60), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 25)), max_size=12))
def test_the_records_stay_within_the_capacity_and_every_class_keeps_some(capacity, lessons):
    confidence = Confidence(capacity)
    for number, (label, images) in enumerate(lessons):
        confidence.observe(random_lesson(number, label, images), label)
        assert len(confidence) <= capacity
    state = confidence.state_dict()
    if capacity >= 8:
        assert set(state["labels"].tolist()) == {label for label, _ in lessons}
    assert sum(state[name].element_size() * state[name].shape[1:].numel() for name in state if name != "next") == 248


def test_more_than_sixteen_rivals():
    confidence = Confidence()
    scores = torch.arange(40.0).repeat(3, 1)
    confidence.observe(made(scores), 20)
    state = confidence.state_dict()
    assert state["rivals"][0].tolist() == list(range(39, 39 - RIVALS, -1))
    assert state["gaps"][0].tolist() == list(range(19, 19 - RIVALS, -1))


def test_forget_leaves_nothing_of_a_class():
    confidence = taught(12)
    others = Confidence()
    for seed in range(12):
        if seed % 4 != 2:
            evidence = random_lesson(seed, label=seed % 4)
            kept = [0, 1, 3]
            evidence = Evidence(evidence.scores[:, kept], torch.tensor(kept), evidence.counts[:3], evidence.typicality)
            others.observe(evidence, seed % 4)
    confidence.forget(2)
    assert len(confidence) == len(others) == 9 * 12
    assert 2 not in confidence.state_dict()["labels"] and 2 not in confidence.state_dict()["rivals"]
    fresh = made(random_lesson(77).scores[:, :3], random_lesson(77).typicality, labels=[0, 1, 3])
    assert confidence.temperature(fresh) == pytest.approx(others.temperature(fresh))
    assert torch.allclose(confidence.familiarity(fresh), others.familiarity(fresh))


def test_state_round_trip():
    confidence, loaded = taught(9, without=True), Confidence()
    loaded.load_state_dict(confidence.state_dict())
    assert same(confidence, loaded)
    evidence = random_lesson(123)
    assert torch.equal(confidence.familiarity(evidence), loaded.familiarity(evidence))
    loaded.observe(evidence, 1)
    assert len(loaded) == len(confidence) + 12, "the tensors are copies"
    for name in confidence.state_dict():
        with pytest.raises(StateError, match=name):
            Confidence().load_state_dict({key: value for key, value in confidence.state_dict().items() if key != name})
    bad = confidence.state_dict() | {"gaps": torch.zeros(3, RIVALS)}
    with pytest.raises(StateError, match=r"gaps.*\(3, 16\).*108 records"):
        loaded.load_state_dict(bad)
    assert len(loaded) == len(confidence) + 12, "unchanged after an error"


def test_merge_renumbers_and_leaves_out():
    one, other = taught(4), taught(8, without=True)
    before = other.state_dict()
    one.merge(other, {0: 0, 1: 7, 2: 2})
    state = one.state_dict()
    assert set(state["labels"].tolist()) == {0, 1, 2, 3, 7} and len(one) == 4 * 12 + 6 * 12
    assert len(state["lessons"].unique()) == 4 + 6, "lessons stay apart"
    added = state["labels"][4 * 12 :]
    assert set(added.tolist()) == {0, 2, 7} and 3 not in state["rivals"][4 * 12 :]
    assert torch.equal(state["gaps"][4 * 12 :] == -torch.inf, state["rivals"][4 * 12 :] == -1)
    assert all(torch.equal(before[name], other.state_dict()[name]) for name in before if name != "next")


def test_merge_of_two_classes_into_one_makes_no_class_its_own_rival():
    one, other = Confidence(), taught(8)
    one.merge(other, {0: 5, 1: 5, 2: 2, 3: 3})
    state = one.state_dict()
    assert not (state["rivals"] == state["labels"][:, None]).any()
    Confidence().merge(Confidence(), {})
