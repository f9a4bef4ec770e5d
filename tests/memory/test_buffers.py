"""Buffers: declared bytes, stored labels, complete removal of dropped memories, and how codes are packed."""

import re
from collections import Counter

import faiss
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crumb_avalanche.memory.buffers import (
    CodeBuffer,
    ImageBuffer,
    MapBuffer,
    StreamBatch,
)
from crumb_avalanche.memory.packing import (
    WIDTHS,
    bits_per_code,
    pack,
    packed_bytes,
    unpack,
)
from crumb_avalanche.memory.product_quantizer import ProductQuantizer
from crumb_avalanche.memory.selection import RULES, ClassBalancedReservoir, EveryJth

BUFFERS = [CodeBuffer, ImageBuffer, MapBuffer]
C, H, W, G = (
    8,
    4,
    4,
    2,
)  # maps and groups of the small model, whose codebook has 8 rows: 4 bits a code


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
        pixels=lambda positions: (
            values[list(positions)]
            .to(torch.uint8)
            .view(-1, 1, 1, 1)
            .expand(-1, 3, 16, 16)
        ),
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
        labels = [
            first + c for c in range(classes) for _ in range(draw(st.integers(1, 20)))
        ]
        draw(st.randoms(use_true_random=False)).shuffle(labels)
        experiences.append(labels)
        first += classes
    return (
        experiences,
        first + draw(st.integers(0, 12)),
        draw(st.integers(1, 9)),
        draw(st.integers(0, 99)),
    )


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("rule", RULES)
@given(stream=streams())
@settings(max_examples=15)
def test_at_every_moment_the_tensors_hold_the_members_and_nothing_else(
    make_model, kind, rule, stream
):
    experiences, mem_size, size, seed = stream
    model = make_model()
    buffer = kind(mem_size, RULES[rule](), seed)

    def check(label_of):
        taken = {
            slot: label
            for label, members in buffer.slots.by_class.items()
            for slot in members
        }
        assert len(buffer) == len(taken) <= mem_size
        assert {
            slot: int(label) for slot, label in enumerate(buffer.labels) if label >= 0
        } == taken
        if buffer.rows is None:  # until the first memory
            assert not taken and buffer.buffer_bytes == 0
            return
        numbers = [number_in(buffer, row) for row in buffer.rows]
        # A member's row is whole and of its label; the bytes of all others are gone.
        assert {slot for slot, number in enumerate(numbers) if number} == set(taken)
        assert all(label_of[numbers[slot]] == label for slot, label in taken.items())
        assert len({numbers[slot] for slot in taken}) == len(taken)
        # The reported bytes are those of the tensors.
        assert (
            buffer.rows.untyped_storage().nbytes()
            == buffer.buffer_bytes
            == mem_size * kind.item_bytes(model)
        )
        assert (
            buffer.labels.untyped_storage().nbytes()
            == buffer.label_bytes
            == 2 * mem_size
        )

    feed(buffer, model, experiences, size, check=check)
    assert set(buffer.classes) == {label for labels in experiences for label in labels}


@pytest.mark.parametrize(
    "kind, size", [(CodeBuffer, 16), (ImageBuffer, 768), (MapBuffer, 512)]
)
def test_an_empty_buffer(kind, size, model):
    buffer = kind(5)
    # 2 * 4 * 4 codes of 4 bits; 3 * 16 * 16 pixels; 8 * 4 * 4 floats.
    assert kind.item_bytes(model) == size
    assert len(buffer) == buffer.buffer_bytes == 0 and buffer.classes == []
    assert bool(buffer)  # ``if storage_policy`` asks whether there is a buffer
    assert buffer.sample(set(), 4).shape == (0,)
    with pytest.raises(TypeError, match=r"mem_size is 2\.5; give a whole number"):
        kind(2.5)
    with pytest.raises(
        TypeError, match=r"rule is <class .*; give an instance of a SelectionRule"
    ):
        CodeBuffer(4, EveryJth)
    with pytest.raises(
        ValueError, match="mem_size is 0; a buffer holds at least 1 memory"
    ):
        kind(0)
    empty = kind(5)
    empty.load_state_dict(buffer.state_dict())
    assert empty.rows is None and len(empty) == 0
    with pytest.raises(ValueError, match="the saved buffer has mem_size=5, this one 4"):
        kind(4).load_state_dict(buffer.state_dict())


