"""Buffers hold what they say, codes are packed, the product quantizer is faiss's."""

import re
from collections import Counter
from dataclasses import dataclass

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
from crumb_avalanche.system.value_types import StateError

BUFFERS = [CodeBuffer, ImageBuffer, MapBuffer]
# Maps and groups of the small model, whose codebook has 8 rows: 4 bits a code.
C = 8
H = 4
W = 4
G = 2


def digits(number):
    """Codes that spell a number below 8**4: one base-8 digit after the other."""
    digit_of_code = torch.arange(H * W * G) % 4
    return (torch.tensor(number) >> (3 * digit_of_code)) & 7


def batch_of(numbers, labels):
    """Images, maps and codes that all tell their number, 1 to 255.

    0 would look like an empty slot.
    """
    values = torch.tensor(numbers)
    codes = torch.stack(list(map(digits, numbers))).to(torch.uint8)

    def pixels(positions):
        levels = values[list(positions)].to(torch.uint8)
        return levels.view(-1, 1, 1, 1).expand(-1, 3, 16, 16)

    return StreamBatch(
        labels=torch.tensor(labels),
        feature_map=values.float().view(-1, 1, 1, 1).expand(-1, C, H, W),
        codes=codes.view(-1, H, W, G).permute(0, 3, 1, 2),
        pixels=pixels,
    )


def number_in(buffer, row):
    """The number of the image in a row of a buffer; 0 for a row of zero bytes.

    Fails on a mixture of images.
    """
    if isinstance(buffer, CodeBuffer):
        codes = unpack(row[None], 4, H * W * G)[0].long()
        number = int((codes[:4] << (3 * torch.arange(4))).sum())
        assert torch.equal(codes, digits(number))
        return number
    values = row.unique().tolist()
    assert len(values) == 1
    return int(values[0])


def feed(buffer, model, experiences, batch_size, check=None):
    """Offer experiences of labels, whose images are numbered from 1.

    ``check`` is called with the label of each number before and after each batch.
    """
    label_of = {}
    for labels in experiences:
        buffer.begin_experience(labels, batch_size)
        if check:
            check(label_of)
        for start in range(0, len(labels), batch_size):
            batch_labels = labels[start : start + batch_size]
            first = len(label_of) + 1
            numbers = list(range(first, first + len(batch_labels)))
            label_of.update(zip(numbers, batch_labels))
            if not buffer.rule.finished:
                buffer.store(batch_of(numbers, batch_labels), model)
            if check:
                check(label_of)


@dataclass(frozen=True)
class Stream:
    """Experiences of labels, and how they are offered."""

    experiences: list[list[int]]
    mem_size: int
    batch_size: int
    seed: int


@st.composite
def streams(draw):
    """Experiences of new classes, in any order, and room for a memory of each."""
    experiences = []
    n_classes = 0
    for n_new in draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)):
        labels = []
        for label in range(n_classes, n_classes + n_new):
            labels += [label] * draw(st.integers(1, 20))
        draw(st.randoms(use_true_random=False)).shuffle(labels)
        experiences.append(labels)
        n_classes += n_new
    return Stream(
        experiences=experiences,
        mem_size=n_classes + draw(st.integers(0, 12)),
        batch_size=draw(st.integers(1, 9)),
        seed=draw(st.integers(0, 99)),
    )


def label_of_slot(buffer):
    """The class of each taken slot."""
    labels = {}
    for label, members in buffer.slots.by_class.items():
        labels.update(dict.fromkeys(members, label))
    return labels


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("rule", RULES)
@given(stream=streams())
@settings(max_examples=15)
def test_tensors_hold_the_memories_alone(make_model, kind, rule, stream):
    """At every moment: rows and labels of memories, and zeros elsewhere."""
    model = make_model()
    buffer = kind(stream.mem_size, RULES[rule](), stream.seed)

    def check(label_of_number):
        taken = label_of_slot(buffer)
        labels = dict(enumerate(buffer.labels.tolist()))
        assert {slot: label for slot, label in labels.items() if label >= 0} == taken
        assert len(buffer) == len(taken) <= stream.mem_size
        if buffer.rows is None:  # until the first memory
            assert not taken
            return
        numbers = dict(enumerate(number_in(buffer, row) for row in buffer.rows))
        stored = {slot: number for slot, number in numbers.items() if number}
        assert len(set(stored.values())) == len(stored)
        assert {slot: label_of_number[n] for slot, n in stored.items()} == taken

    feed(buffer, model, stream.experiences, stream.batch_size, check)


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("rule", RULES)
@given(stream=streams())
@settings(max_examples=5)
def test_every_class_has_a_memory(make_model, kind, rule, stream):
    buffer = kind(stream.mem_size, RULES[rule](), stream.seed)
    feed(buffer, make_model(), stream.experiences, stream.batch_size)
    assert set(buffer.classes) == set().union(*stream.experiences)


