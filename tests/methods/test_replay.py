"""What methods share that replay images, by hand and against the host's.

Herding, rules, draws, and the old network.
"""

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from small_models import conv_head_model, make_model, make_stream, stacked_images
from watched import built, outputs_of

from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.methods.replay import (
    OldNetwork,
    Reservoir,
    RingBuffer,
    allot,
    herd,
    trim,
)
from crumb_avalanche.models.penultimate import HeadInput, penultimate
from crumb_avalanche.system.tensor_file import tensor_bytes


def test_herding_by_hand():
    # Mean 2. First 2.5 (0.5 away), then 1 ((2.5 + 1) / 2 = 1.75; 0 gives 1.25), then
    # 2.5 + 1 + 0 or + 4.5: 8 / 3 = 2.67 or 3.5 / 3 = 1.17; the former is nearer.
    assert herd(torch.tensor([[0.0], [4.5], [1.0], [2.5]]), 3) == [3, 2, 1]


def test_trimming_keeps_the_first_of_each_list():
    slots = Slots(6)
    for label in (0, 0, 0, 1, 2, 2):
        slots.take(label)
    assert trim(slots, {0: 2, 2: 0, 7: 3}) == [2, 4, 5]
    assert slots.by_class == {0: [0, 1], 1: [3], 2: []}
    assert sorted(slots.free) == [2, 4, 5]


@pytest.mark.parametrize(
    ("capacity", "quotas"),
    [(12, [4, 4, 4]), (11, [4, 4, 3]), (2, [1, 1, 0])],
)
def test_slots_are_allotted_by_hand(capacity, quotas):
    assert allot(capacity, [5, 3, 8]) == dict(zip([5, 3, 8], quotas))


@pytest.mark.parametrize("count", range(1, 40))
def test_all_slots_are_allotted(count):
    assert sum(allot(15, range(count)).values()) == 15


@pytest.mark.parametrize("count", range(1, 39))
def test_quotas_never_grow(count):
    """Lists are cut, never filled up."""
    before = allot(15, range(count))
    after = allot(15, range(count + 1))
    assert all(after[label] <= before[label] for label in before)


def hooks_of(model):
    return model.plastic_layers.head._forward_pre_hooks


def test_the_hook_goes_away(model):
    head = HeadInput()
    head.attach(model)
    head.attach(model)
    assert len(hooks_of(model)) == 1
    assert head.take_averaged() is None
    assert not hooks_of(model)


def test_the_hook_goes_away_after_an_error(model):
    with pytest.raises(RuntimeError):
        penultimate(model, torch.zeros(2, 3, 4, 4))
    assert not hooks_of(model)


class OldAndNew:
    """An old network, the answers that it had, and the model that went on."""

    def __init__(self, half, pixels):
        self.model = conv_head_model()
        self.maps = self.model.features(pixels)
        self.old = OldNetwork(half)
        self.old.copy_from(self.model)
        self.answers = self.model.eval().classify(self.maps).detach()
        self.model.train()
        with torch.no_grad():
            for weight in self.model.plastic_layers.parameters():
                weight.add_(1.0)
        self.model.classify(self.maps + 3)  # moves the statistics


def test_the_old_network_answers_as_it_did(pixels):
    twins = OldAndNew(half=False, pixels=pixels)
    answers = twins.old.logits(twins.model, twins.maps)
    assert torch.equal(answers, twins.answers)


