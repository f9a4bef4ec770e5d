"""Arrays, tensors and batches as clips."""

import re

import numpy as np
import pytest
import torch
from clip_trees import pixels
from PIL import Image

from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform
from crumb_avalanche.images.sources import batches, clips_of

# Two images of 4 x 5 pixels.
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)


def as_array(dtype):
    if dtype == "u1":
        return IMAGES
    return (IMAGES / 255).astype(dtype)


def as_tensor(dtype):
    array = as_array(dtype)
    native = array.astype(array.dtype.newbyteorder("="))  # torch has no other order
    tensor = torch.from_numpy(native).permute(0, 3, 1, 2)
    if tensor.is_floating_point():
        tensor.requires_grad_()
    return tensor


EVERY_SOURCE = pytest.mark.parametrize("source_of", [as_array, as_tensor])
EVERY_DTYPE = pytest.mark.parametrize("dtype", ["u1", ">f4", "f2", "f4", "f8"])


@EVERY_DTYPE
@EVERY_SOURCE
def test_a_batch_keeps_its_eight_bits(dtype, source_of):
    assert np.array_equal(pixels(source_of(dtype)), IMAGES)


@EVERY_DTYPE
@EVERY_SOURCE
def test_an_image_keeps_its_eight_bits(dtype, source_of):
    assert np.array_equal(pixels(source_of(dtype)[1]), IMAGES[1:])


@EVERY_SOURCE
def test_a_batch_is_one_clip(source_of):
    (clip,) = clips_of(source_of("u1"), "mug")
    assert (clip.path, clip.label) == ("source", "mug")
    assert [path for path, _ in clip.frames] == ["source[0]", "source[1]"]


@EVERY_SOURCE
def test_an_image_has_the_name_of_the_source(source_of):
    (clip,) = clips_of(source_of("u1")[1])
    assert [path for path, _ in clip.frames] == ["source"]


def test_bfloat16():
    values = torch.tensor([0.0, 1.0, 0.5], dtype=torch.bfloat16)
    (image,) = pixels(values.reshape(3, 1, 1))
    assert image.tolist() == [[[0, 255, 128]]]


# A batch of a camera of 12 bits has one depth.
TWELVE_BITS = np.array([[[[4095, 160, 0]]], [[[16, 32, 48]]]])


@pytest.mark.parametrize(
    "source",
    [
        TWELVE_BITS.astype("<u2"),
        TWELVE_BITS.astype(">u2"),
        torch.from_numpy(np.moveaxis(TWELVE_BITS, -1, 1).astype(np.uint16)),
    ],
    ids=["little-endian", "big-endian", "tensor"],
)
def test_twelve_of_sixteen_bits(source):
    first, second = pixels(source)
    assert first.tolist() == [[[255, 10, 0]]]
    assert second.tolist() == [[[1, 2, 3]]]


# What breaks the rule

KNOWN_DTYPES = "uint8, uint16 or floating-point from 0 to 1"


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((4, 5), np.uint8), r"array of shape \(4, 5\).*\(H, W, C\)"),
        (np.zeros((3, 4, 5), np.uint8), r"shape \(3, 4, 5\)"),
        (np.zeros((0, 4, 5, 3), np.uint8), r"shape \(0, 4, 5, 3\).*not empty"),
        (np.zeros((1, 1, 4, 5, 3), np.uint8), r"shape \(1, 1, 4, 5, 3\)"),
        (np.zeros((4, 5, 3), np.int64), f"dtype int64.*{KNOWN_DTYPES}"),
        (np.zeros((4, 5, 3), complex), "dtype complex128"),
        (torch.zeros((6, 5, 3)), r"tensor of shape \(6, 5, 3\).*\(C, H, W\)"),
        (torch.zeros((3, 4, 5), dtype=torch.int8), "dtype torch.int8"),
    ],
)
@pytest.mark.parametrize("on_bad", ["raise", "skip"])
def test_shapes_and_dtypes_that_are_refused(array, words, on_bad):
    with pytest.raises(ValueError, match=words):
        pixels(array, on_bad=on_bad)


WRONG_VALUES = pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.float32([0, 0.5, np.nan]), "NaN.*from 0 to 1"),
        (np.float32([0, 0.5, 255]), "values from 0 to 255.*divide"),
        (torch.tensor([-2, 0.5, 2]), "values from -2 to 2.*normalisation"),
        (np.float32([0, 0, np.inf]), "values from 0 to inf"),
    ],
    ids=["nan", "bytes", "normalised", "infinite"],
)


def batch_with(values):
    """A batch of three images of a pixel; the second has these values."""
    if isinstance(values, torch.Tensor):
        batch = torch.zeros(3, 3, 1, 1)
        batch[1, :, 0, 0] = values
    else:
        batch = np.zeros((3, 1, 1, 3), np.float32)
        batch[1, 0, 0] = values
    return batch


@WRONG_VALUES
def test_wrong_values_are_refused(values, reason):
    frames = next(clips_of([batch_with(values)])).frames
    assert next(frames)[0] == "source[0][0]"
    with pytest.raises(ValueError, match=rf"source\[0\]\[1\] holds.*{reason}"):
        next(frames)


@WRONG_VALUES
def test_wrong_values_are_left_out(values, reason):
    bad = []
    images = pixels([batch_with(values)], on_bad="skip", report=bad.append)
    assert len(images) == 2
    assert [image.path for image in bad] == ["source[0][1]"]
    assert re.search(f"holds {reason}", bad[0].reason)


# Batches for a network


def test_batches_of_a_size():
    clip = next(clips_of(np.zeros((5, 40, 60, 3), np.uint8)))
    paths = [paths for paths, _ in batches(clip.frames, 2, PixelTransform(24))]
    assert paths == [
        ["source[0]", "source[1]"],
        ["source[2]", "source[3]"],
        ["source[4]"],
    ]


def test_batches_are_resized_as_in_a_run():
    noise = np.random.default_rng(0).integers(0, 256, (5, 40, 60, 3), dtype=np.uint8)
    transform = PixelTransform(24)
    frames = next(clips_of(noise)).frames
    images = torch.cat([images for _, images in batches(frames, 2, transform)])
    expected = [transform(Image.fromarray(pixels)) for pixels in noise]
    assert torch.equal(images, torch.stack(expected))
    assert images.dtype == torch.uint8


def test_no_frames_are_no_batch():
    assert list(batches([], 2, PixelTransform(24))) == []
