"""Both searches return the same rows, for every number of slices and across tiles."""

import pytest
import torch
from torch.nn import functional

from crumb_avalanche.models.search import BlockSearch, FaissSearch, TiledSearch, faiss, nearest_rows

needs_faiss = pytest.mark.skipif(faiss is None, reason="needs faiss")
SEARCHES = pytest.mark.parametrize("search", [TiledSearch, pytest.param(FaissSearch, marks=needs_faiss)])


def case(count, rows, d):
    generator = torch.Generator().manual_seed(0)
    slices = torch.randn(count, d, generator=generator).relu() * 14 + 1e-3
    return slices, functional.normalize(torch.randn(rows, d, generator=generator), dim=1)


@SEARCHES
@pytest.mark.parametrize(("count", "rows", "d"), [(1, 1, 1), (7, 3, 2), (3000, 256, 16), (100, 300, 8), (60, 9, 64)])
def test_searches_return_a_best_row(search, count, rows, d):
    slices, unit_rows = case(count, rows, d)
    scores = slices.double() @ unit_rows.double().t()
    indices = search()(slices, unit_rows)
    assert indices.dtype == torch.int64 and indices.shape == (count,)
    # Exact but for rounding: no row is better by more than float32 can tell.
    best = scores.max(dim=1).values - scores.gather(1, indices[:, None])[:, 0]
    assert (best <= 1e-6 * slices.norm(dim=1)).all()


@SEARCHES
def test_tiles_do_not_change_the_result_and_only_a_slice_that_is_not_finite_gets_minus_one(search):
    slices, unit_rows = case(101, 20, 4)
    whole = search(tile=1000)(slices, unit_rows)
    slices[3, 1], slices[20, 0] = float("nan"), float("inf")
    whole[[3, 20]] = -1
    for tile in (1, 10, 100, 101):
        assert torch.equal(search(tile=tile)(slices, unit_rows), whole)


def test_tiles_are_used_without_faiss(monkeypatch):
    monkeypatch.setattr("crumb_avalanche.models.search.faiss", None)
    slices, unit_rows = case(50, 6, 4)
    assert torch.equal(BlockSearch()(slices, unit_rows), TiledSearch()(slices, unit_rows))
    with pytest.raises(ImportError, match="pip install faiss-cpu"):
        FaissSearch()


@pytest.mark.parametrize("with_faiss", [False, pytest.param(True, marks=needs_faiss)])
@pytest.mark.parametrize("count", [0, 1, 50, 51, 99, 100, 260])
def test_any_number_of_vectors_finds_the_row_of_a_slow_loop(count, with_faiss, monkeypatch):
    if with_faiss:  # tiles below 51, pads below 100
        monkeypatch.setattr("crumb_avalanche.models.search._fused_from", lambda length: 100)
    else:
        monkeypatch.setattr("crumb_avalanche.models.search.faiss", None)
    vectors, rows = case(count, 20, 4)
    assert BlockSearch()(vectors, rows).tolist() == [int((rows @ one).argmax()) for one in vectors]
    rows = torch.cat([3 * rows, 3 * rows[:1]])  # the last is the first again, and never the answer
    expected = [int((rows - vector).square().sum(1).argmin()) for vector in vectors]
    assert nearest_rows(vectors, rows, tile=16).tolist() == expected


@needs_faiss
def test_faiss_is_used_from_its_fused_pass_on():
    """On today's faiss 8,000 slices of 16 values; older ones are as fast with a few."""
    from crumb_avalanche.models.search import _fused_from, _suits_faiss

    assert _fused_from(16) * 16 >= faiss.cvar.distance_compute_blas_threshold > (_fused_from(16) - 1) * 16
    assert _suits_faiss(torch.empty(_fused_from(16), 16)) and not _suits_faiss(torch.empty(0, 16))
