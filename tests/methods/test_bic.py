"""BiC against slow loops: what is held out, and the two stages."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch.nn.functional import cross_entropy
from watched import SIX, Losses, outputs_of, taught

from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.bic import BiasStage, SplitExemplars, fit_bias
from crumb_avalanche.methods.replay import draw_from

STAGE = BiasStage(epochs=200, learning_rate=0.1, decay=0.1)


def test_two_scalars_are_recovered_on_a_shifted_toy_problem():
    random = torch.Generator().manual_seed(0)
    true = 2 * torch.randn(5_000, 4, generator=random)
    labels = torch.multinomial(true.softmax(1), 1, generator=random).squeeze(1)
    shifted = true.clone()
    shifted[:, [1, 3]] = (true[:, [1, 3]] + 1.5) / 0.6  # so 0.6 * logit - 1.5 is right
    alpha, beta = fit_bias(shifted, labels, [1, 3], replace(STAGE, decay=0.0))
    assert alpha == pytest.approx(0.6, abs=0.05) and beta == pytest.approx(
        -1.5, abs=0.15
    )
    assert fit_bias(true, labels, [1, 3], STAGE) == pytest.approx((1, 0), abs=0.1)
    held_back = fit_bias(shifted, labels, [1, 3], replace(STAGE, decay=1.0))[1]
    assert -1.4 < held_back < 0


def test_the_order_of_new_classes_is_never_reversed():
    logits = torch.tensor([[2.0, 0, 5, 6], [0, 2, 6, 5], [0, 0, 1, 2], [0, 0, 2, 1]])
    alpha, beta = fit_bias(
        logits, torch.arange(4), [2, 3], STAGE
    )  # best told apart with a negative alpha
    assert alpha == pytest.approx(0.01) and math.isfinite(beta)


def slow_loss(strategy):
    """The loss of the next step, image by image."""
    buffer, model, bic = strategy.storage_policy, strategy.model, strategy.memory
    seen, new = (
        strategy.seen_classes.seen,
        set(map(int, strategy.experience.dataset.targets)),
    )
    old = [c for c in seen if c not in new]
    held = buffer.rule.held_out(strategy.mb_y.tolist())
    images = zip(strategy.mb_x, strategy.mb_y.tolist(), held)
    items = [
        (model.features(image.unsqueeze(0)), label)
        for image, label, out in images
        if not out
    ]
    if old:
        lists = [buffer.slots.by_class[c] for c in buffer.classes if c in old]
        slots = [
            slot
            for members in lists
            for slot in (members[1:] if len(members) > 1 else members)
        ]
        for slot in draw_from(
            copy.deepcopy(buffer.slots.random), slots, len(strategy.mb_y)
        ).tolist():
            items.append(
                (model.features(buffer.rows[slot : slot + 1]), int(buffer.labels[slot]))
            )
    total = 0.0
    for one_map, label in items:
        logits = (bic.alpha * model.classify(one_map)[0] + bic.beta).detach()
        loss = cross_entropy(logits[seen], torch.tensor(seen.index(label)))
        if old:
            said = (bic.alpha * bic.old_network.logits(model, one_map)[0] + bic.beta)[
                old
            ]
            distilled = -sum(
                (said / 2).softmax(0) * (logits[old] / 2).log_softmax(0)
            )  # at a temperature of 2
            share = len(old) / len(seen)
            loss = share * distilled + (1 - share) * loss
        total += float(loss)
    return total / max(1, len(items))


class Shown(SupervisedPlugin):
    """Which frames were learned from, and which were left out."""

    def __init__(self):
        super().__init__()
        self.learned, self.left_out = set(), set()

    def before_backward(self, strategy, **kwargs):
        for image, out in zip(
            strategy.mb_x, strategy.storage_policy.rule.held_out(strategy.mb_y.tolist())
        ):
            (self.left_out if out else self.learned).add(
                key(strategy.model.pixels(image.unsqueeze(0))[0])
            )


def key(image):
    return tuple(image.flatten().tolist())


def test_every_step_has_the_loss_of_a_slow_loop():
    losses = Losses(slow_loss)
    strategy, _ = taught("bic", classes=SIX, mem_size=14, plugins=[losses])
    assert len(losses.losses) == 2 * 4 + 4 + 4
    assert losses.losses == pytest.approx(losses.expected, rel=1e-4, abs=1e-6)
    assert not torch.equal(
        strategy.memory.alpha[strategy.memory._old], torch.ones(4)
    )  # the third saw corrected logits


def test_validation_frames_are_kept_and_never_learned_from():
    shown = Shown()
    strategy, _ = taught("bic", 2, SIX, mem_size=18, plugins=[shown])
    buffer = strategy.storage_policy
    assert {label: buffer.slots.count(label) for label in buffer.classes} == dict(
        zip(buffer.classes, (5, 5, 4, 4))
    )
    validation = {
        key(buffer.rows[members[0]]) for members in buffer.slots.by_class.values()
    }
    training = {
        key(buffer.rows[slot])
        for members in buffer.slots.by_class.values()
        for slot in members[1:]
    }
    assert (
        validation == shown.left_out
        and len(validation) == 4
        and not validation & shown.learned
    )
    assert len(training) == 14 and training <= shown.learned


def test_the_second_stage_fits_the_newest_scalars_and_nothing_else():
    strategy, stream = taught("bic", 1, SIX, mem_size=14)
    bic, model = strategy.memory, strategy.model
    assert (
        torch.equal(bic.alpha, torch.ones(6)) and not bic.beta.any()
    )  # there is no bias yet
    first, second = (
        sorted(set(map(int, stream.train_stream[n].dataset.targets))) for n in (0, 1)
    )
    strategy.train(stream.train_stream[1])
    others = [c for c in range(6) if c not in second]
    assert torch.equal(bic.alpha[others], torch.ones(4)) and not bic.beta[others].any()
    # They are the fit on one validation image of each class.
    buffer, still = strategy.storage_policy, copy.deepcopy(model).eval()
    slots = [buffer.slots.by_class[label][0] for label in buffer.classes]
    logits = strategy.seen_classes.mask(
        still.classify(still.features(buffer.rows[slots]))
    ).detach()
    alpha, beta = fit_bias(logits, buffer.labels[slots].long(), second, STAGE)
    assert alpha != 1 and bic.alpha[second].tolist() == pytest.approx(
        [alpha] * 2, abs=1e-3
    )
    assert (
        bic.beta[second].tolist() == pytest.approx([beta] * 2, abs=1e-3)
        and model.training
    )
    kept = bic.alpha[second].clone()
    strategy.train(stream.train_stream[2])
    assert torch.equal(bic.alpha[second], kept) and torch.equal(
        bic.alpha[first], torch.ones(2)
    )
    # Predictions apply the scalars of each experience.
    bic.alpha[:] = torch.linspace(0.5, 1, 6)
    outputs, images = outputs_of(strategy, stream.test_stream)
    torch.testing.assert_close(
        outputs, (model.eval()(images) * bic.alpha + bic.beta).detach()
    )


def test_the_rule_puts_validation_first_and_trims_from_the_end():
    rule, slots, frames = SplitExemplars(0.3), Slots(8), {}
    assert rule.begin_experience(slots, {0: 12, 1: 12}, 4) == []
    assert rule.stored[0] == [1, 4, 7, 10] and rule.held[0] == [7]
    for start in range(0, 24, 4):
        batch = [0, 1, 0, 1]
        assert rule.held_out(batch) == [
            (start + position) // 2 == 7 for position in range(4)
        ]
        frames |= {
            slot: (start + position) // 2
            for position, slot in rule.choose(slots, batch)
        }
    assert [[frames[slot] for slot in slots.by_class[label]] for label in (0, 1)] == [
        [7, 1, 4, 10]
    ] * 2
    # New ones take the places of the others' last, only when they need them.
    rule.begin_experience(slots, {2: 3, 3: 3}, 6)
    assert len(slots) == 8 and rule.quotas == dict.fromkeys(range(4), 2)
    rule.choose(slots, [2])
    assert slots.count(0) + slots.count(1) == 7
    rule.choose(slots, [2, 2, 3, 3, 3])
    assert {label: slots.count(label) for label in range(4)} == dict.fromkeys(
        range(4), 2
    )
    assert [[frames[slot] for slot in slots.by_class[label]] for label in (0, 1)] == [
        [7, 1]
    ] * 2
