"""Which images ER and DER++ hold, the reservoir against its distribution, and which are drawn."""

import numpy as np
import pytest
import torch

from crumb_avalanche.memory.buffers import StreamBatch
from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.replay import Reservoir, RingBuffer, draw, held_slots
from crumb_avalanche.training.storage_policies import ImageBuffer


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


def test_the_reservoir_goes_on_where_it_was_saved():
    rule, slots = Reservoir(), Slots(2)
    assert rule.begin_experience(slots, dict.fromkeys(range(9), 1), 3) == []  # more classes than slots
    rule.choose(slots, [0, 1, 2, 0])
    again = Reservoir()
    again.load_state_dict(rule.state_dict())
    assert again == rule and rule.seen == 4 and Reservoir() != rule


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


def test_a_smaller_ring_keeps_the_latest(make_model):
    buffer = filled(make_model(codebook=False), [0, 0, 0, 1, 1, 1], rule=RingBuffer())
    buffer.set_capacity(4)
    images = {label: [int(buffer.rows[slot][0, 0, 0]) for slot in buffer.slots.by_class[label]] for label in (0, 1)}
    assert images == {0: [1, 2], 1: [4, 5]}


def filled(model, labels, mem_size=8, rule=None):
    buffer = ImageBuffer(mem_size, Reservoir() if rule is None else rule)
    images = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 16, 16)
    batch = StreamBatch(torch.tensor(labels), torch.empty(0), None, lambda places: images[list(places)])
    buffer.store(batch, model)
    return buffer


def test_a_draw_takes_none_again_before_all_were_drawn(model):
    buffer = filled(model, [0, 0, 1, 2, 2])
    assert held_slots(buffer) == [0, 1, 2, 3, 4]
    few, many = draw(buffer, 3).tolist(), draw(buffer, 13).tolist()
    assert len(set(few)) == 3 and len(many) == 13
    assert {many.count(slot) for slot in range(5)} == {2, 3}
    drawn = torch.cat([draw(buffer, 1) for _ in range(2000)])
    assert torch.bincount(drawn).tolist() == pytest.approx([400] * 5, abs=90)  # five standard deviations
    assert len(draw(ImageBuffer(3), 5)) == 0
