"""Perturbations shuffle the locations of maps or remove half of their features."""

import torch
from support.shape_bias import feature_perturbation, spatial_perturbation


def maps():
    return torch.rand(3, 8, 4, 5, generator=torch.Generator().manual_seed(0)) + 0.1


def test_spatial_perturbation_moves_whole_vectors():
    before = maps()
    after = spatial_perturbation(before, torch.Generator().manual_seed(1))
    assert after.shape == before.shape and not torch.equal(after, before)
    orders = []
    for old, new in zip(before.flatten(2), after.flatten(2)):
        order = [next(i for i in range(20) if torch.equal(old[:, i], new[:, j])) for j in range(20)]
        assert sorted(order) == list(range(20)), "every vector is there once"
        orders.append(order)
    assert orders[0] != orders[1], "each image has an order of its own"
    assert torch.equal(after, spatial_perturbation(before, torch.Generator().manual_seed(1)))


def test_feature_perturbation_zeroes_half_of_the_features():
    before = maps()
    after = feature_perturbation(before, torch.Generator().manual_seed(1))
    gone = (after == 0).flatten(2).all(2)
    assert gone.sum(1).tolist() == [4, 4, 4] and not torch.equal(gone[0], gone[1])
    kept = ~gone[:, :, None, None].expand_as(before)
    assert torch.equal(after[kept], before[kept])
