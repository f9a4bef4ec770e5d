"""The codebook against the paper's equations 1 and 2, computed in float64."""

import itertools
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
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.initialisers import INITIALISERS, MapStatistics
from crumb_avalanche.models.layers import REFERENCE_SCALE
from crumb_avalanche.models.row_lookup import RowLookup
from crumb_avalanche.models.weights import check_and_load


@pytest.fixture(params=["by products", "by faiss"])
def searched(request, monkeypatch):
    """Search in one of the two ways, however many vectors there are."""
    monkeypatch.setattr(
        search, "_suits_faiss", lambda vectors: request.param == "by faiss"
    )


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def codebook_of(rows):
    rows = torch.as_tensor(rows, dtype=torch.float32)
    codebook = Codebook(*rows.shape)
    codebook.blocks.data = rows
    return codebook


def expected_codes(feature_map, rows):
    """Eq. 1-2: the first row with the largest ``slice . (row / |row|)``.

    All-zero rows are never it.
    """
    rows = rows.double()
    slices_bgdhw = feature_map.unflatten(1, (-1, rows.shape[1])).double()
    lengths = rows.norm(dim=1)
    products = torch.einsum("bgdhw,nd->bnghw", slices_bgdhw, rows)
    scores = products / lengths.view(1, -1, 1, 1, 1)
    scores[:, lengths == 0] = -torch.inf
    return torch.from_numpy(scores.numpy().argmax(1))


# Rows of length 5, 2 and 1, and slices whose scores are computed by hand.
ROWS = [[3, 4], [2, 0], [0, 1]]
BY_HAND = {
    "long row": ((3, 4), 0),  # 25/5 = 5, 6/2 = 3, 4/1 = 4
    "unit length": ((1, 0), 1),  # 3/5, 2/2 = 1, 0; raw products would say row 0
    "negative": ((-1, 0.5), 2),  # (-3 + 2)/5 = -0.2, -1, 0.5
    "zero": ((0, 0), 0),  # a tie of all
}


@pytest.mark.parametrize(("values", "code"), BY_HAND.values(), ids=BY_HAND)
def test_codes_by_hand(values, code):
    feature_map = torch.tensor(values, dtype=torch.float32).view(1, 2, 1, 1)
    codebook = codebook_of(ROWS)
    quantized, codes = codebook.quantize(feature_map)
    assert codes.flatten().tolist() == [code]
    # The raw row, not the one of unit length.
    assert quantized.flatten().tolist() == ROWS[code]
    assert quantized.dtype == torch.float32
    assert torch.equal(codebook(feature_map), quantized)


def test_slices_lie_along_channels():
    """Two locations side by side, two groups of two channels."""
    codebook = codebook_of([[1, 0], [0, 1]])
    feature_map = torch.tensor([[[9.0, 0]], [[0, 9]], [[0, 0.5]], [[7, 0]]])[None]
    assert codebook.encode(feature_map).tolist() == [[[[0, 1]], [[1, 0]]]]


@pytest.mark.parametrize(
    ("codes", "counts"),
    [([[0, 1], [2, 0]], [2, 1, 1]), ([[0, 0]], [2, 0, 0]), ([[1]], [0, 1, 0])],
)
def test_usage_counts_codes(codes, counts):
    assert codebook_of(ROWS).usage(torch.tensor(codes)).tolist() == counts


@pytest.fixture(params=["sparse", "signed"])
def feature_map(request):
    values = torch.randn(2, 12, 3, 5, generator=generator(1)) * 14
    return values.relu() if request.param == "sparse" else values


@pytest.fixture
def blocks():
    """Rows of 11 with lengths from short to long."""
    lengths = torch.tensor([0.1, 1.0, 30.0]).repeat(4)[:11, None]
    return torch.randn(11, 4, generator=generator(2)) * lengths


@pytest.mark.usefixtures("searched")
def test_encode_follows_the_equations(feature_map, blocks):
    before = feature_map.clone()
    codes = codebook_of(blocks).encode(feature_map)
    assert torch.equal(codes.long(), expected_codes(feature_map, blocks))
    assert torch.equal(feature_map, before)


