"""What methods share that replay images: herding, rules, draws, the old network; by hand and against the host's."""

import numpy as np
import pytest
import torch
from small_models import conv_head_model

from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.replay import OldNetwork, Reservoir, RingBuffer, allot, herd, trim
from crumb_avalanche.models.penultimate import HeadInput, penultimate


def test_herding_by_hand():
    # Mean 2. First 2.5 (0.5 away), then 1 ((2.5 + 1) / 2 = 1.75; 0 gives 1.25), then 2.5 + 1 + 0 or + 4.5: 8 / 3 = 2.67
    # or 3.5 / 3 = 1.17; the former is nearer.
    assert herd(torch.tensor([[0.0], [4.5], [1.0], [2.5]]), 3) == [3, 2, 1]


def test_trimming_keeps_the_first_of_each_list():
    slots = Slots(6)
    for label in (0, 0, 0, 1, 2, 2):
        slots.take(label)
    assert trim(slots, {0: 2, 2: 0, 7: 3}) == [2, 4, 5]
    assert slots.by_class == {0: [0, 1], 1: [3], 2: []} and sorted(slots.free) == [2, 4, 5]


def test_all_slots_are_allotted_and_none_twice():
    assert allot(12, [5, 3, 8]) == {5: 4, 3: 4, 8: 4}
    assert allot(11, [5, 3, 8]) == {5: 4, 3: 4, 8: 3} and allot(2, [5, 3, 8]) == {5: 1, 3: 1, 8: 0}
    before = dict.fromkeys(range(40), 99)
    for count in range(1, 40):
        quotas = allot(15, range(count))
        assert sum(quotas.values()) == 15
        assert all(quota <= before[label] for label, quota in quotas.items())  # lists are cut, never filled up
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
    assert old.bytes == 0
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
    assert torch.equal(answers, wanted) if not half else torch.allclose(answers, wanted, rtol=1e-2, atol=2e-3)
    assert answers.dtype == torch.float32 and not answers.requires_grad
    assert model.plastic_layers.drop.training  # back to what it was
    values = sum(p.numel() for p in model.plastic_layers.parameters()) + 2 * 6
    assert old.bytes == OldNetwork.bytes_of(model, half) == values * (2 if half else 4) + 8  # and a number of batches


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
        assert all(labels[held[slot]] == label for label, members in slots.by_class.items() for slot in members)
        held_count[list(held.values())] += 1
    expected = seeds * capacity / frames  # 300, standard deviation 16
    assert abs(held_count - expected).max() < 5 * np.sqrt(expected * (1 - capacity / frames))


def test_rings_by_hand():
    rule, slots, held = RingBuffer(), Slots(3), {}

    def holds(first, labels):
        for place, slot in rule.choose(slots, labels):
            held[slot] = first + place
        return {label: [held[slot] for slot in members] for label, members in slots.by_class.items() if members}

    assert holds(0, [0, 0, 0, 0]) == {0: [1, 2, 3]}  # one class has all places: its latest frames
    assert holds(4, [1]) == {0: [2, 3], 1: [4]}  # another takes the oldest of the largest
    assert holds(5, [1, 0]) == {0: [3, 6], 1: [5]}  # 2 gives way to 5, and then 4 to 6
    assert holds(7, [2]) == {0: [6], 1: [5], 2: [7]}
    assert holds(8, [1, 1]) == {0: [6], 1: [9], 2: [7]}  # each class has its ring of one
    with pytest.raises(ValueError, match="mem_size=3 cannot hold a memory of each of the 4 classes"):
        rule.begin_experience(slots, {3: 5}, 2)
