"""Codes of a smaller error: search by distance, tables, groups, filter; their error."""

import warnings

import pytest
import torch
from torch.utils.data import TensorDataset

from crumb_avalanche.models.calibration import calibrate, kept_text, measure_codes
from crumb_avalanche.models.channel_groups import group_channels_
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.initialisers import INITIALISERS
from crumb_avalanche.models.map_filter import FilterEquations, MapFilter
from crumb_avalanche.models.row_length import row_length

ALL_SETTINGS = dict(search="distance", tables=2, grouping="correlated", filtered=True)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_maps(channels=8, count=6, side=5, seed=3):
    return torch.randn(count, channels, side, side, generator=generator(seed))


def fitted(maps, codebook_size=16, codebook_dim=4, **settings):
    codebook = Codebook(codebook_size, codebook_dim, **settings)
    group_channels_(codebook, maps)
    INITIALISERS["kmeans"](codebook, maps, generator())
    return codebook


def map_of(slices):
    """A map of one group, whose locations are a row: ``(1, d, 1, N)``."""
    return torch.tensor(slices, dtype=torch.float32).t().reshape(1, -1, 1, len(slices))


# Search


def test_distance_takes_the_nearest_row():
    """[4, 0] has the direction of [1, 0], but is nearer to [4, 1]; 0 is a row, too."""
    codebook = Codebook(3, 2, search="distance")
    codebook.blocks.data = torch.tensor([[1.0, 0], [4, 1], [0, 0]])
    codes = codebook.encode(map_of([[4, 0], [0.6, 0], [0.1, 0.1]]))
    assert codes.flatten().tolist() == [1, 0, 2]


def test_direction_takes_the_direction():
    codebook = Codebook(3, 2)
    codebook.blocks.data = torch.tensor([[1.0, 0], [4, 1], [0, 0]])
    assert codebook.encode(map_of([[4, 0]])).flatten().tolist() == [0]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("tables", [1, 2])
def test_distance_refuses_values_not_finite(value, tables):
    maps = random_maps()
    codebook = fitted(maps, search="distance", tables=tables)
    maps[1, 2, 3, 4] = value
    with pytest.raises(ValueError, match="the feature map holds NaN or infinite"):
        codebook.encode(maps)


def test_zero_slices_count_by_distance():
    """Two slices of three are zero, and one row of two becomes zero."""
    slices = [[3.0, 4]] * 10 + [[0.0, 0]] * 20
    codebook = Codebook(2, 2, search="distance")
    INITIALISERS["kmeans"](codebook, map_of(slices), generator())
    assert sorted(codebook.blocks.tolist()) == [[0, 0], [3, 4]]


# Tables


def two_tables():
    """Two tables of two rows of two values; the groups are channels 0-1 and 2-3."""
    codebook = Codebook(2, 2, search="distance", tables=2).for_channels(4)
    codebook.blocks.data = torch.tensor([[0.0, 0], [1, 1], [5, 5], [9, 9]])
    return codebook


def test_each_group_has_its_table():
    maps = torch.tensor([1.0, 0.9, 8, 9.5]).view(1, 4, 1, 1)
    decoded, codes = two_tables().quantize(maps)
    assert codes.flatten().tolist() == [1, 1]
    assert decoded.flatten().tolist() == [1, 1, 9, 9]


def test_gradient_reaches_rows_of_tables():
    """Code 1 of the second group is row 3 of both tables together."""
    codebook = two_tables()
    codes = torch.tensor([0, 1], dtype=torch.uint8).view(1, 2, 1, 1)
    codebook.decode(codes).sum().backward()
    assert codebook.blocks.grad.tolist() == [[1, 1], [0, 0], [0, 0], [1, 1]]


def test_groups_choose_their_table():
    """Groups 0 and 2 have small values, 1 and 3 large ones."""
    maps = random_maps(channels=8)
    maps[:, [2, 3, 6, 7]] *= 100
    codebook = fitted(maps, codebook_dim=2, search="distance", tables=2)
    first, second, third, fourth = codebook.table_of_group.tolist()
    assert first == third != second == fourth


def test_tables_of_each_group_lose_less():
    maps = random_maps()
    errors = []
    for tables in (1, 2):
        codebook = fitted(maps, search="distance", tables=tables)
        error = (codebook(maps) - maps).square().sum()
        errors.append(float(error.detach()))
    assert errors[1] < errors[0]


def test_spherical_fills_one_table():
    with pytest.raises(ValueError, match="but there are 2; take kmeans"):
        INITIALISERS["spherical"](Codebook(4, 4, tables=2), random_maps(), generator())


# Groups of channels


