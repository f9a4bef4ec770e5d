"""Buffers: declared bytes, stored labels, and complete removal of dropped memories."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crumb_avalanche.memory.buffers import CodeBuffer, ImageBuffer, MapBuffer, StreamBatch
from crumb_avalanche.memory.packing import unpack
from crumb_avalanche.memory.selection import RULES, ClassBalancedReservoir, EveryJth

BUFFERS = [CodeBuffer, ImageBuffer, MapBuffer]
C, H, W, G = 8, 4, 4, 2  # maps and groups of the small model, whose codebook has 8 rows: 4 bits a code


def digits(number):
    """Codes that spell a number below 8**4: one base-8 digit after the other."""
    return (torch.tensor(number) >> (3 * (torch.arange(H * W * G) % 4))) & 7


def batch_of(numbers, labels):
    """Images, maps and codes that all tell their number, 1 to 255; 0 would look like an empty slot."""
    values = torch.tensor(numbers)
    codes = torch.stack([digits(number) for number in numbers]).to(torch.uint8)
    return StreamBatch(
        labels=torch.tensor(labels),
        feature_map=values.float().view(-1, 1, 1, 1).expand(-1, C, H, W),
        codes=codes.view(-1, H, W, G).permute(0, 3, 1, 2),
        pixels=lambda positions: values[list(positions)].to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 16, 16),
    )


def number_in(buffer, row):
    """Which item a row of a buffer holds; 0 for a row of zero bytes; fails on a mixture of items."""
    if isinstance(buffer, CodeBuffer):
        codes = unpack(row[None], 4, H * W * G)[0].long()
        number = int((codes[:4] << (3 * torch.arange(4))).sum())
        assert torch.equal(codes, digits(number))
        return number
    values = row.unique().tolist()
    assert len(values) == 1
    return int(values[0])


def feed(buffer, model, experiences, size, first=1, check=None):
    """Offer experiences of labels, numbered from ``first``; returns the label of each number."""
    label_of = {}
    for labels in experiences:
        buffer.begin_experience(labels, size)
        if check:
            check(label_of)
        for start in range(0, len(labels), size):
            part = labels[start : start + size]
            numbers = list(range(first, first + len(part)))
            label_of |= dict(zip(numbers, part))
            first += len(part)
            if not buffer.rule.finished:
                buffer.store(batch_of(numbers, part), model)
            if check:
                check(label_of)
    return label_of


@st.composite
def streams(draw):
    experiences, first = [], 0
    for classes in draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)):
        labels = [first + c for c in range(classes) for _ in range(draw(st.integers(1, 20)))]
        draw(st.randoms(use_true_random=False)).shuffle(labels)
        experiences.append(labels)
        first += classes
    return experiences, first + draw(st.integers(0, 12)), draw(st.integers(1, 9)), draw(st.integers(0, 99))


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("rule", RULES)
@given(stream=streams())
@settings(max_examples=15)
def test_at_every_moment_the_tensors_hold_the_members_and_nothing_else(make_model, kind, rule, stream):
    experiences, mem_size, size, seed = stream
    model = make_model()
    buffer = kind(mem_size, RULES[rule](), seed)

    def check(label_of):
        taken = {slot: label for label, members in buffer.slots.by_class.items() for slot in members}
        assert len(buffer) == len(taken) <= mem_size
        assert {slot: int(label) for slot, label in enumerate(buffer.labels) if label >= 0} == taken
        if buffer.rows is None:  # until the first memory
            assert not taken and buffer.buffer_bytes == 0
            return
        numbers = [number_in(buffer, row) for row in buffer.rows]
        # A member's row is whole and of its label; the bytes of all others are gone.
        assert {slot for slot, number in enumerate(numbers) if number} == set(taken)
        assert all(label_of[numbers[slot]] == label for slot, label in taken.items())
        assert len({numbers[slot] for slot in taken}) == len(taken)
        # The reported bytes are those of the tensors.
        assert buffer.rows.untyped_storage().nbytes() == buffer.buffer_bytes == mem_size * kind.item_bytes(model)
        assert buffer.labels.untyped_storage().nbytes() == buffer.label_bytes == 2 * mem_size

    feed(buffer, model, experiences, size, check=check)
    assert set(buffer.classes) == {label for labels in experiences for label in labels}


@pytest.mark.parametrize("kind, size", [(CodeBuffer, 16), (ImageBuffer, 768), (MapBuffer, 512)])
def test_an_empty_buffer(kind, size, model):
    buffer = kind(5)
    # 2 * 4 * 4 codes of 4 bits; 3 * 16 * 16 pixels; 8 * 4 * 4 floats.
    assert kind.item_bytes(model) == size
    assert len(buffer) == buffer.buffer_bytes == 0 and buffer.classes == []
    assert bool(buffer)  # ``if storage_policy`` asks whether there is a buffer
    assert buffer.sample(set(), 4).shape == (0,)
    with pytest.raises(TypeError, match=r"mem_size is 2\.5; give a whole number"):
        kind(2.5)
    with pytest.raises(TypeError, match=r"rule is <class .*; give an instance of a SelectionRule"):
        CodeBuffer(4, EveryJth)
    with pytest.raises(ValueError, match="mem_size is 0; a buffer holds at least 1 memory"):
        kind(0)
    empty = kind(5)
    empty.load_state_dict(buffer.state_dict())
    assert empty.rows is None and len(empty) == 0
    with pytest.raises(ValueError, match="the saved buffer has mem_size=5, this one 4"):
        kind(4).load_state_dict(buffer.state_dict())


def full_buffer(model):
    buffer = MapBuffer(9, ClassBalancedReservoir())
    feed(buffer, model, [[0, 1] * 15, [2] * 30], 7)
    return buffer


@pytest.mark.parametrize("without, at_least, size", [([], 21, 21), ([], 22, 24), ([1], 21, 22), ([9], 1, 3)])
def test_a_replay_batch_is_balanced_and_leaves_classes_out(model, without, at_least, size):
    buffer = full_buffer(model)
    slots = buffer.sample(set(without), at_least)
    assert slots.dtype == torch.int64 and len(slots) == size
    counts = Counter(buffer.labels[slots].tolist())
    kept = {0, 1, 2} - set(without)
    assert counts == dict.fromkeys(kept, size // len(kept))
    # Round by round: any prefix is balanced too.
    assert set(buffer.labels[slots[: len(kept)]].tolist()) == kept
    assert set(buffer.sample(set(), 300).tolist()) == set(range(9))
    assert buffer.sample({0, 1, 2}, 5).shape == (0,)
