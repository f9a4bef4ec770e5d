"""Packed storage of a symmetric scatter matrix."""

import copy

import torch
from torch import Tensor

BLOCK = 64


class PackedScatter:
    """Running sum ``X^T X`` of batches of rows, stored as strips of its lower half.

    Takes ``2 * D * (D + 64)`` bytes instead of ``4 * D**2`` (8,650,752 at 2,048). Strips are replaced, never changed in
    place: copies share them.

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
        starts = range(0, self.length, BLOCK)
        self.strips = [
            strip + (rows[:, start : start + BLOCK].mT @ rows[:, : strip.shape[1]]).float()
            for start, strip in zip(starts, self.strips, strict=True)
        ]

    def add_matrix(self, matrix: Tensor) -> None:
        """Add a symmetric ``(D, D)`` matrix."""
        starts = range(0, self.length, BLOCK)
        self.strips = [
            strip + matrix[start : start + BLOCK, : strip.shape[1]].float()
            for start, strip in zip(starts, self.strips, strict=True)
        ]

    def merge(self, other: "PackedScatter") -> None:
        """Add the rows of another matrix of the same length; exact up to rounding."""
        self.strips = [mine + theirs for mine, theirs in zip(self.strips, other.strips, strict=True)]

    def scale(self, factor: float) -> None:
        """Multiply the matrix by a number."""
        self.strips = [strip * factor for strip in self.strips]

    def __deepcopy__(self, memo: dict) -> "PackedScatter":
        copied = copy.copy(self)
        copied.strips = list(self.strips)
        return copied

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the strips by name."""
        return {f"strip{number}": strip for number, strip in enumerate(self.strips)}

    def whole(self) -> Tensor:
        """Return the full matrix, ``(D, D)`` float64; needs no further memory."""
        matrix = torch.zeros(self.length, self.length, dtype=torch.float64)
        for number, strip in enumerate(self.strips):
            matrix[number * BLOCK : number * BLOCK + BLOCK, : strip.shape[1]] = strip
        return mirrored(matrix)

    @staticmethod
    def bytes_of(length: int) -> int:
        """Return the bytes of the strips for ``D = length``."""
        return 4 * sum(min(BLOCK, length - start) * min(start + BLOCK, length) for start in range(0, length, BLOCK))


def mirrored(matrix: Tensor) -> Tensor:
    """Copy the lower half of a square matrix onto the upper one, in place; needs no further memory."""
    for rows, start in zip(matrix.split(BLOCK), range(0, len(matrix), BLOCK)):
        matrix[:start, start : start + BLOCK] = rows[:, :start].mT
        diagonal = rows[:, start : start + BLOCK]
        diagonal.copy_(diagonal.tril() + diagonal.tril(-1).mT)
    return matrix
