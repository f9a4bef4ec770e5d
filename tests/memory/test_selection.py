"""The rules alone, on numbers: balance at every moment, and each as described."""

import json
from collections import Counter
from dataclasses import dataclass

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

rules = pytest.mark.parametrize("name", RULES)


def batches_of(labels, size):
    return [labels[start : start + size] for start in range(0, len(labels), size)]


def label_of_slot(slots):
    """The class of each taken slot; fails unless every slot is free or of one class."""
    labels = {}
    for label, members in slots.by_class.items():
        labels.update(dict.fromkeys(members, label))
    assert sorted([*labels, *slots.free]) == list(range(slots.capacity))
    assert len(slots) == len(labels) <= slots.capacity
    return labels


@dataclass(frozen=True)
class Memory:
    """The image in a slot: its number in the stream, and its label."""

    number: int
    label: object


def stored_after(rule, slots, experiences, batch_size):
    """Offer experiences of labels; return the memory in each slot at the end.

    At every moment the slots are those that the rule named.
    """
    memories = {}
    first = 0
    for labels in experiences:
        coming = dict(Counter(labels))
        for slot in rule.begin_experience(slots, coming, batch_size):
            del memories[slot]
        label_of_slot(slots)
        for batch in batches_of(labels, batch_size):
            if not rule.finished:
                for position, slot in rule.choose(slots, batch):
                    assert 0 <= position < len(batch)
                    memories[slot] = Memory(first + position, batch[position])
                for slot in slots.free:
                    memories.pop(slot, None)
                labels_stored = {slot: m.label for slot, m in memories.items()}
                assert labels_stored == label_of_slot(slots)
            first += len(batch)
    return memories


def numbers_of(memories):
    return sorted(memory.number for memory in memories.values())


@dataclass(frozen=True)
class Stream:
    """Experiences of labels, and how they are offered."""

    experiences: list[list[int]]
    capacity: int
    batch_size: int
    seed: int

    @property
    def labels(self):
        return [label for labels in self.experiences for label in labels]


@st.composite
def streams(draw):
    """Experiences of new classes, in any order, and room for a memory of each."""
    experiences = []
    n_classes = 0
    for n_new in draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)):
        labels = []
        for label in range(n_classes, n_classes + n_new):
            labels += [label] * draw(st.integers(1, 25))
        draw(st.randoms(use_true_random=False)).shuffle(labels)
        experiences.append(labels)
        n_classes += n_new
    return Stream(
        experiences=experiences,
        capacity=n_classes + draw(st.integers(0, 20)),
        batch_size=draw(st.integers(1, 9)),
        seed=draw(st.integers(0, 99)),
    )


def offered(rule, stream):
    """The slots after a stream, and the memory in each."""
    slots = Slots(stream.capacity, stream.seed)
    memories = stored_after(rule, slots, stream.experiences, stream.batch_size)
    return slots, memories


@rules
@given(stream=streams())
def test_memories_are_images_of_the_stream(name, stream):
    _, memories = offered(RULES[name](), stream)
    numbers = numbers_of(memories)
    assert len(set(numbers)) == len(numbers) <= stream.capacity
    labels = stream.labels
    assert all(labels[memory.number] == memory.label for memory in memories.values())


@rules
@given(stream=streams())
def test_no_class_is_starved(name, stream):
    slots, _ = offered(RULES[name](), stream)
    assert set(slots.classes) == set(stream.labels)


@pytest.mark.parametrize("rule", [EveryJth, ClassBalancedReservoir])
@given(stream=streams())
def test_every_class_gets_its_share(rule, stream):
    slots, _ = offered(rule(), stream)
    supply = Counter(stream.labels)
    share = stream.capacity // len(supply)
    assert all(slots.count(c) >= min(share, count) for c, count in supply.items())


@given(stream=streams())
def test_reduced_classes_are_as_large_as_the_largest(stream):
    """To one memory; a class is reduced if it lost an image."""
    slots, _ = offered(ClassBalancedReservoir(), stream)
    supply = Counter(stream.labels)
    reduced = [slots.count(c) for c, count in supply.items() if slots.count(c) < count]
    largest = slots.size_of_largest_class()
    assert largest - min(reduced, default=largest) <= 1


@rules
def test_classes_may_come_back(name):
    slots = Slots(10, seed=0)
    experiences = [[0] * 30, [1, 0] * 20, [0] * 9, [2, 1] * 20]
    stored_after(RULES[name](), slots, experiences, 7)
    counts = list(map(slots.count, range(3)))
    assert min(counts) >= 3
    assert sum(counts) <= 10


SPREAD = [name for name, rule in RULES.items() if rule.evenly_spread]


