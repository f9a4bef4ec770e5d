"""Principal directions of the scatter of each class."""

import copy
from itertools import pairwise

import torch
from torch import Tensor

from crumb_avalanche.closed_form.class_statistics import grown
from crumb_avalanche.system.tensor_file import StateError

NO_ENERGY = 1e-12  # share of the largest energy of a class below which a direction is not stored
MOST_ROWS = 512  # in one eigendecomposition, whose time grows with their cube
EXPONENT = 15  # rows are scaled to a peak in [2**14, 2**15): float16 ends at 65504


class ClassDirections:
    """Principal directions of the scatter of each class, as many as the class needs.

    A class has at most ``most`` directions, and no more than its scatter has dimensions: at most ``n - 1`` for ``n``
    images. ``total`` limits the number over all classes: where it is exceeded, the classes with the most directions
    lose their weakest ones, one class after the other; of classes with equally many, the one with the weakest
    direction is first.

    Rows are float16 with a power of two for each class, which fits their largest value, so that features of any scale
    neither overflow nor vanish. They are replaced, never changed in place: copies share them.

    Args:
        n_classes: number of classes.
        length: number of features ``D``.
        most: largest number of directions of a class.
        total: largest number of directions of all classes, or ``None`` for no limit.

    Attributes:
        rows: ``(k, D)`` float16 for each class, weakest direction first.
        scales: ``(n_classes,)`` float32; ``scale * rows = B`` where ``B^T B`` approximates the scatter of the class.
        counts: ``(n_classes,)`` int32, directions of each class.
        outside: ``(n_classes,)`` float32, the part of the scatter's trace that the directions leave out.
    """

    def __init__(self, n_classes: int, length: int, most: int, total: int | None = None):
        self.length, self.most, self.total = length, most, total
        self.rows: list[Tensor] = []
        self._energies: list[list[float]] = []  # of the rows as stored
        self._held = 0
        self.scales, self.outside = torch.zeros(0), torch.zeros(0)
        self.counts = torch.zeros(0, dtype=torch.int32)
        self.grow(n_classes)

    def __len__(self) -> int:
        """Return the number of directions of all classes."""
        return self._held

    def __deepcopy__(self, memo: dict) -> "ClassDirections":
        copied = copy.copy(self)
        copied.rows, copied._energies = list(self.rows), list(self._energies)
        copied.scales, copied.outside = self.scales.clone(), self.outside.clone()
        copied.counts = self.counts.clone()
        return copied

    def of_class(self, label: int) -> Tensor:
        """Return ``B`` of a class, ``(k, D)`` float64."""
        return self.rows[label].double() * self.scales[label].double()

    def of_classes(self, labels: list[int]) -> Tensor:
        """Return ``B`` of several classes one below the other, ``(sum of k, D)`` float64."""
        scales = self.scales[labels].double().repeat_interleave(self.counts[labels])
        return torch.cat([self.rows[label] for label in labels]).double().mul_(scales.unsqueeze(1))

    def extend(self, label: int, rows: Tensor) -> None:
        """Update the directions of a class whose scatter grows by ``R^T R`` for one or more float64 rows ``R``."""
        for part in rows.split(MOST_ROWS):
            together = torch.cat([self.of_class(label), part])
            energies, vectors = torch.linalg.eigh(together @ together.mT)
            count = min(self.most, int((energies > NO_ENERGY * energies[-1].clamp_min(0)).sum()))
            left_out = len(energies) - count
            self.outside[label] += energies[:left_out].clamp_min(0).sum()
            self._store(label, vectors[:, left_out:].mT @ together)

    def _store(self, label: int, values: Tensor) -> None:
        """Replace the directions of a class by ``(k, D)`` float64 values."""
        _, exponent = torch.frexp(values.abs().amax() if len(values) else torch.zeros(()))
        scale = 2.0 ** max(int(exponent) - EXPONENT, -126)  # a normal float32
        self.scales[label] = scale if len(values) else 0
        self._put(label, (values / scale).half())
        self._energies[label] = self.of_class(label).square().sum(1).tolist()

    def _put(self, label: int, rows: Tensor) -> None:
        self._held += len(rows) - len(self.rows[label])
        self.rows[label] = rows
        self.counts[label] = len(rows)

    def trim(self) -> None:
        """Drop directions until ``total`` holds; their energy is added to ``outside``."""
        if self.total is None or self._held <= self.total:
            return
        excess, left_out = self._held - self.total, [0] * len(self.rows)
        sizes = self.counts.tolist()
        while excess:
            most = max(sizes)
            largest = [label for label, size in enumerate(sizes) if size == most]
            largest.sort(key=lambda label: self._energies[label][left_out[label]])
            for label in largest[:excess]:
                sizes[label] -= 1
                left_out[label] += 1
            excess -= len(largest[:excess])
        for label, number in enumerate(left_out):
            if number:
                self.outside[label] += sum(self._energies[label][:number])
                self._put(label, self.rows[label][number:].clone())  # frees the memory of the others
                self._energies[label] = self._energies[label][number:]

    def grow(self, n_classes: int) -> None:
        """Add classes without directions, up to a larger number."""
        new = n_classes - len(self.rows)
        self.rows += [torch.zeros(0, self.length, dtype=torch.float16)] * new
        self._energies += [[]] * new
        self.scales, self.outside = grown(self.scales, n_classes), grown(self.outside, n_classes)
        self.counts = grown(self.counts, n_classes)

    def forget(self, label: int) -> None:
        """Remove all that is held of a class."""
        self._store(label, torch.zeros(0, self.length))
        self.outside[label] = 0

    def tensors(self) -> list[Tensor]:
        """Return the tensors that hold the directions."""
        return [*self.rows, self.scales, self.counts, self.outside]

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the directions by name; those of all classes are copied into one tensor."""
        rows = torch.cat([torch.zeros(0, self.length, dtype=torch.float16), *self.rows])
        return {
            "directions": rows,
            "direction_counts": self.counts,
            "direction_scales": self.scales,
            "outside": self.outside,
        }

    def check(self, tensors: dict[str, Tensor]) -> None:
        """Raise ``StateError`` if named tensors cannot be those of as many classes."""
        rows, counts = tensors["directions"], tensors["direction_counts"]
        shapes = {tensors[name].shape for name in ("direction_counts", "direction_scales", "outside")}
        if (
            shapes != {(len(self.rows),)}
            or rows.shape != (int(counts.sum()), self.length)
            or ((counts < 0) | (counts > self.most)).any()
        ):
            raise StateError(
                f"the state has directions of the shape {tuple(rows.shape)} for counts {counts.tolist()[:10]}; they do "
                f"not belong to {len(self.rows)} classes of at most {self.most} directions of length {self.length}"
            )

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Copy named tensors of as many classes."""
        self.counts.copy_(tensors["direction_counts"])
        self.scales.copy_(tensors["direction_scales"])
        self.outside.copy_(tensors["outside"])
        ends = [0, *self.counts.cumsum(0).tolist()]
        rows = tensors["directions"].to(torch.float16)
        self.rows = [rows[start:end].clone() for start, end in pairwise(ends)]
        self._energies = [self.of_class(label).square().sum(1).tolist() for label in range(len(self.rows))]
        self._held = len(rows)
