"""Arrays and tensors as clips."""

import re

import numpy as np
import pytest
import torch
from clip_trees import pixels

from crumb_avalanche.learner.sources import clips_of

EIGHT = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("dtype", "tensor"),
    [(">f4", False), *((dtype, tensor) for dtype in ("u1", "f2", "f4", "f8") for tensor in (False, True))],
)
def test_arrays_and_tensors_keep_their_eight_bits(dtype, tensor):
    values = EIGHT if dtype == "u1" else (EIGHT / 255).astype(dtype)
    if tensor:
        values = torch.from_numpy(values).permute(0, 3, 1, 2)
        values = values.requires_grad_() if values.is_floating_point() else values
    clips = list(clips_of(values, "mug"))
    assert [(clip.path, clip.label) for clip in clips] == [("source", "mug")]
    frames = list(clips[0].frames)
    assert [path for path, _ in frames] == ["source[0]", "source[1]"]
    assert np.array_equal([np.asarray(image) for _, image in frames], EIGHT)
    ((path, image),) = next(clips_of(values[1])).frames
    assert path == "source" and np.array_equal(np.asarray(image), EIGHT[1])


def test_a_bfloat16_tensor_is_read():
    (image,) = pixels(torch.tensor([0.0, 1.0, 0.5], dtype=torch.bfloat16).reshape(3, 1, 1))
    assert image.tolist() == [[[0, 255, 128]]]


@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
def test_sixteen_bits_of_a_batch_have_one_depth(dtype):
    values = np.array([[[[4095, 160, 0]]], [[[16, 32, 48]]]]).astype(dtype)  # a camera of 12 bits
    for source in (values, torch.from_numpy(np.moveaxis(values.astype(np.uint16), -1, 1).copy())):
        assert [image.tolist() for image in pixels(source)] == [[[[255, 10, 0]]], [[[1, 2, 3]]]]


@pytest.mark.parametrize(
    ("array", "facts"),
    [
        (np.zeros((4, 5), np.uint8), (r"array of shape \(4, 5\)", r"\(H, W, C\)")),
        (np.zeros((3, 4, 5), np.uint8), (r"shape \(3, 4, 5\)",)),
        (np.zeros((0, 4, 5, 3), np.uint8), (r"shape \(0, 4, 5, 3\)", "not empty")),
        (np.zeros((1, 1, 4, 5, 3), np.uint8), (r"shape \(1, 1, 4, 5, 3\)",)),
        (np.zeros((4, 5, 3), np.int64), ("dtype int64", "uint8, uint16 or floating-point from 0 to 1")),
        (np.zeros((4, 5, 3), bool), ("dtype bool",)),
        (np.zeros((4, 5, 3), complex), ("dtype complex128",)),
        (torch.zeros((6, 5, 3)), (r"tensor of shape \(6, 5, 3\)", r"\(C, H, W\)")),
        (torch.zeros(()), (r"shape \(\)",)),
        (torch.zeros((3, 4, 5), dtype=torch.int8), ("dtype torch.int8",)),
    ],
)
@pytest.mark.parametrize("on_bad", ["raise", "skip"])
def test_arrays_that_break_the_rule(array, facts, on_bad):
    with pytest.raises(ValueError) as error:
        pixels(array, on_bad=on_bad)
    for fact in facts:
        error.match(fact)


@pytest.mark.parametrize(
    ("array", "facts"),
    [
        (np.full((4, 5, 3), np.nan), ("holds NaN", "from 0 to 1")),
        (np.float32([[[0, 0.5, np.nan]]]), ("holds NaN",)),
        (np.float32([[[0, 0.5, 255]]]), ("values from 0 to 255", "divide")),
        (torch.tensor([-2.0, 0.5, 2.0]).reshape(3, 1, 1), ("values from -2 to 2", "normalisation")),
        (np.float32([[[0, 0, np.inf]]]), ("values from 0 to inf",)),
    ],
)
def test_values_that_break_the_rule_are_refused_or_left_out(array, facts):
    with pytest.raises(ValueError) as error:
        pixels(array)
    left_out = []
    assert len(pixels(array, on_bad="skip", report=left_out.append)) == 0
    for fact in facts:
        error.match(fact)
        assert re.search(fact, left_out[0].reason) and left_out[0].path == "source" and len(left_out) == 1


def test_the_bad_image_of_a_batch_is_named():
    values = np.zeros((3, 2, 2, 3))
    values[2, 1, 1, 0] = 1.5
    frames = next(clips_of([values])).frames
    assert [next(frames)[0], next(frames)[0]] == ["source[0][0]", "source[0][1]"]
    with pytest.raises(ValueError, match=r"source\[0\]\[2\] holds values from 0 to 1.5"):
        next(frames)
    values, left_out = values[[0, 2, 1]], []
    frames = next(clips_of([values], on_bad="skip", report=left_out.append)).frames
    assert [path for path, _ in frames] == ["source[0][0]", "source[0][2]"]
    assert [bad.path for bad in left_out] == ["source[0][1]"]