def test_correlated_channels_share_a_group():
    """Channels 0 and 2 are alike, and so are 1 and 3, which vary more."""
    maps = random_maps(channels=4)
    maps[:, 2] = 2 * maps[:, 0]
    maps[:, 3] = -5 * maps[:, 1]
    codebook = Codebook(4, 2, grouping="correlated")
    group_channels_(codebook, maps)
    assert codebook.channel_order.tolist() == [3, 1, 2, 0]


def test_constant_channels_are_grouped():
    maps = random_maps(channels=4)
    maps[:, 1] = 0
    codebook = Codebook(4, 2, grouping="correlated")
    group_channels_(codebook, maps)
    assert sorted(codebook.channel_order.tolist()) == [0, 1, 2, 3]


def test_decoded_channels_are_in_their_order():
    """With a row for every slice, nothing is lost."""
    maps = random_maps(channels=4, count=1, side=2)
    codebook = Codebook(8, 2, search="distance", grouping="correlated").for_channels(4)
    codebook.channel_order.copy_(torch.tensor([2, 0, 3, 1]))
    codebook.blocks.data = codebook.slices(maps).flatten(0, 1)
    assert torch.equal(codebook(maps), maps)


# Filter


def test_a_new_filter_changes_nothing():
    maps = random_maps()
    assert torch.equal(MapFilter(8)(maps), maps)


def test_filter_has_the_least_error():
    """Against least squares of each channel in float64."""
    maps = random_maps(channels=2)
    noisy = maps + 0.5 * random_maps(channels=2, seed=4)
    equations = FilterEquations(2)
    for start in range(0, 6, 2):
        equations.add(noisy[start : start + 2], maps[start : start + 2])
    map_filter = MapFilter(2)
    equations.solve(map_filter)
    windows = torch.nn.functional.unfold(noisy.double(), 3, padding=1)
    for channel in range(2):
        inputs = windows.view(6, 2, 9, 25)[:, channel].transpose(1, 2).reshape(-1, 9)
        inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
        values = maps[:, channel].double().reshape(-1, 1)
        expected = torch.linalg.lstsq(inputs, values).solution[:, 0]
        weights = map_filter.weights[channel].double().flatten()
        torch.testing.assert_close(weights, expected[:9], rtol=1e-3, atol=1e-4)
        constant = map_filter.constants[channel].double()
        torch.testing.assert_close(constant, expected[9], rtol=1e-3, atol=1e-4)


def test_channels_of_zeros_stay_zero():
    maps = random_maps(channels=2)
    maps[:, 1] = 0
    equations = FilterEquations(2)
    equations.add(maps, maps)
    map_filter = MapFilter(2)
    equations.solve(map_filter)
    assert torch.equal(map_filter(maps)[:, 1], maps[:, 1])


def test_filter_leaves_a_channel_without_values():
    """Nothing is known of it, so its weights are those of a new filter."""
    nothing = torch.zeros(2, 1, 5, 5)
    equations = FilterEquations(1)
    equations.add(nothing, nothing)
    map_filter = MapFilter(1)
    equations.solve(map_filter)
    maps = random_maps(channels=1)
    torch.testing.assert_close(map_filter(maps), maps)


def test_filter_is_not_trained():
    codebook = Codebook(4, 2, filtered=True).for_channels(4)
    assert [name for name, _ in codebook.named_parameters()] == ["blocks"]


# Settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (dict(search="cosine"), "search is 'cosine'; known are direction, distance"),
        (dict(grouping="random"), "grouping is 'random'; known are consecutive"),
        (dict(tables=0), "tables is 0; give 1 to 256"),
        (dict(tables=257), "tables is 257; give 1 to 256"),
    ],
)
def test_errors_of_settings(settings, words):
    with pytest.raises(ValueError, match=words):
        Codebook(**settings)


@pytest.mark.parametrize("setting", ["codebook_size", "codebook_dim", "tables"])
@pytest.mark.parametrize("value", [2.0, "2", True, None])
def test_settings_are_whole_numbers(setting, value):
    words = f"{setting} is {value!r}; give a whole number"
    with pytest.raises(TypeError, match=words):
        Codebook(**{setting: value})


@pytest.mark.parametrize("settings", [{}, ALL_SETTINGS])
def test_settings_make_a_codebook_like_it(settings):
    codebook = Codebook(8, 4, **settings)
    assert Codebook(**codebook.settings).settings == codebook.settings
    assert codebook.is_paper == (not settings)


def test_other_channels_are_refused():
    codebook = Codebook(8, 4, **ALL_SETTINGS).for_channels(8)
    with pytest.raises(ValueError, match=r"has 12 channels, .* made for 8"):
        codebook.encode(random_maps(channels=12))


