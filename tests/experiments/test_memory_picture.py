"""The picture of a memory: patches of other images, and the energy that codes keep."""

import numpy as np
import pytest
import torch
from memory_picture import (
    PATCH,
    SIDE,
    MapColours,
    Memory,
    corner,
    from_patches,
    images_of,
)

LOCATIONS = 7  # along one side of a map
CELL = SIDE // LOCATIONS  # pixels of a location


def memory_of(features: torch.Tensor, rebuilt: torch.Tensor) -> Memory:
    """A memory with a map, its rebuilt map, and blank images."""
    blank = np.zeros((SIDE, SIDE, 3), np.uint8)
    codes = torch.zeros(1, 1, 1, dtype=torch.uint8)
    return Memory(blank, features, codes, rebuilt, patches=blank)


def test_energy_by_hand():
    features = torch.tensor([3.0, 4.0]).view(2, 1, 1)
    rebuilt = torch.tensor([3.0, 3.0]).view(2, 1, 1)
    assert memory_of(features, rebuilt).energy_kept == pytest.approx(1 - 1 / 25)


def test_patches_of_the_same_image():
    """An image whose every location is its own nearest is put together again."""
    features = torch.eye(LOCATIONS**2).view(-1, LOCATIONS, LOCATIONS)
    image = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    together = from_patches(features, features[None], [image])
    assert np.array_equal(together, image)


def test_patches_of_two_images():
    """Each half comes from the image whose features are those of this half."""
    left = torch.zeros(2, LOCATIONS, LOCATIONS)
    left[0, :, :3], left[1, :, 3:] = 1.0, 1.0
    first = torch.stack(
        [torch.ones(LOCATIONS, LOCATIONS), torch.zeros(LOCATIONS, LOCATIONS)]
    )
    second = first.flip(0)
    dark = np.full((SIDE, SIDE, 3), 10, np.uint8)
    light = np.full((SIDE, SIDE, 3), 200, np.uint8)
    together = from_patches(left, torch.stack([first, second]), [dark, light])
    assert (together[:, : 2 * CELL] == 10).all()
    assert (together[:, 4 * CELL :] == 200).all()


def test_corner_is_centred():
    assert corner(0, LOCATIONS) + PATCH / 2 == PATCH + CELL / 2
    assert corner(LOCATIONS - 1, LOCATIONS) + PATCH / 2 == PATCH + SIDE - CELL / 2


def test_others_are_of_other_objects():
    images = images_of("umbrella", 1, 3)
    assert len(images) == 4
    assert images[0].shape == (SIDE, SIDE, 3)
    assert images[0].dtype == np.uint8


def test_colours_of_a_map():
    features = torch.randn(8, 5, 5, generator=torch.Generator().manual_seed(0))
    colours = MapColours.fitted(features).of(features)
    assert colours.shape == (5, 5, 3)
    assert colours.min() == 0
    assert colours.max() == 1
