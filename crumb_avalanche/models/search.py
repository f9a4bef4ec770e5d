"""Nearest memory block: for every slice, the row with the largest dot product among unit rows (paper, eq. 1-2).

Both searches return the same rows. They ignore ``torch.autocast``, since bfloat16 would choose others. They are modules
so that the ledger can time them with forward hooks.
``nearest_rows`` searches tables whose rows have any length, such as those of a product quantizer, in L2.
"""

import faiss
import torch
from torch import Tensor, nn

from crumb_avalanche.models.extraction import without_autocast


class TiledSearch(nn.Module):
    """Exact search by matrix products of ``tile`` slices, ``4 * tile * rows`` bytes, which fit the CPU's cache."""

    def __init__(self, tile: int = 2048):
        super().__init__()
        self.tile = tile

    def forward(self, slices: Tensor, unit_rows: Tensor) -> Tensor:
        """Return the most similar of ``(K, d)`` unit rows for ``(N, d)`` slices in float32: ``(N,)`` int64.

        It is the lowest index among ties, and -1 where a slice holds a NaN or an infinity.
        """
        columns = unit_rows.t().contiguous()
        indices = torch.empty(len(slices), dtype=torch.int64, device=slices.device)
        with without_autocast(slices.device):
            for start in range(0, len(slices), self.tile):
                scores, best = (slices[start : start + self.tile] @ columns).max(dim=1)
                indices[start : start + self.tile] = best.masked_fill_(~scores.isfinite(), -1)
        return indices


class FaissSearch(nn.Module):
    """Exact search through faiss, whose k = 1 path keeps only the running minimum of each slice.

    Among unit rows the L2-nearest one has the largest dot product. Squared distances of long slices would lose the last
    digits of the dot product, so slices are first scaled to a length between 1/2 and 1. The factor is a power of two,
    which is exact: ties stay ties. A zero slice is as far from all rows; rounding would decide, so it gets the first.
    """

    def __init__(self, tile: int = 32768):
        super().__init__()
        self.tile = tile

    def forward(self, slices: Tensor, unit_rows: Tensor) -> Tensor:
        """Search as ``TiledSearch.forward`` does, for CPU tensors."""
        index = _faiss_index(unit_rows)
        indices = torch.empty(len(slices), dtype=torch.int64)
        lengths = torch.linalg.vector_norm(slices, dim=1, keepdim=True)
        factors = torch.exp2(-torch.frexp(lengths.clamp_min(1e-12)).exponent)
        for start in range(0, len(slices), self.tile):
            part = slice(start, start + self.tile)
            indices[part] = _nearest_by_faiss(slices[part] * factors[part], index)
        short = (lengths == 0).nonzero()[:, 0]  # zero, or the squares underflow
        indices[short[~slices[short].any(dim=1)]] = 0
        return indices


class BlockSearch(nn.Module):
    """``FaissSearch`` for many slices in CPU memory, else ``TiledSearch``."""

    def __init__(self):
        super().__init__()
        self.tiled, self.fused = TiledSearch(), FaissSearch()

    def forward(self, slices: Tensor, unit_rows: Tensor) -> Tensor:
        """Search as ``TiledSearch.forward`` does, on any device."""
        return (self.fused if _suits_faiss(slices) else self.tiled)(slices, unit_rows)


def nearest_rows(vectors: Tensor, rows: Tensor, tile: int = 2048) -> Tensor:
    """Return the L2-nearest of ``(K, d)`` rows to ``(N, d)`` finite vectors, the lowest among ties: ``(N,)`` int64."""
    if _suits_faiss(vectors):
        return _nearest_by_faiss(vectors, _faiss_index(rows))
    # The nearest row is the one with the largest <x, c> - |c|^2 / 2.
    columns, offsets = rows.t().contiguous(), -rows.square().sum(1) / 2
    indices = torch.empty(len(vectors), dtype=torch.int64, device=vectors.device)
    with without_autocast(vectors.device):
        for start in range(0, len(vectors), tile):
            indices[start : start + tile] = torch.addmm(offsets, vectors[start : start + tile], columns).argmax(dim=1)
    return indices


def _fused_from(length: int) -> int:
    """Return the smallest number of vectors that faiss searches in a fused pass; it is six times slower below."""
    return -(-faiss.cvar.distance_compute_blas_threshold // length)


def _suits_faiss(vectors: Tensor) -> bool:
    """Return whether faiss is faster than tiles, including padding up to the fused pass."""
    return vectors.device.type == "cpu" and 2 * len(vectors) > _fused_from(vectors.shape[1])


def _faiss_index(rows: Tensor):
    """Return faiss's index of rows in CPU memory; it uses torch's number of threads."""
    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatL2(rows.shape[1])
    index.add(rows.contiguous().numpy())
    return index


def _nearest_by_faiss(vectors: Tensor, index) -> Tensor:
    """Return the index of the nearest row by faiss: ``(N,)`` int64 in CPU memory."""
    count, length = vectors.shape
    missing = _fused_from(length) - count
    if missing > 0 and _suits_faiss(vectors):
        vectors = torch.cat([vectors, vectors.new_zeros(missing, length)])
    return torch.from_numpy(index.search(vectors.contiguous().numpy(), 1)[1][:count, 0])
