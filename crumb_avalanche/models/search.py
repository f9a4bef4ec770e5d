"""Nearest rows of a table for many vectors.

Memory blocks are compared by the dot product with unit rows (paper, eq. 1-2), centroids
by the L2 distance. faiss finds those of many vectors in CPU memory, products of
matrices those of others: the same rows, up to ties. Of rows that are exactly as near,
products give the lowest; faiss computes the last ``K mod 16`` rows with another
rounding and may give one of these. ``torch.autocast`` is ignored, since bfloat16 would
choose others.

Axes: ``N`` vectors, ``K`` rows, ``d`` values of each.
"""

from typing import Any

import faiss
import torch
from torch import Tensor

from crumb_avalanche.models.extraction import without_autocast

# Vectors at a time whose products with the rows fit the CPU's cache.
TILE = 2048
# Vectors at a time that fit the CPU's cache themselves, which faiss needs.
FAISS_TILE = 32768
NOT_FINITE = -1  # the index of a vector that holds a NaN or an infinity
_SHORTEST = 1e-12  # length below which a slice is scaled as if it had this one


def most_similar_rows(slices: Tensor, unit_rows: Tensor) -> Tensor:
    """Return the index of the row of largest dot product for each slice (eq. 1-2).

    Among ties it is mostly the lowest one, see the module; it is -1 where a slice holds
    a NaN or an infinity.

    Args:
        slices: ``(N, d)`` float32.
        unit_rows: ``(K, d)`` float32, of length 1.

    Returns:
        ``(N,)`` int64 indices below ``K``.
    """
    if not _suits_faiss(slices):  # too few of them, or on a GPU
        return _best_by_products(slices, unit_rows)
    # Among unit rows the L2-nearest one has the largest dot product. Squared distances
    # of long slices would lose the last digits of the dot product, so slices are first
    # scaled to a length between 1/2 and 1. The factor is a power of two, which is
    # exact: ties stay ties.
    lengths = torch.linalg.vector_norm(slices, dim=1, keepdim=True)
    exponents = torch.frexp(lengths.clamp_min(_SHORTEST)).exponent
    factors = torch.exp2(-exponents)
    index = _faiss_index(unit_rows)  # faiss's structure of the rows, to search in
    indices_of_tiles = []
    for tile, scale in zip(slices.split(FAISS_TILE), factors.split(FAISS_TILE)):
        indices_of_tiles.append(_nearest_by_faiss(tile * scale, index))
    indices = torch.cat(indices_of_tiles)
    # A zero slice is as far from all rows; rounding would decide, so it gets the first.
    # The length is 0 also where the squares underflow.
    short_slices = (lengths == 0).nonzero()[:, 0]
    is_zero = ~slices[short_slices].any(dim=1)
    indices[short_slices[is_zero]] = 0
    return indices


def nearest_rows(vectors: Tensor, rows: Tensor) -> Tensor:
    """Return the index of the L2-nearest row of a table for each vector.

    Among ties it is mostly the lowest one, see the module.

    Args:
        vectors: ``(N, d)`` float32.
        rows: ``(K, d)`` float32, finite.

    Returns:
        ``(N,)`` int64 indices below ``K``; ``NOT_FINITE`` (-1) for a vector with a
        NaN.
    """
    if _suits_faiss(vectors):
        return _nearest_by_faiss(vectors, _faiss_index(rows))
    # The nearest row has the largest <x, c> - |c|^2 / 2.
    return _best_by_products(vectors, rows, offsets=-rows.square().sum(1) / 2)


def _best_by_products(
    vectors: Tensor, rows: Tensor, offsets: Tensor | None = None
) -> Tensor:
    """Return the index of the row of largest dot product plus offset for each vector.

    The products are computed for ``TILE`` vectors at a time, which fit a cache.

    Args:
        vectors: ``(N, d)``.
        rows: ``(K, d)``.
        offsets: ``(K,)``, added to the products with each row; default zeros.

    Returns:
        ``(N,)`` int64, ``NOT_FINITE`` where the largest sum is not finite.
    """
    columns = rows.t().contiguous()
    indices_of_tiles = []
    with without_autocast(vectors.device):  # bf16 would choose other rows
        for tile in vectors.split(TILE):
            if offsets is None:
                products = tile @ columns
            else:
                products = torch.addmm(offsets, tile, columns)
            largest, indices = products.max(dim=1)
            indices.masked_fill_(~largest.isfinite(), NOT_FINITE)
            indices_of_tiles.append(indices)
    return torch.cat(indices_of_tiles)


def _fused_from(length: int) -> int:
    """Return how many vectors of a length faiss searches in a fused pass, at least.

    That pass keeps only the running minimum of each vector; with fewer vectors, faiss
    is six times slower.
    """
    return -(-faiss.cvar.distance_compute_blas_threshold // length)


def _suits_faiss(vectors: Tensor) -> bool:
    """Whether faiss finds rows faster than products, if padded to the fused pass."""
    if vectors.device.type != "cpu":
        return False
    return 2 * len(vectors) > _fused_from(vectors.shape[1])


def _faiss_index(rows: Tensor) -> Any:
    """Return faiss's index of rows in CPU memory, for torch's number of threads."""
    faiss.omp_set_num_threads(torch.get_num_threads())
    index = faiss.IndexFlatL2(rows.shape[1])
    index.add(rows.contiguous().numpy())
    return index


def _nearest_by_faiss(vectors: Tensor, index: Any) -> Tensor:
    """Return the index of the L2-nearest row for each vector, searched by faiss.

    A few vectors are padded with zeros up to the number from which faiss searches in
    one fused pass; with fewer it is six times slower.

    Args:
        vectors: ``(N, d)`` float32 in CPU memory.
        index: faiss's index of the rows, of ``_faiss_index``.

    Returns:
        ``(N,)`` int64 in CPU memory.
    """
    n_vectors, length = vectors.shape
    n_padding = _fused_from(length) - n_vectors
    if n_padding > 0 and _suits_faiss(vectors):
        padding = vectors.new_zeros(n_padding, length)
        vectors = torch.cat([vectors, padding])
    _, indices = index.search(vectors.contiguous().numpy(), 1)
    return torch.from_numpy(indices[:n_vectors, 0])
