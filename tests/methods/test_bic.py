"""BiC against slow loops: what is held out, and the two stages."""

import copy
import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import nn
from torch.nn.functional import cross_entropy
from watched import SIX, Losses, outputs_of, taught

from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.bic import BiasStage, SplitExemplars, fit_bias
from crumb_avalanche.methods.replay import draw_from

STAGE = BiasStage(epochs=200, learning_rate=0.1, decay=0.1)
NEW = [1, 3]  # classes whose logits are shifted


class ToyBias:
    """Labels, logits that give them, and such whose new classes are shifted."""

    def __init__(self):
        random = torch.Generator().manual_seed(0)
        self.true = 2 * torch.randn(5_000, 4, generator=random)
        probabilities = self.true.softmax(1)
        self.labels = torch.multinomial(probabilities, 1, generator=random).squeeze(1)
        self.shifted = self.true.clone()
        # So 0.6 * logit - 1.5 is right.
        self.shifted[:, NEW] = (self.true[:, NEW] + 1.5) / 0.6


def test_two_scalars_are_recovered():
    toy = ToyBias()
    stage = replace(STAGE, decay=0.0)
    alpha, beta = fit_bias(toy.shifted, toy.labels, NEW, stage)
    assert alpha == pytest.approx(0.6, abs=0.05)
    assert beta == pytest.approx(-1.5, abs=0.15)


def test_without_a_bias_nothing_is_corrected():
    toy = ToyBias()
    scalars = fit_bias(toy.true, toy.labels, NEW, STAGE)
    assert scalars == pytest.approx((1, 0), abs=0.1)


def test_decay_holds_the_summand_back():
    toy = ToyBias()
    _, beta = fit_bias(toy.shifted, toy.labels, NEW, replace(STAGE, decay=1.0))
    assert -1.4 < beta < 0


def test_the_order_of_new_classes_is_never_reversed():
    # Best told apart with a negative alpha.
    logits = torch.tensor([[2.0, 0, 5, 6], [0, 2, 6, 5], [0, 0, 1, 2], [0, 0, 2, 1]])
    alpha, beta = fit_bias(logits, torch.arange(4), [2, 3], STAGE)
    assert alpha == pytest.approx(0.01)
    assert math.isfinite(beta)


def new_images(strategy):
    """Maps and labels of the batch that are not held out."""
    labels = strategy.mb_y.tolist()
    held_out = strategy.storage_policy.rule.held_out(labels)
    maps = strategy.model.features(strategy.mb_x).split(1)
    return [
        (maps[index], label)
        for index, label in enumerate(labels)
        if not held_out[index]
    ]


def memories_drawn(strategy, old):
    """Maps and labels of the exemplars that the next step will draw."""
    buffer = strategy.storage_policy
    slots = []
    for label in buffer.classes:
        members = buffer.slots.by_class[label]
        if label in old:
            slots += members[1:] or members
    if not slots:
        return []
    random = copy.deepcopy(buffer.slots.random)
    return [
        (strategy.model.features(buffer.rows[[slot]]), int(buffer.labels[slot]))
        for slot in draw_from(random, slots, len(strategy.mb_y)).tolist()
    ]


def loss_of_image(strategy, feature_map, label, old):
    bic = strategy.memory
    model = strategy.model
    seen = strategy.seen_classes.seen
    logits = (bic.alpha * model.classify(feature_map)[0] + bic.beta).detach()
    loss = cross_entropy(logits[seen], torch.tensor(seen.index(label)))
    if not old:
        return float(loss)
    old_logits = bic.old_network.logits(model, feature_map)[0]
    targets = (bic.alpha * old_logits + bic.beta)[old]
    # At a temperature of 2.
    terms = (targets / 2).softmax(0) * (logits[old] / 2).log_softmax(0)
    share = len(old) / len(seen)
    return float(share * -terms.sum() + (1 - share) * loss)


def slow_loss(strategy):
    """The loss of the next step, image by image."""
    present = set(map(int, strategy.experience.dataset.targets))
    old = [label for label in strategy.seen_classes.seen if label not in present]
    images = new_images(strategy) + memories_drawn(strategy, old)
    losses = [loss_of_image(strategy, *image, old) for image in images]
    return sum(losses) / max(1, len(losses))


@pytest.fixture(scope="module")
def followed():
    """A strategy after three experiences, and its losses."""
    losses = Losses(slow_loss)
    strategy, _ = taught("bic", classes=SIX, mem_size=14, plugins=[losses])
    return strategy, losses