@pytest.mark.usefixtures("searched")
def test_encode_takes_any_memory_format(feature_map, blocks):
    codebook = codebook_of(blocks)
    channels_last = feature_map.contiguous(memory_format=torch.channels_last)
    assert torch.equal(codebook.encode(channels_last), codebook.encode(feature_map))


@pytest.mark.usefixtures("searched")
@pytest.mark.parametrize("factor", [1e-9, 1e15])
def test_length_of_a_slice_does_not_matter(feature_map, blocks, factor):
    codebook = codebook_of(blocks)
    codes = codebook.encode(feature_map)
    assert torch.equal(codebook.encode(feature_map * factor), codes)


def test_decode_concatenates_rows(feature_map, blocks):
    codebook = codebook_of(blocks)
    codes = codebook.encode(feature_map)
    rows_bghwd = blocks[codes.long()]
    expected = rows_bghwd.movedim(4, 2).flatten(1, 2)
    assert torch.equal(codebook.decode(codes), expected)
    assert torch.equal(codebook.decode(codes.contiguous()), expected)


def exact_rows():
    """Rows of four whose unit rows floats hold exactly: one-hot, or of halves.

    Of any sign; zero rows too.
    """
    values = st.sampled_from([-4, -1, 1, 3])
    one_hot = st.builds(
        lambda index, value: [value * (index == axis) for axis in range(4)],
        st.integers(0, 3),
        values,
    )
    halves = st.lists(st.sampled_from([-0.5, 0.5]), min_size=4, max_size=4)
    twos = halves.map(lambda row: [4 * value for value in row])
    zeros = st.just([0.0] * 4)
    return st.lists(
        st.one_of(one_hot, halves, twos, zeros), min_size=1, max_size=12
    ).filter(lambda rows: any(map(any, rows)))


@pytest.mark.parametrize("with_faiss", [None, True, False])
@given(rows=exact_rows(), seed=st.integers(0, 10**6))
def test_ties_go_to_the_lowest_row(with_faiss, rows, seed):
    """Small integers: scores are exact, so most slices tie between several rows."""
    feature_map = torch.randint(-3, 4, (1, 8, 4, 8), generator=generator(seed)).float()
    feature_map[0, :4, 0, 0] = 0
    codebook = codebook_of(rows)
    with pytest.MonkeyPatch.context() as patch:
        if with_faiss is not None:
            patch.setattr(search, "_suits_faiss", lambda vectors: with_faiss)
        codes = codebook.encode(feature_map).long()
    assert torch.equal(codes, expected_codes(feature_map, codebook.blocks.detach()))


def test_zero_slices_among_many():
    codebook, tile = codebook_of([[0.6, 0.8], [1.0, 0]]), search.FAISS_TILE
    feature_map = torch.tensor([1.0, 0]).view(1, 2, 1, 1).repeat(1, 1, 3, tile)
    positions = torch.tensor([0, tile - 1, tile, 2 * tile + 5, 3 * tile - 1])
    feature_map.view(1, 2, -1)[:, :, positions] = 0
    codes = codebook.encode(feature_map).flatten()
    assert (codes == 0).nonzero().flatten().tolist() == positions.tolist()


def test_slices_whose_squares_underflow():
    values = [0, 1e-30, 1e-30, 0, 0, 0, -1e-30, 1e-30]
    feature_map = torch.tensor(values).view(1, 8, 1, 1)
    assert torch.linalg.vector_norm(feature_map[0, :2]) == 0
    codebook = codebook_of([[1.0, 0], [0, 1], [0.6, 0.8]])
    assert codebook.encode(feature_map).flatten().tolist() == [1, 0, 0, 1]


def encode_with_nan_in_a_row():
    codebook_of([[1, 0], [math.nan, 1]]).encode(torch.rand(1, 2, 3, 3))


def encode_infinite_map():
    codebook_of([[1, 0]]).encode(torch.full((1, 2, 3, 3), -math.inf))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (encode_with_nan_in_a_row, "codebook holds NaN .* damaged"),
        (encode_infinite_map, "feature map holds NaN or infin"),
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
def test_errors_of_a_codebook(call, words):
    with pytest.raises(ValueError, match=words):
        call()


