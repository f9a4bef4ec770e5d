"""Temperature and threshold by hand and over any records; which images become records, and how these are kept."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crumb_avalanche.learner.confidence import (
    DOUBTFUL,
    LEAST_LESSONS,
    PER_LESSON,
    PRIOR,
    REJECTED,
    RIVALS,
    STEEPNESS,
    Confidence,
    expected_calibration_error,
)
from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.system.tensor_file import StateError


def made(scores, typicality=None, labels=None, counts=None):
    """Evidence of images from their scores; the rest is the same for all."""
    scores = torch.as_tensor(scores, dtype=torch.float64)
    columns = scores.shape[1]
    return Evidence(
        scores,
        torch.arange(columns) if labels is None else torch.tensor(labels),
        torch.full((columns,), 10) if counts is None else torch.tensor(counts),
        torch.zeros(len(scores), 3, dtype=torch.float64)
        if typicality is None
        else torch.as_tensor(typicality),
    )


def random_lesson(seed, label=0, images=12, classes=4, counts=None, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(
        images, classes, generator=generator, dtype=torch.float64
    )
    scores[:, label] += 2
    return made(
        scores,
        torch.randn(images, 3, generator=generator, dtype=torch.float64),
        counts=counts,
    )


def taught(lessons=8, **arguments):
    confidence = Confidence()
    for seed in range(lessons):
        confidence.observe(random_lesson(seed, label=seed % 4, **arguments), seed % 4)
    return confidence


def same(one, other):
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys() and first.pop("next") == second.pop("next")
    return all(torch.equal(first[name], second[name]) for name in first)


def test_calibration_error_by_hand():
    # Bins of a fifth: (0.4, 0.6] holds 0.5 and 0.55, of which one is right; (0.8, 1]
    # holds 0.9, which is wrong.
    error = expected_calibration_error(
        torch.tensor([0.5, 0.55, 0.9]), torch.tensor([True, False, False]), bins=5
    )
    assert error == pytest.approx((abs(1.05 - 1) + 0.9) / 3)
    assert (
        expected_calibration_error(torch.ones(4), torch.ones(4, dtype=torch.bool)) == 0
    )
    assert (
        expected_calibration_error(torch.zeros(4), torch.ones(4, dtype=torch.bool)) == 1
    )
    # 0.5 and 0.25 share the lower of two bins, where their surplus cancels: 0.75
    # expected, 1 right of 2.
    error = expected_calibration_error(
        torch.tensor([0.5, 0.25]), torch.tensor([True, False]), bins=2
    )
    assert error == pytest.approx(0.25 / 2)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 20),
)
def test_calibration_error_is_a_share_and_at_least_the_overall_one(pairs, bins):
    probabilities, correct = (
        torch.tensor([one for one, _ in pairs]),
        torch.tensor([two for _, two in pairs]),
    )
    error = expected_calibration_error(probabilities, correct, bins)
    overall = abs(float(probabilities.double().mean() - correct.double().mean()))
    assert overall - 1e-9 <= error <= 1 + 1e-9


def test_temperature_of_a_made_example():
    """Two classes, a gap of 4, three of four right: the likelihood is largest where the sigmoid of 4 / T is 3/4.

    The slopes of likelihood and prior are equal at the result; more lessons bring it
    closer to 4 / log 3.
    """
    assert Confidence().temperature(made([[1.0, 0]])) == 1  # the usual one
    distances = []
    for lessons in (20, 100, 500):
        confidence = Confidence(capacity=8000)
        for _ in range(lessons):
            confidence.observe(made([[4.0, 0], [4.0, 0], [4.0, 0], [0, 4.0]]), 0)
        evidence = made([[4.0, 0]])
        temperature = confidence.temperature(evidence)
        share = 1 / (1 + math.exp(-4 / temperature))
        assert lessons * (share - 0.75) * 4 / temperature == pytest.approx(
            math.log(temperature) / PRIOR**2, rel=0.01
        )
        assert confidence.probabilities(evidence)[0].tolist() == pytest.approx(
            [share, 1 - share]
        )
        distances.append(4 / math.log(3) - temperature)
    assert distances[0] > distances[1] > distances[2] and distances[2] < 0.5


def test_a_long_lesson_counts_as_much_as_a_short_one():
    def of(images):
        confidence = Confidence()
        confidence.observe(made([[3.0, 0]] * images), 0)
        confidence.observe(made([[0.0, 3]]), 0)
        return confidence.temperature(made([[3.0, 0]]))

    assert of(1) == of(15)


@pytest.mark.parametrize("usual, least", [(None, -1), (-0.5, -1), (-1.5, -1.5)])
def test_familiarity_by_hand(usual, least):
    """Half of each value is 1, half -1: its deviation is 1, that of the sum of the first two 2, the quantile -2."""
    units = torch.tensor(
        [1.0, 1, 1] if usual else [0.25, 4, 1]
    )  # without a usual one, those of the sum do not matter
    confidence = Confidence(usual=usual)
    for place in range(LEAST_LESSONS):
        typicality = torch.tensor(
            [[1.0, 1, -1], [-1.0, -1, 1]], dtype=torch.float64
        ).repeat(10, 1)
        confidence.observe(made([[1.0, 0]] * 20, units * typicality), place % 2)
    typicality = torch.tensor(
        [[1.0, 2, 3], [-1.0, -1, 0], [-1.5, -1, 0], [2.0, 2, -1.75]],
        dtype=torch.float64,
    )
    evidence = made([[1.0, 0]] * 4, units * typicality)
    expected = [2.5, 0, -0.25, (-1.75 - least) * STEEPNESS[1]]
    assert confidence.familiarity(evidence).tolist() == pytest.approx(expected)
    assert confidence.known(evidence).tolist() == [True, True, False, False]


def test_thresholds_are_quantiles_of_the_records_of_which_each_lesson_counts_once():
    """A readable twin: every lesson as often as the others, by copies."""
    confidence, sizes, seen, copied = Confidence(), (1, 2, 4, 8, 16, 16), [], []
    for seed, images in enumerate(sizes):
        lesson = random_lesson(seed, label=seed % 4, images=images)
        confidence.observe(lesson, seed % 4)
        seen.append(lesson.typicality.float().double())
        copied.append(seen[-1].repeat(16 // images, 1))
    deviations, new = torch.cat(seen).std(0, correction=0), random_lesson(70)

    def sums(some):
        return torch.stack(
            [some[:, 0] / deviations[0] + some[:, 1] / deviations[1], some[:, 2]], 1
        )

    copies = sums(torch.cat(copied)).sort(0).values
    margins = (
        sums(new.typicality) - copies[math.ceil(REJECTED * len(copies)) - 1]
    ) * torch.tensor(STEEPNESS)
    expected = (margins / sums(torch.cat(seen)).std(0, correction=0)).amin(1)
    assert torch.allclose(confidence.familiarity(new), expected)


def test_before_enough_lessons_only_doubtful_images_are_unknown():
    confidence = taught(LEAST_LESSONS - 1)
    assert confidence.known(random_lesson(99)).all()
    assert [taught(count).lessons_missing for count in (0, 2, LEAST_LESSONS)] == [
        LEAST_LESSONS,
        3,
        0,
    ]
    equal = made(torch.zeros(1, math.ceil(1 / DOUBTFUL) + 5))
    assert (
        not Confidence().known(equal).any()
        and Confidence().known(equal._replace(scores=equal.scores[:, :2])).all()
    )
    assert confidence.familiarity(random_lesson(99)).dtype == torch.float64


def test_early_records_of_a_class_do_not_set_temperature_and_threshold():
    early = taught(6, counts=[4] * 4)
    now = random_lesson(50, counts=[10] * 4)
    stale = early.temperature(now)
    for seed in range(100, 120):
        early.observe(
            random_lesson(seed, label=seed % 4, counts=[9] * 4, spread=0.1), seed % 4
        )
    late = Confidence()
    for seed in range(100, 120):
        late.observe(
            random_lesson(seed, label=seed % 4, counts=[9] * 4, spread=0.1), seed % 4
        )
    assert early.temperature(now) == late.temperature(now) != stale
    assert early.temperature(
        now._replace(counts=torch.tensor([8] * 4))
    ) != late.temperature(now)


def test_records_from_a_time_of_few_classes_do_not_set_temperature_and_threshold():
    def two_classes(seed):
        return random_lesson(seed, label=seed % 2, classes=2, spread=5.0)

    both, late, now = Confidence(), Confidence(), random_lesson(50, classes=6)
    for seed in range(8):
        both.observe(two_classes(seed), seed % 2)
    early = both.familiarity(now)
    for seed in range(100, 120):
        for confidence in (both, late):
            confidence.observe(random_lesson(seed, label=seed % 3, classes=3), seed % 3)
    assert both.temperature(now) == late.temperature(now)
    assert torch.equal(
        both.familiarity(now), late.familiarity(now)
    ) and not torch.equal(early, late.familiarity(now))
    many = now._replace(counts=1000 * now.counts)  # all records are of few images
    assert torch.equal(both.familiarity(many), late.familiarity(many))
    smaller = random_lesson(50, classes=4)
    assert both.temperature(smaller) != late.temperature(smaller), (
        "two classes are half of four"
    )


@given(st.integers(0, 10_000), st.integers(0, 10))
def test_probabilities_are_a_softmax_that_keeps_the_order(seed, lessons):
    confidence, evidence = taught(lessons), random_lesson(seed)
    probabilities = confidence.probabilities(evidence)
    assert torch.allclose(probabilities.sum(1), torch.ones(12, dtype=torch.float64))
    assert torch.equal(probabilities.argmax(1), evidence.scores.argmax(1))
    assert confidence.familiarity(evidence).isfinite().all()
    assert torch.equal(
        confidence.known(evidence), confidence.familiarity(evidence) >= 0
    )


def test_what_is_no_record():
    with pytest.raises(ValueError, match=r"capacity is 0; give at least 1"):
        Confidence(0)
    confidence = Confidence()
    confidence.observe(made([[1.0, 2.0]], labels=[3, 5]), 4)
    assert len(confidence) == 0, "a new class has no score"
    confidence.observe(made([[1.0]]), 0)
    assert len(confidence) == 0, "a single class is always right"
    confidence.observe(made([[1.0, 2.0]] * 100, labels=[3, 5]), 5)
    assert len(confidence) == PER_LESSON


@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 25)), max_size=12),
)
def test_the_records_stay_within_the_capacity_and_every_class_keeps_some(
    capacity, lessons
):
    confidence = Confidence(capacity)
    for number, (label, images) in enumerate(lessons):
        confidence.observe(random_lesson(number, label, images), label)
        assert len(confidence) <= capacity
    state = confidence.state_dict()
    if capacity >= 8:
        assert set(state["labels"].tolist()) == {label for label, _ in lessons}
    assert (
        sum(
            state[name].element_size() * state[name].shape[1:].numel()
            for name in state
            if name != "next"
        )
        == 236
    )


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
            evidence = Evidence(
                evidence.scores[:, kept],
                torch.tensor(kept),
                evidence.counts[:3],
                evidence.typicality,
            )
            others.observe(evidence, seed % 4)
    confidence.forget(2)
    assert len(confidence) == len(others) == 9 * 12
    assert (
        2 not in confidence.state_dict()["labels"]
        and 2 not in confidence.state_dict()["rivals"]
    )
    fresh = made(
        random_lesson(77).scores[:, :3], random_lesson(77).typicality, labels=[0, 1, 3]
    )
    assert confidence.temperature(fresh) == pytest.approx(others.temperature(fresh))
    assert torch.allclose(confidence.familiarity(fresh), others.familiarity(fresh))


def test_state_round_trip():
    confidence, loaded = taught(9), Confidence()
    loaded.load_state_dict(confidence.state_dict())
    assert same(confidence, loaded)
    evidence = random_lesson(123)
    assert torch.equal(confidence.familiarity(evidence), loaded.familiarity(evidence))
    loaded.observe(evidence, 1)
    assert len(loaded) == len(confidence) + 12, "the tensors are copies"
    for name in confidence.state_dict():
        with pytest.raises(StateError, match=name):
            Confidence().load_state_dict(
                {
                    key: value
                    for key, value in confidence.state_dict().items()
                    if key != name
                }
            )
    bad = confidence.state_dict() | {"gaps": torch.zeros(3, RIVALS)}
    with pytest.raises(StateError, match=r"gaps.*\(3, 16\).*108 records"):
        loaded.load_state_dict(bad)
    assert len(loaded) == len(confidence) + 12, "unchanged after an error"


def test_merge_renumbers_and_leaves_out():
    one, other = taught(4), taught(8)
    before = other.state_dict()
    one.merge(other, {0: 0, 1: 7, 2: 2})
    state = one.state_dict()
    assert (
        set(state["labels"].tolist()) == {0, 1, 2, 3, 7} and len(one) == 4 * 12 + 6 * 12
    )
    assert len(state["lessons"].unique()) == 4 + 6, "lessons stay apart"
    added = state["labels"][4 * 12 :]
    assert set(added.tolist()) == {0, 2, 7} and 3 not in state["rivals"][4 * 12 :]
    assert torch.equal(
        state["gaps"][4 * 12 :] == -torch.inf, state["rivals"][4 * 12 :] == -1
    )
    assert all(
        torch.equal(before[name], other.state_dict()[name])
        for name in before
        if name != "next"
    )


def test_merge_of_two_classes_into_one_makes_no_class_its_own_rival():
    one, other = Confidence(), taught(8)
    one.merge(other, {0: 5, 1: 5, 2: 2, 3: 3})
    state = one.state_dict()
    assert not (state["rivals"] == state["labels"][:, None]).any()
    Confidence().merge(Confidence(), {})
