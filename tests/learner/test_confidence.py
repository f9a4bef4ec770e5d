"""Temperature and threshold by hand and over any records; what becomes a record."""

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
from crumb_avalanche.system.value_types import StateError


def evidence_of(scores, typicality=None, labels=None, counts=None):
    """Evidence of images from their scores; the rest is the same for all."""
    scores = torch.as_tensor(scores, dtype=torch.float64)
    images, columns = scores.shape
    if typicality is None:
        typicality = torch.zeros(images, 3, dtype=torch.float64)
    return Evidence(
        scores=scores,
        labels=torch.tensor(labels or list(range(columns))),
        counts=torch.tensor(counts or [10] * columns),
        typicality=torch.as_tensor(typicality),
    )


def random_lesson(seed, label=0, images=12, classes=4, counts=None, spread=2.0):
    """Evidence of a clip of a class, whose scores are mostly the largest."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(images, classes, generator=generator, dtype=torch.float64)
    scores *= spread
    scores[:, label] += 2
    typicality = torch.randn(images, 3, generator=generator, dtype=torch.float64)
    return evidence_of(scores, typicality, counts=counts)


def observed(seeds=range(8), confidence=None, **arguments):
    """A confidence that observed a random lesson for each seed, of classes in turn."""
    if confidence is None:
        confidence = Confidence()
    for seed in seeds:
        confidence.observe(random_lesson(seed, seed % 4, **arguments), seed % 4)
    return confidence


def same(confidence, other):
    state = confidence.state_dict()
    expected = other.state_dict()
    assert state.keys() == expected.keys()
    assert state.pop("next") == expected.pop("next")
    return all(torch.equal(state[name], expected[name]) for name in state)


# Calibration error


@pytest.mark.parametrize(
    ("probabilities", "correct", "bins", "expected"),
    [
        # Bins of a fifth: (0.4, 0.6] holds 0.5 and 0.55, of which one is right; (0.8,
        # 1] holds 0.9, which is wrong.
        ([0.5, 0.55, 0.9], [True, False, False], 5, (abs(1.05 - 1) + 0.9) / 3),
        ([1.0] * 4, [True] * 4, 15, 0),
        ([0.0] * 4, [True] * 4, 15, 1),
        # 0.5 and 0.25 share the lower of two bins, where their surplus cancels: 0.75
        # expected, 1 right of 2.
        ([0.5, 0.25], [True, False], 2, 0.25 / 2),
    ],
)
def test_calibration_error_by_hand(probabilities, correct, bins, expected):
    error = expected_calibration_error(
        torch.tensor(probabilities), torch.tensor(correct), bins
    )
    assert error == pytest.approx(expected)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 20),
)
def test_range_of_calibration_error(pairs, bins):
    """It is a share, and at least the difference over all images."""
    probabilities, correct = map(torch.tensor, zip(*pairs))
    error = expected_calibration_error(probabilities, correct, bins)
    overall = abs(float(probabilities.double().mean() - correct.double().mean()))
    assert overall - 1e-9 <= error <= 1 + 1e-9


# Temperature


def three_of_four(lessons):
    """A confidence of two classes, a gap of 4, and three of four images right."""
    confidence = Confidence(capacity=8000)
    for _ in range(lessons):
        scores = [[4.0, 0], [4.0, 0], [4.0, 0], [0, 4.0]]
        confidence.observe(evidence_of(scores), 0)
    return confidence


def test_usual_temperature():
    assert Confidence().temperature(evidence_of([[1.0, 0]])) == 1


@pytest.mark.parametrize("lessons", [20, 100, 500])
def test_temperature_by_hand(lessons):
    """The slopes of likelihood and prior are equal at the result."""
    confidence = three_of_four(lessons)
    evidence = evidence_of([[4.0, 0]])
    temperature = confidence.temperature(evidence)
    share = 1 / (1 + math.exp(-4 / temperature))
    slope = lessons * (share - 0.75) * 4 / temperature
    assert slope == pytest.approx(math.log(temperature) / PRIOR**2, rel=0.01)
    probabilities = confidence.probabilities(evidence)[0].tolist()
    assert probabilities == pytest.approx([share, 1 - share])


def test_temperature_of_more_lessons():
    """The likelihood is largest where the sigmoid of 4 / T is 3/4."""
    evidence = evidence_of([[4.0, 0]])
    counts = (20, 100, 500)
    temperatures = [three_of_four(count).temperature(evidence) for count in counts]
    distances = [4 / math.log(3) - temperature for temperature in temperatures]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.5


def test_long_lessons_count_once():
    def temperature(images):
        confidence = Confidence()
        confidence.observe(evidence_of([[3.0, 0]] * images), 0)
        confidence.observe(evidence_of([[0.0, 3]]), 0)
        return confidence.temperature(evidence_of([[3.0, 0]]))

    assert temperature(1) == temperature(15)


# Familiarity


@pytest.mark.parametrize(
    ("usual", "least", "units"),
    [
        (None, -1, [0.25, 4, 1]),  # those of the sum do not matter
        (-0.5, -1, [1.0, 1, 1]),
        (-1.5, -1.5, [1.0, 1, 1]),
    ],
)
def test_familiarity_by_hand(usual, least, units):
    """Half of each value is 1, half -1.

    Its deviation is 1, that of the sum of the first two 2, the quantile -2.
    """
    units = torch.tensor(units)
    confidence = Confidence(usual=usual)
    values = torch.tensor([[1.0, 1, -1], [-1.0, -1, 1]], dtype=torch.float64)
    for lesson in range(LEAST_LESSONS):
        typicality = units * values.repeat(10, 1)
        confidence.observe(evidence_of([[1.0, 0]] * 20, typicality), lesson % 2)
    asked = [[1.0, 2, 3], [-1.0, -1, 0], [-1.5, -1, 0], [2.0, 2, -1.75]]
    typicality = units * torch.tensor(asked, dtype=torch.float64)
    evidence = evidence_of([[1.0, 0]] * 4, typicality)
    expected = [2.5, 0, -0.25, (-1.75 - least) * STEEPNESS[1]]
    assert confidence.familiarity(evidence).tolist() == pytest.approx(expected)
    assert confidence.known(evidence).tolist() == [True, True, False, False]


def test_thresholds_are_quantiles():
    """A readable twin: every lesson counts as often as the others, by copies."""
    confidence = Confidence()
    seen = []
    copied = []
    for seed, images in enumerate((1, 2, 4, 8, 16, 16)):
        lesson = random_lesson(seed, label=seed % 4, images=images)
        confidence.observe(lesson, seed % 4)
        seen.append(lesson.typicality.float().double())
        copied.append(seen[-1].repeat(16 // images, 1))
    deviations = torch.cat(seen).std(0, correction=0)

    def sums(typicality):
        scaled = typicality / deviations
        return torch.stack([scaled[:, 0] + scaled[:, 1], typicality[:, 2]], 1)

    copies = sums(torch.cat(copied)).sort(0).values
    least = copies[math.ceil(REJECTED * len(copies)) - 1]
    asked = random_lesson(70)
    margins = (sums(asked.typicality) - least) * torch.tensor(STEEPNESS)
    expected = (margins / sums(torch.cat(seen)).std(0, correction=0)).amin(1)
    assert torch.allclose(confidence.familiarity(asked), expected)


@pytest.mark.parametrize(("lessons", "missing"), [(0, 5), (2, 3), (5, 0)])
def test_lessons_missing(lessons, missing):
    assert LEAST_LESSONS == 5
    assert observed(range(lessons)).lessons_missing == missing


def test_known_images_before_enough_lessons():
    confidence = observed(range(LEAST_LESSONS - 1))
    assert confidence.known(random_lesson(99)).all()
    assert confidence.familiarity(random_lesson(99)).dtype == torch.float64


@pytest.mark.parametrize(
    ("columns", "known"), [(2, True), (math.ceil(1 / DOUBTFUL) + 5, False)]
)
def test_doubtful_images_before_enough_lessons(columns, known):
    """They are unknown where no class has a probability of a tenth."""
    equal = evidence_of(torch.zeros(1, columns))
    assert Confidence().known(equal).tolist() == [known]


# Which records count


def test_early_records_of_a_class():
    """They set neither temperature nor threshold once it has more images."""
    now = random_lesson(50, counts=[10] * 4)
    early = observed(range(6), counts=[4] * 4)
    stale = early.temperature(now)
    later = {"seeds": range(100, 120), "counts": [9] * 4, "spread": 0.1}
    observed(confidence=early, **later)
    late = observed(**later)
    assert early.temperature(now) == late.temperature(now) != stale
    then = now._replace(counts=torch.tensor([8] * 4))
    assert early.temperature(then) != late.temperature(then)


@pytest.fixture
def of_few_classes():
    """Two confidences that observed three classes; the first one two classes before.

    And the familiarity of images of six classes before the three.
    """
    summed = Confidence()
    for seed in range(8):
        lesson = random_lesson(seed, label=seed % 2, classes=2, spread=5.0)
        summed.observe(lesson, seed % 2)
    early = summed.familiarity(random_lesson(50, classes=6))
    late = Confidence()
    for seed in range(100, 120):
        lesson = random_lesson(seed, label=seed % 3, classes=3)
        summed.observe(lesson, seed % 3)
        late.observe(lesson, seed % 3)
    return summed, late, early


def test_records_of_few_classes(of_few_classes):
    """They do not count once there are more than twice as many."""
    summed, late, early = of_few_classes
    now = random_lesson(50, classes=6)
    assert summed.temperature(now) == late.temperature(now)
    assert torch.equal(summed.familiarity(now), late.familiarity(now))
    assert not torch.equal(early, late.familiarity(now))


def test_records_of_few_classes_and_images(of_few_classes):
    summed, late, _ = of_few_classes
    now = random_lesson(50, classes=6, counts=[10_000] * 6)
    assert torch.equal(summed.familiarity(now), late.familiarity(now))


def test_records_of_half_of_the_classes(of_few_classes):
    summed, late, _ = of_few_classes
    now = random_lesson(50, classes=4)
    assert summed.temperature(now) != late.temperature(now)


@given(st.integers(0, 10_000), st.integers(0, 10))
def test_probabilities_are_a_softmax(seed, lessons):
    """They keep the order of the scores."""
    confidence = observed(range(lessons))
    evidence = random_lesson(seed)
    probabilities = confidence.probabilities(evidence)
    assert torch.allclose(probabilities.sum(1), torch.ones(12, dtype=torch.float64))
    assert torch.equal(probabilities.argmax(1), evidence.scores.argmax(1))
    familiarity = confidence.familiarity(evidence)
    assert familiarity.isfinite().all()
    assert torch.equal(confidence.known(evidence), familiarity >= 0)


# What becomes a record, and how records are kept


def test_no_capacity():
    with pytest.raises(ValueError, match=r"capacity is 0; give at least 1"):
        Confidence(0)


@pytest.mark.parametrize(
    ("scores", "labels", "label", "records"),
    [
        ([[1.0, 2.0]], [3, 5], 4, 0),  # a new class has no score
        ([[1.0]], [0], 0, 0),  # a single class is always right
        ([[1.0, 2.0]] * 100, [3, 5], 5, PER_LESSON),
    ],
)
def test_number_of_records(scores, labels, label, records):
    confidence = Confidence()
    confidence.observe(evidence_of(scores, labels=labels), label)
    assert len(confidence) == records


@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 25)), max_size=12),
)
def test_capacity(capacity, lessons):
    """The records stay within it, and every class keeps some."""
    confidence = Confidence(capacity)
    for seed, (label, images) in enumerate(lessons):
        confidence.observe(random_lesson(seed, label, images), label)
        assert len(confidence) <= capacity
    labels = set(confidence.state_dict()["labels"].tolist())
    if capacity >= 8:
        assert labels == {label for label, _ in lessons}


def test_bytes_of_a_record():
    state = observed().state_dict()
    del state["next"]
    sizes = [rows[0].numel() * rows.element_size() for rows in state.values()]
    assert sum(sizes) == 236


def test_more_than_sixteen_rivals():
    confidence = Confidence()
    scores = torch.arange(40.0).repeat(3, 1)
    confidence.observe(evidence_of(scores), 20)
    state = confidence.state_dict()
    assert state["rivals"][0].tolist() == list(range(39, 39 - RIVALS, -1))
    assert state["gaps"][0].tolist() == list(range(19, 19 - RIVALS, -1))


def without_class_two(evidence):
    """The same images, of which class 2 was never known."""
    columns = [0, 1, 3]
    return evidence_of(evidence.scores[:, columns], evidence.typicality, columns)


def test_forget():
    """It leaves nothing of a class."""
    confidence = observed(range(12))
    confidence.forget(2)
    merged = Confidence()
    for seed in (0, 1, 3, 4, 5, 7, 8, 9, 11):
        lesson = random_lesson(seed, label=seed % 4)
        merged.observe(without_class_two(lesson), seed % 4)
    assert len(confidence) == len(merged) == 9 * 12
    state = confidence.state_dict()
    assert 2 not in state["labels"]
    assert 2 not in state["rivals"]
    asked = without_class_two(random_lesson(77))
    expected = merged.temperature(asked)
    assert confidence.temperature(asked) == pytest.approx(expected)
    assert torch.allclose(confidence.familiarity(asked), merged.familiarity(asked))


def test_state_round_trip():
    confidence = observed(range(9))
    loaded = Confidence()
    loaded.load_state_dict(confidence.state_dict())
    assert same(confidence, loaded)
    evidence = random_lesson(123)
    assert torch.equal(confidence.familiarity(evidence), loaded.familiarity(evidence))


def test_a_loaded_state_is_a_copy():
    confidence = observed(range(9))
    loaded = Confidence()
    loaded.load_state_dict(confidence.state_dict())
    loaded.observe(random_lesson(123), 1)
    assert len(loaded) == len(confidence) + 12


@pytest.mark.parametrize("name", Confidence().state_dict())
def test_a_state_that_lacks_a_tensor(name):
    state = observed().state_dict()
    del state[name]
    with pytest.raises(StateError, match=name):
        Confidence().load_state_dict(state)


def test_a_state_of_another_shape():
    confidence = observed(range(9))
    state = confidence.state_dict() | {"gaps": torch.zeros(3, RIVALS)}
    with pytest.raises(StateError, match=r"gaps.*\(3, 16\).*108 records"):
        confidence.load_state_dict(state)
    assert len(confidence) == 108


def test_merge_renumbers():
    """It leaves out classes without a new number."""
    confidence = observed(range(4))
    confidence.merge(observed(range(8)), {0: 0, 1: 7, 2: 2})
    state = confidence.state_dict()
    assert set(state["labels"].tolist()) == {0, 1, 2, 3, 7}
    assert len(confidence) == 4 * 12 + 6 * 12
    assert len(state["lessons"].unique()) == 4 + 6, "lessons stay apart"
    labels, rivals, gaps = (state[name][48:] for name in ("labels", "rivals", "gaps"))
    assert set(labels.tolist()) == {0, 2, 7}
    assert 3 not in rivals
    assert torch.equal(gaps == -torch.inf, rivals == -1)


def test_merge_leaves_the_other_one():
    second = observed(range(8))
    Confidence().merge(second, {0: 0, 1: 7, 2: 2})
    assert same(second, observed(range(8)))


def test_merge_of_two_classes_into_one():
    """The class is no rival of its own."""
    confidence = Confidence()
    confidence.merge(observed(range(8)), {0: 5, 1: 5, 2: 2, 3: 3})
    state = confidence.state_dict()
    assert not (state["rivals"] == state["labels"][:, None]).any()


def test_merge_of_nothing():
    confidence = Confidence()
    confidence.merge(Confidence(), {})
    assert len(confidence) == 0
