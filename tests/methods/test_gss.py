"""GSS-greedy against slow loops and cases small enough to see."""

import copy
from collections import Counter

import numpy as np
import pytest
import torch
from small_models import conv_head_model
from torch.nn.functional import cross_entropy
from watched import Losses, built, taught

from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.gss import GreedyDiversity, sample_gradients
from crumb_avalanche.methods.replay import draw_from, held_slots
from crumb_avalanche.training.plugins import UNSEEN_LOGIT

ANGLES = torch.arange(3) * 2 * torch.pi / 3
THIRDS = torch.stack([ANGLES.cos(), ANGLES.sin()], 1)  # a third of a circle apart


class Selected:
    """A rule after a stream of gradients.

    Attributes:
        frames: which of the stream each slot holds.
    """

    def __init__(self, gradients, capacity, compared=10, batch=1, seed=0):
        self.rule = GreedyDiversity(capacity)
        self.frames = {}
        slots = Slots(capacity, seed)
        for start in range(0, len(gradients), batch):
            new = gradients[start : start + batch]
            drawn = slots.random.permutation(sorted(self.frames))[:compared].tolist()
            memories = gradients[[self.frames[slot] for slot in drawn]]
            self.rule.offer(torch.cat([new, memories]), drawn)
            for position, slot in self.rule.choose(slots, [0] * len(new)):
                self.frames[slot] = start + position


def test_a_batch_without_gradients_is_refused():
    words = r"frames are chosen by their gradients: call offer\(...\)"
    with pytest.raises(ValueError, match=words):
        GreedyDiversity(3).choose(Slots(3), [0])


@pytest.mark.parametrize("seed", range(8))
def test_the_spread_set_is_found_and_kept(seed):
    random = np.random.default_rng(seed)
    mixed = random.integers(3, size=60).tolist()
    directions = [0] * 12 + mixed + [0] * 30  # mostly one, as in a video
    lengths = torch.linspace(0.1, 5, len(directions))  # do not matter
    gradients = THIRDS[directions] * lengths.unsqueeze(1)
    frames = Selected(gradients, 3, seed=seed, batch=4).frames
    assert sorted(directions[frame] for frame in frames.values()) == [0, 1, 2]


@pytest.mark.parametrize("batch", [1, 5])
def test_scores_by_hand_while_the_buffer_fills(batch):
    """Frames of a batch are compared with those of it that were stored before."""
    gradients = torch.tensor([[2.0, 0], [0, 1], [3, 3], [0, -1], [0, 0]])
    selected = Selected(gradients, 6, batch=batch)
    assert selected.frames == {slot: slot for slot in range(5)}
    scores = torch.tensor([1.1, 1, 1 + 0.5**0.5, 1, 1])
    assert torch.allclose(selected.rule.scores[:5], scores, atol=1e-6)


SCORES = [0.2, 0.6, 1.2]


@pytest.fixture(scope="module")
def entered():
    """Slots that a frame of the score 0.5 took in 4,000 tries."""
    rule = GreedyDiversity(3)
    rule.scores = torch.tensor(SCORES)
    counts = Counter()
    for seed in range(4000):
        slots = Slots(3, seed)
        for _ in SCORES:
            slots.take(0)
        counts[rule._slot_for_frame(slots, 1, 0.5)] += 1
    return counts


@pytest.mark.parametrize("slot", range(3))
def test_replacement_has_the_papers_chances(entered, slot):
    score = SCORES[slot]
    chance = score / sum(SCORES) * score / (score + 0.5)
    assert entered[slot] / 4000 == pytest.approx(chance, abs=0.025)


def test_some_frames_are_not_stored(entered):
    assert entered[None] > 0


@pytest.mark.parametrize(
    ("score", "may_enter"), [(0.99, True), (1.0, False), (1.5, False)]
)
def test_only_a_frame_unlike_the_memories_enters(score, may_enter):
    rule = GreedyDiversity(3)
    rule.scores = torch.tensor(SCORES)
    slots = Slots(3)
    for _ in SCORES:
        slots.take(0)
    taken = [rule._slot_for_frame(slots, 1, score) for _ in range(50)]
    assert any(slot is not None for slot in taken) == may_enter