def test_more_tables_than_groups_are_told():
    words = (
        r"tables is 3, but the number of groups is 2 \(128 channels, codebook_dim=64\)"
        ".* never used, .*give 2 at most, or a smaller codebook_dim"
    )
    with pytest.warns(UserWarning, match=words):
        Codebook(16, 64, tables=3).for_channels(128)


@pytest.mark.filterwarnings("ignore:tables is 3, but")
@pytest.mark.parametrize("search", ["direction", "distance"])
def test_a_table_without_a_group_is_not_searched(search):
    """The rows of the third table stay zero: there are two groups."""
    codebook = fitted(random_maps(), tables=3, search=search)
    quantized, codes = codebook.quantize(random_maps())
    assert codes.shape == (6, 2, 5, 5)
    assert quantized.any()


def test_as_many_tables_as_groups():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codebook = Codebook(16, 64, tables=2).for_channels(128)
    assert codebook.table_of_group.tolist() == [0, 1]


def test_channels_must_be_known():
    with pytest.raises(ValueError, match=r"call for_channels\(8\)"):
        Codebook(8, 4, tables=2).encode(random_maps())


def test_bytes_beside_the_blocks():
    """Of 8 channels: 2 groups, 8 int16, 80 float32."""
    codebook = Codebook(8, 4, **ALL_SETTINGS).for_channels(8)
    assert codebook.buffer_bytes == 2 + 2 * 8 + 4 * 80
    assert Codebook(8, 4).for_channels(8).buffer_bytes == 0


def test_state_of_all_settings_comes_back():
    maps = random_maps()
    codebook = fitted(maps, **ALL_SETTINGS)
    codebook.map_filter.constants += 1
    twin = Codebook(16, 4, **ALL_SETTINGS).for_channels(8)
    twin.load_state_dict(codebook.state_dict())
    assert torch.equal(twin(maps), codebook(maps))


@pytest.mark.parametrize(
    ("map_shape", "memories", "length"),
    [
        ((512, 13, 13), 112, 64),  # 1,352 bytes of 150,528
        ((512, 13, 13), 111, 32),
        ((112, 14, 14), 112, 16),
        ((8, 2, 2), 112, 1),
    ],
)
def test_longest_rows_of_enough_bytes(map_shape, memories, length):
    assert row_length(map_shape, 224, memories) == length


# The error of codes


def images_of(count, seed=1):
    shape = (count, 3, 16, 16)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator(seed))
    return TensorDataset(images)


def test_error_in_units_of_the_energy(make_model):
    """Against all 20 images at once, which are no more than are measured."""
    model = make_model()
    calibrate(model, images_of(40))
    others = images_of(20, seed=2)
    error = measure_codes(model, others)
    maps = model.features(others.tensors[0])
    lost = (model.codebook(maps) - maps).detach().square().sum()
    expected = float(lost / maps.square().sum())
    assert error == pytest.approx(expected, rel=1e-4)
    assert model.codes_error == error


def test_calibration_fits_all_settings(make_model):
    """Codes of all settings lose less than the paper's on images not seen."""
    errors = []
    for settings in ({}, dict(search="distance", filtered=True)):
        model = make_model()
        model.codebook = Codebook(16, model.codebook.codebook_dim, **settings)
        calibrate(model, images_of(40), "kmeans")
        errors.append(model.codes_error)
    assert errors[1] < errors[0]


@pytest.mark.parametrize(
    ("search", "initialiser"), [("direction", "matched"), ("distance", "kmeans")]
)
def test_rows_that_suit_the_search(make_model, search, initialiser):
    models = []
    for codebook_init in (None, initialiser):
        model = make_model()
        model.codebook = Codebook(16, model.codebook.codebook_dim, search=search)
        models.append(calibrate(model, images_of(40), codebook_init))
    by_default, by_name = models
    assert torch.equal(by_default.codebook.blocks, by_name.codebook.blocks)


def test_lossy_codes_warn(make_model):
    model = make_model()
    with pytest.warns(UserWarning, match=r"codes keep \d+ % .*--preset tuned"):
        calibrate(model, images_of(8), "uniform")


@pytest.mark.parametrize(
    ("error", "text"), [(0.24, "76 %"), (0.0, "100 %"), (1.67, "0 %")]
)
def test_kept_share_as_text(error, text):
    assert kept_text(error) == text


@pytest.mark.parametrize("error", [None, 0.25])
def test_error_is_part_of_the_state(make_model, error):
    model, twin = make_model(), make_model()
    model.codes_error = error
    twin.load_state_dict(model.state_dict())
    assert twin.codes_error == error
