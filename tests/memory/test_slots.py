"""The slots of a buffer without memories."""

import pytest

from crumb_avalanche.memory.slots import Slots


def test_the_largest_class_of_no_memories():
    slots = Slots(3)
    assert slots.classes == []
    assert slots.size_of_largest_class() == 0


@pytest.mark.parametrize(
    ("label", "victims"),
    [
        (3, {0, 2}),  # a new class: a random one of the two largest
        (1, {0, 2}),  # a smaller one
        (2, {2}),  # one of the largest makes room itself
    ],
)
def test_a_largest_class_makes_room(label, victims):
    evicted = set()
    for seed in range(30):
        slots = Slots(5, seed)
        for taken in (0, 0, 1, 2, 2):
            slots.take(taken)
        slots.make_room(label)
        counts = {victim: slots.count(victim) for victim in range(3)}
        evicted |= {victim for victim in (0, 2) if counts[victim] == 1}
        assert counts[1] == 1
        assert len(slots.free) == 1
    assert evicted == victims
