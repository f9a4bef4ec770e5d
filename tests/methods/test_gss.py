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

THIRDS = torch.tensor(
    [[np.cos(a), np.sin(a)] for a in (0, 2 * np.pi / 3, 4 * np.pi / 3)]
).float()


def offered(gradients, capacity, compared=10, batch=1, seed=0):
    """The rule after a stream of gradients, and which of the stream each slot holds."""
    rule, slots, held = GreedyDiversity(capacity), Slots(capacity, seed), {}
    for start in range(0, len(gradients), batch):
        part = gradients[start : start + batch]
        drawn = slots.random.permutation(sorted(held))[:compared].tolist()
        rule.offer(torch.cat([part, gradients[[held[slot] for slot in drawn]]]), drawn)
        for position, slot in rule.choose(slots, [0] * len(part)):
            held[slot] = start + position
    return rule, held


def test_a_batch_without_gradients_is_refused():
    with pytest.raises(
        ValueError, match=r"frames are chosen by their gradients: call offer\(...\)"
    ):
        GreedyDiversity(3).choose(Slots(3), [0])


@pytest.mark.parametrize("seed", range(8))
def test_the_maximally_spread_set_is_found_and_kept(seed):
    random = np.random.default_rng(seed)
    kinds = (
        [0] * 12 + random.integers(3, size=60).tolist() + [0] * 30
    )  # mostly one direction, as in a video
    gradients = THIRDS[kinds] * torch.linspace(0.1, 5, len(kinds)).unsqueeze(
        1
    )  # lengths do not matter
    held = offered(gradients, 3, seed=seed, batch=4)[1]
    assert sorted(kinds[position] for position in held.values()) == [0, 1, 2]


def test_scores_by_hand_while_the_buffer_fills():
    for batch in (
        1,
        5,
    ):  # frames of a batch are compared with those of it that were stored before them
        rule, held = offered(
            torch.tensor([[2.0, 0], [0, 1], [3, 3], [0, -1], [0, 0]]), 6, batch=batch
        )
        assert held == {slot: slot for slot in range(5)}  # in the stream's order
        assert torch.allclose(
            rule.scores[:5], torch.tensor([1.1, 1, 1 + 0.5**0.5, 1, 1]), atol=1e-6
        )


def test_replacement_has_the_papers_chances():
    rule, counts = GreedyDiversity(3), Counter()
    for seed in range(4000):
        slots = Slots(3, seed)
        for _ in range(3):
            slots.take(0)
        rule.scores = torch.tensor([0.2, 0.6, 1.2])
        counts[rule._enter(slots, 1, 0.5)] += 1
    for slot, score in enumerate((0.2, 0.6, 1.2)):
        assert counts[slot] / 4000 == pytest.approx(
            score / 2.0 * score / (score + 0.5), abs=0.025
        )
    assert counts[None] > 0


@pytest.mark.parametrize("compared", [2, 10])
def test_as_many_memories_are_compared_with(compared, make_model, make_stream):
    model, offered = make_model(codebook=False), []
    strategy = built("gss", model, method={"compared": compared})
    buffer, offer = strategy.storage_policy, strategy.storage_policy.rule.offer

    def spy(gradients, drawn):
        images = torch.cat(
            [model.pixels(strategy.mb_x), *([buffer.rows[drawn]] if drawn else [])]
        )
        labels = torch.cat([strategy.mb_y, buffer.labels[drawn].long()])
        wanted = sample_gradients(
            model, model.features(images), labels, strategy.seen_classes.mask
        )
        assert torch.allclose(gradients, wanted, atol=1e-6) and len(set(drawn)) == len(
            drawn
        )
        offered.append(len(drawn))
        offer(gradients, drawn)

    buffer.rule.offer = spy
    for experience in make_stream().train_stream:
        strategy.train(experience)
    assert offered == [0] + [min(compared, 5)] + 6 * [min(compared, 7)]


@pytest.mark.parametrize("conv_head", [True, False])
def test_gradients_are_those_of_a_slow_loop(conv_head, make_model, pixels):
    model = conv_head_model() if conv_head else make_model(codebook=False)
    maps, labels = model.features(pixels), torch.tensor([0, 1, 2, 0, 1, 2])

    def mask(logits):
        return logits.masked_fill(
            torch.tensor([False, False, False, True]), UNSEEN_LOGIT
        )

    gradients = sample_gradients(model, maps, labels, mask, chunk=4)
    assert model.plastic_layers.training and not gradients.requires_grad
    model.eval()
    for gradient, one_map, label in zip(gradients, maps, labels):
        loss = cross_entropy(
            mask(model.classify(one_map.unsqueeze(0))), label.unsqueeze(0)
        )
        wanted = torch.autograd.grad(loss, list(model.plastic_layers.parameters()))
        assert torch.allclose(
            gradient, torch.cat([one.flatten() for one in wanted]), atol=1e-6
        )
    assert all(weight.grad is None for weight in model.parameters())


def slow_loss(strategy):
    """The loss of new frames, and of memories drawn without repetition."""
    buffer, model, mask = (
        strategy.storage_policy,
        strategy.model,
        strategy.seen_classes.mask,
    )
    loss, held = (
        cross_entropy(strategy.mb_output.detach(), strategy.mb_y),
        held_slots(buffer),
    )
    if held:
        slots = draw_from(
            copy.deepcopy(buffer.slots.random), held, min(len(held), len(strategy.mb_y))
        )
        logits = mask(model.classify(model.features(buffer.rows[slots]))).detach()
        loss = loss + cross_entropy(logits, buffer.labels[slots].long())
    return loss


def test_every_step_has_new_frames_and_random_memories():
    losses = Losses(slow_loss)
    taught("gss", plugins=[losses])
    assert len(losses.losses) == 2 * 4 + 4 and losses.losses == pytest.approx(
        losses.expected, rel=1e-5
    )
