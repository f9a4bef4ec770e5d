"""GSS-greedy against slow loops and cases small enough to see."""

import copy
import re
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import nn
from torch.nn.functional import cross_entropy
from watched import built, plugin_of
from watched import learned as learned_by

from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.gss import GreedyDiversity, GSSPlugin, sample_gradients
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.methods.replay import draw_from
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.training.ledger import LedgerMetric
from crumb_avalanche.training.plugins import UNSEEN_LOGIT

pytestmark = pytest.mark.filterwarnings("ignore")
GSS = STRATEGIES["gss"]
THIRDS = torch.tensor([[np.cos(a), np.sin(a)] for a in (0, 2 * np.pi / 3, 4 * np.pi / 3)]).float()


def learned(make_model, make_stream, mem_size=7, **more):
    torch.manual_seed(0)
    stream = make_stream()
    return learned_by("gss", make_model(codebook=False), stream, mem_size, **more), stream


def offered(gradients, capacity, compared=10, batch=1, seed=0):
    """The rule after a stream of gradients, and which of the stream each slot holds."""
    rule, slots, held = GreedyDiversity(capacity), Slots(capacity, seed), {}
    for start in range(0, len(gradients), batch):
        part = gradients[start : start + batch]
        drawn = slots.random.permutation(sorted(held))[:compared].tolist()
        rule.offer(torch.cat([part, gradients[[held[slot] for slot in drawn]]]), drawn)
        for position, slot in rule.choose(slots, [0] * len(part)):
            held[slot] = start + position
    return rule, slots, held


def test_another_capacity_is_refused(make_model, make_stream):
    buffer = learned(make_model, make_stream)[0].storage_policy
    before = buffer.rows.clone()
    for size in (4, 8):
        with pytest.raises(ValueError, match=f"keeps a score for each of 7 memories, not {size}; make a new buffer"):
            buffer.resize(None, size)
    assert torch.equal(buffer.rows, before) and buffer.max_size == 7


@pytest.mark.parametrize("seed", range(8))
def test_the_maximally_spread_set_is_found_and_kept(seed):
    random = np.random.default_rng(seed)
    kinds = [0] * 12 + random.integers(3, size=60).tolist() + [0] * 30  # mostly one direction, as in a video
    gradients = THIRDS[kinds] * torch.linspace(0.1, 5, len(kinds)).unsqueeze(1)  # lengths do not matter
    _, _, held = offered(gradients, 3, seed=seed, batch=4)
    assert sorted(kinds[position] for position in held.values()) == [0, 1, 2]


def test_scores_by_hand_while_the_buffer_fills():
    gradients = torch.tensor([[2.0, 0], [0, 1], [3, 3], [0, -1], [0, 0]])
    rule, _, held = offered(gradients, 6)
    assert held == {slot: slot for slot in range(5)}  # in the stream's order
    assert torch.allclose(rule.scores[:5], torch.tensor([1.1, 1, 1 + 0.5**0.5, 1, 1]), atol=1e-6)


def test_a_replaced_memory_is_compared_with_no_more():
    both = 0
    for seed in range(10):
        rule, slots = GreedyDiversity(1), Slots(1, seed)
        slots.take(0)
        rule.scores = torch.tensor([2.0])
        # The second frame is like the memory that the first one took the place of: only afterwards may it enter.
        rule.offer(torch.tensor([[1.0, 0], [-1.0, 0], [-1.0, 1.0]]), [0])
        chosen = rule.choose(slots, [1, 2])
        assert chosen in ([], [(0, 0), (1, 0)])
        both += len(chosen) // 2
    assert both > 5


def test_replacement_has_the_papers_chances():
    rule, counts = GreedyDiversity(3), Counter()
    for seed in range(4000):
        slots = Slots(3, seed)
        for _ in range(3):
            slots.take(0)
        rule.scores = torch.tensor([0.2, 0.6, 1.2])
        counts[rule._enter(slots, 1, 0.5)] += 1
    chances = {slot: score / 2.0 * score / (score + 0.5) for slot, score in enumerate((0.2, 0.6, 1.2))}
    for slot, chance in chances.items():
        assert counts[slot] / 4000 == pytest.approx(chance, abs=0.025)
    assert sum(counts.values()) == 4000 and counts[None] > 0


