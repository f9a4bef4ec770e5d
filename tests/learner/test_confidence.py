"""Temperature and threshold by hand and over any records; what becomes a record."""

import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crumb_avalanche.learner.calibration_error import expected_calibration_error
from crumb_avalanche.learner.confidence import CERTAIN, Confidence
from crumb_avalanche.learner.evidence import Evidence
from crumb_avalanche.learner.prior import Line, Prior
from crumb_avalanche.learner.rates import mixed
from crumb_avalanche.learner.record_fit import CLEAR, DEVIATION, REFUSED, STRICT
from crumb_avalanche.learner.records import PER_CLIP, RIVALS, Records
from crumb_avalanche.system.value_types import StateError


def evidence_of(scores, typicality=None, labels=None, counts=None):
    """Evidence of images from their scores; the rest is the same for all."""
    scores = torch.as_tensor(scores, dtype=torch.float64)
    images, columns = scores.shape
    if typicality is None:
        typicality = torch.zeros(images, 3, dtype=torch.float64)
    return Evidence(
        scores=scores,
        class_of_column=torch.tensor(labels or list(range(columns))),
        image_counts=torch.tensor(counts or [10] * columns),
        typicality=torch.as_tensor(typicality),
        left_out=torch.as_tensor(typicality) - 3,
    )


