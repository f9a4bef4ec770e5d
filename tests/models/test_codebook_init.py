"""Distributions of the initialised blocks, and calibration: chosen images, scale and seed."""

import math

import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.codebook import INITIALISERS, Codebook, MapStatistics
from crumb_avalanche.models.layers import REFERENCE_SCALE
from crumb_avalanche.models.weights import check_and_load

pytest.importorskip("faiss")


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
    # Positive values 2, 4, 6: mean 4, deviation sqrt((4 + 0 + 4) / 2) = 2; five zeros of eight.
    maps = torch.tensor([2.0, 4, 6, 0, 0, 0, 0, 0]).view(1, 2, 2, 2)
    assert MapStatistics.measure(maps) == MapStatistics(scale=2.0, sparsity=0.625, signed=False)
    # Signed maps count every value: -1, 1, 0, 0.
    signed = MapStatistics.measure(torch.tensor([-1.0, 1, 0, 0]).view(1, 1, 2, 2))
    assert signed.signed and signed.sparsity == 0.5
    assert signed.scale == pytest.approx(math.sqrt(2 / 3))


def test_matched_is_the_scaled_half_normal_with_the_maps_fraction_of_zeros():
    maps = relu_maps()
    dense, sparse, measured = initialised("dense_matched", maps), initialised("matched", maps), MapStatistics
    spread = 5 / 3 * measured.measure(maps).scale
    # 4,096 draws of |N(0, spread)|, whose mean is spread * sqrt(2 / pi).
    assert (dense > 0).all() and float(dense.mean()) == pytest.approx(spread * math.sqrt(2 / math.pi), rel=0.05)
    assert float(dense.square().mean().sqrt()) == pytest.approx(spread, rel=0.05)
    assert int((sparse == 0).sum()) == round(measured.measure(maps).sparsity * 4096)
    assert torch.equal(sparse[sparse != 0], dense[sparse != 0])


@pytest.mark.parametrize(
    ("name", "mean", "spread"), [("matched", 0, 3), ("dense_matched", 0, 3), ("normal", 0, 1), ("uniform", 0.5, 0.289)]
)
def test_signed_maps_get_signed_rows_and_two_rules_ignore_the_maps(name, mean, spread):
    blocks = initialised(name, torch.randn(4, 16, 10, 10, generator=generator()) * 3)
    assert float(blocks.mean()) == pytest.approx(mean, abs=0.07 * spread)
    assert float(blocks.std()) == pytest.approx(spread, rel=0.05)
    assert name != "uniform" or (blocks.min() >= 0 and blocks.max() < 1)


def test_kmeans_finds_clusters_and_spherical_rows_the_means_of_directions():
    centres = torch.tensor([[0.0, 9], [9, 0], [9, 9]])
    slices = centres.repeat(40, 1) + torch.rand(120, 2, generator=generator()) * 0.1
    maps = torch.cat([slices, torch.zeros(50, 2)]).t().reshape(1, 2, 17, 10)  # zero slices do not count
    assert sorted(initialised("kmeans", maps, (3, 2)).round().tolist()) == [[0, 9], [9, 0], [9, 9]]
    # Two directions with slices of length 1 and 9: k-means would take 1 and 9 of one direction apart.
    slices = torch.tensor([[0.0, 1], [0, 9], [1, 0], [9, 0]]).repeat(20, 1)
    maps = torch.cat([slices, torch.zeros(20, 2)]).t().reshape(1, 2, 10, 10)
    assert sorted(initialised("spherical", maps, (2, 2)).tolist()) == [[0, 5], [5, 0]]


@pytest.mark.parametrize("name", INITIALISERS)
def test_same_seed_same_blocks_filled_in_place(name):
    codebook = Codebook(16, 4)
    before = codebook.blocks
    INITIALISERS[name](codebook, relu_maps(), generator(1))
    assert codebook.blocks is before and before.requires_grad and before.isfinite().all() and before.any()
    assert torch.equal(initialised(name, relu_maps(), (16, 4), 1), before)
    assert not torch.equal(initialised(name, relu_maps(), (16, 4), 2), before)


class Recorded(TensorDataset):
    """Images that record which of them were read."""

    def __init__(self, count):
        super().__init__(torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=generator(1)))
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
        apart = (model.codebook.blocks.detach().reshape(-1, 1) - maps.reshape(1, -1)).abs().min(1).values
        assert apart.max() < 1e-4
        blocks.append(model.codebook.blocks.detach().clone())
    assert torch.equal(blocks[0], blocks[1]) and not torch.equal(blocks[0], blocks[2])


NO_IMAGES = r"no images .*=(64|0)\).* benchmark\.train_stream\[0\]\.dataset"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda model: calibrate(model, Recorded(4), "magic"), "codebook_init is 'magic'; known are matched, "),
        (lambda model: calibrate(model, [(Image.new("RGB", (16, 16)), 0)]), r"are Image, not tensors; .* ToTensor\(\)"),
        (lambda model: calibrate(model, []), NO_IMAGES),
        (lambda model: calibrate(model, object()), NO_IMAGES),
        (lambda model: calibrate(model, Recorded(2), measured_images=0), NO_IMAGES),
        (lambda model: initialised("kmeans", torch.eye(2).view(1, 2, 1, 2), (3, 2)), "2 slices .* make 3 k-means"),
        (lambda model: MapStatistics.measure(torch.full((1, 2, 2, 2), 3.0)), "the feature maps are constant"),
    ],
)
def test_errors_say_what_to_give(make_model, call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call(make_model())


def test_calibrated_is_part_of_the_state_and_files_without_it_count_as_calibrated(make_model):
    model, twin = make_model(codebook=False), make_model(codebook=False)
    assert not model.is_calibrated and not twin.is_calibrated
    calibrate(model, Recorded(4))
    twin.load_state_dict(model.state_dict())
    assert twin.is_calibrated
    foreign = {name: value for name, value in model.state_dict().items() if name != "calibrated"}
    for load in (lambda one: one.load_state_dict(foreign), lambda one: check_and_load(one, foreign, "a file")):
        other = make_model(codebook=False)
        load(other)
        assert other.is_calibrated
    assert make_model().is_calibrated, "its codebook was filled by hand"
