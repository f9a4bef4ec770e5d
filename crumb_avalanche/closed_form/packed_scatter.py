"""Packed storage of a symmetric scatter matrix."""

import torch
from torch import Tensor

BLOCK = 64


class PackedScatter:
    """Running sum ``X^T X`` of batches of rows, stored as strips of its lower half.

    Takes ``2 * D * (D + 64)`` bytes instead of ``4 * D**2`` (8,650,752 at 2,048).

    Args:
        length: number of columns ``D``.

    Attributes:
        strips: float32; strip ``i`` holds rows ``64 i`` to ``64 (i + 1)``, up to and including the diagonal block.
    """

    def __init__(self, length: int):
        self.length = length
        self.strips = [
            torch.zeros(min(BLOCK, length - start), min(start + BLOCK, length)) for start in range(0, length, BLOCK)
        ]

    def add(self, rows: Tensor) -> None:
        """Add ``(n, D)`` rows."""
        for number, strip in enumerate(self.strips):
            start = number * BLOCK
            strip += (rows[:, start : start + BLOCK].mT @ rows[:, : strip.shape[1]]).float()

    def merge(self, other: "PackedScatter") -> None:
        """Add the rows of another matrix of the same length; exact up to rounding."""
        for mine, theirs in zip(self.strips, other.strips, strict=True):
            mine += theirs

    def scale(self, factor: float) -> None:
        """Multiply the matrix by a number."""
        for strip in self.strips:
            strip *= factor

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the strips by name."""
        return {f"strip{number}": strip for number, strip in enumerate(self.strips)}

    def whole(self) -> Tensor:
        """Return the full matrix, ``(D, D)`` float64."""
        matrix = torch.zeros(self.length, self.length, dtype=torch.float64)
        for number, strip in enumerate(self.strips):
            matrix[number * BLOCK : number * BLOCK + BLOCK, : strip.shape[1]] = strip
        return matrix.tril() + matrix.tril(-1).mT

    @staticmethod
    def bytes_of(length: int) -> int:
        """Return the bytes of the strips for ``D = length``."""
        return 4 * sum(min(BLOCK, length - start) * min(start + BLOCK, length) for start in range(0, length, BLOCK))
