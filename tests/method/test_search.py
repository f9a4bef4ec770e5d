"""The two searches alone: same answers, at every size and on both sides of a tile's edge."""

import pytest
import torch
from torch.nn import functional

from crumb_avalanche.search import BlockSearch, FaissSearch, TiledSearch, faiss

needs_faiss = pytest.mark.skipif(faiss is None, reason="needs faiss")


def case(count, rows, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    slices = torch.randn(count, d, generator=generator).relu() * 14 + 1e-3
    return slices, functional.normalize(torch.randn(rows, d, generator=generator), dim=1)


@needs_faiss
@pytest.mark.parametrize(
    "count, rows, d", [(1, 1, 1), (7, 3, 2), (500, 16, 4), (3000, 256, 16), (100, 300, 8), (60, 9, 64)]
)
def test_both_choose_a_best_row(count, rows, d):
    slices, unit_rows = case(count, rows, d)
    scores = slices.double() @ unit_rows.double().t()
    for search in (TiledSearch(), FaissSearch()):
        indices = search(slices, unit_rows)
        assert indices.dtype == torch.int64 and indices.shape == (count,)
        chosen = scores.gather(1, indices[:, None])[:, 0]
        # Exact but for rounding: no row is better by more than float32 can tell.
        assert ((scores.max(dim=1).values - chosen) <= 1e-6 * slices.norm(dim=1)).all()


@pytest.mark.parametrize("search", [TiledSearch, pytest.param(FaissSearch, marks=needs_faiss)])
def test_tiles_move_no_choice(search):
    slices, unit_rows = case(101, 20, 4)
    whole = search(tile=1000)(slices, unit_rows)
    for tile in (1, 10, 100, 101):
        assert torch.equal(search(tile=tile)(slices, unit_rows), whole)


@pytest.mark.parametrize("search", [TiledSearch, pytest.param(FaissSearch, marks=needs_faiss)])
def test_a_slice_that_is_not_finite_gets_minus_one_and_its_neighbours_do_not(search):
    slices, unit_rows = case(40, 5, 4)
    wanted = search()(slices, unit_rows)
    slices[3, 1], slices[20, 0] = float("nan"), float("inf")
    wanted[[3, 20]] = -1
    assert torch.equal(search()(slices, unit_rows), wanted)


def test_nothing_to_search():
    assert BlockSearch()(torch.empty(0, 4), torch.eye(4)).shape == (0,)


def test_without_faiss_tiles_stand_in(monkeypatch):
    monkeypatch.setattr("crumb_avalanche.search.faiss", None)
    slices, unit_rows = case(50, 6, 4)
    assert torch.equal(BlockSearch()(slices, unit_rows), TiledSearch()(slices, unit_rows))
    with pytest.raises(ImportError, match="pip install faiss-cpu"):
        FaissSearch()