@pytest.mark.parametrize(
    "without, at_least, size", [([], 21, 21), ([], 22, 24), ([1], 21, 22), ([9], 1, 3)]
)
def test_a_replay_batch_is_balanced_and_leaves_classes_out(
    model, without, at_least, size
):
    buffer = MapBuffer(9, ClassBalancedReservoir())
    feed(buffer, model, [[0, 1] * 15, [2] * 30], 7)
    slots = buffer.sample(set(without), at_least)
    assert slots.dtype == torch.int64 and len(slots) == size
    counts = Counter(buffer.labels[slots].tolist())
    kept = {0, 1, 2} - set(without)
    assert counts == dict.fromkeys(kept, size // len(kept))
    # Round by round: any prefix is balanced too.
    assert set(buffer.labels[slots[: len(kept)]].tolist()) == kept
    assert set(buffer.sample(set(), 300).tolist()) == set(range(9))
    assert buffer.sample({0, 1, 2}, 5).shape == (0,)


@pytest.mark.parametrize("bits", WIDTHS)
@given(data=st.data(), n=st.integers(0, 5), length=st.integers(0, 40))
def test_unpack_is_the_inverse_of_pack(bits, data, n, length):
    highest = min(2**bits, 2**15) - 1  # int16 codes stop there
    values = data.draw(
        st.lists(st.integers(0, highest), min_size=n * length, max_size=n * length)
    )
    codes = torch.tensor(values, dtype=torch.int16).view(n, length)
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8 and packed.is_contiguous()
    assert (
        packed.shape == (n, packed_bytes(length, bits)) == (n, (length * bits + 7) // 8)
    )
    restored = unpack(packed, bits, length)
    assert restored.dtype == (torch.int16 if bits == 16 else torch.uint8)
    assert torch.equal(restored.to(torch.int16), codes)


@pytest.mark.parametrize(
    "bits, codes, packed",
    [
        (1, [1, 0, 1, 1, 0, 0, 0, 1, 1], [0b10001101, 0b00000001]),
        (2, [1, 0, 3, 2], [0b10_11_00_01]),
        (4, [1, 15, 7], [0xF1, 0x07]),
        (16, [1, 256, 32767], [1, 0, 0, 1, 255, 127]),
    ],
)
def test_bytes_worked_by_hand(bits, codes, packed):
    assert pack(torch.tensor([codes], dtype=torch.int16), bits).tolist() == [packed]
    assert unpack(
        torch.tensor([packed], dtype=torch.uint8), bits, len(codes)
    ).tolist() == [codes]


def test_the_smallest_width_that_names_every_row():
    rows = (1, 2, 3, 4, 5, 16, 17, 256, 257, 32768)
    assert [bits_per_code(number) for number in rows] == [
        1,
        1,
        2,
        2,
        4,
        4,
        8,
        8,
        16,
        16,
    ]


def test_codes_and_bytes_that_do_not_fit_are_errors():
    with pytest.raises(
        ValueError, match="codes of 3 bits cannot be packed; use one of 1, 2, 4, 8, 16"
    ):
        pack(torch.zeros(1, 1), 3)
    for bits, wrong in ((1, 2), (2, 4), (4, -1), (8, 256), (16, -1)):
        words = f"codes from {min(0, wrong)} to {max(0, wrong)} do not fit in {bits} bits (0 to {2**bits - 1})"
        with pytest.raises(ValueError, match=re.escape(words)):
            pack(torch.tensor([[0, wrong]], dtype=torch.int16), bits)
    for bits, length, right in ((2, 5, 2), (8, 3, 3), (16, 3, 6)):
        for wrong in (right - 1, right + 1):
            words = f"{wrong} bytes are not {length} codes of {bits} bits, which take {right}"
            with pytest.raises(ValueError, match=words):
                unpack(torch.zeros(1, wrong, dtype=torch.uint8), bits, length)


def quantizer(channels=16, groups=4, centroids=256, seed=0):
    """One with random centroids."""
    made = ProductQuantizer(channels, groups, centroids)
    made.centroids.copy_(
        torch.randn(made.centroids.shape, generator=torch.Generator().manual_seed(seed))
    )
    return made


def maps(count, channels, height=3, width=2, seed=1):
    return torch.randn(
        count, channels, height, width, generator=torch.Generator().manual_seed(seed)
    )


@pytest.mark.parametrize(("channels", "groups"), [(512, 32), (64, 32), (16, 4)])
def test_codes_and_decoded_maps_are_those_of_faiss(channels, groups):
    ours = quantizer(channels, groups)
    theirs = faiss.ProductQuantizer(channels, groups, 8)
    faiss.copy_array_to_vector(ours.centroids.numpy().ravel(), theirs.centroids)
    feature_map = maps(7, channels)
    vectors = feature_map.permute(0, 2, 3, 1).reshape(-1, channels).contiguous().numpy()
    codes = ours.encode(feature_map)
    expected = theirs.compute_codes(vectors)
    assert torch.equal(
        codes.permute(0, 2, 3, 1).reshape(-1, groups), torch.from_numpy(expected)
    )
    decoded = ours.decode(codes).permute(0, 2, 3, 1).reshape(-1, channels)
    assert torch.equal(decoded, torch.from_numpy(theirs.decode(expected)))


def test_ties_go_to_the_lowest_centroid():
    ours = quantizer(4, 2, centroids=4)
    ours.centroids[:, 2] = ours.centroids[:, 1]
    assert set(
        ours.encode(ours.decode(torch.full((1, 2, 1, 1), 2)))[0].flatten().tolist()
    ) == {1}


def test_fit_finds_clusters_with_another_table_for_each_group():
    centres = torch.tensor(
        [[[0.0, 0], [10, 0], [0, 10]], [[50.0, 0], [0, 50], [50, 50]]]
    )
    generator = torch.Generator().manual_seed(0)
    which = torch.randint(3, (600, 2), generator=generator)
    vectors = torch.cat([centres[0][which[:, 0]], centres[1][which[:, 1]]], dim=1)
    vectors += 0.1 * torch.randn(vectors.shape, generator=generator)
    ours = ProductQuantizer(4, 2, centroids=8).fit(vectors)
    for group in range(2):
        distances = torch.cdist(centres[group], ours.centroids[group])
        assert distances.min(dim=1).values.max() < 0.5
    feature_map = vectors[:5].view(5, 4, 1, 1)
    assert (ours.decode(ours.encode(feature_map)) - feature_map).abs().max() < 0.8
    tables = [
        ProductQuantizer(4, 2, centroids=8).fit(vectors, seed).centroids
        for seed in (1, 1, 2)
    ]
    assert torch.equal(tables[0], tables[1]) and not torch.equal(tables[0], tables[2])


def test_bytes():
    ours = ProductQuantizer(512)
    assert (
        ours.table_bytes == 524_288
        and ours.map_bytes(13, 13) == 5_408
        and ours.bits == 8
    )
    assert not ours.fitted and quantizer().fitted
    assert ProductQuantizer(8, 8, 16).map_bytes(4, 4) == 64  # 4 bits a code


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: ProductQuantizer(48, 32),
            "sub_quantizers=32 does not divide the 48 channels .* such as 24",
        ),
        (lambda: ProductQuantizer(8, 0), "sub_quantizers=0 does not divide"),
        (
            lambda: ProductQuantizer(8, 4, 257),
            "centroids is 257; a code is one byte, so give 2 to 256",
        ),
        (
            lambda: quantizer().encode(maps(1, 8)),
            "the feature map has 8 channels, the quantizer was made for 16",
        ),
        (lambda: ProductQuantizer(8, 4).encode(maps(1, 8)), "no centroids yet: fit it"),
        (lambda: quantizer().encode(maps(1, 16) / 0), "NaN or infinite values"),
        (
            lambda: ProductQuantizer(8, 4).fit(torch.zeros(5, 8)),
            "5 vectors cannot make 256 centroids; give more",
        ),
        (
            lambda: ProductQuantizer(8, 4).fit(torch.zeros(500, 4)),
            r"shape \(500, 4\), but must have \(N, 8\)",
        ),
        (
            lambda: ProductQuantizer(8, 4).fit(torch.full((500, 8), torch.nan)),
            "NaN or infinite values",
        ),
    ],
)
def test_mistakes_are_told(make, words):
    with pytest.raises(ValueError, match=words):
        make()