def test_steps_have_the_loss_of_a_slow_loop(followed):
    _, losses = followed
    assert len(losses.losses) == 2 * 4 + 4 + 4
    assert losses.losses == pytest.approx(losses.expected, rel=1e-4, abs=1e-6)


def test_the_third_experience_saw_corrected_logits(followed):
    bic = followed[0].memory
    assert not torch.equal(bic.alpha[bic.old_classes], torch.ones(4))


def key(image):
    return tuple(image.flatten().tolist())


class LearnedFrom(SupervisedPlugin):
    """Which frames were learned from, and which were left out."""

    def __init__(self):
        super().__init__()
        self.learned = set()
        self.left_out = set()

    def before_backward(self, strategy, **kwargs):
        held_out = strategy.storage_policy.rule.held_out(strategy.mb_y.tolist())
        for image, is_left_out in zip(strategy.model.pixels(strategy.mb_x), held_out):
            frames = self.left_out if is_left_out else self.learned
            frames.add(key(image))


class Exemplars:
    """What a buffer holds after two experiences, for validation and for training."""

    def __init__(self):
        self.frames = LearnedFrom()
        strategy, _ = taught("bic", 2, SIX, mem_size=18, plugins=[self.frames])
        self.buffer = strategy.storage_policy
        self.validation = set()
        self.training = set()
        for members in self.buffer.slots.by_class.values():
            images = [key(self.buffer.rows[slot]) for slot in members]
            self.validation.add(images[0])
            self.training |= set(images[1:])


@pytest.fixture(scope="module")
def exemplars():
    return Exemplars()


def test_classes_share_the_buffer(exemplars):
    buffer = exemplars.buffer
    counts = list(map(buffer.slots.count, buffer.classes))
    assert counts == [5, 5, 4, 4]


def test_validation_frames_are_never_learned_from(exemplars):
    assert exemplars.validation == exemplars.frames.left_out
    assert len(exemplars.validation) == 4
    assert not exemplars.validation & exemplars.frames.learned


def test_training_exemplars_were_learned_from(exemplars):
    assert len(exemplars.training) == 14
    assert exemplars.training <= exemplars.frames.learned


class Stages:
    """A strategy whose experiences are trained one by one."""

    def __init__(self, experiences):
        self.strategy, self.stream = taught("bic", 1, SIX, mem_size=14)
        self.bic = self.strategy.memory
        for number in range(1, experiences):
            self.before = self.bic.alpha.clone()
            self.strategy.train(self.stream.train_stream[number])

    def classes(self, number):
        dataset = self.stream.train_stream[number].dataset
        return sorted(set(map(int, dataset.targets)))

    def fitted(self):
        """The scalars of the newest classes, on a validation image of each class."""
        strategy = self.strategy
        buffer = strategy.storage_policy
        model = copy.deepcopy(strategy.model).eval()
        slots = [buffer.slots.by_class[label][0] for label in buffer.classes]
        logits = model.classify(model.features(buffer.rows[slots])).detach()
        masked = strategy.seen_classes.mask(logits)
        labels = buffer.labels[slots].long()
        return fit_bias(masked, labels, self.classes(1), STAGE)


@cache
def stages_of(experiences):
    """For tests that only read them."""
    return Stages(experiences)


def test_there_is_no_bias_after_one_experience():
    bic = stages_of(1).bic
    assert torch.equal(bic.alpha, torch.ones(6))
    assert not bic.beta.any()


def test_the_second_stage_fits_the_newest_scalars():
    stages = stages_of(2)
    alpha, beta = stages.fitted()
    newest = stages.classes(1)
    assert alpha != 1
    assert stages.bic.alpha[newest].tolist() == pytest.approx([alpha] * 2, abs=1e-3)
    assert stages.bic.beta[newest].tolist() == pytest.approx([beta] * 2, abs=1e-3)
    assert stages.strategy.model.training


def test_the_second_stage_fits_nothing_else():
    stages = stages_of(2)
    not_fitted = [label for label in range(6) if label not in stages.classes(1)]
    assert torch.equal(stages.bic.alpha[not_fitted], torch.ones(4))
    assert not stages.bic.beta[not_fitted].any()