@pytest.mark.parametrize("kind", BUFFERS)
def test_reported_bytes_are_those_of_the_tensors(model, kind):
    buffer = kind(9)
    assert buffer.buffer_bytes == 0
    feed(buffer, model, [[0, 1] * 15], 7)
    row_bytes = buffer.rows.untyped_storage().nbytes()
    assert row_bytes == buffer.buffer_bytes == 9 * kind.item_bytes(model)
    label_bytes = buffer.labels.untyped_storage().nbytes()
    assert label_bytes == buffer.label_bytes == 2 * 9


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (CodeBuffer, 16),  # 2 * 4 * 4 codes of 4 bits
        (ImageBuffer, 768),  # 3 * 16 * 16 pixels
        (MapBuffer, 512),  # 8 * 4 * 4 floats
    ],
)
def test_bytes_of_a_memory(kind, size, model):
    assert kind.item_bytes(model) == size


@pytest.mark.parametrize("kind", BUFFERS)
def test_an_empty_buffer(kind):
    buffer = kind(5)
    assert len(buffer) == 0
    assert buffer.classes == []
    assert bool(buffer)  # ``if storage_policy`` asks whether there is a buffer
    assert buffer.sample(set(), 4).shape == (0,)


@pytest.mark.parametrize("kind", BUFFERS)
def test_the_state_of_an_empty_buffer(kind):
    buffer = kind(5)
    buffer.load_state_dict(kind(5).state_dict())
    assert buffer.rows is None
    assert len(buffer) == 0


@pytest.mark.parametrize(
    ("saved", "words"),
    [
        (CodeBuffer(5), r"CodeBuffer\(5, EveryJth\(\)\)"),
        (ImageBuffer(4), r"ImageBuffer\(4, EveryJth\(\)\)"),
        (
            CodeBuffer(4, ClassBalancedReservoir()),
            r"CodeBuffer\(4, ClassBalancedReservoir\(\)\)",
        ),
    ],
    ids=["capacity", "buffer", "rule"],
)
def test_the_state_of_another_buffer(saved, words):
    buffer = CodeBuffer(4)
    words += r", this one is CodeBuffer\(4, EveryJth\(\)\); build the same strategy"
    with pytest.raises(StateError, match=f"the saved buffer is {words}"):
        buffer.load_state_dict(saved.state_dict())


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((2.5,), TypeError, r"mem_size is 2\.5; give a whole number"),
        ((0,), ValueError, "mem_size is 0; a buffer holds at least 1 memory"),
        ((-3,), ValueError, "mem_size is -3; a buffer holds at least 1 memory"),
        (
            (4, EveryJth),
            TypeError,
            r"rule is <class .*; give an instance of a SelectionRule",
        ),
    ],
    ids=["fraction", "none", "negative", "class"],
)
def test_errors_of_a_buffer(kind, arguments, error, words):
    with pytest.raises(error, match=words):
        kind(*arguments)


@pytest.mark.parametrize("kind", BUFFERS)
def test_the_hosts_plugins_take_no_buffer_of_ours(kind):
    """Avalanche's ``ReplayPlugin`` reads ``buffer`` of its storage policy."""
    words = rf"use CRUMBPlugin\({kind.__name__}\(20\)\) instead of ReplayPlugin"
    with pytest.raises(AttributeError, match=words):
        kind(20).buffer  # noqa: B018
    assert not hasattr(kind(20), "buffer")


@pytest.fixture
def three_classes(model):
    """A buffer of 9 memories of the classes 0, 1 and 2."""
    buffer = MapBuffer(9, ClassBalancedReservoir())
    feed(buffer, model, [[0, 1] * 15, [2] * 30], 7)
    return buffer


@pytest.mark.parametrize(
    ("without", "at_least", "size"),
    [(set(), 21, 21), (set(), 22, 24), ({1}, 21, 22), ({9}, 1, 3)],
)
def test_a_replay_batch_is_balanced(three_classes, without, at_least, size):
    slots = three_classes.sample(without, at_least)
    assert slots.dtype == torch.int64
    assert len(slots) == size
    classes = {0, 1, 2} - without
    labels = three_classes.labels[slots].tolist()
    assert Counter(labels) == dict.fromkeys(classes, size // len(classes))
    # Round by round: the first round has each class, too.
    assert set(labels[: len(classes)]) == classes


@pytest.mark.parametrize(
    ("at_least", "at_most", "size"), [(21, 5, 5), (21, 30, 21), (2, 2, 2), (1, 1, 1)]
)
def test_a_limited_replay_batch(three_classes, at_least, at_most, size):
    """No class comes twice more than another."""
    slots = three_classes.sample(set(), at_least, at_most)
    assert len(slots) == size
    counts = Counter(three_classes.labels[slots].tolist())
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_limit_leaves_out_no_class(three_classes):
    """Of three classes two are drawn for a batch, and each comes sooner or later."""
    drawn = [three_classes.sample(set(), 2, 2) for _ in range(30)]
    labels = three_classes.labels[torch.cat(drawn)].tolist()
    assert set(labels) == {0, 1, 2}


def test_a_replay_draws_every_memory(three_classes):
    assert set(three_classes.sample(set(), 300).tolist()) == set(range(9))


def test_a_replay_without_any_class(three_classes):
    assert three_classes.sample({0, 1, 2}, 5).shape == (0,)


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


@pytest.mark.parametrize(
    ("rows", "bits"),
    [
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 2),
        (5, 4),
        (16, 4),
        (17, 8),
        (256, 8),
        (257, 16),
        (32768, 16),
    ],
)
def test_the_smallest_width(rows, bits):
    assert bits_per_code(rows) == bits


