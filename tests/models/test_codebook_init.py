"""Distributions of the initialised blocks."""

import math
import re

import pytest
import torch

from crumb_avalanche.models.codebook import (
    INITIALISERS,
    Codebook,
    MapStatistics,
    init_dense_matched_,
    init_kmeans_,
    init_matched_,
    init_normal_,
    init_sampled_,
    init_spherical_,
    init_uniform_,
)
from crumb_avalanche.models.search import faiss

needs_faiss = pytest.mark.skipif(faiss is None, reason="needs faiss")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def relu_maps(scale=14.0, seed=9):
    """Half zeros, half a half-normal."""
    return torch.randn(8, 16, 10, 10, generator=generator(seed)).relu() * scale


def test_statistics_by_hand():
    # Positive values 2, 4, 6: mean 4, deviation sqrt((4 + 0 + 4) / 2) = 2; five zeros of eight.
    maps = torch.tensor([2.0, 4, 6, 0, 0, 0, 0, 0]).view(1, 2, 2, 2)
    assert MapStatistics.measure(maps) == MapStatistics(scale=2.0, sparsity=0.625, signed=False)
    # Signed maps count every value: -1, 1, 0, 0.
    signed = MapStatistics.measure(torch.tensor([-1.0, 1, 0, 0]).view(1, 1, 2, 2))
    assert signed.signed and signed.sparsity == 0.5
    assert signed.scale == pytest.approx(math.sqrt(2 / 3))


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_constant_maps_have_no_scale(value):
    with pytest.raises(ValueError, match="the feature maps are constant"):
        MapStatistics.measure(torch.full((1, 2, 2, 2), value))


def test_dense_matched_is_the_scaled_half_normal():
    codebook, maps = Codebook(256, 16), relu_maps()
    init_dense_matched_(codebook, maps, generator())
    spread = 5 / 3 * MapStatistics.measure(maps).scale
    blocks = codebook.blocks.detach()
    assert (blocks > 0).all()
    # 4,096 draws of |N(0, spread)|, whose mean is spread * sqrt(2 / pi).
    assert float(blocks.mean()) == pytest.approx(spread * math.sqrt(2 / math.pi), rel=0.05)
    assert float(blocks.square().mean().sqrt()) == pytest.approx(spread, rel=0.05)


def test_matched_is_dense_matched_with_the_maps_fraction_of_zeros():
    dense, sparse, maps = Codebook(256, 16), Codebook(256, 16), relu_maps()
    init_dense_matched_(dense, maps, generator())
    init_matched_(sparse, maps, generator())
    zero = sparse.blocks == 0
    assert int(zero.sum()) == round(MapStatistics.measure(maps).sparsity * 4096)
    assert torch.equal(sparse.blocks[~zero], dense.blocks[~zero])


def test_matched_always_leaves_one_value():
    maps = torch.zeros(1, 4, 50, 50)
    maps[0, 0, 0, :2] = torch.tensor([1.0, 2.0])  # 0.9998 zeros: rounds to all 8 entries
    codebook = Codebook(2, 4)
    init_matched_(codebook, maps, generator())
    assert int((codebook.blocks != 0).sum()) == 1


@pytest.mark.parametrize("init", [init_dense_matched_, init_matched_])
def test_signed_maps_get_signed_rows(init):
    maps = torch.randn(4, 16, 10, 10, generator=generator()) * 3
    codebook = Codebook(256, 16)
    init(codebook, maps, generator())
    assert float(codebook.blocks.detach().mean()) == pytest.approx(0, abs=0.2)
    assert float(codebook.blocks.detach().std()) == pytest.approx(3, rel=0.05)


def test_normal_and_uniform_ignore_the_maps():
    normal, uniform = Codebook(256, 16), Codebook(256, 16)
    init_normal_(normal, relu_maps(1000), generator())
    init_uniform_(uniform, relu_maps(1000), generator())
    assert float(normal.blocks.detach().mean()) == pytest.approx(0, abs=0.06)
    assert float(normal.blocks.detach().std()) == pytest.approx(1, rel=0.05)
    assert float(uniform.blocks.detach().min()) >= 0 and float(uniform.blocks.detach().max()) < 1
    assert float(uniform.blocks.detach().mean()) == pytest.approx(0.5, abs=0.02)


def test_sampled_takes_values_of_the_maps():
    maps, codebook = torch.tensor([1.0, 2, 4, 8]).view(1, 4, 1, 1), Codebook(64, 4)
    init_sampled_(codebook, maps, generator())
    values, counts = codebook.blocks.unique(return_counts=True)
    assert values.tolist() == [1, 2, 4, 8]
    assert int(counts.min()) > 40  # 64 each on average


@needs_faiss
def test_kmeans_finds_clusters():
    centres = torch.tensor([[0.0, 9], [9, 0], [9, 9]])
    slices = centres.repeat(40, 1) + torch.rand(120, 2, generator=generator()) * 0.1
    maps = torch.cat([slices, torch.zeros(50, 2)]).t().reshape(1, 2, 17, 10)  # zero slices do not count
    codebook = Codebook(3, 2)
    init_kmeans_(codebook, maps, generator())
    found = sorted(codebook.blocks.round().tolist())
    assert found == [[0, 9], [9, 0], [9, 9]]


@needs_faiss
def test_spherical_rows_are_means_of_the_slices_of_a_direction():
    # Two directions with slices of length 1 and 9, and an outlier: k-means would take 1 and 9 of one direction apart.
    slices = torch.tensor([[0.0, 1], [0, 9], [1, 0], [9, 0]]).repeat(20, 1)
    maps = torch.cat([slices, torch.zeros(20, 2)]).t().reshape(1, 2, 10, 10)  # zero slices do not count
    codebook = Codebook(2, 2)
    init_spherical_(codebook, maps, generator())
    assert sorted(codebook.blocks.tolist()) == [[0, 5], [5, 0]]


@needs_faiss
def test_spherical_rows_give_a_smaller_error_than_kmeans_where_lengths_vary():
    random = torch.randn(4000, 4, generator=generator(5)).abs() ** 3
    maps = random.t().reshape(1, 4, 40, 100)
    errors = []
    for name in ("spherical", "kmeans"):
        codebook = Codebook(16, 4)
        INITIALISERS[name](codebook, maps, generator())
        errors.append(codebook.relative_error(maps))
    assert errors[0] < 0.9 * errors[1]


@needs_faiss
def test_kmeans_needs_as_many_slices_as_rows():
    maps = torch.zeros(1, 2, 2, 2)
    maps[0, 0, 0] = 1
    with pytest.raises(ValueError, match=re.escape("2 slices that are not zero cannot make 3 k-means centres")):
        init_kmeans_(Codebook(3, 2), maps, generator())


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=needs_faiss) if n in ("kmeans", "spherical") else n for n in INITIALISERS]
)
def test_same_seed_same_blocks(name):
    def blocks(seed):
        codebook = Codebook(16, 4)
        before = codebook.blocks
        INITIALISERS[name](codebook, relu_maps(), generator(seed))
        assert codebook.blocks is before and before.requires_grad  # filled in place
        assert torch.isfinite(before).all() and before.any()
        return before.detach()

    assert torch.equal(blocks(1), blocks(1))
    assert not torch.equal(blocks(1), blocks(2))
