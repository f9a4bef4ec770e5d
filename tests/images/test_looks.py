"""The pixels of the parts of an image that a closed form looks at."""

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform
from crumb_avalanche.images.looks import LookTransform, MiddleTransform, looks_of


def noise_pixels(height=16, width=24):
    """The pixels of an image of noise."""
    random = np.random.default_rng(0)
    return random.integers(0, 256, (height, width, 3), dtype=np.uint8)


def looks_at(pixels, *shares):
    """What looks make of an image for a network of 8 x 8 pixels."""
    return LookTransform(shares, 8)(Image.fromarray(pixels))


def resized(pixels):
    return PixelTransform(8)(Image.fromarray(pixels))


def test_a_look_is_the_middle_resized():
    pixels = noise_pixels()
    full, half = looks_at(pixels, 1.0, 0.5)
    assert torch.equal(full, resized(pixels))
    assert torch.equal(half, resized(pixels[4:12, 6:18]))


def test_a_look_has_bytes_of_the_size():
    (look,) = looks_at(noise_pixels(), 0.5)
    assert look.shape == (3, 8, 8)
    assert look.dtype == torch.uint8


def test_a_look_keeps_small_details():
    pixels = noise_pixels(width=16)
    (half,) = looks_at(pixels, 0.5)  # has as many pixels as it is resized to
    assert np.array_equal(half.permute(1, 2, 0).numpy(), pixels[4:12, 4:12])


def test_the_whole_image_is_transformed_as_without_looks():
    """So that its cached maps are those of other runs."""
    whole, middle = LookTransform((1.0, 0.5), 8).transforms
    assert repr(whole) == repr(PixelTransform(8))
    assert middle == MiddleTransform(0.5, 8)


@pytest.mark.parametrize(
    ("shape", "looks"), [((2, 3, 4, 4), 1), ((2, 2, 3, 4, 4), 2)], ids=str
)
def test_looks_of_a_batch(shape, looks):
    batch = looks_of(torch.rand(shape))
    assert [look.shape for look in batch] == [(2, 3, 4, 4)] * looks