class Offered:
    """Notes how many memories are compared, and checks their gradients."""

    def __init__(self, strategy):
        self.strategy = strategy
        self.numbers = []
        self.offer = strategy.storage_policy.rule.offer
        strategy.storage_policy.rule.offer = self

    def __call__(self, gradients, slots):
        expected = self.gradients_of(slots)
        assert torch.allclose(gradients, expected, atol=1e-6)
        assert len(set(slots)) == len(slots)
        self.numbers.append(len(slots))
        self.offer(gradients, slots)

    def gradients_of(self, slots):
        """Those of the batch and of memories, computed again."""
        strategy = self.strategy
        model = strategy.model
        buffer = strategy.storage_policy
        images = [model.pixels(strategy.mb_x)]
        labels = [strategy.mb_y]
        if slots:
            images.append(buffer.rows[slots])
            labels.append(buffer.labels[slots].long())
        maps = model.features(torch.cat(images))
        mask = strategy.seen_classes.mask
        return sample_gradients(model, maps, torch.cat(labels), mask)


@pytest.mark.parametrize("compared", [2, 10])
def test_as_many_memories_are_compared_with(compared, make_model, make_stream):
    model = make_model(codebook=False)
    strategy = built("gss", model, method={"compared": compared})
    offered = Offered(strategy)
    for experience in make_stream().train_stream:
        strategy.train(experience)
    assert offered.numbers == [0, min(compared, 5)] + 6 * [min(compared, 7)]


def without_last(logits):
    """Mask the last of four classes."""
    unseen = torch.tensor([False, False, False, True])
    return logits.masked_fill(unseen, UNSEEN_LOGIT)


def slow_gradient(model, feature_map, label):
    """That of one image, in evaluation mode."""
    logits = without_last(model.classify(feature_map.unsqueeze(0)))
    loss = cross_entropy(logits, label.unsqueeze(0))
    gradients = torch.autograd.grad(loss, list(model.plastic_layers.parameters()))
    return torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("conv_head", [True, False])
def test_gradients_are_those_of_a_slow_loop(conv_head, make_model, pixels):
    model = conv_head_model() if conv_head else make_model(codebook=False)
    maps = model.features(pixels)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    gradients = sample_gradients(model, maps, labels, without_last, chunk=4)
    model.eval()
    expected = [slow_gradient(model, *image) for image in zip(maps, labels)]
    assert torch.allclose(gradients, torch.stack(expected), atol=1e-6)


@pytest.mark.parametrize("conv_head", [True, False])
def test_gradients_leave_nothing_behind(conv_head, make_model, pixels):
    model = conv_head_model() if conv_head else make_model(codebook=False)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    gradients = sample_gradients(model, model.features(pixels), labels, without_last)
    assert not gradients.requires_grad
    assert model.plastic_layers.training
    assert all(weight.grad is None for weight in model.parameters())


def slow_loss(strategy):
    """The loss of new frames, and of memories drawn without repetition."""
    buffer = strategy.storage_policy
    model = strategy.model
    loss = cross_entropy(strategy.mb_output.detach(), strategy.mb_y)
    stored = held_slots(buffer)
    if not stored:
        return loss
    random = copy.deepcopy(buffer.slots.random)
    slots = draw_from(random, stored, min(len(stored), len(strategy.mb_y)))
    logits = model.classify(model.features(buffer.rows[slots])).detach()
    masked = strategy.seen_classes.mask(logits)
    return loss + cross_entropy(masked, buffer.labels[slots].long())


def test_a_step_has_new_frames_and_memories():
    losses = Losses(slow_loss)
    taught("gss", plugins=[losses])
    assert len(losses.losses) == 2 * 4 + 4
    assert losses.losses == pytest.approx(losses.expected, rel=1e-5)