def test_an_unknown_width():
    words = "codes of 3 bits cannot be packed; use one of 1, 2, 4, 8, 16"
    with pytest.raises(ValueError, match=words):
        pack(torch.zeros(1, 1), 3)


@pytest.mark.parametrize(
    ("bits", "code"), [(1, 2), (2, 4), (4, -1), (8, 256), (16, -1)]
)
def test_codes_that_do_not_fit(bits, code):
    words = f"codes from {min(0, code)} to {max(0, code)} do not fit in {bits} bits "
    words += f"(0 to {2**bits - 1})"
    with pytest.raises(ValueError, match=re.escape(words)):
        pack(torch.tensor([[0, code]], dtype=torch.int16), bits)


@pytest.mark.parametrize(("bits", "length", "size"), [(2, 5, 2), (8, 3, 3), (16, 3, 6)])
@pytest.mark.parametrize("more", [-1, 1])
def test_bytes_that_do_not_fit(bits, length, size, more):
    packed = torch.zeros(1, size + more, dtype=torch.uint8)
    words = f"{size + more} bytes are not {length} codes of {bits} bits, which take "
    with pytest.raises(ValueError, match=f"{words}{size}"):
        unpack(packed, bits, length)


def quantizer(channels=16, groups=4, centroids=256):
    """One with random centroids."""
    random = torch.Generator().manual_seed(0)
    filled = ProductQuantizer(channels, groups, centroids)
    filled.centroids.copy_(torch.randn(filled.centroids.shape, generator=random))
    return filled


def maps(count, channels, height=3, width=2):
    random = torch.Generator().manual_seed(1)
    return torch.randn(count, channels, height, width, generator=random)


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
    decoded = ours.decode(torch.full((1, 2, 1, 1), 2))
    assert ours.encode(decoded).flatten().tolist() == [1, 1]


# Centres of three clusters of each of two groups of two channels.
CENTRES = torch.tensor([[[0.0, 0], [10, 0], [0, 10]], [[50.0, 0], [0, 50], [50, 50]]])


@pytest.fixture
def clustered():
    """600 vectors near the centres of each group."""
    random = torch.Generator().manual_seed(0)
    cluster = torch.randint(3, (600, 2), generator=random)
    by_group = [CENTRES[group][cluster[:, group]] for group in range(2)]
    vectors = torch.cat(by_group, dim=1)
    return vectors + 0.1 * torch.randn(vectors.shape, generator=random)


@pytest.mark.parametrize("group", [0, 1])
def test_fit_finds_the_clusters_of_each_group(clustered, group):
    ours = ProductQuantizer(4, 2, centroids=8).fit(clustered)
    distances = torch.cdist(CENTRES[group], ours.centroids[group])
    assert distances.min(dim=1).values.max() < 0.5


def test_fitted_centroids_reconstruct_maps(clustered):
    ours = ProductQuantizer(4, 2, centroids=8).fit(clustered)
    feature_map = clustered[:5].view(5, 4, 1, 1)
    assert (ours.decode(ours.encode(feature_map)) - feature_map).abs().max() < 0.8


@pytest.mark.parametrize(("seed", "is_same"), [(1, True), (2, False)])
def test_a_seed_decides_the_centroids(clustered, seed, is_same):
    first = ProductQuantizer(4, 2, centroids=8).fit(clustered, 1)
    second = ProductQuantizer(4, 2, centroids=8).fit(clustered, seed)
    assert torch.equal(first.centroids, second.centroids) == is_same


def test_bytes_of_a_quantizer():
    ours = ProductQuantizer(512)
    assert ours.table_bytes == 524_288
    assert ours.map_bytes(13, 13) == 5_408
    assert ours.bits == 8


def test_codes_of_four_bits():
    assert ProductQuantizer(8, 8, 16).map_bytes(4, 4) == 64


def test_fitted():
    assert not ProductQuantizer(512).fitted
    assert quantizer().fitted


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
def test_errors_of_a_quantizer(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize(("height", "width"), [(17, 17), (15, 16)])
def test_images_of_another_size_are_refused(model, height, width):
    """Their bytes are not those that are charged."""
    batch = batch_of([1, 2], [0, 1])
    batch.pixels = lambda positions: torch.zeros(
        len(positions), 3, height, width, dtype=torch.uint8
    )
    words = f"images of {height} x {width} pixels .* image_size=16.*; resize the images"
    with pytest.raises(ValueError, match=words):
        ImageBuffer(4, ClassBalancedReservoir()).store(batch, model)
