"""CoPE: its loss against a loop, its prototypes by hand."""

import math
from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import nn
from torch.nn.functional import normalize
from watched import built, outputs_of, taught, unseen_in

from crumb_avalanche.methods.cope import ppp_loss
from crumb_avalanche.models.penultimate import penultimate
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.training.replay_step import memory_step


class SlowLoss:
    """The paper's sums, one by one, in double precision."""

    def __init__(self, embeddings, labels, prototypes, known, temperature):
        self.f = embeddings.double()
        self.labels = labels.tolist()
        self.p = prototypes.double()
        self.known = known.tolist()
        self.temperature = temperature

    def similarity(self, f, proxy):
        return torch.exp(f @ proxy / self.temperature)

    def chance(self, f, proxy, c):
        """``P(c | f, p)``."""
        of_proxy = self.similarity(f, proxy.detach())
        of_prototypes = []
        for k in range(len(self.p)):
            if self.known[k] and k != c:
                of_prototypes.append(self.similarity(f, self.p[k]))
        return of_proxy / (of_proxy + sum(of_prototypes))

    def attraction(self, i):
        c = self.labels[i]
        proxies = [self.p[c]]
        for j, label in enumerate(self.labels):
            if label == c and j != i:
                proxies.append(self.f[j])
        chances = [self.chance(self.f[i], proxy, c) for proxy in proxies]
        return torch.log(sum(chances) / len(proxies))

    def repulsion(self, i, j):
        c = self.labels[i]
        by_prototype = self.chance(self.f[j], self.p[c], c)
        by_sample = self.chance(self.f[j], self.f[i], c)
        return torch.log(1 - (by_prototype + by_sample) / 2)

    def __call__(self):
        samples = range(len(self.labels))
        total = 0.0
        for i in samples:
            total = total + self.attraction(i)
            for j in samples:
                if self.labels[j] != self.labels[i]:
                    total = total + self.repulsion(i, j)
        return -total / len(self.labels)


def slow_loss(*arguments):
    return SlowLoss(*arguments)()


def value_and_gradient(loss, temperature):
    random = torch.Generator().manual_seed(0)
    embeddings = normalize(torch.randn(7, 4, generator=random)).requires_grad_()
    prototypes = normalize(torch.randn(5, 4, generator=random))
    labels = torch.randint(3, (7,), generator=random)
    known = torch.tensor([True, True, True, False, True])
    value = loss(embeddings, labels, prototypes, known, temperature)
    value.backward()
    return float(value.detach()), embeddings.grad


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_the_loss_is_that_of_a_loop(temperature):
    value, gradient = value_and_gradient(ppp_loss, temperature)
    expected, expected_gradient = value_and_gradient(slow_loss, temperature)
    assert value == pytest.approx(expected, rel=1e-4)
    assert torch.allclose(gradient, expected_gradient, rtol=1e-3, atol=1e-4)


@pytest.fixture
def begun(make_model):
    """A plugin with prototypes (0, 1) of class 0 and (1, 0) of class 2."""
    method = {"prototype_momentum": 0.5}
    plugin = built("cope", make_model(codebook=False), 4, method=method).memory
    plugin.prototypes = torch.zeros(3, 2)
    embeddings = torch.tensor([[0.6, 0.8], [0.6, -0.8], [0.0, 1.0]])
    plugin.begin_prototypes(embeddings, torch.tensor([2, 2, 0]))
    return plugin


def test_prototypes_begin_as_means(begun):
    expected = torch.tensor([[0.0, 1], [0, 0], [1, 0]])
    assert torch.allclose(begun.prototypes, expected)
    assert begun.known.tolist() == [True, False, True]


def test_prototypes_evolve_by_hand(begun):
    begun.evolve_prototypes(
        torch.tensor([[0.6, 0.8], [1.0, 0.0]]), torch.tensor([2, 0])
    )
    # Halfway: (0.5, 0.5) and (0.8, 0.4), each brought to length 1.
    of_class_0 = [0.5**0.5, 0.5**0.5]
    of_class_2 = [0.8 / math.sqrt(0.8), 0.4 / math.sqrt(0.8)]
    expected = torch.tensor([of_class_0, of_class_2])
    assert torch.allclose(begun.prototypes[[0, 2]], expected)


def test_a_known_prototype_does_not_begin_again(begun):
    before = begun.prototypes.clone()
    begun.begin_prototypes(torch.tensor([[0.0, -1.0]]), torch.tensor([2]))
    assert torch.equal(begun.prototypes, before)


@dataclass
class Step:
    """What a step learned from, and what it did."""

    batch: int
    images: int
    loss: float
    expected_loss: float | None  # None while there is one prototype
    embeddings: torch.Tensor
    expected_embeddings: torch.Tensor  # of the batch
    labels: torch.Tensor
    prototypes: torch.Tensor  # before it
    weights: list  # before it
    moved: bool = False
    evolved: torch.Tensor | None = None


