"""Nearest memory block: for every slice, the row with the largest dot product among unit rows (paper, eq. 1-2).

Both searches give the same answer. They are modules, so that the ledger can time them with forward hooks.
"""

import torch
from torch import Tensor, nn

try:
    import faiss
except ImportError:  # the tile-wise search stands in
    faiss = None


class TiledSearch(nn.Module):
    """Exact search by small matrix products whose similarities never leave the cache.

    Args:
        tile: slices per product; ``tile * rows * 4`` bytes of working memory.
    """

    def __init__(self, tile: int = 2048):
        super().__init__()
        self.tile = tile

    def forward(self, slices: Tensor, unit_rows: Tensor) -> Tensor:
        """Index of the most similar row.

        Args:
            slices: ``(N, d)`` float32.
            unit_rows: ``(K, d)`` float32, each of L2 norm 1.

        Returns:
            ``(N,)`` int64 in ``[0, K)``, the lowest index among ties; -1 where a slice holds a NaN or an infinity.
        """
        columns = unit_rows.t().contiguous()
        indices = torch.empty(len(slices), dtype=torch.int64, device=slices.device)
        for start in range(0, len(slices), self.tile):
            scores, best = (slices[start : start + self.tile] @ columns).max(dim=1)
            indices[start : start + self.tile] = best.masked_fill_(~scores.isfinite(), -1)
        return indices


class FaissSearch(nn.Module):
    """Exact search through faiss, whose k = 1 path keeps only the running minimum of each slice.

    Between unit rows the L2-nearest one has the largest dot product. Slices are first brought to a length between 1/2
    and 1, because squared distances of long slices would lose the last digits of the dot product; by a power of two,
    which rounds nothing, so that ties stay ties.

    Args:
        tile: slices per call; ``tile * (d + 3) * 4`` bytes of working memory.
    """

    def __init__(self, tile: int = 32768):
        super().__init__()
        if faiss is None:
            raise ImportError("FaissSearch needs faiss: pip install faiss-cpu, or pass search=TiledSearch()")
        self.tile = tile

    def forward(self, slices: Tensor, unit_rows: Tensor) -> Tensor:
        """As ``TiledSearch.forward``, for CPU tensors."""
        faiss.omp_set_num_threads(torch.get_num_threads())
        index = faiss.IndexFlatL2(unit_rows.shape[1])
        index.add(unit_rows.numpy())
        indices = torch.empty(len(slices), dtype=torch.int64)
        for start in range(0, len(slices), self.tile):
            tile = slices[start : start + self.tile]
            # To about unit length, by a power of two: exact, so that ties stay ties.
            lengths = torch.linalg.vector_norm(tile, dim=1, keepdim=True).clamp_min(1e-12)
            tile = tile * torch.exp2(-torch.frexp(lengths).exponent)
            _, best = index.search(tile.numpy(), 1)
            indices[start : start + self.tile] = torch.from_numpy(best[:, 0])
        return indices


class BlockSearch(nn.Module):
    """faiss for CPU tensors where it is installed, tiles elsewhere."""

    def __init__(self):
        super().__init__()
        self.tiled = TiledSearch()
        self.fused = FaissSearch() if faiss is not None else None

    def forward(self, slices: Tensor, unit_rows: Tensor) -> Tensor:
        """As ``TiledSearch.forward``, on any device."""
        search = self.fused if self.fused is not None and slices.device.type == "cpu" else self.tiled
        return search(slices, unit_rows)
