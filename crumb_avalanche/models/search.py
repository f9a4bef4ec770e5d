"""Nearest rows of a table: memory blocks by the dot product with unit rows (paper, eq. 1-2), centroids in L2.

faiss finds those of many vectors in CPU memory, matrix products those of others: the
same rows. ``torch.autocast`` is ignored, since bfloat16 would choose others.
"""

import faiss
import torch
from torch import Tensor

from crumb_avalanche.models.extraction import without_autocast

# Vectors at a time, whose products with the rows (in faiss the vectors themselves) fit
# the CPU's cache.
TILE, FAISS_TILE = 2048, 32768


def most_similar_rows(slices: Tensor, unit_rows: Tensor) -> Tensor:
    """Return the most similar of ``(K, d)`` unit rows for ``(N, d)`` slices in float32: ``(N,)`` int64.

    It is the lowest index among ties, and -1 where a slice holds a NaN or an infinity.
    """
    if not _suits_faiss(slices):
        return _by_tiles(slices, unit_rows)
    # Among unit rows the L2-nearest one has the largest dot product. Squared distances
    # of long slices would lose the last digits of the dot product, so slices are first
    # scaled to a length between 1/2 and 1. The factor is a power of two, which is
    # exact: ties stay ties. A zero slice is as far from all rows; rounding would
    # decide, so it gets the first.
    index = _faiss_index(unit_rows)
    lengths = torch.linalg.vector_norm(slices, dim=1, keepdim=True)
    factors = torch.exp2(-torch.frexp(lengths.clamp_min(1e-12)).exponent)
    parts = zip(slices.split(FAISS_TILE), factors.split(FAISS_TILE))
    indices = torch.cat([_by_faiss(some * factor, index) for some, factor in parts])
    short = (lengths == 0).nonzero()[:, 0]  # zero, or the squares underflow
    indices[short[~slices[short].any(dim=1)]] = 0
    return indices


def nearest_rows(vectors: Tensor, rows: Tensor) -> Tensor:
    """Return the L2-nearest of ``(K, d)`` rows to ``(N, d)`` finite vectors, the lowest among ties: ``(N,)`` int64."""
    if _suits_faiss(vectors):
        return _by_faiss(vectors, _faiss_index(rows))
    return _by_tiles(
        vectors, rows, -rows.square().sum(1) / 2
    )  # the largest <x, c> - |c|^2 / 2


def _by_tiles(vectors: Tensor, rows: Tensor, offsets: Tensor | None = None) -> Tensor:
    """Return the row with the largest product, plus its offset; -1 where that is not finite: ``(N,)`` int64."""
    columns, found = rows.t().contiguous(), []
    with without_autocast(vectors.device):
        for some in vectors.split(TILE):
            products = (
                some @ columns
                if offsets is None
                else torch.addmm(offsets, some, columns)
            )
            scores, best = products.max(dim=1)
            found.append(best.masked_fill_(~scores.isfinite(), -1))
    return torch.cat(found)


def _fused_from(length: int) -> int:
    """Return the smallest number of vectors that faiss searches in a fused pass; it is six times slower below.

    That pass keeps only the running minimum of each vector.
    """
    return -(-faiss.cvar.distance_compute_blas_threshold // length)


def _suits_faiss(vectors: Tensor) -> bool:
    """Return whether faiss is faster than tiles, including padding up to the fused pass."""
    return vectors.device.type == "cpu" and 2 * len(vectors) > _fused_from(
        vectors.shape[1]
    )


def _faiss_index(rows: Tensor):
    """Return faiss's index of rows in CPU memory; it uses torch's number of threads."""
    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatL2(rows.shape[1])
    index.add(rows.contiguous().numpy())
    return index


def _by_faiss(vectors: Tensor, index) -> Tensor:
    """Return the index of the L2-nearest row by faiss: ``(N,)`` int64 in CPU memory."""
    count, length = vectors.shape
    missing = _fused_from(length) - count
    if missing > 0 and _suits_faiss(vectors):
        vectors = torch.cat([vectors, vectors.new_zeros(missing, length)])
    return torch.from_numpy(index.search(vectors.contiguous().numpy(), 1)[1][:count, 0])
