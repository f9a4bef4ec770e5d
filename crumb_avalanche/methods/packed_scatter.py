"""A sum of outer products that takes half of its square matrix."""

import copy

import torch
from torch import Tensor

from crumb_avalanche.system.tensor_file import tensor_bytes

BLOCK = 64  # rows of a strip of ``PackedScatter``


class PackedScatter:
    """Running sum ``X^T X`` of batches of rows, stored as strips of its lower half.

    Takes ``2 * D * (D + 64)`` bytes instead of ``4 * D**2``. Strip ``i`` of ``strips``
    holds rows ``64 i`` to ``64 (i + 1)`` up to the diagonal block, float32; strips are
    replaced, never changed in place: copies share them.

    Args:
        length: ``D``, number of columns of the rows that are added.
    """

    def __init__(self, length: int):
        self.length = length
        self.strips: list[Tensor] = []
        for start in range(0, length, BLOCK):
            rows = min(BLOCK, length - start)
            columns = min(start + BLOCK, length)
            self.strips.append(torch.zeros(rows, columns, dtype=torch.float32))

    def add(self, rows: Tensor) -> None:
        """Add ``(n, D)`` float64 rows."""
        strips = []
        for number, strip in enumerate(self.strips):
            start = number * BLOCK
            rows_of_strip = rows[:, start : start + BLOCK].mT
            products = rows_of_strip @ rows[:, : strip.shape[1]]
            strips.append(strip + products.float())
        self.strips = strips

    def keep(self, count: int) -> None:
        """Keep the last ``count`` columns and rows."""
        matrix = self.whole()[-count:, -count:]
        self.length = count
        self.strips = [
            matrix[start : start + BLOCK, : start + BLOCK].float()
            for start in range(0, count, BLOCK)
        ]

    def merge(self, other: "PackedScatter") -> None:
        """Add the rows of another matrix of the same length; exact up to rounding."""
        self.strips = [
            mine + theirs
            for mine, theirs in zip(self.strips, other.strips, strict=True)
        ]

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
        """Return the full matrix, ``(D, D)`` float64."""
        matrix = torch.zeros(self.length, self.length, dtype=torch.float64)
        for number, strip in enumerate(self.strips):
            start = number * BLOCK
            matrix[start : start + BLOCK, : strip.shape[1]] = strip
        return mirrored(matrix)

    @classmethod
    def bytes_of(cls, length: int) -> int:
        """Return the bytes of the strips for ``D = length``."""
        with torch.device("meta"):
            return tensor_bytes(cls(length).strips)


def mirrored(matrix: Tensor) -> Tensor:
    """Copy the lower half of a square matrix onto the upper one, in place.

    Needs no further memory.
    """
    for start in range(0, len(matrix), BLOCK):
        rows = matrix[start : start + BLOCK]
        matrix[:start, start : start + BLOCK] = rows[:, :start].mT
        diagonal = rows[:, start : start + BLOCK]
        diagonal.copy_(diagonal.tril() + diagonal.tril(-1).mT)
    return matrix


def cholesky_in_place(matrix: Tensor) -> Tensor:
    """Return the Cholesky root of a matrix whose lower half counts, in its memory."""
    # Equal to the matrix, in the order of axes in which the root takes its memory.
    root = mirrored(matrix).mT
    torch.linalg.cholesky(root, out=root)
    return root
