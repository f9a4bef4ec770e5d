"""CoPE: its loss against a loop, its prototypes by hand."""

import math
from collections import OrderedDict

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import nn
from torch.nn.functional import normalize
from watched import built, outputs_of, taught, unseen_in

from crumb_avalanche.methods.cope import ppp_loss
from crumb_avalanche.models.penultimate import penultimate
from crumb_avalanche.models.split_model import SplitModel


def slow_loss(embeddings, labels, prototypes, known, temperature):
    """The paper's sums, one by one, in double precision."""
    f, p = embeddings.double(), prototypes.double()

    def chance(x, proxy, c):
        own = torch.exp(x @ proxy.detach() / temperature)
        return own / (
            own
            + sum(
                torch.exp(x @ p[k] / temperature)
                for k in range(len(p))
                if known[k] and k != c
            )
        )

    total = 0.0
    for i, c in enumerate(labels.tolist()):
        mates = [j for j, other in enumerate(labels.tolist()) if other == c and j != i]
        proxies = [p[c], *(f[j] for j in mates)]
        total = total + torch.log(
            sum(chance(f[i], proxy, c) for proxy in proxies) / len(proxies)
        )
        for j, other in enumerate(labels.tolist()):
            if other != c:
                total = total + torch.log(
                    1 - (chance(f[j], p[c], c) + chance(f[j], f[i], c)) / 2
                )
    return -total / len(labels)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_the_loss_and_its_gradient_are_those_of_a_loop(temperature):
    random = torch.Generator().manual_seed(0)
    embeddings, prototypes = (
        normalize(torch.randn(count, 4, generator=random)) for count in (7, 5)
    )
    labels, known = (
        torch.randint(3, (7,), generator=random),
        torch.tensor([True, True, True, False, True]),
    )
    values, gradients = [], []
    for loss in (ppp_loss, slow_loss):
        leaf = embeddings.clone().requires_grad_()
        value = loss(leaf, labels, prototypes, known, temperature)
        value.backward()
        values.append(float(value.detach()))
        gradients.append(leaf.grad)
    assert values[0] == pytest.approx(values[1], rel=1e-4)
    assert torch.allclose(*gradients, rtol=1e-3, atol=1e-4)


def test_prototypes_by_hand(make_model):
    one = built(
        "cope", make_model(codebook=False), 4, method={"prototype_momentum": 0.5}
    ).memory
    one.prototypes = torch.zeros(3, 2)
    one.begin(
        torch.tensor([[0.6, 0.8], [0.6, -0.8], [0.0, 1.0]]), torch.tensor([2, 2, 0])
    )
    assert torch.allclose(one.prototypes, torch.tensor([[0.0, 1], [0, 0], [1, 0]]))
    assert one.known.tolist() == [True, False, True]
    one.evolve(torch.tensor([[0.6, 0.8], [1.0, 0.0]]), torch.tensor([2, 0]))
    # Halfway: (0.8, 0.4) and (0.5, 0.5), each brought to length 1.
    expected = torch.tensor(
        [[0.5**0.5, 0.5**0.5], [0.8 / math.sqrt(0.8), 0.4 / math.sqrt(0.8)]]
    )
    assert torch.allclose(one.prototypes[[0, 2]], expected)
    one.begin(torch.tensor([[0.0, -1.0]]), torch.tensor([2]))  # has one already
    assert torch.allclose(one.prototypes[[0, 2]], expected)


class Spy(SupervisedPlugin):
    """Follows the losses, the steps and the prototypes from outside."""

    def __init__(self):
        super().__init__()
        self.moved, self.sizes = [], []

    def before_update(self, strategy, **kwargs):
        one = strategy.memory
        self.before = [
            weight.clone() for weight in strategy.model.plastic_layers.conv.parameters()
        ]
        self.old, self.batch = one.prototypes.clone(), one._step
        embeddings, labels = self.batch
        self.sizes.append(len(labels))
        assert strategy.mb_output.shape == (len(strategy.mb_y), 4)
        assert torch.equal(labels[: len(strategy.mb_y)], strategy.mb_y)
        now = normalize(
            penultimate(strategy.model, strategy.model.features(strategy.mb_x))
        )
        assert torch.allclose(embeddings[: len(now)], now, atol=1e-6)
        if int(one.known.sum()) > 1:
            wanted = slow_loss(embeddings, labels, one.prototypes, one.known, 0.1)
            assert float(strategy.loss) == pytest.approx(float(wanted), rel=1e-3)

    def after_training_iteration(self, strategy, **kwargs):
        after = strategy.model.plastic_layers.conv.parameters()
        self.moved.append(
            any(not torch.equal(old, new) for old, new in zip(self.before, after))
        )
        embeddings, labels = self.batch
        assert torch.allclose(embeddings.norm(dim=1), torch.ones(len(labels)))
        wanted = self.old.clone()
        for label in set(labels.tolist()):
            wanted[label] = normalize(
                0.99 * wanted[label] + 0.01 * embeddings[labels == label].mean(0), dim=0
            )
        assert torch.allclose(strategy.memory.prototypes, wanted, atol=1e-6)


def test_every_batch_and_its_memories_are_learned_from_and_move_the_prototypes():
    spy = Spy()
    strategy, _ = taught("cope", settings={"weight_decay": 0.0}, plugins=[spy])
    # The first batch is of one class: without another prototype there is nothing to
    # tell apart.
    assert spy.moved == [False] + 11 * [True]
    assert (
        spy.sizes == [5] * 5 + [10] * 7
    )  # the buffer fills in the last epoch, and is replayed at once
    assert strategy.memory.known.all()


def test_the_nearest_prototype_answers(make_model):
    strategy, stream = taught("cope", 1)
    outputs, images = outputs_of(strategy, stream.test_stream)
    model, seen = strategy.model.eval(), strategy.seen_classes.seen
    products = (
        normalize(penultimate(model, model.features(images)))
        @ strategy.memory.prototypes.t()
    )
    assert torch.allclose(outputs[:, seen], products[:, seen] / 0.1, atol=1e-5)
    assert unseen_in(outputs) == set(range(4)) - set(seen)
    built("cope", make_model(codebook=False)).eval(
        stream.test_stream
    )  # before anything was learned: the head answers


def test_a_model_without_layers_before_its_head_is_refused():
    layers = nn.Sequential(
        OrderedDict(
            pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), head=nn.Linear(8, 4)
        )
    )
    with pytest.raises(ValueError, match="cope learns the layers between cut and head"):
        built("cope", SplitModel(nn.Conv2d(3, 8, 3), layers, "head", image_size=16))