def random_clip(seed, label=0, images=12, classes=4, counts=None, spread=2.0):
    """Evidence of a clip of a class, whose scores are mostly the largest."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(images, classes, generator=generator, dtype=torch.float64)
    scores *= spread
    scores[:, label] += 2
    typicality = torch.randn(images, 3, generator=generator, dtype=torch.float64)
    return evidence_of(scores, typicality, counts=counts)


def observe(confidence, evidence, label):
    """Add the records of a clip of a class, as the next one."""
    confidence.add_clip(Records.of_clip(evidence, label, clip_number=0))


def observed(seeds=range(8), confidence=None, **arguments):
    """A confidence that observed a random clip for each seed, of classes in turn."""
    if confidence is None:
        confidence = Confidence()
    for seed in seeds:
        observe(confidence, random_clip(seed, seed % 4, **arguments), seed % 4)
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


def three_of_four(clips):
    """A confidence of two classes, a gap of 4, and three of four images right."""
    confidence = Confidence(capacity=8000)
    for _ in range(clips):
        scores = [[4.0, 0], [4.0, 0], [4.0, 0], [0, 4.0]]
        observe(confidence, evidence_of(scores), 0)
    return confidence


def test_usual_temperature():
    assert Confidence().temperature(evidence_of([[1.0, 0]])) == 1


@pytest.mark.parametrize("clips", [20, 100, 500])
def test_temperature_by_hand(clips):
    """The slopes of likelihood and prior are equal at the result."""
    confidence = three_of_four(clips)
    evidence = evidence_of([[4.0, 0]])
    temperature = confidence.temperature(evidence)
    share = 1 / (1 + math.exp(-4 / temperature))
    slope = clips * (share - 0.75) * 4 / temperature
    assert slope == pytest.approx(math.log(temperature) / DEVIATION**2, rel=0.01)
    shares = confidence.calibrated(evidence).scores.softmax(1)[0].tolist()
    assert shares == pytest.approx([share, 1 - share])


@pytest.mark.parametrize("clips", [1, 8])
def test_temperature_of_the_largest_posterior(clips):
    """No temperature of a fine grid has a larger one, each computed alone."""
    confidence = observed(range(clips))
    records = confidence._records.of_known_classes
    gaps = records.gaps.double().tolist()
    weight = 1 / 12  # of each of the images of a clip

    def loss(logarithm):
        losses = []
        for gaps_of_image in gaps:
            odds = [math.exp(gap / math.exp(logarithm)) for gap in gaps_of_image]
            losses.append(math.log1p(sum(odds)))
        return weight * sum(losses) + (logarithm / DEVIATION) ** 2 / 2

    temperature = confidence.temperature(random_clip(1))
    least = min(loss(step / 100) for step in range(-200, 201))
    assert loss(math.log(temperature)) <= least + 1e-6


def test_temperature_of_more_clips():
    """The likelihood is largest where the sigmoid of 4 / T is 3/4."""
    evidence = evidence_of([[4.0, 0]])
    counts = (20, 100, 500)
    temperatures = [three_of_four(count).temperature(evidence) for count in counts]
    distances = [4 / math.log(3) - temperature for temperature in temperatures]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.5


def test_long_clips_count_once():
    def temperature(images):
        confidence = Confidence()
        observe(confidence, evidence_of([[3.0, 0]] * images), 0)
        observe(confidence, evidence_of([[0.0, 3]]), 0)
        return confidence.temperature(evidence_of([[3.0, 0]]))

    assert temperature(1) == temperature(15)


# Known and unknown

# Images of known classes have the closeness 1, others 0.
PRIOR = Prior(
    known=Line(1.0, by_clips=0.5),
    strange=Line(0.0, by_clips=0.5),
    slope=Line(8.0),
    known_deviation=Line(0.25),
    strange_deviation=Line(0.25),
    temperature=Line(0.0),
)


def close(*values):
    """Typicality of images, whose first two values add up to a closeness."""
    return torch.tensor([[value / 2, value / 2, 1] for value in values]).double()


def certain(typicality):
    """Evidence of images whose class is the first, without doubt."""
    return evidence_of([[60.0, 0]] * len(typicality), typicality)


def moved(known, strange, clips=100):
    """A confidence that recorded clips of closeness ``known``.

    Without their class they have the closeness ``strange``. A third class is there.
    """
    confidence = Confidence(PRIOR)
    for _ in range(clips):
        scores = [[60.0, 0, -60]]
        evidence = evidence_of(scores, close(known))._replace(left_out=close(strange))
        observe(confidence, evidence, 0)
    return confidence


def confidence_of(confidence, evidence):
    return confidence.probabilities(evidence)[:, 0].tolist()


def test_probability_of_any_class_by_the_prior():
    """At the 15 % quantile of known images it is that of a name, but for rivals."""
    least = NormalDist(1, 0.25).inv_cdf(REFUSED)
    shares = confidence_of(Confidence(PRIOR), certain(close(least, least + 0.5)))
    odds = STRICT / (CLEAR - STRICT)
    expected = [odds / (1 + odds), odds / (odds + math.exp(-8 * 0.5))]
    assert shares == pytest.approx(expected)


def test_more_clips_of_a_class_ask_for_closer_images():
    once = certain(close(0.7))
    often = once._replace(clip_counts=torch.tensor([4, 4]))
    confidence = Confidence(PRIOR)
    assert confidence_of(confidence, often) < confidence_of(confidence, once)


def test_few_images_of_a_class_ask_for_less_close_images():
    """One image of each class is short of four by more than one."""
    prior = PRIOR._replace(known=Line(1.0, by_shortage=-0.2))
    enough = certain(torch.tensor([[0.0, 0.7, 1]]).double())
    few = enough._replace(image_counts=torch.ones_like(enough.image_counts))
    confidence = Confidence(prior)
    assert confidence_of(confidence, few) > confidence_of(confidence, enough)


def test_distances_say_nothing_with_few_images():
    far = certain(torch.tensor([[-7.0, 0.9, 1]]).double())
    near = certain(torch.tensor([[0.0, 0.9, 1]]).double())
    one_image = torch.ones_like(near.image_counts)
    confidence = Confidence(PRIOR)
    assert confidence_of(confidence, far) < confidence_of(confidence, near)
    far = far._replace(image_counts=one_image)
    near = near._replace(image_counts=one_image)
    assert confidence_of(confidence, far) == confidence_of(confidence, near)


@pytest.fixture
def single():
    """A confidence with a prior of its own for a single class, half as close."""
    of_one = PRIOR._replace(known=Line(0.5), strange=Line(0.0))
    return Confidence(PRIOR._replace(of_one=of_one))


def test_a_single_class_has_a_prior_of_its_own(single):
    """At the 15 % quantile of its known images an image has a name, but barely."""
    least = NormalDist(0.5, 0.25).inv_cdf(REFUSED)
    evidence = evidence_of([[0.0]], close(least))
    assert confidence_of(single, evidence) == pytest.approx([STRICT / CLEAR])
    of_two = evidence_of([[60.0, 0]], close(least))
    assert confidence_of(single, of_two)[0] < STRICT / CLEAR - 0.1


def test_records_of_several_classes_say_nothing_of_one(single):
    asked = evidence_of([[0.0]], close(0.5))
    before = confidence_of(single, asked)
    for _ in range(20):
        evidence = evidence_of([[60.0, 0]], close(-1.0))
        observe(single, evidence._replace(left_out=close(3.0)), 0)
    assert confidence_of(single, asked) == before


def test_without_a_prior_and_records_all_images_are_known():
    assert confidence_of(Confidence(), certain(close(-9.0))) == pytest.approx([1])


def test_a_prior_of_the_records_in_any_units():
    """Their mean is known, and what is two deviations less is not."""
    confidence = Confidence()
    for seed in range(20):
        observe(confidence, random_clip(seed, seed % 4, spread=0.0), seed % 4)
    near, far = confidence_of(confidence, certain(close(0.0, -9.0)))
    assert near > 0.9 > 0.01 > far


def test_closer_records_ask_for_closer_images():
    asked = certain(close(0.75))
    usual = confidence_of(Confidence(PRIOR), asked)[0]
    closer = confidence_of(moved(1.5, -1.0), asked)[0]
    farther = confidence_of(moved(0.25, -1.0), asked)[0]
    assert closer < usual < farther


def test_classes_that_look_alike_ask_for_closer_images():
    asked = certain(close(0.75))
    apart = confidence_of(moved(1.0, -0.5), asked)[0]
    assert confidence_of(moved(1.0, 0.9), asked)[0] < apart - 0.1


def test_an_image_like_nothing_is_unknown():
    evidence = certain(close(2.0, 2.0))._replace(
        apart=torch.tensor([0.0, 0.5]).double()
    )
    like_nothing, apart = confidence_of(Confidence(PRIOR), evidence)
    assert like_nothing < 0.01 < 0.99 < apart


@pytest.mark.parametrize(
    ("known", "strange", "refused", "named"),
    [
        (1.0, -1.0, 0.0, 0.0),
        (0.0, -1.0, 1.0, 0.0),
        (1.0, 0.9, 0.0, 1.0),
    ],
)
def test_rates_of_records(known, strange, refused, named):
    """With a prior that is not moved: what is refused or named of them."""
    confidence = moved(known, strange, clips=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("crumb_avalanche.learner.record_fit.CLIPS_OF_PRIOR", 1e9)
        patch.setattr("crumb_avalanche.learner.rates.CLIPS_OF_RATES", 0.0)
        rates = confidence.rates(0.8, {0: 10, 1: 10, 2: 10}, 0.0)
    assert rates[:2] == pytest.approx((refused, named), abs=0.01)
    assert rates.named <= rates.named_alike


@pytest.mark.parametrize(
    ("strict", "odds"), [(0.5, 1), (0.8, 4), (0.9, 9), (0.95, 19), (0.99, 99)]
)
def test_rates_without_records(strict, odds):
    """Of normal distributions, up to the closeness whose odds are those of a name.

    They are 16/3 at the 15 % quantile of known images, and grow by 8 in logarithm.
    """
    rates = Confidence(PRIOR).rates(strict, {0: 1, 1: 1}, 0.0)
    known = NormalDist(1, 0.25)
    least = known.inv_cdf(REFUSED) + math.log(odds / (16 / 3)) / 8
    assert rates.refused == pytest.approx(known.cdf(least))
    assert rates.named == pytest.approx(1 - NormalDist(0, 0.25).cdf(least))
    alike = NormalDist(0.25, 0.25)  # closer by a deviation
    assert rates.named_alike == pytest.approx(1 - alike.cdf(least))


def named_share(closeness, strict):
    """Share of images of a distribution of closeness that are called by a name."""
    shares = [(index + 0.5) / 1000 for index in range(1000)]
    images = certain(close(*map(closeness.inv_cdf, shares)))
    confidence = Confidence(PRIOR)
    probabilities = confidence.probabilities(images)
    return float(confidence.known(probabilities, images, strict).double().mean())


@pytest.mark.parametrize("strict", [0.5, 0.8, 0.9, 0.95, 0.99])
def test_rates_are_those_of_the_answers(strict):
    """To images without doubt between classes, as close as the prior says."""
    rates = Confidence(PRIOR).rates(strict, {0: 10, 1: 10}, 0.0)
    refused = 1 - named_share(NormalDist(1, 0.25), strict)
    assert rates.refused == pytest.approx(refused, abs=0.002)
    named = named_share(NormalDist(0, 0.25), strict)
    assert rates.named == pytest.approx(named, abs=0.002)


@pytest.mark.parametrize("sizes", [[3, 1, 6], [7] * 9, [1, 2, 3, 5, 7, 11]])
def test_a_rate_is_at_most_one(sizes):
    # Given clips of sizes whose weights are rounded, of which all images are errors
    records = Records.none()
    for number, size in enumerate(sizes):
        evidence = evidence_of(torch.rand(size, 3))
        clip = Records.of_clip(evidence, 0, number)
        records = records.joined_with(clip, 1000)
    # When the rate is computed
    rate = mixed(1.0, torch.ones(len(records.labels)) > 0, records)
    # Then it is a share
    assert rate == pytest.approx(1) and rate <= 1


def test_rates_without_a_prior():
    """Records count as refused below a probability of 0.1, as images do."""
    confidence = Confidence()
    observe(confidence, evidence_of([[0.1, 0.0]]), 0)
    strictest = confidence.rates(0.99, {0: 10, 1: 10}, 0.0)
    assert strictest == (0, 1, 1)


@pytest.mark.parametrize(("clips", "missing"), [(0, 5), (4, 1), (5, 0), (7, 0)])
def test_clips_are_missing_until_there_is_a_prior(clips, missing):
    # Given records of clips, and no prior of the network
    confidence = observed(range(clips))
    # Then more are needed until the threshold has an effect
    assert confidence.missing_clips == missing
    assert (confidence.log_odds(random_clip(50)) == CERTAIN).all() == (missing > 0)


def test_no_clips_are_missing_with_a_prior():
    assert Confidence(PRIOR).missing_clips == 0


@pytest.mark.parametrize(("known", "is_more"), [(0.3, True), (1.4, False)])
def test_what_looks_alike_stays_where_known_classes_are_less_close(known, is_more):
    images = {0: 1, 1: 1, 2: 1}
    usual = Confidence(PRIOR).rates(STRICT, images, 0.0).named_alike
    rates = moved(known, -1.0).rates(STRICT, images, 0.0)
    assert (rates.named_alike > usual + 0.1) == is_more
    assert rates.named_alike >= usual - 1e-6


@pytest.mark.parametrize("clips", [0, 3, 100])
def test_stricter_learners_refuse_more_and_name_less(clips):
    """Each hundredth of a stricter learner changes no rate the other way."""
    confidence = moved(0.8, 0.4, clips)
    images = {0: 1, 1: 1, 2: 1}
    refused, named, named_alike = zip(
        *(confidence.rates(percent / 100, images, 0.0) for percent in range(1, 100))
    )
    assert list(refused) == sorted(refused)
    assert list(named) == sorted(named, reverse=True)
    assert list(named_alike) == sorted(named_alike, reverse=True)
    assert refused[0] < refused[-1]
    assert named[0] > named[-1]
    assert named_alike[0] > named_alike[-1]


# Which records count


def test_early_records_of_a_class():
    """They set neither temperature nor threshold once it has more images."""
    now = random_clip(50, counts=[10] * 4)
    early = observed(range(6), counts=[4] * 4)
    stale = early.temperature(now)
    later = {"seeds": range(100, 120), "counts": [9] * 4, "spread": 0.1}
    observed(confidence=early, **later)
    late = observed(**later)
    assert early.temperature(now) == late.temperature(now) != stale
    then = now._replace(image_counts=torch.tensor([8] * 4))
    assert early.temperature(then) != late.temperature(then)


@pytest.fixture
def of_few_classes():
    """Two confidences that observed three classes; the first one two classes before."""
    summed = Confidence()
    for seed in range(8):
        clip = random_clip(seed, label=seed % 2, classes=2, spread=5.0)
        observe(summed, clip, seed % 2)
    late = Confidence()
    for seed in range(100, 120):
        clip = random_clip(seed, label=seed % 3, classes=3)
        observe(summed, clip, seed % 3)
        observe(late, clip, seed % 3)
    return summed, late


@pytest.mark.parametrize(("classes", "count"), [(6, False), (4, True)])
def test_records_of_few_classes(of_few_classes, classes, count):
    """They do not count once there are more than twice as many."""
    summed, late = of_few_classes
    now = random_clip(50, classes=classes)
    assert (summed.temperature(now) != late.temperature(now)) == count


@given(st.integers(0, 10_000), st.integers(0, 10))
def test_probabilities_add_up_to_that_of_any_class(seed, clips):
    """They keep the order of the scores."""
    confidence = observed(range(clips))
    evidence = random_clip(seed)
    probabilities = confidence.probabilities(evidence)
    of_any = confidence.log_odds(evidence).sigmoid()
    assert torch.allclose(probabilities.sum(1), of_any)
    assert torch.equal(probabilities.argmax(1), evidence.scores.argmax(1))


# What becomes a record, and how records are kept


def test_no_capacity():
    with pytest.raises(ValueError, match=r"capacity is 0; give at least 1"):
        Confidence(capacity=0)


@pytest.mark.parametrize(
    ("scores", "labels", "label", "records"),
    [
        ([[1.0, 2.0]], [3, 5], 4, 1),  # what others take a new class for
        ([[1.0]], [0], 0, 0),  # a single class is always right
        ([[1.0, 2.0]] * 100, [3, 5], 5, PER_CLIP),
    ],
)
def test_number_of_records(scores, labels, label, records):
    confidence = Confidence()
    observe(confidence, evidence_of(scores, labels=labels), label)
    assert len(confidence) == records


@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 25)), max_size=12),
)
def test_capacity(capacity, clips):
    """The records stay within it, and every class keeps some."""
    confidence = Confidence(capacity=capacity)
    for seed, (label, images) in enumerate(clips):
        observe(confidence, random_clip(seed, label, images), label)
        assert len(confidence) <= capacity
    labels = set(confidence.state_dict()["labels"].tolist())
    if capacity >= 8:
        assert labels == {label for label, _ in clips}


def test_bytes_of_a_record():
    state = observed().state_dict()
    del state["next"]
    sizes = [rows[0].numel() * rows.element_size() for rows in state.values()]
    assert sum(sizes) == 256


def test_more_than_sixteen_rivals():
    confidence = Confidence()
    scores = torch.arange(40.0).repeat(3, 1)
    observe(confidence, evidence_of(scores), 20)
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
    asked = without_class_two(random_clip(77))
    confidence.log_odds(asked)  # what is fitted here is not asked again
    confidence.forget(2)
    merged = Confidence()
    for seed in (0, 1, 3, 4, 5, 7, 8, 9, 11):
        clip = random_clip(seed, label=seed % 4)
        observe(merged, without_class_two(clip), seed % 4)
    assert len(confidence) == len(merged) == 9 * 12
    state = confidence.state_dict()
    assert 2 not in state["labels"]
    assert 2 not in state["rivals"]
    expected = merged.temperature(asked)
    assert confidence.temperature(asked) == pytest.approx(expected)
    assert torch.allclose(confidence.log_odds(asked), merged.log_odds(asked))


def test_state_round_trip():
    confidence = observed(range(9))
    loaded = Confidence()
    loaded.load_state_dict(confidence.state_dict())
    assert same(confidence, loaded)
    evidence = random_clip(123)
    assert torch.equal(confidence.log_odds(evidence), loaded.log_odds(evidence))


def test_a_loaded_state_is_a_copy():
    confidence = observed(range(9))
    loaded = Confidence()
    loaded.load_state_dict(confidence.state_dict())
    observe(loaded, random_clip(123), 1)
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
    assert len(state["clip_numbers"].unique()) == 4 + 6, "clips stay apart"
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