@pytest.mark.parametrize("size", [1, 10, 75, 400])
@pytest.mark.parametrize("name", SPREAD)
def test_memories_are_spread_over_the_stream(name, size):
    """However it is cut into experiences of ``size`` images.

    Of 2,000 memories of 50 runs each quarter of the stream has 500: the deviation of a
    binomial count is 19.4, and 87 are 4.5 of them.
    """
    labels = [number % 2 for number in range(400)]
    quarters = Counter()
    for seed in range(50):
        slots = Slots(40, seed)
        memories = stored_after(RULES[name](), slots, batches_of(labels, size), 8)
        assert (slots.count(0), slots.count(1)) == (20, 20)
        quarters.update(number // 100 for number in numbers_of(memories))
    assert all(abs(quarters[quarter] - 500) < 87 for quarter in range(4)), quarters


def test_every_jth_by_hand():
    """10 images for 4 slots: j = 2.5, so images 2.5, 5, 7.5 and 10, rounded up."""
    memories = stored_after(EveryJth(), Slots(4), [["a"] * 10], 3)
    assert numbers_of(memories) == [2, 4, 7, 9]


def test_every_jth_of_later_classes():
    """4 // 3 = 1 slot is left for each of two, and the last image of each takes it."""
    experiences = [["a"] * 10, ["b", "c"] * 5]
    memories = stored_after(EveryJth(), Slots(4), experiences, 3)
    later = [memory.number for memory in memories.values() if memory.label != "a"]
    assert sorted(later) == [18, 19]


def test_a_class_that_was_not_announced():
    rule = EveryJth()
    rule.begin_experience(Slots(4), {1: 5}, 2)
    words = "class 7 was not announced: call begin_experience"
    with pytest.raises(ValueError, match=words):
        rule.choose(Slots(4), [1, 7])


@rules
def test_more_classes_than_slots(name):
    rule, slots = RULES[name](), Slots(3)
    stored_after(rule, slots, [[0, 1] * 5], 4)
    words = "mem_size=3 cannot hold a memory of each of the 4 classes seen so far; ra"
    with pytest.raises(ValueError, match=words):
        rule.begin_experience(slots, {2: 5, 3: 5}, 4)


def test_taking_a_slot_of_a_full_buffer():
    slots = Slots(1)
    slots.take(0)
    words = "all 1 slots are taken; call make_room or release before take"
    with pytest.raises(ValueError, match=words):
        slots.take(0)


def test_reservoir_stores_images_equally_often():
    """20 images of class 0, then 10 of class 1: they end with 2 and 3, or 3 and 2.

    Each count is binomial with a deviation below sqrt(mean); five of them are allowed.
    """
    n_runs, counts = 2000, Counter()
    for seed in range(n_runs):
        slots = Slots(5, seed)
        experience = [0] * 20 + [1] * 10
        memories = stored_after(ClassBalancedReservoir(), slots, [experience], 6)
        counts.update(numbers_of(memories))
    for numbers in (range(20), range(20, 30)):
        mean = sum(counts[number] for number in numbers) / len(numbers)
        assert mean == pytest.approx(n_runs * 2.5 / len(numbers), rel=0.25)
        assert all(abs(counts[number] - mean) < 5 * mean**0.5 for number in numbers)


@pytest.fixture
def after_one_experience():
    """The reference rule after 24 images of two classes, with 8 slots."""
    rule, slots = ReferenceRule(), Slots(8)
    memories = stored_after(rule, slots, [[0, 0, 1, 1] * 6], 4)
    return rule, slots, memories


def test_reference_rule_by_hand(after_one_experience):
    """6 batches of 4: j = 5 * 4 // 8 = 2, and a quota of 4 a class.

    Batches alternate 0 0 1 1, so of each class the first of every two is a candidate:
    images 0, 2, 4, 6, ... fill both quotas after four batches.
    """
    rule, _, memories = after_one_experience
    assert numbers_of(memories) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert rule.finished


def test_reference_rule_leaves_a_batch_out_of_its_stride():
    """3 batches of 8 for 4 slots: j = 2 * 8 // 4 = 4, not 3 * 8 // 4 = 6."""
    memories = stored_after(ReferenceRule(), Slots(4), [[0] * 24], 8)
    assert numbers_of(memories) == [0, 4, 8, 12]


def test_reference_rule_keeps_old_memories_in_training(after_one_experience):
    rule, slots, _ = after_one_experience
    assert rule.begin_experience(slots, {2: 9, 3: 9}, 4) == []
    assert (slots.count(0), slots.count(1), len(slots.free)) == (4, 4, 0)
    assert not rule.finished


def test_reference_rule_frees_slots_in_its_pass(after_one_experience):
    """Of the four images two are candidates."""
    rule, slots, _ = after_one_experience
    rule.begin_experience(slots, {2: 9, 3: 9}, 4)
    rule.choose(slots, [2, 2, 2, 2])
    assert list(map(slots.count, range(3))) == [2, 2, 2]
    assert len(slots.free) == 2


def test_only_the_reference_rule_has_a_second_pass():
    second = [name for name, rule in RULES.items() if rule.second_pass]
    assert second == ["reference"]


def restored(rule):
    """A rule of the same kind with the same state, which went through JSON."""
    tree, tensors = flatten(rule.state_dict())
    state = unflatten(json.loads(json.dumps(tree)), tensors)
    twin = type(rule)()
    twin.load_state_dict(state)
    return twin


@rules
def test_the_state_of_a_rule_is_no_setting(name):
    state = RULES[name]().state_dict()
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        RULES[name](**state)


def choices_of(name, restart_at=None):
    """What a rule chooses of 16 batches of 3, as the same or with a restart."""
    labels = [0, 1, 1, 2] * 12
    rule, slots = RULES[name](), Slots(7, seed=4)
    rule.begin_experience(slots, dict(Counter(labels)), 3)
    choices = []
    for number, batch in enumerate(batches_of(labels, 3)):
        if number == restart_at:
            rule = restored(rule)
        choices.append((rule.choose(slots, batch), rule.finished))
    return choices


@rules
@pytest.mark.parametrize("restart_at", [0, 1, 5, 13])
def test_a_rule_goes_on_from_its_state(name, restart_at):
    assert choices_of(name, restart_at) == choices_of(name)