SIZES = st.integers(1, 30) | st.sampled_from([256, 257])


@given(seed=st.integers(0, 10**6), n_rows=SIZES, dim=st.integers(4, 8))
def test_encode_is_the_inverse_of_decode(seed, n_rows, dim):
    """Random rows of four values are never nearly parallel.

    So each is most similar to itself (Cauchy and Schwarz).
    """
    random = generator(seed)
    codebook = codebook_of(torch.randn(n_rows, dim, generator=random) + 0.01)
    codes = torch.randint(n_rows, (2, 3, 4, 5), generator=random)
    decoded = codebook.decode(codes)
    encoded = codebook.encode(decoded)
    assert torch.equal(encoded.long(), codes)
    assert encoded.dtype == (torch.uint8 if n_rows <= 256 else torch.int16)
    assert torch.equal(codebook.decode(encoded), decoded)


def test_gradient_reaches_the_rows_used():
    """Row 0 is used three times, row 3 once, the others never.

    The gradient of a row is the sum of the weights of the loss where it stands.
    """
    codebook = codebook_of([[1, 0], [0, 1], [-1, 0], [0, -1]])
    values = torch.tensor([[5.0, 6], [0, 0], [7, 0], [0, -8]])
    feature_map = values.view(1, 4, 1, 2).requires_grad_()
    quantized, codes = codebook.quantize(feature_map)
    assert codes.tolist() == [[[[0, 0]], [[0, 3]]]]
    (quantized * torch.arange(1.0, 9).view(1, 4, 1, 2)).sum().backward()
    row_0 = [1 + 2 + 5, 3 + 4 + 7]
    assert codebook.blocks.grad.tolist() == [row_0, [0, 0], [0, 0], [6, 8]]
    assert feature_map.grad is None


@pytest.mark.parametrize(
    ("n_rows", "dim", "dtype"),
    [
        (256, 16, torch.uint8),
        (300, 16, torch.uint8),  # of which only the first 256 can be looked up
        (3, 4, torch.int64),
        (2**15, 2, torch.int16),
    ],
)
def test_gradient_has_the_bits_of_an_embedding(n_rows, dim, dtype):
    random = generator(n_rows)
    n_codes = min(n_rows, torch.iinfo(dtype).max + 1)
    codes = torch.randint(0, n_codes, (7, 13, 13, 16), dtype=dtype, generator=random)
    gradient = torch.randn(*codes.shape, dim, generator=random)
    ours = torch.ones(n_rows, dim, requires_grad=True)
    theirs = torch.ones(n_rows, dim, requires_grad=True)
    torch.set_num_threads(2)  # one again for the next test
    RowLookup.apply(ours, codes).backward(gradient)
    functional.embedding(codes.int(), theirs).backward(gradient)
    assert torch.equal(ours.grad, theirs.grad)


def vectors_and_rows(count, n_rows=20, dim=4):
    """Vectors like slices of feature maps, and unit rows."""
    random = generator()
    vectors = torch.randn(count, dim, generator=random).relu() * 14 + 1e-3
    rows = functional.normalize(torch.randn(n_rows, dim, generator=random), dim=1)
    return vectors, rows


@pytest.mark.usefixtures("searched")
@pytest.mark.parametrize("tile", [1, 10, 100, 101])
def test_tiles_do_not_change_the_result(monkeypatch, tile):
    slices, unit_rows = vectors_and_rows(101)
    expected = search.most_similar_rows(slices, unit_rows)
    monkeypatch.setattr(search, "TILE", tile)
    monkeypatch.setattr(search, "FAISS_TILE", tile)
    assert torch.equal(search.most_similar_rows(slices, unit_rows), expected)


@pytest.mark.usefixtures("searched")
@pytest.mark.parametrize("tile", [1, 10, 100, 101])
def test_slices_that_are_not_finite(monkeypatch, tile):
    """They get -1, and the others what they get anyway."""
    slices, unit_rows = vectors_and_rows(101)
    expected = search.most_similar_rows(slices, unit_rows)
    expected[[3, 20]] = -1
    slices[3, 1] = torch.nan
    slices[20, 0] = torch.inf
    monkeypatch.setattr(search, "TILE", tile)
    monkeypatch.setattr(search, "FAISS_TILE", tile)
    assert torch.equal(search.most_similar_rows(slices, unit_rows), expected)


