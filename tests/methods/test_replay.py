"""What methods share that replay images: herding, rules, draws, the old network; by hand and against the host's."""

from collections import Counter

import numpy as np
import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from small_models import conv_head_model
from watched import built

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
    assert slots.by_class == {0: [0, 1], 1: [3], 2: []} and sorted(slots.free) == [
        2,
        4,
        5,
    ]


def test_all_slots_are_allotted_and_none_twice():
    assert allot(12, [5, 3, 8]) == {5: 4, 3: 4, 8: 4}
    assert allot(11, [5, 3, 8]) == {5: 4, 3: 4, 8: 3} and allot(2, [5, 3, 8]) == {
        5: 1,
        3: 1,
        8: 0,
    }
    before = dict.fromkeys(range(40), 99)
    for count in range(1, 40):
        quotas = allot(15, range(count))
        assert sum(quotas.values()) == 15
        assert all(
            quota <= before[label] for label, quota in quotas.items()
        )  # lists are cut, never filled up
        before |= quotas


def test_the_hook_goes_away_whatever_happens(model, pixels):
    head = HeadInput()
    head.attach(model)
    head.attach(model)
    assert len(model.plastic_layers.head._forward_pre_hooks) == 1
    assert head.release() is None and not model.plastic_layers.head._forward_pre_hooks
    with pytest.raises(RuntimeError):
        penultimate(model, torch.zeros(2, 3, 4, 4))
    assert not model.plastic_layers.head._forward_pre_hooks


@pytest.mark.parametrize("half", [False, True])
def test_the_old_network_answers_as_it_did(half, pixels):
    model = conv_head_model()
    maps = model.features(pixels)
    old = OldNetwork(half)
    assert not old.state
    old.take(model)
    wanted = model.eval().classify(maps).detach()
    model.train()
    with torch.no_grad():
        for weight in model.plastic_layers.parameters():
            weight.add_(1.0)
    model.classify(maps + 3)  # moves the statistics
    moved = model.plastic_layers.bn.running_mean.clone()
    answers = old.logits(model, maps)
    assert torch.equal(model.plastic_layers.bn.running_mean, moved)
    assert (
        torch.equal(answers, wanted)
        if not half
        else torch.allclose(answers, wanted, rtol=1e-2, atol=2e-3)
    )
    assert answers.dtype == torch.float32 and not answers.requires_grad
    assert model.plastic_layers.drop.training  # back to what it was
    values = sum(p.numel() for p in model.plastic_layers.parameters()) + 2 * 6
    size = values * (2 if half else 4) + 8  # and a number of batches
    assert (
        tensor_bytes(old.state.values()) == size
        and OldNetwork.bytes_of(model) == 2 * values + 8
    )


def test_the_reservoir_holds_each_frame_with_the_same_chance():
    capacity, frames, seeds = 4, 40, 3000
    labels = [0] * 30 + [1] * 7 + [2] * 3  # rare classes have no better chance
    held_count = np.zeros(frames)
    for seed in range(seeds):
        rule, slots, held = Reservoir(), Slots(capacity, seed), {}
        for start in range(0, frames, 7):
            for place, slot in rule.choose(slots, labels[start : start + 7]):
                held[slot] = start + place
        assert sorted(held) == [0, 1, 2, 3]
        assert all(
            labels[held[slot]] == label
            for label, members in slots.by_class.items()
            for slot in members
        )
        held_count[list(held.values())] += 1
    expected = seeds * capacity / frames  # 300, standard deviation 16
    assert abs(held_count - expected).max() < 5 * np.sqrt(
        expected * (1 - capacity / frames)
    )


def test_rings_by_hand():
    rule, slots, held = RingBuffer(), Slots(3), {}

    def holds(first, labels):
        for place, slot in rule.choose(slots, labels):
            held[slot] = first + place
        return {
            label: [held[slot] for slot in members]
            for label, members in slots.by_class.items()
            if members
        }

    assert holds(0, [0, 0, 0, 0]) == {
        0: [1, 2, 3]
    }  # one class has all places: its latest frames
    assert holds(4, [1]) == {
        0: [2, 3],
        1: [4],
    }  # another takes the oldest of the largest
    assert holds(5, [1, 0]) == {0: [3, 6], 1: [5]}  # 2 gives way to 5, and then 4 to 6
    assert holds(7, [2]) == {0: [6], 1: [5], 2: [7]}
    assert holds(8, [1, 1]) == {
        0: [6],
        1: [9],
        2: [7],
    }  # each class has its ring of one
    with pytest.raises(
        ValueError, match="mem_size=3 cannot hold a memory of each of the 4 classes"
    ):
        rule.begin_experience(slots, {3: 5}, 2)


