"""The slots of a buffer without memories."""

from crumb_avalanche.memory.slots import Slots


def test_the_largest_class_of_no_memories():
    slots = Slots(3)
    assert slots.classes == []
    assert slots.largest() == 0