@pytest.fixture(params=["by products", "by faiss"])
def small_limits(request, monkeypatch):
    """Few vectors in a tile, and faiss's fused pass, where it is used, from 100 on.

    Below 51 products are used, and below 100 vectors are padded.
    """
    monkeypatch.setattr(search, "TILE", 16)
    if request.param == "by faiss":
        monkeypatch.setattr(search, "_fused_from", lambda length: 100)
    else:
        monkeypatch.setattr(search, "_suits_faiss", lambda vectors: False)


counts = pytest.mark.parametrize("count", [0, 1, 50, 51, 99, 100, 260])


@counts
@pytest.mark.usefixtures("small_limits")
def test_most_similar_row_of_any_number(count):
    vectors, rows = vectors_and_rows(count)
    expected = [int((rows @ vector).argmax()) for vector in vectors]
    assert search.most_similar_rows(vectors, rows).tolist() == expected


@counts
@pytest.mark.usefixtures("small_limits")
def test_nearest_row_of_any_number(count):
    """The last row is the first again, and never the answer."""
    vectors, rows = vectors_and_rows(count)
    rows = torch.cat([3 * rows, 3 * rows[:1]])
    expected = [int((rows - vector).square().sum(1).argmin()) for vector in vectors]
    assert search.nearest_rows(vectors, rows).tolist() == expected


@pytest.mark.parametrize("count", [3, 5_000])
def test_a_vector_with_a_nan_has_no_nearest_row(count):
    """By products, and by faiss."""
    vectors = torch.zeros(count, 2)
    vectors[1, 0] = torch.nan
    indices = search.nearest_rows(vectors, torch.eye(2))
    assert (indices < 0).nonzero().flatten().tolist() == [1]


def relu_maps(scale=14.0):
    """Half zeros, half a half-normal."""
    return torch.randn(8, 16, 10, 10, generator=generator(9)).relu() * scale


def initialised(name, maps, size=(256, 16), seed=0):
    codebook = Codebook(*size)
    INITIALISERS[name](codebook, maps, generator(seed))
    return codebook.blocks.detach()


def test_statistics_by_hand():
    """Positive values 2, 4, 6 have the deviation sqrt((4 + 0 + 4) / 2) = 2."""
    maps = torch.tensor([2.0, 4, 6, 0, 0, 0, 0, 0]).view(1, 2, 2, 2)
    expected = MapStatistics(scale=2.0, sparsity=0.625, signed=False)
    assert MapStatistics.measure(maps) == expected


def test_signed_maps_count_every_value():
    maps = torch.tensor([-1.0, 1, 0, 0]).view(1, 1, 2, 2)
    statistics = MapStatistics.measure(maps)
    assert statistics.signed
    assert statistics.sparsity == 0.5
    assert statistics.scale == pytest.approx(math.sqrt(2 / 3))


def test_constant_maps_have_no_scale():
    with pytest.raises(ValueError, match="the feature maps are constant"):
        MapStatistics.measure(torch.full((1, 2, 2, 2), 3.0))


def test_dense_matched_is_a_half_normal():
    """4,096 draws of |N(0, spread)|, whose mean is spread * sqrt(2 / pi)."""
    maps = relu_maps()
    dense = initialised("dense_matched", maps)
    spread = 5 / 3 * MapStatistics.measure(maps).scale
    assert (dense > 0).all()
    mean = spread * math.sqrt(2 / math.pi)
    assert float(dense.mean()) == pytest.approx(mean, rel=0.05)
    assert float(dense.square().mean().sqrt()) == pytest.approx(spread, rel=0.05)


def test_matched_has_the_zeros_of_the_maps():
    maps = relu_maps()
    sparse = initialised("matched", maps)
    dense = initialised("dense_matched", maps)
    n_zeros = round(MapStatistics.measure(maps).sparsity * 4096)
    assert int((sparse == 0).sum()) == n_zeros
    assert torch.equal(sparse[sparse != 0], dense[sparse != 0])