class Spy(SupervisedPlugin):
    """Follows losses, steps and prototypes from outside."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def before_update(self, strategy, **kwargs):
        plugin = strategy.memory
        embeddings, labels = plugin._labelled_embeddings
        expected = None
        if int(plugin.known.sum()) > 1:
            prototypes = plugin.prototypes
            expected = slow_loss(embeddings, labels, prototypes, plugin.known, 0.1)
            expected = float(expected)
        model = strategy.model
        maps = model.features(strategy.mb_x)
        step = Step(
            batch=len(strategy.mb_y),
            images=len(labels),
            loss=float(strategy.loss.detach()),
            expected_loss=expected,
            embeddings=embeddings,
            expected_embeddings=normalize(penultimate(model, maps)),
            labels=labels,
            prototypes=plugin.prototypes.clone(),
            weights=weights_of(strategy),
        )
        self.steps.append(step)

    def after_training_iteration(self, strategy, **kwargs):
        step = self.steps[-1]
        pairs = zip(step.weights, weights_of(strategy))
        step.moved = any(not torch.equal(before, after) for before, after in pairs)
        step.evolved = strategy.memory.prototypes.clone()


def weights_of(strategy):
    conv = strategy.model.plastic_layers.conv
    return [weight.detach().clone() for weight in conv.parameters()]


@pytest.fixture(scope="module")
def steps():
    """Twelve steps of two experiences."""
    spy = Spy()
    taught("cope", settings={"weight_decay": 0.0}, plugins=[spy])
    return spy.steps


def test_a_step_has_the_loss_of_a_loop(steps):
    losses = [step.loss for step in steps if step.expected_loss is not None]
    expected = [step.expected_loss for step in steps if step.expected_loss is not None]
    assert losses == pytest.approx(expected, rel=1e-3)


def test_weights_move_with_a_second_prototype(steps):
    """The first batch is of one class: there is nothing to tell it from."""
    assert [step.moved for step in steps] == [False] + 11 * [True]


def test_memories_are_learned_from(steps):
    """The buffer fills in the last epoch, and is replayed at once."""
    assert [step.images for step in steps] == [5] * 5 + [10] * 7


def test_embeddings_are_the_heads_input(steps):
    for step in steps:
        of_batch = step.embeddings[: step.batch]
        assert torch.allclose(of_batch, step.expected_embeddings, atol=1e-6)


def test_embeddings_have_length_1(steps):
    for step in steps:
        lengths = step.embeddings.norm(dim=1)
        assert torch.allclose(lengths, torch.ones(step.images))


def assert_evolved_by(step):
    expected = step.prototypes.clone()
    for label in set(step.labels.tolist()):
        mean = step.embeddings[step.labels == label].mean(0)
        expected[label] = normalize(0.99 * expected[label] + 0.01 * mean, dim=0)
    assert torch.allclose(step.evolved, expected, atol=1e-6)


def test_a_step_moves_the_prototypes(steps):
    for step in steps:
        assert_evolved_by(step)


class StepsOfItsOwn(SupervisedPlugin):
    """Takes a step on memories after each update of a new batch."""

    def after_training_iteration(self, strategy, **kwargs):
        logits = strategy.model(strategy.mb_x)
        memory_step(strategy, logits.square().mean(), **kwargs)


def test_steps_of_others_move_no_prototype():
    spy = Spy()

    class Watched(StepsOfItsOwn):
        def after_training_iteration(self, strategy, **kwargs):
            before = strategy.memory.prototypes.clone()
            super().after_training_iteration(strategy, **kwargs)
            spy.steps.append(torch.equal(before, strategy.memory.prototypes))

    taught("cope", plugins=[Watched()])
    assert spy.steps == [True] * 12


def test_the_nearest_prototype_answers():
    strategy, stream = taught("cope", 1)
    outputs, images = outputs_of(strategy, stream.test_stream)
    model = strategy.model.eval()
    seen = strategy.seen_classes.seen
    embeddings = normalize(penultimate(model, model.features(images)))
    products = embeddings @ strategy.memory.prototypes.t()
    assert torch.allclose(outputs[:, seen], products[:, seen] / 0.1, atol=1e-5)


def test_unseen_classes_are_masked():
    strategy, stream = taught("cope", 1)
    outputs, _ = outputs_of(strategy, stream.test_stream)
    assert unseen_in(outputs) == set(range(4)) - set(strategy.seen_classes.seen)


def test_all_classes_have_a_prototype():
    strategy, _ = taught("cope")
    assert strategy.memory.known.all()


def test_before_learning_the_head_answers(make_model, make_stream):
    strategy = built("cope", make_model(codebook=False))
    outputs, images = outputs_of(strategy, make_stream().test_stream)
    assert outputs.shape == (len(images), 4)


def test_layers_before_the_head_are_needed():
    layers = OrderedDict(
        pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), head=nn.Linear(8, 4)
    )
    plastic = nn.Sequential(layers)
    model = SplitModel(nn.Conv2d(3, 8, 3), plastic, "head", image_size=16)
    with pytest.raises(ValueError, match="cope learns the layers between cut and head"):
        built("cope", model)
