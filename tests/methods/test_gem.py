"""GEM: its projection against another solver and its own definition, its shares."""

from itertools import chain

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from watched import SIX, built

from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.gem import ExperienceShares, project

SEEDS = st.integers(0, 10**6)


def random_gradients(seed, past, length):
    """A gradient ``(length,)`` and past ones ``(past, length)``, float64."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(past + 1, length, dtype=torch.float64, generator=generator)
    return drawn[0], drawn[1:]


@given(
    seed=SEEDS,
    past=st.integers(1, 12),
    length=st.integers(1, 40),
    repeated=st.integers(0, 3),
    scale=st.sampled_from([1e-12, 1e-4, 1.0, 1e6]),
    margin=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_no_product_is_negative(seed, past, length, repeated, scale, margin):
    """Whatever the number, scale and length; with copies and opposites among them."""
    gradient, references = random_gradients(seed, past, length)
    factors = torch.tensor([1.0, -1.0, 3.0])[: min(repeated, past)]
    copies = references[:repeated] * factors.unsqueeze(1)
    references = torch.cat([references, copies]) * scale
    projected = project(gradient, references, margin)
    lengths = references.norm(dim=1, keepdim=True)
    tolerance = 1e-6 * (gradient.norm() + margin * lengths.sum())
    assert ((references / lengths) @ projected >= -tolerance).all()


def projected_on(gradient, constraints):
    """The nearest gradient that is orthogonal to some others."""
    if not len(constraints):
        return gradient
    products = constraints @ constraints.T
    weights = torch.linalg.solve(products, constraints @ gradient)
    return gradient - constraints.T @ weights


def nearest_distance(gradient, references):
    """That of the nearest admissible projection, among those on every subset."""
    past = len(references)
    nearest = float("inf")
    for subset in range(2**past):
        members = [index for index in range(past) if subset >> index & 1]
        candidate = projected_on(gradient, references[members])
        if (references @ candidate >= -1e-9).all():
            nearest = min(nearest, float((candidate - gradient).norm()))
    return nearest


@given(seed=SEEDS, past=st.integers(1, 6), length=st.integers(6, 30))
def test_the_projection_is_the_nearest(seed, past, length):
    gradient, references = random_gradients(seed, past, length)
    distance = float((project(gradient, references) - gradient).norm())
    expected = nearest_distance(gradient, references)
    assert distance == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    "references", [[[1.0, 0.0], [-2.0, 1.0]], [[float("nan"), 0.0]]]
)
def test_a_harmless_gradient_stays(references):
    gradient = torch.tensor([1.0, 2.0])
    assert project(gradient, torch.tensor(references), 0.5) is gradient


@pytest.mark.parametrize(
    ("references", "margin", "expected"),
    [
        ([[2.0, 0.0]], 0.0, [0.0, 1.0]),
        # At least so much of the past gradient itself is added.
        ([[2.0, 0.0]], 0.75, [0.5, 1.0]),
        # An experience without any gradient has no say.
        ([[2.0, 0.0], [0.0, 0.0]], 0.75, [0.5, 1.0]),
    ],
)
def test_the_projection_by_hand(references, margin, expected):
    gradient = torch.tensor([-1.0, 1.0])
    projected = project(gradient, torch.tensor(references), margin)
    assert projected.tolist() == pytest.approx(expected, abs=1e-8)


class Shares:
    """A rule and ten slots, after some experiences of forty images each."""

    def __init__(self, experiences):
        self.rule = ExperienceShares()
        self.slots = Slots(10, seed=1)
        for number in range(experiences):
            self.before = self.sizes()
            self.freed = self.rule.begin_experience(self.slots, {0: 20, 1: 20}, 7)
            self.chosen = []
            for _ in range(5):
                self.chosen += self.rule.choose(self.slots, [0] * 8)
            self.number = number

    def sizes(self):
        by_class = self.slots.by_class
        return {group: len(members) for group, members in by_class.items()}


SHARES = [(1, 10), (2, 5), (3, 3), (4, 2)]
each_share = pytest.mark.parametrize(("experiences", "share"), SHARES)


@each_share
def test_shares_are_equal_and_filled(experiences, share):
    assert Shares(experiences).sizes() == dict.fromkeys(range(experiences), share)


@each_share
def test_a_new_experience_frees_slots(experiences, share):
    shares = Shares(experiences)
    given_up = [size - share for size in shares.before.values()]
    assert len(shares.freed) == sum(given_up)


@each_share
def test_images_go_to_their_experience(experiences, share):
    shares = Shares(experiences)
    positions, slots = zip(*shares.chosen)
    assert set(positions) <= set(range(8))
    assert set(slots) == set(shares.slots.by_class[shares.number])


@each_share
def test_no_slot_is_lost(experiences, share):
    slots = Shares(experiences).slots
    taken = chain(*slots.by_class.values())
    assert sorted([*slots.free, *taken]) == list(range(10))


@each_share
def test_past_experiences_are_listed(experiences, share):
    shares = Shares(experiences)
    assert len(shares.rule.past_slots(shares.slots)) == experiences - 1


def test_too_many_experiences_are_told():
    rule = ExperienceShares()
    slots = Slots(1)
    rule.begin_experience(slots, {}, 1)
    words = "mem_size=1 cannot hold a memory of each of 2 experiences; raise mem_size"
    with pytest.raises(ValueError, match=words):
        rule.begin_experience(slots, {}, 1)


def test_too_many_experiences_are_told_before_the_first(make_model, make_stream):
    model = make_model(n_classes=6, codebook=False)
    strategy = built("gem", model, 2)
    first = make_stream(classes=SIX).train_stream[0]  # of three
    with pytest.raises(ValueError, match="a memory of each of 3 experiences"):
        strategy.train(first)
    assert strategy.clock.train_iterations == 0


def test_an_experience_that_begins_again_counts_once(make_model, make_stream):
    # Given a strategy whose second experience was stopped by an error
    strategy = built("gem", make_model(n_classes=6, codebook=False), 12)
    first, second, _ = make_stream(classes=SIX).train_stream
    strategy.train(first)

    class Stop(SupervisedPlugin):
        def before_backward(self, strategy, **kwargs):
            raise KeyboardInterrupt

    stop = Stop()
    strategy.plugins.append(stop)
    with pytest.raises(KeyboardInterrupt):
        strategy.train(second)
    strategy.plugins.remove(stop)
    # When it is learned again
    strategy.train(second)
    # Then there are two experiences, which share the memory
    buffer = strategy.storage_policy
    assert buffer.rule.experience == 1
    assert len(buffer.rule.past_slots(buffer.slots)) == 1


class Watch(SupervisedPlugin):
    """Products of each corrected gradient with those of past experiences."""

    def __init__(self):
        super().__init__()
        self.products = []  # of each step

    def before_update(self, strategy, **kwargs):
        buffer = strategy.storage_policy
        layers = strategy.model.plastic_layers
        gradient = flat([weight.grad.clone() for weight in layers.parameters()])
        products = []
        for slots in buffer.rule.past_slots(buffer.slots):
            past = self.gradient_of(strategy, slots)
            products.append(float(gradient @ past / past.norm()))
        self.products.append(products)

    @staticmethod
    def gradient_of(strategy, slots):
        """The gradient of the loss of memories, by plain code."""
        model = strategy.model
        buffer = strategy.storage_policy
        seen = strategy.seen_classes.seen
        logits = model.plastic_layers(model.features(buffer.rows[slots]))[:, seen]
        labels = buffer.labels[slots].tolist()
        columns = torch.tensor(list(map(seen.index, labels)))
        weights = list(model.plastic_layers.parameters())
        return flat(torch.autograd.grad(cross_entropy(logits, columns), weights))


def flat(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients])


@pytest.fixture
def watch(make_model, make_stream):
    """Three experiences of eight, four and four steps."""
    plugin = Watch()
    model = make_model(n_classes=6, codebook=False)
    strategy = built("gem", model, 12, method={"margin": 0.0})
    strategy.plugins.append(plugin)  # after the correction
    for experience in make_stream(classes=SIX).train_stream:
        strategy.train(experience)
    return plugin


def test_each_step_heeds_all_past_experiences(watch):
    numbers = list(map(len, watch.products))
    assert numbers == [0] * 8 + [1] * 4 + [2] * 4


def test_no_step_raises_a_past_loss(watch):
    assert min(chain(*watch.products)) > -1e-5