def most_similar_pair(rows):
    """The largest cosine of two rows, one at a time."""
    cosines = []
    for first, second in itertools.combinations(rows, 2):
        cosines.append(float(torch.cosine_similarity(first, second, dim=0)))
    return max(cosines)


def test_matched_rows_of_one_value_share_a_direction():
    """Of 64 rows of 4 values, half of them zeros, 16 have a single value."""
    rows = initialised("matched", relu_maps(), (64, 4))
    assert most_similar_pair(rows) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("size", [(64, 4), (16, 8), (32, 2)])
def test_distinct_rows_have_directions_of_their_own(size):
    rows = initialised("distinct", relu_maps(), size)
    assert rows.any(dim=1).all()
    assert most_similar_pair(rows) < 1


def test_distinct_rows_are_matched_ones_where_those_differ():
    """The first row of each direction stays."""
    matched = initialised("matched", relu_maps(), (64, 4))
    distinct = initialised("distinct", relu_maps(), (64, 4))
    is_equal = (matched == distinct).all(dim=1)
    n_values = (matched != 0).sum(dim=1)
    assert is_equal[n_values > 1].all()
    assert 1 <= is_equal[n_values == 1].sum() <= 4, "one for each position"


def test_rows_of_a_single_value_cannot_differ():
    rows = initialised("distinct", relu_maps(), (8, 1))
    assert rows.isfinite().all()


@pytest.mark.parametrize(
    ("name", "mean", "spread"),
    [
        ("matched", 0, 3),
        ("dense_matched", 0, 3),
        ("normal", 0, 1),  # whatever the maps
        ("uniform", 0.5, 0.289),  # whatever the maps
    ],
)
def test_rows_for_signed_maps(name, mean, spread):
    maps = torch.randn(4, 16, 10, 10, generator=generator()) * 3
    blocks = initialised(name, maps)
    assert float(blocks.mean()) == pytest.approx(mean, abs=0.07 * spread)
    assert float(blocks.std()) == pytest.approx(spread, rel=0.05)


def test_uniform_rows_lie_in_their_range():
    blocks = initialised("uniform", relu_maps())
    assert blocks.min() >= 0
    assert blocks.max() < 1


def maps_of(slices, height, width):
    """A map of ``(N, 2)`` slices, one at each location."""
    return slices.t().reshape(1, 2, height, width)


def test_kmeans_finds_clusters():
    """Zero slices do not count."""
    centres = torch.tensor([[0.0, 9], [9, 0], [9, 9]])
    slices = centres.repeat(40, 1) + torch.rand(120, 2, generator=generator()) * 0.1
    maps = maps_of(torch.cat([slices, torch.zeros(50, 2)]), 17, 10)
    rows = initialised("kmeans", maps, (3, 2)).round().tolist()
    assert sorted(rows) == centres.tolist()


def test_spherical_rows_are_means_of_directions():
    """Slices of length 1 and 9; k-means would take those of a direction apart."""
    slices = torch.tensor([[0.0, 1], [0, 9], [1, 0], [9, 0]]).repeat(20, 1)
    maps = maps_of(torch.cat([slices, torch.zeros(20, 2)]), 10, 10)
    rows = initialised("spherical", maps, (2, 2)).tolist()
    assert sorted(rows) == [[0, 5], [5, 0]]


def test_too_few_slices_for_the_rows():
    with pytest.raises(ValueError, match=r"2 slices .* make 3 k-means"):
        initialised("kmeans", torch.eye(2).view(1, 2, 1, 2), (3, 2))


@pytest.mark.parametrize("name", INITIALISERS)
def test_initialisers_fill_in_place(name):
    codebook = Codebook(16, 4)
    blocks = codebook.blocks
    INITIALISERS[name](codebook, relu_maps(), generator(1))
    assert codebook.blocks is blocks
    assert blocks.requires_grad
    assert blocks.isfinite().all()
    assert blocks.any()


