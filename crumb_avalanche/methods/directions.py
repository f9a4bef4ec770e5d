"""Principal directions of the scatter of each class."""

import copy
import math

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.methods.closed_form import grown
from crumb_avalanche.system.tensor_file import StateError, tensor_bytes

# share of the largest energy of a class below which a direction is not stored
NO_ENERGY = 1e-12
MOST_ROWS = 512  # in one eigendecomposition, whose time grows with their cube
EXPONENT = (
    15  # float16 rows are scaled to a peak in [2**14, 2**15): float16 ends at 65504
)
MOST_INT8 = 127  # of int8 rows, whose range is symmetric
# Values that share a scale. With a scale for a whole direction, rounding adds up over
# many updates: taught 400 images a class of CIFAR-100 one by one, with 54 directions a
# class, 67.6 % of others are right, and 68.6 % with blocks of 32.
BLOCK = 32
TINY = 2.0**-126  # the smallest normal float32


class ClassDirections:
    """Principal directions of the scatter of each class, as many as the class needs.

    A class has at most ``most`` directions, and no more than its scatter has
    dimensions: at most ``n - 1`` for ``n`` images. Where ``total`` over all classes is
    exceeded, the classes with the most directions lose their weakest ones, one class
    after the other; of classes with equally many, the one with the weakest direction is
    first.

    Rows are float16 with a power of two for each class, which fits their largest value,
    so that features of any scale neither overflow nor vanish; or int8 with a scale for
    each 32 values, by which the largest of them is 127. They are replaced, never
    changed in place: copies share them.

    Attributes:
        rows: ``(k, D)`` float16 or int8 for each class, weakest direction first.
        scales: of each class, ``(1,)`` float32 or, of int8, ``(k, D / 32)`` bfloat16,
            ``D / 32`` rounded up. With values times their scale, ``B^T B`` approximates
            the scatter of the class.
        counts: ``(n_classes,)`` int32, directions of each class.
        outside: ``(n_classes,)`` float32, the part of the scatter's trace that the
            directions leave out.
    """

    def __init__(
        self,
        n_classes: int,
        length: int,
        most: int,
        total: int | None = None,
        eight_bits: bool = False,
    ):
        self.length, self.most, self.total = length, most, total
        self.dtype = torch.int8 if eight_bits else torch.float16
        self.rows: list[Tensor] = []
        self.scales: list[Tensor] = []
        self._energies: list[list[float]] = []  # of the rows as stored
        self.outside = torch.zeros(0)
        self.counts = torch.zeros(0, dtype=torch.int32)
        self.grow(n_classes)

    def __len__(self) -> int:
        """Return the number of directions of all classes."""
        return int(self.counts.sum())

    def __deepcopy__(self, memo: dict) -> "ClassDirections":
        copied = copy.copy(self)
        copied.rows, copied.scales, copied._energies = (
            list(self.rows),
            list(self.scales),
            list(self._energies),
        )
        copied.outside, copied.counts = self.outside.clone(), self.counts.clone()
        return copied

    def of_class(self, label: int) -> Tensor:
        """Return ``B`` of a class, ``(k, D)`` float64."""
        return self.of_classes([label])

    def of_classes(self, labels: list[int]) -> Tensor:
        """Return ``B`` of several classes one below the other, ``(sum of k, D)`` float64."""
        values = torch.cat([self.rows[label] for label in labels]).double()
        if self.dtype == torch.int8:
            return values.mul_(
                self._spread(torch.cat([self.scales[label] for label in labels]))
            )
        scales = torch.cat(
            [self.scales[label].expand(len(self.rows[label])) for label in labels]
        )
        return values.mul_(scales.double().unsqueeze(1))

    def _spread(self, scales: Tensor) -> Tensor:
        """Return the scale of each value, ``(k, D)`` float64."""
        return scales.double().repeat_interleave(BLOCK, 1)[:, : self.length]

    def extend(self, label: int, rows: Tensor) -> None:
        """Update the directions of a class whose scatter grows by ``R^T R`` for one or more float64 rows ``R``."""
        for part in rows.split(MOST_ROWS):
            together = torch.cat([self.of_class(label), part])
            energies, vectors = torch.linalg.eigh(together @ together.mT)
            count = min(
                self.most, int((energies > NO_ENERGY * energies[-1].clamp_min(0)).sum())
            )
            left_out = len(energies) - count
            self.outside[label] += energies[:left_out].clamp_min(0).sum()
            self._store(label, vectors[:, left_out:].mT @ together)

    def _store(self, label: int, values: Tensor) -> None:
        """Replace the directions of a class by ``(k, D)`` float64 values."""
        if self.dtype == torch.int8:
            whole = functional.pad(values.abs(), (0, -self.length % BLOCK)).unflatten(
                1, (-1, BLOCK)
            )
            scales = (whole.amax(2) / MOST_INT8).clamp_min(TINY).bfloat16()
            rows = (values / self._spread(scales)).round().clamp(-MOST_INT8, MOST_INT8)
        else:
            _, exponent = torch.frexp(
                values.abs().amax() if len(values) else torch.zeros(())
            )
            scales = torch.full(
                (1,), 2.0 ** max(int(exponent) - EXPONENT, -126) if len(values) else 0.0
            )
            rows = values / scales.double()
        self._put(label, rows.to(self.dtype), scales)
        self._energies[label] = self.of_class(label).square().sum(1).tolist()

    def _put(self, label: int, rows: Tensor, scales: Tensor) -> None:
        self.rows[label], self.scales[label] = rows, scales
        self.counts[label] = len(rows)

    def trim(self) -> None:
        """Drop directions until ``total`` holds; their energy is added to ``outside``."""
        if self.total is None or len(self) <= self.total:
            return
        excess, left_out = len(self) - self.total, [0] * len(self.rows)
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
                scales = (
                    self.scales[label][number:]
                    if self.dtype == torch.int8
                    else self.scales[label]
                )
                self._put(
                    label, self.rows[label][number:].clone(), scales.clone()
                )  # frees the memory of the others
                self._energies[label] = self._energies[label][number:]

    def grow(self, n_classes: int) -> None:
        """Add classes without directions, up to a larger number."""
        new = n_classes - len(self.rows)
        self.rows += [self._empty(0)[0]] * new
        self.scales += [self._empty(0)[1] for _ in range(new)]
        self._energies += [[]] * new
        self.outside, self.counts = (
            grown(self.outside, n_classes),
            grown(self.counts, n_classes),
        )

    def keep_features(self, kept: int) -> None:
        """Keep the last features; ``outside`` keeps the share that the directions keep of their squared lengths."""
        narrow = []
        for label, energies in enumerate(self._energies):
            rows, before = self.of_class(label)[:, -kept:], sum(energies)
            share = (
                float(rows.square().sum()) / before
                if before
                else 1 - (self.length - kept) / self.length
            )
            self.outside[label] *= share
            narrow.append(rows)
        self.length = kept
        for label, rows in enumerate(narrow):
            if len(
                rows
                # the principal directions, the weakest first, without those of no energy
            ):
                energies, vectors = torch.linalg.eigh(rows @ rows.mT)
                rows = (
                    vectors[:, energies > NO_ENERGY * energies[-1].clamp_min(0)].mT
                    @ rows
                )
            self._store(label, rows)

    def _empty(self, count: int) -> tuple[Tensor, Tensor]:
        """Return rows and scales of a class with directions of zeros."""
        rows = torch.zeros(count, self.length, dtype=self.dtype)
        if self.dtype == torch.int8:
            return rows, torch.zeros(
                count, math.ceil(self.length / BLOCK), dtype=torch.bfloat16
            )
        return rows, torch.zeros(1)

    @classmethod
    def bytes_of_one(cls, length: int, eight_bits: bool) -> int:
        """Return the bytes of a direction of so many features, with its scales if it has some."""
        with torch.device("meta"):
            held = cls(0, length, 1, eight_bits=eight_bits)
            return tensor_bytes(held._empty(1)) - tensor_bytes(held._empty(0))

    def forget(self, label: int) -> None:
        """Remove all that is held of a class."""
        self._store(label, torch.zeros(0, self.length, dtype=torch.float64))
        self.outside[label] = 0

    def tensors(self) -> list[Tensor]:
        """Return the tensors that hold the directions."""
        return [*self.rows, *self.scales, self.counts, self.outside]

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the directions by name; those of all classes are copied into one tensor."""
        return {
            "directions": torch.cat([self._empty(0)[0], *self.rows]),
            "direction_counts": self.counts,
            "direction_scales": torch.cat([self._empty(0)[1][:0], *self.scales]),
            "outside": self.outside,
        }

    def check(self, tensors: dict[str, Tensor]) -> None:
        """Raise ``StateError`` if named tensors cannot be those of as many classes."""
        rows, counts = tensors["directions"], tensors["direction_counts"]
        none = self._empty(0)[1]
        scales = (
            (len(rows), *none.shape[1:])
            if self.dtype == torch.int8
            else (len(self.rows),)
        )
        if (
            {tensors[name].shape for name in ("direction_counts", "outside")}
            != {(len(self.rows),)}
            or tensors["direction_scales"].shape != scales
            or tensors["direction_scales"].dtype != none.dtype
            or rows.dtype != self.dtype
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
        self.outside.copy_(tensors["outside"])
        sizes, rows = self.counts.tolist(), tensors["directions"]
        self.rows = [part.clone() for part in rows.split(sizes)]
        ones = sizes if self.dtype == torch.int8 else [1] * len(sizes)
        self.scales = [part.clone() for part in tensors["direction_scales"].split(ones)]
        self._energies = [
            self.of_class(label).square().sum(1).tolist()
            for label in range(len(self.rows))
        ]
