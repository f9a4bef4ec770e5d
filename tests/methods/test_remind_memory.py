"""REMIND's memory by itself: what is chosen, what goes, what its tables are made from, its crops."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.remind_memory import (
    EvictLargest,
    LocationSample,
    balanced_choice,
    crop_and_resize,
    random_boxes,
)


def test_a_balanced_choice_by_hand():
    labels = [0] * 3 + [1] * 50 + [2] * 50
    chosen = balanced_choice(labels, 23, np.random.default_rng(0))
    assert Counter(labels[place] for place in chosen) == {0: 3, 1: 10, 2: 10}
    assert chosen == sorted(set(chosen))
    assert chosen != balanced_choice(labels, 23, np.random.default_rng(1))
    assert balanced_choice([3, 3], 9, np.random.default_rng(0)) == [0, 1]
    # No place of a class is preferred.
    often = Counter(place for seed in range(300) for place in balanced_choice([0] * 6, 2, np.random.default_rng(seed)))
    assert min(often.values()) > 60


def test_eviction_is_from_the_largest_class_with_equal_chances_for_the_new_image():
    gone = Counter()
    for seed in range(2000):
        rule, slots = EvictLargest(), Slots(4, seed)
        assert rule.choose(slots, [0, 0, 0, 1]) == [(0, 0), (1, 1), (2, 2), (3, 3)]
        chosen = rule.choose(slots, [0])
        gone[chosen[0][1] if chosen else "new"] += 1
        assert len(slots) == 4 and slots.count(1) == 1 and slots.count(0) == 3
    assert set(gone) == {0, 1, 2, "new"} and min(gone.values()) > 400
    slots = Slots(3, 0)
    assert len(EvictLargest().choose(slots, [0, 0, 0, 1, 2, 2, 2, 2])) >= 6
    assert sorted(slots.count(label) for label in (0, 1, 2)) == [1, 1, 1]


@pytest.mark.parametrize(("images", "most", "rows"), [(10, 4, 4), (10, 10, 10), (10, 25, 30), (10, 1000, 90)])
def test_a_sample_of_locations_is_spread_over_the_images_and_no_larger_than_asked_for(images, most, rows):
    """Each vector names its image and its place, and all channels of a location stay together."""
    numbers = torch.arange(images * 9.0).view(images, 1, 3, 3)
    maps = torch.cat([numbers, -numbers], 1)
    sample = LocationSample(images, most, np.random.default_rng(0))
    for part in maps.split(3):
        sample.take(part)
        held = sample.vectors
    assert held is sample.vectors and held.shape == (rows, 2)  # allocated once
    assert torch.equal(held[:, 0], -held[:, 1]) and len(held.unique(dim=0)) == rows
    of_image = Counter((held[:, 0] // 9).int().tolist())
    assert set(of_image.values()) == {max(1, rows // images)} and len(of_image) == min(images, most)
    if most < images:
        assert sorted(of_image) == [2, 4, 7, 9]  # evenly, the last one too
    places = Counter((held[:, 0] % 9).int().tolist())
    assert len(places) > 2  # at random inside an image


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
    never_fits = random_boxes(3, 2, 20, 1.0, np.random.default_rng(0))
    assert never_fits.tolist() == [[0, 0, 2, 20]] * 3