@pytest.mark.parametrize("name", INITIALISERS)
def test_a_seed_decides_the_rows(name):
    first = initialised(name, relu_maps(), (16, 4), seed=1)
    assert torch.equal(initialised(name, relu_maps(), (16, 4), seed=1), first)
    assert not torch.equal(initialised(name, relu_maps(), (16, 4), seed=2), first)


class Recorded(TensorDataset):
    """Images that record which of them were read."""

    def __init__(self, count):
        shape = (count, 3, 16, 16)
        images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator(1))
        super().__init__(images)
        self.read = []

    def __getitem__(self, index):
        self.read.append(index)
        return super().__getitem__(index)


@pytest.fixture
def calibrated(make_model):
    """Calibrate a model on six of 26 images; returns it and the images."""

    def calibrate_with(seed):
        images, model = Recorded(26), make_model()
        assert calibrate(model, images, "sampled", seed, measured_images=6) is model
        return model, images

    return calibrate_with


def test_measured_images_are_spread(calibrated):
    _, images = calibrated(1)
    assert images.read[:6] == [0, 5, 10, 15, 20, 25]


def test_error_of_images_not_measured(calibrated):
    """The 20 others, each once."""
    _, images = calibrated(1)
    others = [number for number in range(26) if number % 5]
    assert images.read[6:] == others


def test_calibration_scales_the_maps(calibrated):
    model, images = calibrated(1)
    maps = model.features(images.tensors[0][::5])
    deviation = float(maps[maps > 0].std())
    assert deviation == pytest.approx(REFERENCE_SCALE, rel=1e-4)


def test_rows_are_made_of_scaled_maps(calibrated):
    """Each value of a sampled row is one of the maps'."""
    model, images = calibrated(1)
    values = model.features(images.tensors[0][::5]).reshape(1, -1)
    differences = (model.codebook.blocks.detach().reshape(-1, 1) - values).abs()
    assert differences.min(dim=1).values.max() < 1e-4


@pytest.mark.parametrize(("seed", "is_same"), [(1, True), (2, False)])
def test_a_seed_decides_the_calibration(calibrated, seed, is_same):
    first, second = calibrated(1)[0], calibrated(seed)[0]
    assert torch.equal(first.codebook.blocks, second.codebook.blocks) == is_same


NO_IMAGES = r"no images .*=(64|0)\).* benchmark\.train_stream\[0\]\.dataset"


@pytest.mark.parametrize(
    ("images", "options", "words"),
    [
        (
            Recorded(4),
            {"codebook_init": "magic"},
            "codebook_init is 'magic'; known are",
        ),
        (
            [(Image.new("RGB", (16, 16)), 0)],
            {},
            r"are Image, not tensors; .* ToTensor\(\)",
        ),
        ([], {}, NO_IMAGES),
        (object(), {}, NO_IMAGES),
        (Recorded(2), {"measured_images": 0}, NO_IMAGES),
    ],
    ids=["initialiser", "no tensors", "empty", "no data set", "none asked for"],
)
def test_errors_of_a_calibration(model, images, options, words):
    with pytest.raises((TypeError, ValueError), match=words):
        calibrate(model, images, **options)


@pytest.fixture
def make_uncalibrated(make_model):
    """A function that makes a model without a codebook, as split_backbone does."""

    def make():
        model = make_model(codebook=False)
        model.calibrated = False
        return model

    return make


def test_calibrated_is_part_of_the_state(make_uncalibrated):
    model, twin = make_uncalibrated(), make_uncalibrated()
    assert model.needs_calibration
    calibrate(model, Recorded(4))
    assert twin.needs_calibration
    twin.load_state_dict(model.state_dict())
    assert not twin.needs_calibration


@pytest.mark.parametrize(
    "load",
    [
        lambda model, state: model.load_state_dict(state),
        lambda model, state: check_and_load(model, state, "a file"),
    ],
    ids=["load_state_dict", "check_and_load"],
)
def test_weights_of_others_count_as_calibrated(make_uncalibrated, load):
    state = make_uncalibrated().state_dict()
    del state["calibrated"]
    model = make_uncalibrated()
    load(model, state)
    assert not model.needs_calibration


def test_a_filled_codebook_needs_no_calibration(make_model):
    assert not make_model().needs_calibration