def test_half_the_precision_answers_nearly_so(pixels):
    twins = OldAndNew(half=True, pixels=pixels)
    answers = twins.old.logits(twins.model, twins.maps)
    assert torch.allclose(answers, twins.answers, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("half", [False, True])
def test_the_old_network_changes_nothing(half, pixels):
    twins = OldAndNew(half, pixels)
    layers = twins.model.plastic_layers
    statistics = layers.bn.running_mean.clone()
    answers = twins.old.logits(twins.model, twins.maps)
    assert torch.equal(layers.bn.running_mean, statistics)
    assert layers.drop.training
    assert answers.dtype == torch.float32
    assert not answers.requires_grad


@pytest.mark.parametrize(("half", "width"), [(False, 4), (True, 2)])
def test_bytes_of_the_old_network(half, width):
    model = conv_head_model()
    old = OldNetwork(half)
    assert not old.state
    old.copy_from(model)
    weights = sum(weight.numel() for weight in model.plastic_layers.parameters())
    values = weights + 2 * 6  # with the statistics
    size = values * width + 8  # and a number of batches
    assert tensor_bytes(old.state.values()) == size


def test_bytes_of_an_old_network_to_come():
    model = conv_head_model()
    weights = sum(weight.numel() for weight in model.plastic_layers.parameters())
    assert OldNetwork.bytes_of(model) == 2 * (weights + 2 * 6) + 8


def filled(rule, slots, labels, size=7):
    """Offer frames in batches; return the number of the frame in each slot."""
    frames = {}
    for start in range(0, len(labels), size):
        for position, slot in rule.choose(slots, labels[start : start + size]):
            frames[slot] = start + position
    return frames


# Rare classes have no better chance.
SKEWED = [0] * 30 + [1] * 7 + [2] * 3


@pytest.mark.parametrize("seed", range(20))
def test_the_reservoir_knows_its_classes(seed):
    slots = Slots(4, seed)
    frames = filled(Reservoir(), slots, SKEWED)
    assert sorted(frames) == [0, 1, 2, 3]
    by_class = {
        slot: label for label, members in slots.by_class.items() for slot in members
    }
    assert by_class == {slot: SKEWED[frame] for slot, frame in frames.items()}


def test_the_reservoir_gives_equal_chances():
    capacity, seeds = 4, 3000
    counts = np.zeros(len(SKEWED))
    for seed in range(seeds):
        frames = filled(Reservoir(), Slots(capacity, seed), SKEWED)
        counts[list(frames.values())] += 1
    share = capacity / len(SKEWED)
    expected = seeds * share  # 300, standard deviation 16
    assert abs(counts - expected).max() < 5 * np.sqrt(expected * (1 - share))


RINGS = [
    # One class has all slots: its latest frames.
    ([0, 0, 0, 0], {0: [1, 2, 3]}),
    # Another takes the oldest of the largest.
    ([1], {0: [2, 3], 1: [4]}),
    # 2 gives way to 5, and then 4 to 6.
    ([1, 0], {0: [3, 6], 1: [5]}),
    ([2], {0: [6], 1: [5], 2: [7]}),
    # Each class has its ring of one.
    ([1, 1], {0: [6], 1: [9], 2: [7]}),
]


@pytest.mark.parametrize("steps", range(1, len(RINGS) + 1))
def test_rings_by_hand(steps):
    rule = RingBuffer()
    slots = Slots(3)
    labels = [label for batch, _ in RINGS[:steps] for label in batch]
    frames = filled(rule, slots, labels, size=1)
    rings = {
        label: [frames[slot] for slot in members]
        for label, members in slots.by_class.items()
        if members
    }
    assert rings == RINGS[steps - 1][1]


def test_rings_need_a_slot_for_each_class():
    slots = Slots(3)
    rule = RingBuffer()
    rule.choose(slots, [0, 1, 2])
    words = "mem_size=3 cannot hold a memory of each of the 4 classes"
    with pytest.raises(ValueError, match=words):
        rule.begin_experience(slots, {3: 5}, 2)


SETTINGS = dict(batch_size=6, epochs=2)
FRAMES = 20  # of an experience
BATCHES = 4  # of an epoch
# Epochs, and batches of the last of them, that are trained on.
STOPS = {
    "at once": (0, 0),
    "within": (1, 2),
    "between": (1, BATCHES),
    "within the last": (2, 2),
    "never": (2, BATCHES),
}
OFFERING = [
    "crumb",
    "image_replay",
    "map_replay",
    "der",
    "bic",
    "gss",
    "cope",
    "gem",
    "memory_recall",
]


class Stop(SupervisedPlugin):
    """Stops every experience; counts the images trained on in each of them."""

    def __init__(self, when):
        super().__init__()
        self.epochs, self.batches = STOPS[when]
        self.images = []

    def before_training_exp(self, strategy, **kwargs):
        self.images.append(0)
        if self.epochs == 0:
            strategy.stop_training()

    def before_training_iteration(self, strategy, **kwargs):
        self.images[-1] += len(strategy.mb_y)
        epoch = strategy.clock.train_exp_epochs + 1
        batch = strategy.clock.train_epoch_iterations + 1
        if (epoch, batch) == (self.epochs, self.batches):
            strategy.stop_training()


class Offers:
    """Keeps maps and labels of the images that a strategy offers to its buffer."""

    def __init__(self, strategy):
        self.maps = []
        self.labels = []
        self.offer = strategy.memory.offer
        strategy.memory.offer = self

    def clear(self):
        self.maps.clear()
        self.labels.clear()

    def __call__(self, strategy, batch):
        self.maps += batch.feature_map
        self.labels += batch.labels.tolist()
        self.offer(strategy, batch)


def build(name, *plugins, mem_size=8):
    torch.manual_seed(0)
    np.random.seed(0)
    model = make_model(codebook=STRATEGIES[name].codebook)
    return built(name, model, mem_size, SETTINGS, plugins=plugins)


def images_of(experience):
    return stacked_images(experience.dataset)


def assert_in_order(labels, maps, experience, model):
    """Each image of the experience was offered once, in the order of the data set."""
    assert labels == list(experience.dataset.targets)
    expected = model.features(images_of(experience))
    torch.testing.assert_close(torch.stack(maps), expected)


class Stopped:
    """A strategy after two experiences that were stopped, and what it offered."""

    def __init__(self, name, when):
        self.stop = Stop(when)
        self.stream = make_stream()
        self.strategy = build(name, self.stop)
        self.labels = []  # of each experience
        self.maps = []
        offers = Offers(self.strategy)
        for experience in self.stream.train_stream:
            offers.clear()
            self.strategy.train(experience)
            self.labels.append(list(offers.labels))
            self.maps.append(list(offers.maps))


@cache
def stopped(name, when):
    """For tests that only read it."""
    return Stopped(name, when)


EACH_STOP = [("er", when) for when in STOPS]
EACH_STOP += [(name, "within the last") for name in OFFERING]
each_stop = pytest.mark.parametrize(("name", "when"), EACH_STOP)


@pytest.mark.parametrize("number", [0, 1])
@each_stop
def test_each_image_is_offered_once(name, when, number):
    result = stopped(name, when)
    experience = result.stream.train_stream[number]
    assert_in_order(
        result.labels[number],
        result.maps[number],
        experience,
        result.strategy.model,
    )


# Images of an experience that are trained on.
TRAINED = {
    "at once": 0,
    "within": 12,
    "between": FRAMES,
    "within the last": FRAMES + 12,
    "never": 2 * FRAMES,
}


@each_stop
def test_so_many_images_are_trained_on(name, when):
    assert stopped(name, when).stop.images == [TRAINED[when]] * 2


@each_stop
def test_memories_are_of_all_classes(name, when):
    strategy = stopped(name, when).strategy
    groups = {0, 1, 2, 3}
    if name == "gem":  # its groups are experiences
        groups = {0, 1}
    assert set(strategy.storage_policy.classes) == groups


@each_stop
def test_a_stopped_one_answers(name, when):
    result = stopped(name, when)
    outputs, images = outputs_of(result.strategy, result.stream.test_stream)
    assert outputs.shape == (len(images), 4)


@pytest.mark.parametrize("when", ["at once", "within the last"])
@pytest.mark.parametrize("name", ["icarl", "aanets", "rainbow_memory"])
def test_choosing_methods_see_all_images(name, when):
    strategy = build(name, Stop(when))
    for experience in make_stream().train_stream:
        strategy.train(experience)
    assert set(strategy.storage_policy.classes) == {0, 1, 2, 3}
    assert len(strategy.storage_policy) == 8


@pytest.mark.parametrize("when", ["at once", "within the last"])
def test_remind_fits_and_stores_all_images(when):
    first, _ = make_stream().train_stream
    strategy = build("remind", Stop(when), mem_size=40)
    strategy.train(first)
    assert strategy.storage_policy.quantizer.fitted
    assert len(strategy.storage_policy) == FRAMES


@pytest.mark.parametrize("when", ["at once", "within the last"])
def test_remind_stores_each_image_once(when):
    """Those of the last epoch, and those that a stop left out."""
    first, second = make_stream().train_stream
    strategy = build("remind", Stop(when), mem_size=40)
    offers = Offers(strategy)
    strategy.train(first)
    offers.clear()
    strategy.train(second)
    assert_in_order(offers.labels, offers.maps, second, strategy.model)
    assert len(strategy.storage_policy) == 2 * FRAMES


def shuffled_offers():
    """What is offered of an experience whose last epoch is shuffled and stopped."""
    experience = make_stream().train_stream[0]
    strategy = build("er", Stop("within the last"))
    offers = Offers(strategy)
    strategy.train(experience, shuffle=True)
    return offers, experience, strategy.model


def test_as_many_of_each_class_are_offered():
    offers, experience, _ = shuffled_offers()
    targets = list(experience.dataset.targets)
    assert Counter(offers.labels) == Counter(targets)
    assert offers.labels[:12] != targets[:12]


def test_the_rest_are_the_last_of_each_class():
    offers, experience, model = shuffled_offers()
    targets = list(experience.dataset.targets)
    last = []
    for label, count in (Counter(targets) - Counter(offers.labels[:12])).items():
        positions = [index for index, target in enumerate(targets) if target == label]
        last += positions[-count:]
    expected = model.features(images_of(experience)[sorted(last)])
    torch.testing.assert_close(torch.stack(offers.maps[12:]), expected)