@pytest.mark.parametrize("number", [0, 1])
def test_scalars_stay_in_later_experiences(number):
    stages = stages_of(3)
    classes = stages.classes(number)
    assert torch.equal(stages.bic.alpha[classes], stages.before[classes])


def test_classes_that_come_back_begin_without_a_bias():
    stages = Stages(1)
    stages.bic.alpha[:] = 0.5
    stages.bic.beta[:] = 1
    stages.strategy.train(stages.stream.train_stream[0])
    classes = stages.classes(0)
    assert torch.equal(stages.bic.alpha[classes], torch.ones(len(classes)))
    assert not stages.bic.beta[classes].any()


def test_predictions_apply_the_scalars():
    stages = Stages(3)
    bic = stages.bic
    bic.alpha[:] = torch.linspace(0.5, 1, 6)
    outputs, images = outputs_of(stages.strategy, stages.stream.test_stream)
    logits = stages.strategy.model.eval()(images).detach()
    torch.testing.assert_close(outputs, logits * bic.alpha + bic.beta)


class FilledRule:
    """A rule and eight slots, after twelve frames of each of two classes."""

    def __init__(self):
        self.rule = SplitExemplars(0.3)
        self.slots = Slots(8)
        self.frames = {}  # number in its class, by slot
        self.freed = self.rule.begin_experience(self.slots, {0: 12, 1: 12}, 4)
        self.held_out = []
        for start in range(0, 24, 4):
            batch = [0, 1, 0, 1]
            self.held_out += self.rule.held_out(batch)
            for position, slot in self.rule.choose(self.slots, batch):
                self.frames[slot] = (start + position) // 2

    def lists(self):
        """The frames of both classes, in order of priority."""
        by_class = self.slots.by_class
        return [[self.frames[slot] for slot in by_class[label]] for label in (0, 1)]


def test_stored_frames_are_spread():
    filled = FilledRule()
    assert filled.freed == []
    assert filled.rule.stored[0] == [1, 4, 7, 10]
    assert filled.rule.held[0] == [7]


def test_held_out_frames_are_known_in_advance():
    assert FilledRule().held_out == [index // 2 == 7 for index in range(24)]


def test_validation_comes_first():
    assert FilledRule().lists() == [[7, 1, 4, 10]] * 2


def test_a_new_experience_takes_nothing_yet():
    filled = FilledRule()
    filled.rule.begin_experience(filled.slots, {2: 3, 3: 3}, 6)
    assert len(filled.slots) == 8
    assert filled.rule.quotas == dict.fromkeys(range(4), 2)


def test_a_new_frame_takes_one_slot():
    filled = FilledRule()
    filled.rule.begin_experience(filled.slots, {2: 3, 3: 3}, 6)
    filled.rule.choose(filled.slots, [2])
    assert filled.slots.count(0) + filled.slots.count(1) == 7


def test_old_classes_are_trimmed_from_the_end():
    filled = FilledRule()
    filled.rule.begin_experience(filled.slots, {2: 3, 3: 3}, 6)
    filled.rule.choose(filled.slots, [2])
    filled.rule.choose(filled.slots, [2, 2, 3, 3, 3])
    counts = {label: filled.slots.count(label) for label in range(4)}
    assert counts == dict.fromkeys(range(4), 2)
    assert filled.lists() == [[7, 1]] * 2


def test_shuffled_epochs_are_refused():
    """What is held out in the first epoch would be trained on in the second."""
    strategy, stream = taught("bic", 0)
    words = (
        r"2 shuffled epochs have different orders.*train\(experience, shuffle=False\)"
    )
    with pytest.raises(ValueError, match=words):
        strategy.train(stream.train_stream[0], shuffle=True)


def test_an_epoch_may_be_shuffled():
    strategy, stream = taught("bic", 0, settings={"first_epochs": 1})
    strategy.train(stream.train_stream[0], shuffle=True)
    assert len(strategy.storage_policy) == 7


@pytest.mark.parametrize(
    "criterion",
    [
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=torch.ones(4)),
        nn.MultiMarginLoss(),
    ],
)
def test_another_criterion_is_refused(criterion):
    words = "bic weighs the plain cross-entropy .*: leave the criterion out"
    with pytest.raises(ValueError, match=words):
        taught("bic", 0, criterion=criterion)


def test_plain_cross_entropy_may_be_given():
    strategy, _ = taught("bic", 1, criterion=nn.CrossEntropyLoss())
    assert len(strategy.storage_policy) == 7