SETTINGS = dict(batch_size=6, epochs=2)
BATCHES = 4  # of an epoch of 20 images
# Epochs and batches of the last of them that are trained on.
PLACES = {
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
    """Stops every experience at a place; counts the images trained on in each experience."""

    def __init__(self, place):
        super().__init__()
        self.epochs, self.batches = PLACES[place]
        self.images = []

    def before_training_exp(self, strategy, **kwargs):
        self.images.append(0)
        if self.epochs == 0:
            strategy.stop_training()

    def before_training_iteration(self, strategy, **kwargs):
        clock = strategy.clock
        self.images[-1] += len(strategy.mb_y)
        if (clock.train_exp_epochs + 1, clock.train_epoch_iterations + 1) == (
            self.epochs,
            self.batches,
        ):
            strategy.stop_training()


class Offers:
    """Keeps the maps and labels of the images offered in each experience."""

    def __init__(self, strategy):
        self.experiences, self.offer = [[]], strategy.memory.offer
        strategy.memory.offer = self

    def __call__(self, strategy, batch):
        self.experiences[-1] += list(zip(batch.feature_map, batch.labels.tolist()))
        self.offer(strategy, batch)


def build(name, make_model, *plugins, mem_size=8):
    torch.manual_seed(0)
    np.random.seed(0)
    return built(
        name,
        make_model(codebook=STRATEGIES[name].codebook),
        mem_size,
        SETTINGS,
        plugins=plugins,
    )


def assert_in_order(offered, experience, model):
    """Each image of the experience was offered once, in the order of the data set."""
    maps = model.features(torch.stack([image for image, *_ in experience.dataset]))
    assert [label for _, label in offered] == list(experience.dataset.targets)
    torch.testing.assert_close(torch.stack([one for one, _ in offered]), maps)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        *(("er", place) for place in PLACES),
        *((name, "within the last") for name in OFFERING),
    ],
)
def test_each_image_is_offered_once(name, place, make_model, make_stream):
    stop, stream = Stop(place), make_stream()
    strategy = build(name, make_model, stop)
    offers = Offers(strategy)
    for experience in stream.train_stream:
        offers.experiences.append([])
        strategy.train(experience)
        assert_in_order(offers.experiences[-1], experience, strategy.model)
    epochs, batches = PLACES[place]
    trained = max(0, epochs - 1) * 20 + min(20, 6 * batches) * (epochs > 0)
    assert stop.images == [trained, trained]
    assert (
        set(strategy.storage_policy.classes) == {0, 1}
        if name == "gem"
        else {0, 1, 2, 3}
    )
    strategy.eval(stream.test_stream)


@pytest.mark.parametrize("place", ["at once", "within the last"])
@pytest.mark.parametrize("name", ["icarl", "aanets", "rainbow_memory"])
def test_methods_that_choose_from_all_images_do_so(
    name, place, make_model, make_stream
):
    stream, strategy = make_stream(), build(name, make_model, Stop(place))
    for experience in stream.train_stream:
        strategy.train(experience)
    assert (
        set(strategy.storage_policy.classes) == {0, 1, 2, 3}
        and len(strategy.storage_policy) == 8
    )


@pytest.mark.parametrize("place", ["at once", "within the last"])
def test_remind_fits_and_stores_all_images(place, make_model, make_stream):
    stream, strategy = (
        make_stream(),
        build("remind", make_model, Stop(place), mem_size=40),
    )
    offers, buffer = Offers(strategy), strategy.storage_policy
    for stored, experience in zip((20, 40), stream.train_stream):
        offers.experiences.append([])
        strategy.train(experience)
        if (
            stored > 20
            # of the first experience, which fits the tables, images are stored without
            # being offered
        ):
            assert_in_order(offers.experiences[-1][:20], experience, strategy.model)
        assert buffer.quantizer.fitted and len(buffer) == stored
    # Every epoch that is begun stores its images.
    assert len(offers.experiences[-1]) == (20 if place == "at once" else 20 + 2 * 6)


def test_after_a_shuffled_epoch_as_many_of_each_class_are_offered(
    make_model, make_stream
):
    experience, strategy = (
        make_stream().train_stream[0],
        build("er", make_model, Stop("within the last")),
    )
    offers, targets = Offers(strategy), list(experience.dataset.targets)
    strategy.train(experience, shuffle=True)
    labels = [label for _, label in offers.experiences[0]]
    assert Counter(labels) == Counter(targets) and labels[:12] != targets[:12]
    # The rest are the last ones of each class, in the order of the data set.
    left = Counter(targets) - Counter(labels[:12])
    places = {
        label: [place for place, other in enumerate(targets) if other == label]
        for label in left
    }
    last = sorted(
        place for label, count in left.items() for place in places[label][-count:]
    )
    maps = strategy.model.features(
        torch.stack([experience.dataset[place][0] for place in last])
    )
    torch.testing.assert_close(
        torch.stack([one for one, _ in offers.experiences[0][12:]]), maps
    )
