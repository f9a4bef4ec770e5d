"""Use of blocks is counted over slices that are not zero, and heat is where a block was chosen."""

import numpy as np
import pytest
import torch
from fig5_memory_blocks import Usage, most_used, strongest, summary, usage_of
from support.runs import rebuilt
from torch import nn

from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.runs.settings import RunSettings


@pytest.fixture
def model():
    plastic = nn.Sequential()
    plastic.add_module("pool", nn.AdaptiveAvgPool2d(1))
    plastic.add_module("flatten", nn.Flatten())
    plastic.add_module("head", nn.Linear(6, 2))
    codebook = Codebook(4, 3)
    codebook.blocks.data = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    return SplitModel(nn.Conv2d(3, 6, 1), plastic, "head", codebook, image_size=4)


def maps_by_hand():
    """Two maps of six channels and 2x2 locations: two slices a location."""
    maps = torch.zeros(2, 6, 2, 2)
    maps[0, 0, 0, 0] = 2.0  # block 1 in the first slice of one location
    maps[0, 4, 0, 0] = 1.0  # block 2 in its second slice
    maps[1, 2, :, :] = 3.0  # block 3 in the first slice of every location
    return maps


def test_usage_by_hand(model):
    usage = usage_of(model, iter(maps_by_hand().split(1)), groups=1)
    assert usage.counts.tolist() == [0, 1, 1, 4] and usage.zeros == 16 - 6
    assert usage.zero_share == 10 / 16 and usage.shares.tolist() == [0, 1 / 6, 1 / 6, 4 / 6]
    assert usage.codes.tolist() == [[[[1, -1], [-1, -1]]], [[[3, 3], [3, 3]]]]
    assert most_used(usage.codes, 4, 3) == [3, 1]
    assert usage_of(model, iter([maps_by_hand()]), groups=0).codes.shape == (2, 2, 2, 2)


def test_usage_against_a_loop(model):
    maps = torch.rand(5, 6, 3, 2, generator=torch.Generator().manual_seed(0))
    maps[maps < 0.5] = 0
    counts, zeros = [0] * 4, 0
    for image in maps:
        for row in range(3):
            for column in range(2):
                for piece in (image[:3, row, column], image[3:, row, column]):
                    zeros += not piece.any()
                    counts[1 + int(piece.argmax())] += bool(piece.any())
    usage = usage_of(model, iter([maps]), groups=0)
    assert usage.counts.tolist() == counts and usage.zeros == zeros


def test_strongest():
    codes = np.array([[[[1, 2]], [[1, 1]]], [[[2, 2]], [[2, 2]]], [[[1, 1]], [[1, 1]]]])  # three images, two slices
    heat = (codes == 1).mean(axis=1)
    assert strongest(heat, ["a", "b", "a"], 2) == [2, 1], "one of an object first"
    assert strongest(heat, ["a", "b", "a"], 3) == [2, 1, 0]
    assert strongest(heat, ["a", "b", "c"], 2) == [2, 0]


def test_summary():
    codes = np.zeros((3, 1, 1, 1))
    before, after = Usage(np.array([5, 5, 0]), 10, codes), Usage(np.array([0, 4, 4]), 0, codes)
    rows = dict((name, values) for name, *values in summary(before, after))
    assert rows["slices that are all zero, %"] == ["50.00", "0.00"]
    assert rows["blocks never used"] == ["1", "1"] and rows["as varied as so many equal blocks"] == ["2.0", "2.0"]


def test_a_run_without_its_model(tmp_path):
    with pytest.raises(ValueError, match=r"has no learner.safetensors; run it again with --keep-learner"):
        rebuilt(RunSettings(output=str(tmp_path)))
