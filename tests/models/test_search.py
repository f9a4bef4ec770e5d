"""Both searches return the same rows, for every number of slices and across tiles."""

import pytest
import torch
from torch.nn import functional

from crumb_avalanche.models.search import BlockSearch, FaissSearch, TiledSearch, nearest_rows


def case(count, rows, d):
    generator = torch.Generator().manual_seed(0)
    slices = torch.randn(count, d, generator=generator).relu() * 14 + 1e-3
    return slices, functional.normalize(torch.randn(rows, d, generator=generator), dim=1)


@pytest.mark.parametrize("search", [TiledSearch, FaissSearch])
def test_tiles_do_not_change_the_result_and_only_a_slice_that_is_not_finite_gets_minus_one(search):
    slices, unit_rows = case(101, 20, 4)
    whole = search(tile=1000)(slices, unit_rows)
    slices[3, 1], slices[20, 0] = float("nan"), float("inf")
    whole[[3, 20]] = -1
    for tile in (1, 10, 100, 101):
        assert torch.equal(search(tile=tile)(slices, unit_rows), whole)


@pytest.mark.parametrize("with_faiss", [False, True])
@pytest.mark.parametrize("count", [0, 1, 50, 51, 99, 100, 260])
def test_any_number_of_vectors_finds_the_row_of_a_slow_loop(count, with_faiss, monkeypatch):
    if with_faiss:  # tiles below 51, pads below 100
        monkeypatch.setattr("crumb_avalanche.models.search._fused_from", lambda length: 100)
    else:
        monkeypatch.setattr("crumb_avalanche.models.search._suits_faiss", lambda vectors: False)
    vectors, rows = case(count, 20, 4)
    assert BlockSearch()(vectors, rows).tolist() == [int((rows @ one).argmax()) for one in vectors]
    rows = torch.cat([3 * rows, 3 * rows[:1]])  # the last is the first again, and never the answer
    expected = [int((rows - vector).square().sum(1).argmin()) for vector in vectors]
    assert nearest_rows(vectors, rows, tile=16).tolist() == expected
