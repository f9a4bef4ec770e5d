"""The codebook against the paper's equations 1 and 2, computed in float64; its initialisation and calibration."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.nn import functional
from torch.utils.data import TensorDataset

from crumb_avalanche.models import search
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.codebook import (
    INITIALISERS,
    Codebook,
    MapStatistics,
    RowLookup,
)
from crumb_avalanche.models.layers import REFERENCE_SCALE
from crumb_avalanche.models.weights import check_and_load


@pytest.fixture(params=["by tiles", "by faiss"])
def searched(request, monkeypatch):
    """Search in one of the two ways, however many vectors there are."""
    monkeypatch.setattr(
        search, "_suits_faiss", lambda vectors: request.param == "by faiss"
    )


def codebook_of(rows):
    rows = torch.as_tensor(rows, dtype=torch.float32)
    codebook = Codebook(*rows.shape)
    codebook.blocks.data = rows
    return codebook


def encoded(feature_map, rows):
    """Eq. 1-2: the first row with the largest ``slice . (row / |row|)``, but never a zero row."""
    slices, lengths = (
        feature_map.unflatten(1, (-1, rows.shape[1])).double(),
        rows.double().norm(dim=1),
    )
    scores = torch.einsum("bgdhw,nd->bnghw", slices, rows.double()) / lengths.view(
        1, -1, 1, 1, 1
    )
    scores[:, lengths == 0] = -torch.inf
    return torch.from_numpy(scores.numpy().argmax(1))


def test_a_case_worked_by_hand():
    # Rows of length 5, 2 and 1. The slice (3, 4): 25/5 = 5, 6/2 = 3, 4/1 = 4, so row 0.
    # The slice (1, 0): 3/5, 2/2 = 1, 0, so row 1, although row 0 has the larger raw dot
    # product (3 against 2). The slice (-1, 0.5): (-3 + 2)/5 = -0.2, -1, 0.5, so row 2.
    # The slice (0, 0) ties everywhere: row 0.
    codebook = codebook_of([[3, 4], [2, 0], [0, 1]])
    feature_map = torch.tensor([3.0, 4, 1, 0, -1, 0.5, 0, 0]).view(1, 8, 1, 1)
    quantized, codes = codebook.quantize(feature_map)
    assert codes.flatten().tolist() == [0, 1, 2, 0]
    assert quantized.flatten().tolist() == [
        3,
        4,
        2,
        0,
        0,
        1,
        3,
        4,
    ]  # the raw rows, not the unit ones
    assert (
        torch.equal(codebook(feature_map), quantized)
        and quantized.dtype == torch.float32
    )
    assert codebook.usage(codes).tolist() == [2, 1, 1]
    # Two locations side by side, two groups of two channels: the slice is taken along
    # channels, not along space.
    codebook = codebook_of([[1, 0], [0, 1]])
    feature_map = torch.tensor([[[9.0, 0]], [[0, 9]], [[0, 0.5]], [[7, 0]]])[None]
    assert codebook.encode(feature_map).tolist() == [[[[0, 1]], [[1, 0]]]]


@pytest.mark.usefixtures("searched")
@pytest.mark.parametrize("sparse", [True, False])
def test_encode_and_decode_follow_the_equations_in_any_memory_format(sparse):
    generator = torch.Generator().manual_seed(1)
    blocks = (
        torch.randn(11, 4, generator=generator)
        * torch.tensor([0.1, 1.0, 30.0]).repeat(11)[:11, None]
    )
    feature_map = torch.randn(2, 12, 3, 5, generator=generator) * 14
    feature_map = feature_map.relu() if sparse else feature_map
    codebook, before = codebook_of(blocks), feature_map.clone()
    codes = codebook.encode(feature_map)
    assert torch.equal(codes.long(), encoded(feature_map, blocks)) and torch.equal(
        feature_map, before
    )
    assert torch.equal(
        codebook.decode(codes), blocks[codes.long()].movedim(4, 2).flatten(1, 2)
    )
    assert torch.equal(codebook.decode(codes.contiguous()), codebook.decode(codes))
    assert torch.equal(
        codebook.encode(feature_map.contiguous(memory_format=torch.channels_last)),
        codes,
    )
    for factor in (1e-9, 1e15):  # the length of a slice does not matter
        assert torch.equal(codebook.encode(feature_map * factor), codes)


def exact_rows():
    """Rows of four whose unit rows floats hold exactly: one-hot and half-integer ones of any sign, zero rows too."""
    one_hot = st.builds(
        lambda i, v: [v * (i == k) for k in range(4)],
        st.integers(0, 3),
        st.sampled_from([-4, -1, 1, 3]),
    )
    halves = st.lists(st.sampled_from([-0.5, 0.5]), min_size=4, max_size=4)
    ones = halves.map(lambda row: [4 * value for value in row])
    return st.lists(
        st.one_of(one_hot, halves, ones, st.just([0.0] * 4)), min_size=1, max_size=12
    )


@given(rows=exact_rows(), seed=st.integers(0, 10**6))
def test_ties_go_to_the_lowest_row_and_zero_rows_never_win(rows, seed):
    # Small integers: every score is exact, so most slices tie between several rows,
    # duplicates among them.
    generator = torch.Generator().manual_seed(seed)
    feature_map = torch.randint(-3, 4, (1, 8, 4, 8), generator=generator).float()
    feature_map[0, :4, 0, 0] = 0
    if not any(any(row) for row in rows):
        rows.append([0, 0, 2, 0])
    codebook = codebook_of(rows)
    for ways in (
        {},
        {"_suits_faiss": lambda vectors: True},
        {"_suits_faiss": lambda vectors: False},
    ):
        with pytest.MonkeyPatch.context() as patch:
            for name, way in ways.items():
                patch.setattr(search, name, way)
            assert torch.equal(
                codebook.encode(feature_map).long(),
                encoded(feature_map, codebook.blocks.detach()),
            )


def test_zero_slices_are_found_wherever_they_are_among_many_but_not_one_whose_norm_underflows():
    codebook, tile = codebook_of([[0.6, 0.8], [1.0, 0]]), search.FAISS_TILE
    feature_map = torch.tensor([1.0, 0]).view(1, 2, 1, 1).repeat(1, 1, 3, tile)
    zeros = torch.tensor([0, tile - 1, tile, 2 * tile + 5, 3 * tile - 1])
    feature_map.view(1, 2, -1)[:, :, zeros] = 0
    assert (codebook.encode(feature_map).flatten() == 0).nonzero().squeeze(
        1
    ).tolist() == zeros.tolist()
    feature_map = torch.tensor([0, 1e-30, 1e-30, 0, 0, 0, -1e-30, 1e-30]).view(
        1, 8, 1, 1
    )
    assert torch.linalg.vector_norm(feature_map[0, :2]) == 0
    assert codebook_of([[1.0, 0], [0, 1], [0.6, 0.8]]).encode(
        feature_map
    ).flatten().tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: codebook_of([[1, 0], [math.nan, 1]]).encode(torch.rand(1, 2, 3, 3)),
            "codebook holds NaN .* damaged",
        ),
        (
            lambda: codebook_of([[1, 0]]).encode(torch.full((1, 2, 3, 3), -math.inf)),
            "feature map holds NaN or infin",
        ),
        (
            lambda: Codebook(4, 2).encode(torch.rand(1, 4, 1, 1)),
            "rows of the codebook are zero; fill .* calibrate",
        ),
        (
            lambda: Codebook(256, 16).encode(torch.rand(1, 500, 2, 2)),
            "500 .*=16 does not divide; .* such as 10,",
        ),
        (lambda: Codebook(0, 4), "codebook_size is 0; a code has at most 15 bits"),
        (
            lambda: Codebook(2**15 + 1, 4),
            "codebook_size is 32769; a code has at most 15 bits",
        ),
        (lambda: Codebook(4, 0), "at least 1 value"),
    ],
)
def test_errors_say_what_to_do(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 30) | st.sampled_from([256, 257]),
    d=st.integers(4, 8),
)
def test_encoding_a_decoded_map_returns_its_codes(seed, rows, d):
    # Random rows of four values are never nearly parallel, so each is most similar to
    # itself (Cauchy and Schwarz).
    generator = torch.Generator().manual_seed(seed)
    codebook = codebook_of(torch.randn(rows, d, generator=generator) + 0.01)
    codes = torch.randint(rows, (2, 3, 4, 5), generator=generator)
    decoded = codebook.decode(codes)
    found = codebook.encode(decoded)
    assert torch.equal(found.long(), codes) and found.dtype == (
        torch.uint8 if rows <= 256 else torch.int16
    )
    assert torch.equal(codebook.decode(found), decoded)


def test_gradient_reaches_exactly_the_rows_used():
    codebook = codebook_of([[1, 0], [0, 1], [-1, 0], [0, -1]])
    # Row 0 is used three times, row 3 once; d loss / d row = the sum of the weights
    # where it stands.
    feature_map = (
        torch.tensor([[5.0, 6], [0, 0], [7, 0], [0, -8]])
        .view(1, 4, 1, 2)
        .requires_grad_()
    )
    quantized, codes = codebook.quantize(feature_map)
    assert codes.tolist() == [[[[0, 0]], [[0, 3]]]]
    (quantized * torch.arange(1.0, 9).view(1, 4, 1, 2)).sum().backward()
    assert codebook.blocks.grad.tolist() == [
        [1 + 2 + 5, 3 + 4 + 7],
        [0, 0],
        [0, 0],
        [6, 8],
    ]
    assert feature_map.grad is None


@pytest.mark.parametrize(
    ("rows", "length", "dtype"),
    [(256, 16, torch.uint8), (3, 4, torch.int64), (2**15, 2, torch.int16)],
)
def test_the_gradient_has_the_bits_of_an_embedding(rows, length, dtype):
    generator = torch.Generator().manual_seed(rows)
    numbers = torch.randint(0, rows, (7, 13, 13, 16), dtype=dtype, generator=generator)
    gradient = torch.randn(*numbers.shape, length, generator=generator)
    tables = [torch.ones(rows, length, requires_grad=True) for _ in range(2)]
    torch.set_num_threads(2)  # one again for the next test
    RowLookup.apply(tables[0], numbers).backward(gradient)
    torch.nn.functional.embedding(numbers.int(), tables[1]).backward(gradient)
    assert torch.equal(tables[0].grad, tables[1].grad)


def case(count, rows, d):
    generator = torch.Generator().manual_seed(0)
    slices = torch.randn(count, d, generator=generator).relu() * 14 + 1e-3
    return slices, functional.normalize(
        torch.randn(rows, d, generator=generator), dim=1
    )


@pytest.mark.usefixtures("searched")
def test_tiles_do_not_change_the_result_and_only_a_slice_that_is_not_finite_gets_minus_one(
    monkeypatch,
):
    slices, unit_rows = case(101, 20, 4)
    whole = search.most_similar_rows(slices, unit_rows)
    slices[3, 1], slices[20, 0] = float("nan"), float("inf")
    whole[[3, 20]] = -1
    for tile in (1, 10, 100, 101):
        monkeypatch.setattr(search, "TILE", tile)
        monkeypatch.setattr(search, "FAISS_TILE", tile)
        assert torch.equal(search.most_similar_rows(slices, unit_rows), whole)


@pytest.mark.parametrize("with_faiss", [False, True])
@pytest.mark.parametrize("count", [0, 1, 50, 51, 99, 100, 260])
def test_any_number_of_vectors_finds_the_row_of_a_slow_loop(
    count, with_faiss, monkeypatch
):
    if with_faiss:  # tiles below 51, pads below 100
        monkeypatch.setattr(search, "_fused_from", lambda length: 100)
    else:
        monkeypatch.setattr(search, "_suits_faiss", lambda vectors: False)
    monkeypatch.setattr(search, "TILE", 16)
    vectors, rows = case(count, 20, 4)
    assert search.most_similar_rows(vectors, rows).tolist() == [
        int((rows @ one).argmax()) for one in vectors
    ]
    rows = torch.cat(
        [3 * rows, 3 * rows[:1]]
    )  # the last is the first again, and never the answer
    expected = [int((rows - vector).square().sum(1).argmin()) for vector in vectors]
    assert search.nearest_rows(vectors, rows).tolist() == expected


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def relu_maps(scale=14.0):
    """Half zeros, half a half-normal."""
    return torch.randn(8, 16, 10, 10, generator=generator(9)).relu() * scale


def initialised(name, maps, size=(256, 16), seed=0):
    codebook = Codebook(*size)
    INITIALISERS[name](codebook, maps, generator(seed))
    return codebook.blocks.detach()


def test_statistics_by_hand():
    # Positive values 2, 4, 6: mean 4, deviation sqrt((4 + 0 + 4) / 2) = 2; five zeros
    # of eight.
    maps = torch.tensor([2.0, 4, 6, 0, 0, 0, 0, 0]).view(1, 2, 2, 2)
    assert MapStatistics.measure(maps) == MapStatistics(
        scale=2.0, sparsity=0.625, signed=False
    )
    # Signed maps count every value: -1, 1, 0, 0.
    signed = MapStatistics.measure(torch.tensor([-1.0, 1, 0, 0]).view(1, 1, 2, 2))
    assert signed.signed and signed.sparsity == 0.5
    assert signed.scale == pytest.approx(math.sqrt(2 / 3))


def test_matched_is_the_scaled_half_normal_with_the_maps_fraction_of_zeros():
    maps = relu_maps()
    dense, sparse, measured = (
        initialised("dense_matched", maps),
        initialised("matched", maps),
        MapStatistics,
    )
    spread = 5 / 3 * measured.measure(maps).scale
    # 4,096 draws of |N(0, spread)|, whose mean is spread * sqrt(2 / pi).
    assert (dense > 0).all() and float(dense.mean()) == pytest.approx(
        spread * math.sqrt(2 / math.pi), rel=0.05
    )
    assert float(dense.square().mean().sqrt()) == pytest.approx(spread, rel=0.05)
    assert int((sparse == 0).sum()) == round(measured.measure(maps).sparsity * 4096)
    assert torch.equal(sparse[sparse != 0], dense[sparse != 0])


@pytest.mark.parametrize(
    ("name", "mean", "spread"),
    [
        ("matched", 0, 3),
        ("dense_matched", 0, 3),
        ("normal", 0, 1),
        ("uniform", 0.5, 0.289),
    ],
)
def test_signed_maps_get_signed_rows_and_two_rules_ignore_the_maps(name, mean, spread):
    blocks = initialised(name, torch.randn(4, 16, 10, 10, generator=generator()) * 3)
    assert float(blocks.mean()) == pytest.approx(mean, abs=0.07 * spread)
    assert float(blocks.std()) == pytest.approx(spread, rel=0.05)
    assert name != "uniform" or (blocks.min() >= 0 and blocks.max() < 1)


def test_kmeans_finds_clusters_and_spherical_rows_the_means_of_directions():
    centres = torch.tensor([[0.0, 9], [9, 0], [9, 9]])
    slices = centres.repeat(40, 1) + torch.rand(120, 2, generator=generator()) * 0.1
    maps = (
        torch.cat([slices, torch.zeros(50, 2)]).t().reshape(1, 2, 17, 10)
    )  # zero slices do not count
    assert sorted(initialised("kmeans", maps, (3, 2)).round().tolist()) == [
        [0, 9],
        [9, 0],
        [9, 9],
    ]
    # Two directions with slices of length 1 and 9: k-means would take 1 and 9 of one
    # direction apart.
    slices = torch.tensor([[0.0, 1], [0, 9], [1, 0], [9, 0]]).repeat(20, 1)
    maps = torch.cat([slices, torch.zeros(20, 2)]).t().reshape(1, 2, 10, 10)
    assert sorted(initialised("spherical", maps, (2, 2)).tolist()) == [[0, 5], [5, 0]]


@pytest.mark.parametrize("name", INITIALISERS)
def test_same_seed_same_blocks_filled_in_place(name):
    codebook = Codebook(16, 4)
    before = codebook.blocks
    INITIALISERS[name](codebook, relu_maps(), generator(1))
    assert (
        codebook.blocks is before
        and before.requires_grad
        and before.isfinite().all()
        and before.any()
    )
    assert torch.equal(initialised(name, relu_maps(), (16, 4), 1), before)
    assert not torch.equal(initialised(name, relu_maps(), (16, 4), 2), before)


class Recorded(TensorDataset):
    """Images that record which of them were read."""

    def __init__(self, count):
        super().__init__(
            torch.randint(
                0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=generator(1)
            )
        )
        self.asked = []

    def __getitem__(self, place):
        self.asked.append(place)
        return super().__getitem__(place)


def test_blocks_are_taken_from_maps_that_have_the_scale_already(make_model):
    blocks = []
    for seed in (1, 1, 2):
        data, model = Recorded(26), make_model()
        assert calibrate(model, data, "sampled", seed, measured_images=6) is model
        assert data.asked == [0, 5, 10, 15, 20, 25], "spread over the data set"
        maps = model.features(data.tensors[0][::5])
        assert float(maps[maps > 0].std()) == pytest.approx(REFERENCE_SCALE, rel=1e-4)
        # Each value is one of the maps'.
        apart = (
            (model.codebook.blocks.detach().reshape(-1, 1) - maps.reshape(1, -1))
            .abs()
            .min(1)
            .values
        )
        assert apart.max() < 1e-4
        blocks.append(model.codebook.blocks.detach().clone())
    assert torch.equal(blocks[0], blocks[1]) and not torch.equal(blocks[0], blocks[2])


NO_IMAGES = r"no images .*=(64|0)\).* benchmark\.train_stream\[0\]\.dataset"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda model: calibrate(model, Recorded(4), "magic"),
            "codebook_init is 'magic'; known are matched, ",
        ),
        (
            lambda model: calibrate(model, [(Image.new("RGB", (16, 16)), 0)]),
            r"are Image, not tensors; .* ToTensor\(\)",
        ),
        (lambda model: calibrate(model, []), NO_IMAGES),
        (lambda model: calibrate(model, object()), NO_IMAGES),
        (lambda model: calibrate(model, Recorded(2), measured_images=0), NO_IMAGES),
        (
            lambda model: initialised("kmeans", torch.eye(2).view(1, 2, 1, 2), (3, 2)),
            "2 slices .* make 3 k-means",
        ),
        (
            lambda model: MapStatistics.measure(torch.full((1, 2, 2, 2), 3.0)),
            "the feature maps are constant",
        ),
    ],
)
def test_errors_say_what_to_give(make_model, call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call(make_model())


def test_calibrated_is_part_of_the_state_and_files_without_it_count_as_calibrated(
    make_model,
):
    model, twin = make_model(codebook=False), make_model(codebook=False)
    assert not model.is_calibrated and not twin.is_calibrated
    calibrate(model, Recorded(4))
    twin.load_state_dict(model.state_dict())
    assert twin.is_calibrated
    foreign = {
        name: value
        for name, value in model.state_dict().items()
        if name != "calibrated"
    }
    for load in (
        lambda one: one.load_state_dict(foreign),
        lambda one: check_and_load(one, foreign, "a file"),
    ):
        other = make_model(codebook=False)
        load(other)
        assert other.is_calibrated
    assert make_model().is_calibrated, "its codebook was filled by hand"