@pytest.mark.parametrize("compared", [2, 10])
def test_as_many_memories_are_compared_with(compared, make_model, make_stream):
    torch.manual_seed(0)
    stream, model, offered = make_stream(), make_model(codebook=False), []
    strategy = built("gss", model, method={"compared": compared})
    offer = strategy.storage_policy.rule.offer

    def spy(gradients, drawn):
        buffer = strategy.storage_policy
        assert len(gradients) == len(strategy.mb_y) + len(drawn) and len(set(drawn)) == len(drawn)
        maps = model.features(buffer.rows[drawn]) if drawn else torch.empty(0, *model.map_shape)
        new = model.features(strategy.mb_x)
        maps, labels = torch.cat([new, maps]), torch.cat([strategy.mb_y, buffer.labels[drawn].long()])
        assert torch.allclose(gradients, sample_gradients(model, maps, labels, strategy.seen_classes.mask), atol=1e-6)
        offered.append(len(drawn))
        offer(gradients, drawn)

    strategy.storage_policy.rule.offer = spy
    for experience in stream.train_stream:
        strategy.train(experience)
    assert offered == [0] + [min(compared, 5)] + 6 * [min(compared, 7)]


def test_a_batch_without_gradients_is_refused():
    with pytest.raises(ValueError, match=re.escape("frames are chosen by their gradients: call offer(...)")):
        GreedyDiversity(3).choose(Slots(3), [0])


def conv_head_model():
    torch.manual_seed(1)
    extractor = nn.Sequential(nn.Conv2d(3, 5, 3, stride=4, padding=1), nn.ReLU())
    layers = OrderedDict(
        fire=nn.Conv2d(5, 6, 3, padding=1),
        bn=nn.BatchNorm2d(6),
        drop=nn.Dropout(0.5),
        head=nn.Conv2d(6, 4, 3, padding=1),
        last=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    return SplitModel(extractor, nn.Sequential(layers), "head", image_size=16)


@pytest.mark.parametrize("conv_head", [True, False])
def test_gradients_are_those_of_a_slow_loop(conv_head, make_model, pixels):
    model = conv_head_model() if conv_head else make_model(codebook=False)
    maps, labels = model.features(pixels), torch.tensor([0, 1, 2, 0, 1, 2])

    def mask(logits):
        return logits.masked_fill(torch.tensor([False, False, False, True]), UNSEEN_LOGIT)

    gradients = sample_gradients(model, maps, labels, mask, chunk=4)
    assert model.plastic_layers.training and not gradients.requires_grad
    model.eval()
    weights = dict(model.plastic_layers.named_parameters())
    for gradient, one_map, label in zip(gradients, maps, labels):
        loss = cross_entropy(mask(model.classify(one_map.unsqueeze(0))), label.unsqueeze(0))
        wanted = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(weights.values()))])
        assert torch.allclose(gradient, wanted, atol=1e-6)
    assert all(weight.grad is None for weight in model.parameters())


class Spy(SupervisedPlugin):
    """Works out each step's loss by itself, and notes the frames in their order."""

    def __init__(self):
        super().__init__()
        self.losses, self.expected, self.offered = [], [], []

    def before_backward(self, strategy, **kwargs):
        buffer, model, mask = strategy.storage_policy, strategy.model, strategy.seen_classes.mask
        loss = cross_entropy(strategy.mb_output.detach(), strategy.mb_y)
        held = sorted(slot for members in buffer.slots.by_class.values() for slot in members)
        if held:
            slots = draw_from(copy.deepcopy(buffer.slots.random), held, min(len(held), len(strategy.mb_y)))
            assert len(set(slots.tolist())) == len(slots)
            logits = mask(model.classify(model.features(buffer.rows[slots]))).detach()
            loss = loss + cross_entropy(logits, buffer.labels[slots].long())
        self.expected.append(float(loss))

    def before_update(self, strategy, **kwargs):
        self.losses.append(float(strategy.loss))

    def after_training_iteration(self, strategy, **kwargs):
        if strategy.clock.train_exp_epochs == strategy.train_epochs - 1:
            self.offered += list(strategy.model.pixels(strategy.mb_x))


def test_every_step_has_new_frames_and_random_memories(make_model, make_stream):
    spy = Spy()
    learned(make_model, make_stream, plugins=[spy])
    assert len(spy.losses) == 2 * 4 + 4 and spy.losses == pytest.approx(spy.expected, rel=1e-5)


def test_bytes_are_images_and_scores(make_model, make_stream):
    strategy, _ = learned(make_model, make_stream)
    plugin = plugin_of(GSSPlugin, strategy)
    assert plugin.statistics_bytes == 7 * 4
    assert LedgerMetric().count(strategy)["memory_bytes"] == 7 * (768 + 4 + 2)
    assert GSS.memories_in_budget(strategy.model, 8 * 768, 4) == 7
    assert GSS.memories_in_budget(strategy.model, 8 * 772, 4) == 8
