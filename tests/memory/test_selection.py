"""The rules alone, on numbers: balance at every moment, and each rule against its description."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crumb_avalanche.memory.selection import (
    RULES,
    ClassBalancedReservoir,
    EveryJth,
    ReferenceRule,
)
from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.system.tensor_file import flatten, unflatten


def batches_of(labels, size):
    return [labels[start : start + size] for start in range(0, len(labels), size)]


def check(slots):
    """Every slot is free or of one class."""
    taken = [slot for members in slots.by_class.values() for slot in members]
    assert sorted(taken + slots.free) == list(range(slots.capacity))
    assert len(slots) == len(taken) <= slots.capacity


def run(rule, slots, experiences, size):
    """Offer experiences of ``(item, label)``; returns which item each slot holds at the end."""
    held, number = {}, 0
    for labels in experiences:
        for slot in rule.begin_experience(slots, dict(Counter(labels)), size):
            del held[slot]
        check(slots)
        for batch in batches_of(labels, size):
            if not rule.finished:
                for position, slot in rule.choose(slots, batch):
                    assert 0 <= position < len(batch)
                    held[slot] = (number + position, batch[position])
                check(slots)
                for slot in slots.free:
                    held.pop(slot, None)
                assert {slot: label for slot, (_, label) in held.items()} == {
                    slot: label
                    for label, members in slots.by_class.items()
                    for slot in members
                }
            number += len(batch)
    return held


@st.composite
def streams(draw):
    """Experiences of new classes, labels in any order, and room for a memory of each at least."""
    experiences, first = [], 0
    for classes in draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)):
        labels = [
            label
            for c in range(classes)
            for label in [first + c] * draw(st.integers(1, 25))
        ]
        draw(st.randoms(use_true_random=False)).shuffle(labels)
        experiences.append(labels)
        first += classes
    capacity = first + draw(st.integers(0, 20))
    return experiences, capacity, draw(st.integers(1, 9)), draw(st.integers(0, 99))


@pytest.mark.parametrize("name", RULES)
@given(stream=streams())
def test_never_too_many_and_every_slot_accounted_for(name, stream):
    experiences, capacity, size, seed = stream
    held = run(RULES[name](), Slots(capacity, seed), experiences, size)
    labels = [label for labels in experiences for label in labels]
    numbers = [number for number, _ in held.values()]
    assert len(set(numbers)) == len(numbers) <= capacity
    assert all(labels[number] == label for number, label in held.values())
    assert {label for _, label in held.values()} == set(labels)  # no class is starved


@pytest.mark.parametrize("rule", [EveryJth, ClassBalancedReservoir])
@given(stream=streams())
def test_every_class_gets_its_share(rule, stream):
    experiences, capacity, size, seed = stream
    slots = Slots(capacity, seed)
    run(rule(), slots, experiences, size)
    supply = Counter(label for labels in experiences for label in labels)
    share = capacity // len(supply)
    assert all(
        slots.count(label) >= min(share, count) for label, count in supply.items()
    )
    if rule is ClassBalancedReservoir:
        # Classes that lost an image are as large as the largest, to one.
        reduced = [
            slots.count(label)
            for label, count in supply.items()
            if slots.count(label) < count
        ]
        assert not reduced or slots.largest() - min(reduced) <= 1


@pytest.mark.parametrize("name", RULES)
def test_classes_may_come_back(name):
    slots = Slots(10, seed=0)
    run(RULES[name](), slots, [[0] * 30, [1, 0] * 20, [0] * 9, [2, 1] * 20], 7)
    counts = [slots.count(label) for label in range(3)]
    assert min(counts) >= 3 and sum(counts) <= 10


@pytest.mark.parametrize("size", [1, 10, 75, 400])
@pytest.mark.parametrize(
    "name", [name for name, rule in RULES.items() if rule.evenly_spread]
)
def test_memories_are_spread_evenly_however_the_stream_is_cut(name, size):
    labels, seeds = [number % 2 for number in range(400)], 50
    quarters = Counter()
    for seed in range(seeds):
        held = run(RULES[name](), Slots(40, seed), batches_of(labels, size), 8)
        assert Counter(label for _, label in held.values()) == {0: 20, 1: 20}
        quarters.update(number // 100 for number, _ in held.values())
    # 2,000 memories, a quarter each: the deviation of a binomial count is 19.4, here
    # 4.5 of them.
    assert all(abs(quarters[quarter] - 500) < 87 for quarter in range(4)), quarters


def test_every_jth_by_hand():
    # 10 images for 4 places: j = 2.5, so the 2.5th, 5th, 7.5th and 10th, rounded up:
    # positions 2, 4, 7 and 9.
    rule, slots = EveryJth(), Slots(4)
    held = run(rule, slots, [["a"] * 10], 3)
    assert sorted(number for number, _ in held.values()) == [2, 4, 7, 9]
    # In a later experience of two classes 4 // 3 = 1 place is left for each, and the
    # last image of each takes it.
    held = run(EveryJth(), Slots(4), [["a"] * 10, ["b", "c"] * 5], 3)
    assert sorted(number for number, label in held.values() if label != "a") == [18, 19]


def test_what_does_not_fit_the_places_or_was_not_announced_is_an_error():
    rule, slots = EveryJth(), Slots(1)
    rule.begin_experience(Slots(4), {1: 5}, 2)
    with pytest.raises(
        ValueError, match="class 7 was not announced: call begin_experience"
    ):
        rule.choose(Slots(4), [1, 7])
    slots.take(0)
    with pytest.raises(
        ValueError, match="all 1 slots are taken; call make_room or release before take"
    ):
        slots.take(0)
    for rule in (kind() for kind in RULES.values()):
        slots = Slots(3)
        run(rule, slots, [[0, 1] * 5], 4)
        with pytest.raises(
            ValueError,
            match="mem_size=3 cannot hold a memory of each of the 4 classes seen so far; ra",
        ):
            rule.begin_experience(slots, {2: 5, 3: 5}, 4)


def test_the_reservoir_keeps_every_image_equally_often():
    runs, kept = 2000, Counter()
    for seed in range(runs):
        # 20 images of class 0, then 10 of class 1, five places: at the end 2 and 3 or 3
        # and 2.
        held = run(ClassBalancedReservoir(), Slots(5, seed), [[0] * 20 + [1] * 10], 6)
        kept.update(number for number, _ in held.values())
    for numbers in (range(20), range(20, 30)):
        mean = sum(kept[number] for number in numbers) / len(numbers)
        assert mean == pytest.approx(runs * 2.5 / len(numbers), rel=0.25)
        # Each count is binomial with a deviation below sqrt(mean); five of them.
        assert all(abs(kept[number] - mean) < 5 * mean**0.5 for number in numbers)


def test_the_reference_rule_by_hand():
    # 24 images in 6 batches of 4, 8 places: j = 5 * 4 // 8 = 2, quota 4 a class.
    # Batches alternate 0 0 1 1, so of each class the first of every two is a candidate:
    # items 0, 2, 4, 6, ... fill both quotas after four batches.
    assert ReferenceRule.second_pass and not EveryJth.second_pass
    rule, slots = ReferenceRule(), Slots(8)
    held = run(rule, slots, [[0, 0, 1, 1] * 6], 4)
    assert sorted(number for number, _ in held.values()) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert rule.finished
    # While the next experience is learned the old classes have all their memories; its
    # pass begins with freeing half.
    assert rule.begin_experience(slots, {2: 9, 3: 9}, 4) == []
    assert (slots.count(0), slots.count(1), len(slots.free)) == (4, 4, 0)
    assert not rule.finished
    rule.choose(slots, [2, 2, 2, 2])  # items 0 and 2 enter
    assert (slots.count(0), slots.count(1), slots.count(2), len(slots.free)) == (
        2,
        2,
        2,
        2,
    )


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("after", [0, 1, 5, 13])
def test_a_rule_goes_on_from_its_state_as_if_nothing_had_happened(name, after):
    labels, size = [0, 1, 1, 2] * 12, 3

    def go(restart):
        rule, slots = RULES[name](), Slots(7, seed=4)
        rule.begin_experience(slots, dict(Counter(labels)), size)
        chosen = []
        for number, batch in enumerate(batches_of(labels, size)):
            if restart and number == after:
                tree, tensors = flatten(rule.state_dict())
                state = unflatten(json.loads(json.dumps(tree)), tensors)
                rule = RULES[name]()
                rule.load_state_dict(state)
            chosen.append((rule.choose(slots, batch), rule.finished))
        return chosen

    assert go(restart=True) == go(restart=False)
