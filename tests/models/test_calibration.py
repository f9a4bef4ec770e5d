"""Calibration: chosen images, scale and seed."""

import pytest
import torch
from PIL import Image

from crumb_avalanche.models.calibration import calibrate, sample_of
from crumb_avalanche.models.layers import REFERENCE_SCALE
from crumb_avalanche.models.weights import check_and_load


class Recorded:
    """Images that record which of them were read."""

    def __init__(self, count):
        self.images = torch.randint(
            0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
        )
        self.asked = []

    def __len__(self):
        return len(self.images)

    def __getitem__(self, place):
        self.asked.append(place)
        return self.images[place], 0


def test_images_are_spread_over_the_data_set(make_model):
    data = Recorded(26)
    calibrate(make_model(), data, measured_images=6)
    assert data.asked == [0, 5, 10, 15, 20, 25]
    few = Recorded(3)
    calibrate(make_model(), few, measured_images=6)
    assert few.asked == [0, 1, 2], "each once"


def test_blocks_are_taken_from_maps_that_have_the_scale_already(make_model):
    blocks = []
    for seed in (1, 1, 2):
        data, model = Recorded(26), make_model()
        assert calibrate(model, data, "sampled", seed, measured_images=6) is model
        maps = model.features(data.images[[0, 5, 10, 15, 20, 25]])
        assert float(model.feature_scale) != 1.0
        assert float(maps[maps > 0].std()) == pytest.approx(REFERENCE_SCALE, rel=1e-4)
        # Each value is one of the maps'.
        apart = (model.codebook.blocks.detach().reshape(-1, 1) - maps.reshape(1, -1)).abs().min(1).values
        assert apart.max() < 1e-4
        blocks.append(model.codebook.blocks.detach().clone())
    assert torch.equal(blocks[0], blocks[1]) and not torch.equal(blocks[0], blocks[2])


def test_sixteen_locations_of_a_map_are_enough():
    maps = torch.arange(2 * 3 * 8 * 8.0).view(2, 3, 8, 8)
    found = sample_of([maps[:1], maps[1:]])
    assert found.shape == (2, 3, 1, 16) and torch.equal(found[:, :, 0], maps.flatten(2)[:, :, ::4])
    assert sample_of([maps[:, :, :3, :3]]).shape == (2, 3, 1, 9)


def test_an_unknown_initialiser_is_named(make_model):
    with pytest.raises(ValueError, match="codebook_init is 'magic'; known are matched, "):
        calibrate(make_model(), Recorded(4), "magic")


def test_images_that_are_no_tensors_are_an_error(make_model):
    with pytest.raises(TypeError, match=r"the images are Image, not tensors; .* ToTensor\(\)"):
        calibrate(make_model(), [(Image.new("RGB", (16, 16)), 0)])


@pytest.mark.parametrize("images, count", [([], 64), (object(), 64), (Recorded(2), 0)])
def test_no_images_are_an_error(make_model, images, count):
    with pytest.raises(ValueError, match=rf"no images .*=({count})\).* benchmark\.train_stream\[0\]\.dataset"):
        calibrate(make_model(), images, measured_images=count)


def test_calibrated_is_part_of_the_state_and_older_files_count_as_calibrated(make_model):
    model, twin = make_model(codebook=False), make_model(codebook=False)
    assert not model.is_calibrated
    twin.load_state_dict(model.state_dict())
    assert not twin.is_calibrated
    calibrate(model, Recorded(4))
    twin.load_state_dict(model.state_dict())
    assert twin.is_calibrated
    older = {name: value for name, value in model.state_dict().items() if name != "calibrated"}
    for load in (lambda one: one.load_state_dict(older), lambda one: check_and_load(one, older, "a file")):
        other = make_model(codebook=False)
        load(other)
        assert other.is_calibrated
    assert make_model().is_calibrated, "its codebook was filled by hand"
