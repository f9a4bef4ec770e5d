"""CoPE: its loss against a loop, its prototypes by hand."""

import math
import re
from collections import OrderedDict

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import nn
from torch.nn.functional import normalize
from watched import built, plugin_of, unseen_in
from watched import learned as learned_by

from crumb_avalanche.memory.selection import ClassBalancedReservoir
from crumb_avalanche.methods.cope import CoPEPlugin, CoPESettings, ppp_loss
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.models.penultimate import penultimate
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.training.ledger import LedgerMetric
from crumb_avalanche.training.storage_policies import ImageBuffer

pytestmark = pytest.mark.filterwarnings("ignore")
COPE = STRATEGIES["cope"]
SETTINGS = dict(weight_decay=0.0)


def build(model, mem_size, learning_rate=0.02, **more):
    return built("cope", model, mem_size, {**SETTINGS, "learning_rate": learning_rate}, **more)


def learned(make_model, make_stream, mem_size=7, experiences=2, **more):
    torch.manual_seed(0)
    model, stream = make_model(codebook=False), make_stream()
    return learned_by("cope", model, stream, mem_size, experiences, settings=SETTINGS, **more), stream


def the(strategy):
    return plugin_of(CoPEPlugin, strategy)


def plugin(n_classes=3, length=2, **settings):
    return CoPEPlugin(ImageBuffer(4, ClassBalancedReservoir()), CoPESettings(**settings), n_classes, length)


def slow_loss(embeddings, labels, prototypes, known, temperature):
    """The paper's sums, one by one, in double precision."""
    f, p = embeddings.double(), prototypes.double()

    def chance(x, proxy, c):
        own = torch.exp(x @ proxy.detach() / temperature)
        return own / (own + sum(torch.exp(x @ p[k] / temperature) for k in range(len(p)) if known[k] and k != c))

    total = 0.0
    for i, c in enumerate(labels.tolist()):
        mates = [j for j, other in enumerate(labels.tolist()) if other == c and j != i]
        proxies = [p[c], *(f[j] for j in mates)]
        total = total + torch.log(sum(chance(f[i], proxy, c) for proxy in proxies) / len(proxies))
        for j, other in enumerate(labels.tolist()):
            if other != c:
                total = total + torch.log(1 - (chance(f[j], p[c], c) + chance(f[j], f[i], c)) / 2)
    return -total / len(labels)


def some_batch(size=7, classes=5, length=4, seed=0):
    random = torch.Generator().manual_seed(seed)
    embeddings = normalize(torch.randn(size, length, generator=random))
    prototypes = normalize(torch.randn(classes, length, generator=random))
    return embeddings, torch.randint(3, (size,), generator=random), prototypes


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_the_loss_and_its_gradient_are_those_of_a_loop(temperature):
    embeddings, labels, prototypes = some_batch()
    known = torch.tensor([True, True, True, False, True])
    gradients = []
    for loss in (ppp_loss, slow_loss):
        leaf = embeddings.clone().requires_grad_()
        value = loss(leaf, labels, prototypes, known, temperature)
        value.backward()
        gradients.append((float(value.detach()), leaf.grad))
    assert gradients[0][0] == pytest.approx(gradients[1][0], rel=1e-4)
    assert torch.allclose(gradients[0][1], gradients[1][1], rtol=1e-3, atol=1e-4)


def test_prototypes_by_hand():
    one = plugin(prototype_momentum=0.5)
    embeddings = torch.tensor([[0.6, 0.8], [0.6, -0.8], [0.0, 1.0]])
    labels = torch.tensor([2, 2, 0])
    one.begin(embeddings, labels)
    assert torch.allclose(one.prototypes, torch.tensor([[0.0, 1], [0, 0], [1, 0]]))
    assert one.known.tolist() == [True, False, True]
    one.evolve(torch.tensor([[0.6, 0.8], [1.0, 0.0]]), torch.tensor([2, 0]))
    # Halfway: (0.8, 0.4) and (0.5, 0.5), each brought to length 1.
    root = math.sqrt(0.8)
    assert torch.allclose(one.prototypes[2], torch.tensor([0.8 / root, 0.4 / root]))
    assert torch.allclose(one.prototypes[0], torch.tensor([0.5**0.5, 0.5**0.5]))
    one.begin(torch.tensor([[0.0, -1.0]]), torch.tensor([2]))  # has one already
    assert torch.allclose(one.prototypes[2], torch.tensor([0.8 / root, 0.4 / root]))


