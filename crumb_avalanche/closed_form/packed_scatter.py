"""A symmetric matrix of sums of products, of which only one half is kept."""

import torch
from torch import Tensor

BLOCK = 64


class PackedScatter:
    """``X^T X`` of rows that come batch by batch, as the lower half in strips.

    ``2 * D * (D + 64)`` bytes instead of ``4 * D**2`` (8,650,752 at 2,048).

    Args:
        length: ``D``.

    Attributes:
        strips: float32; strip ``i`` holds rows ``64 i`` to ``64 (i + 1)`` up to and with their diagonal block.
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

    def named_tensors(self) -> dict[str, Tensor]:
        """The strips by name."""
        return {f"strip{number}": strip for number, strip in enumerate(self.strips)}

    def whole(self) -> Tensor:
        """The matrix, ``(D, D)`` float64."""
        matrix = torch.zeros(self.length, self.length, dtype=torch.float64)
        for number, strip in enumerate(self.strips):
            matrix[number * BLOCK : number * BLOCK + BLOCK, : strip.shape[1]] = strip
        return matrix.tril() + matrix.tril(-1).mT

    @staticmethod
    def bytes_of(length: int) -> int:
        """Bytes of the strips."""
        return 4 * sum(min(BLOCK, length - start) * min(start + BLOCK, length) for start in range(0, length, BLOCK))
