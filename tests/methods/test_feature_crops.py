"""Crops of feature maps against torch's own interpolation, map by map."""

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from crumb_avalanche.methods.remind_memory import crop_and_resize, random_boxes, random_resized_crops


@pytest.mark.parametrize(("height", "width"), [(13, 13), (4, 6)])
def test_crops_are_those_of_interpolate(height, width):
    random = np.random.default_rng(0)
    maps = torch.randn(40, 3, height, width)
    boxes = random_boxes(40, height, width, 0.1, random)
    boxes[0] = [0, 0, height, width]
    boxes[1] = [1, 2, 1, 1]
    boxes[2] = [0, 0, 1, width]
    ours = crop_and_resize(maps, boxes)
    for map_, (top, left, rows, columns), crop in zip(maps, boxes, ours):
        part = map_[None, :, top : top + rows, left : left + columns]
        assert torch.allclose(crop, interpolate(part, (height, width), mode="bilinear")[0], atol=1e-5)
    assert torch.equal(ours[0], maps[0])
    assert ours.shape == maps.shape and ours.is_contiguous(memory_format=torch.channels_last)


def test_boxes_lie_inside_and_have_the_areas_and_ratios_asked_for():
    boxes = random_boxes(4000, 13, 13, 4 / 13, np.random.default_rng(1))
    top, left, rows, columns = boxes.T
    assert min(top.min(), left.min()) == 0
    assert (top + rows).max() == 13 and (left + columns).max() == 13 and boxes.min(axis=0)[2:].min() >= 6
    area = rows * columns / 169
    assert area.min() > 4 / 13 - 0.08 and area.max() == 1  # rows and columns are rounded
    assert (columns / rows).min() > 0.6 and (columns / rows).max() < 1.6
    # Uniform over the area but for boxes that do not fit.
    assert abs(np.median(area) - 0.6) < 0.1
    assert len(np.unique(boxes, axis=0)) > 300


def test_a_box_that_never_fits_is_the_whole_map():
    assert random_boxes(3, 2, 20, 1.0, np.random.default_rng(0)).tolist() == [[0, 0, 2, 20]] * 3


def test_every_map_has_its_own_crop_and_the_generator_decides():
    maps = torch.arange(64.0).view(1, 1, 8, 8).expand(6, 2, 8, 8)
    first, second, third = (random_resized_crops(maps, 0.3, np.random.default_rng(seed)) for seed in (4, 4, 5))
    assert torch.equal(first, second) and not torch.equal(first, third)
    assert len({tuple(crop.flatten().tolist()) for crop in first}) == 6
    assert torch.equal(first[:, 0], first[:, 1])  # all channels of a map alike