class Spy(SupervisedPlugin):
    """Follows the prototypes and the steps from outside."""

    def __init__(self):
        super().__init__()
        self.steps, self.moved, self.sizes = 0, [], []

    def before_update(self, strategy, **kwargs):
        self.steps += 1
        self.before = [weight.clone() for weight in strategy.model.plastic_layers.conv.parameters()]
        self.old = the(strategy).prototypes.clone()
        self.batch = the(strategy)._batch
        self.sizes.append(len(self.batch[1]))
        assert strategy.mb_output.shape == (len(strategy.mb_y), 4)

    def after_training_iteration(self, strategy, **kwargs):
        after = strategy.model.plastic_layers.conv.parameters()
        self.moved.append(any(not torch.equal(old, new) for old, new in zip(self.before, after)))
        embeddings, labels = self.batch
        assert torch.allclose(embeddings.norm(dim=1), torch.ones(len(labels)))
        wanted = self.old.clone()
        for label in set(labels.tolist()):
            wanted[label] = 0.99 * wanted[label] + 0.01 * embeddings[labels == label].mean(0)
            wanted[label] /= wanted[label].norm()
        assert torch.allclose(the(strategy).prototypes, wanted, atol=1e-6)
        assert the(strategy)._batch is None


def test_every_batch_is_learned_from_and_moves_the_prototypes(make_model, make_stream):
    spy = Spy()
    strategy, _ = learned(make_model, make_stream, plugins=[spy])
    assert spy.steps == 2 * 4 + 4
    # The first batch is of one class: without another prototype there is nothing to tell apart.
    assert spy.moved == [False] + 11 * [True]
    assert spy.sizes == [5] * 5 + [10] * 7  # the buffer fills in the last epoch, and is replayed at once
    assert the(strategy).known.all()


def test_the_loss_of_a_step_is_over_new_frames_and_memories(make_model, make_stream):
    class Check(SupervisedPlugin):
        losses = 0

        def before_update(self, strategy, **kwargs):
            one = the(strategy)
            embeddings, labels = one._batch
            if int(one.known.sum()) > 1:
                wanted = slow_loss(embeddings, labels, one.prototypes, one.known, 0.1)
                assert float(strategy.loss) == pytest.approx(float(wanted), rel=1e-3)
                assert torch.equal(labels[: len(strategy.mb_y)], strategy.mb_y)
                now = normalize(penultimate(strategy.model, strategy.model.features(strategy.mb_x)))
                assert torch.allclose(embeddings[: len(now)], now, atol=1e-6)
                self.losses += 1

    check = Check()
    learned(make_model, make_stream, plugins=[check])
    assert check.losses == 11


def test_the_nearest_prototype_answers(make_model, make_stream):
    class Watch(SupervisedPlugin):
        def after_eval_iteration(self, strategy, **kwargs):
            model = strategy.model
            embeddings = normalize(penultimate(model, model.features(strategy.mb_x)))
            products = embeddings @ the(strategy).prototypes.t()
            assert torch.allclose(strategy.mb_output[:, seen], products[:, seen] / 0.1, atol=1e-5)
            assert unseen_in(strategy.mb_output) == set(unseen)
            self.looked = True

    watch = Watch()
    strategy, stream = learned(make_model, make_stream, experiences=1, plugins=[watch])
    seen = strategy.seen_classes.seen
    unseen = [c for c in range(4) if c not in seen]
    strategy.eval(stream.test_stream)
    assert watch.looked and not strategy.model.plastic_layers.head._forward_pre_hooks
    build(make_model(codebook=False), 7).eval(stream.test_stream)  # before anything was learned: the head answers


def test_bytes_are_images_and_prototypes(make_model, make_stream):
    strategy, _ = learned(make_model, make_stream)
    assert the(strategy).statistics_bytes == 4 * 4 * 8 == COPE.fixed_bytes(strategy.model, CoPESettings(), 4)
    assert LedgerMetric().count(strategy)["memory_bytes"] == 7 * (768 + 2) + 4 * 4 * 8
    assert COPE.memories_in_budget(strategy.model, 7 * 768 + 128, 4) == 7


def test_a_model_without_layers_before_its_head_is_refused():
    layers = nn.Sequential(OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), head=nn.Linear(8, 4)))
    model = SplitModel(nn.Conv2d(3, 8, 3), layers, "head", image_size=16)
    with pytest.raises(ValueError, match=re.escape("cope learns the layers between cut and head")):
        build(model, 4)
