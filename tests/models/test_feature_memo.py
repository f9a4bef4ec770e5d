"""Maps of stored images are F's own, each is computed once, and the least recently used is dropped first."""

import pickle

import pytest
import torch

from crumb_avalanche.models.map_store import FeatureMemo


@pytest.fixture
def stored():
    return torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_maps_equal_f_one_image_at_a_time(model, stored):
    memo = FeatureMemo()
    alone = torch.cat([model.extract(stored[[place]]) for place in (2, 0, 2, 4)])
    assert torch.equal(memo.maps(stored[[2, 0, 2, 4]], model.extract), alone)
    assert (memo.computed, memo.found) == (3, 1)
    assert torch.equal(memo.maps(stored[[4, 2]], model.extract), alone[[3, 0]])
    assert (memo.computed, memo.found) == (3, 3)


def test_the_least_recently_used_is_dropped(model, stored):
    memo = FeatureMemo(capacity=2)
    memo.maps(stored[[0, 1]], model.extract)
    memo.maps(stored[[0]], model.extract)
    memo.maps(stored[[2]], model.extract)  # 1 goes
    assert (memo.computed, memo.found) == (3, 1)
    memo.maps(stored[[0, 2]], model.extract)
    assert memo.found == 3
    memo.maps(stored[[1]], model.extract)
    assert memo.computed == 4


def test_the_scale_is_applied_after_it(model, stored):
    without = model.features(stored)
    model.feature_memo = FeatureMemo()
    torch.testing.assert_close(model.features(stored), without)
    model.feature_scale.mul_(3)
    torch.testing.assert_close(model.features(stored), 3 * without)
    assert (model.feature_memo.computed, model.feature_memo.found) == (5, 5)


def test_images_of_the_stream_are_not_cached(model, stored):
    model.feature_memo = FeatureMemo()
    model.features((stored.float() / 255 - model.pixel_mean) / model.pixel_std)
    assert model.feature_memo.computed == 0


def test_a_pickled_model_carries_no_maps(model, stored):
    model.feature_memo = FeatureMemo()
    small = len(pickle.dumps(model))
    maps = model.features(stored)
    assert len(pickle.dumps(model)) < small + 200
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again.features(stored), maps) and again.feature_memo.computed == 5 + 5
