"""Principal directions of the scatter of each class."""

import copy
import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.methods.class_tensors import check_not_negative, grown
from crumb_avalanche.system.tensor_file import tensor_bytes
from crumb_avalanche.system.value_types import StateError

# Share of the largest energy of a class below which a direction is not stored.
NO_ENERGY = 1e-12
MOST_ROWS = 512  # in one eigendecomposition, whose time grows with their cube
# float16 rows are scaled to a peak in [2**14, 2**15): float16 ends at 65504.
EXPONENT = 15
LEAST_EXPONENT = -126  # of the smallest normal float32
MOST_INT8 = 127  # of int8 rows, whose range is symmetric
# Values that share a scale. With a scale for a whole direction, rounding adds up over
# many updates: taught 400 images a class of CIFAR-100 one by one, with 54 directions a
# class, 67.6 % of others are right, and 68.6 % with blocks of 32.
BLOCK = 32
TINY = 2.0**LEAST_EXPONENT


class LastFeatures(NamedTuple):
    """The directions of a class cut to the last features, as they would be stored.

    Attributes:
        rows, scales, energies: as ``ClassDirections`` holds them of a class.
        energy_share: the part of the squared lengths that is left, 0 to 1.
    """

    rows: Tensor
    scales: Tensor
    energies: list[float]
    energy_share: float


class ClassDirections:
    """Principal directions of the scatter of each class, as many as the class needs.

    A class has at most ``per_class`` directions, and no more than its scatter has
    dimensions: at most ``n - 1`` for ``n`` images. Where ``total`` over all classes is
    exceeded, the classes with the most directions lose their weakest ones, one class
    after the other; of classes with equally many, the one with the weakest direction is
    first.

    Rows are float16 with a power of two for each class, which fits their largest value,
    so that features of any scale neither overflow nor vanish; or int8 with a scale for
    each 32 values, by which the largest of them is 127. They are replaced, never
    changed in place: copies share them.

    Args:
        n_classes: classes, without directions at first.
        length: ``D``, number of features.
        per_class: largest number of directions of a class.
        total: largest number of directions of all classes; ``None`` for no limit.
        eight_bits: store int8 instead of float16.

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
        per_class: int,
        total: int | None = None,
        eight_bits: bool = False,
    ):
        self.length = length
        self.per_class = per_class
        self.total = total
        self.dtype = torch.int8 if eight_bits else torch.float16
        self.rows: list[Tensor] = []
        self.scales: list[Tensor] = []
        # Squared lengths of the rows of each class as stored, weakest first.
        self._energies: list[list[float]] = []
        # What ``keep_features`` computed of the rows of each class, by the number of
        # features. Copies share it while their rows are the same, so that a learner
        # that tries a lesson in a copy does not compute it twice.
        self._last_features: list[dict[int, LastFeatures]] = []
        self.outside = torch.zeros(0, dtype=torch.float32)
        self.counts = torch.zeros(0, dtype=torch.int32)
        self.grow(n_classes)

    def __len__(self) -> int:
        """Return the number of directions of all classes."""
        return int(self.counts.sum())

    def __deepcopy__(self, memo: dict) -> "ClassDirections":
        copied = copy.copy(self)
        copied.rows = list(self.rows)
        copied.scales = list(self.scales)
        copied._energies = list(self._energies)
        copied._last_features = list(self._last_features)
        copied.outside = self.outside.clone()
        copied.counts = self.counts.clone()
        return copied

    @property
    def eight_bits(self) -> bool:
        """Whether rows are int8."""
        return self.dtype == torch.int8

    # Reading

    def of_class(self, label: int) -> Tensor:
        """Return ``B`` of a class, ``(k, D)`` float64."""
        return self.of_classes([label])

    def of_classes(self, labels: list[int]) -> Tensor:
        """Return ``B`` of several classes, one below the other: ``(sum of k, D)``.

        It is float64.
        """
        values = torch.cat([self.rows[label] for label in labels]).double()
        if self.eight_bits:
            scales = torch.cat([self.scales[label] for label in labels])
            return values.mul_(self._scale_of_values(scales))
        row_scales = []
        for label in labels:
            row_scales.append(self.scales[label].expand(len(self.rows[label])))
        return values.mul_(torch.cat(row_scales).double().unsqueeze(1))

    def _scale_of_values(self, scales: Tensor) -> Tensor:
        """Return the scale of each value of int8 rows, ``(k, D)`` float64.

        Args:
            scales: of the blocks of 32 values, ``(k, D / 32)`` bfloat16.
        """
        return scales.double().repeat_interleave(BLOCK, 1)[:, : self.length]

    # Changing

    def extend(self, label: int, rows: Tensor) -> None:
        """Update the principal directions of a class whose scatter grows by ``R^T R``.

        At most ``per_class`` directions are stored; the energy of the weaker ones is
        added to ``outside``.

        Args:
            label: the class.
            rows: ``R``, ``(n, D)`` float64, at least one row.
        """
        for batch in rows.split(MOST_ROWS):
            # With M the old directions above the new rows, and M M^T = V E V^T, the
            # principal directions of M^T M are the rows of V^T M, of squared lengths
            # E; eigh gives the weakest first.
            stacked = torch.cat([self.of_class(label), batch])
            energies, vectors = torch.linalg.eigh(stacked @ stacked.mT)
            n_stored = min(self.per_class, int(_not_rounding(energies).sum()))
            n_left_out = len(energies) - n_stored
            self.outside[label] += energies[:n_left_out].clamp_min(0).sum()
            self._store(label, vectors[:, n_left_out:].mT @ stacked)

    def _store(self, label: int, values: Tensor) -> None:
        """Replace the directions of a class by ``(k, D)`` float64 values."""
        if self.eight_bits:
            scales = self._block_scales(values)
            rows = values / self._scale_of_values(scales)
            rows = rows.round().clamp(-MOST_INT8, MOST_INT8)
        else:
            scales = self._power_of_two(values)
            rows = values / scales.double()
        self._replace_rows(label, rows.to(self.dtype), scales)
        self._measure_energies(label)

    def _block_scales(self, values: Tensor) -> Tensor:
        """Return the scale of each block of int8 rows, ``(k, D / 32)`` bfloat16."""
        padding = -self.length % BLOCK  # zeros that fill the last block
        blocks = functional.pad(values.abs(), (0, padding)).unflatten(1, (-1, BLOCK))
        return (blocks.amax(2) / MOST_INT8).clamp_min(TINY).bfloat16()

    def _power_of_two(self, values: Tensor) -> Tensor:
        """Return the scale of the float16 rows of a class, ``(1,)`` float32."""
        scale = 0.0  # of no rows
        if len(values):
            _, exponent = torch.frexp(values.abs().amax())
            scale = 2.0 ** max(int(exponent) - EXPONENT, LEAST_EXPONENT)
        return torch.full((1,), scale, dtype=torch.float32)

    def _replace_rows(self, label: int, rows: Tensor, scales: Tensor) -> None:
        """Replace rows and scales of a class, and its number of directions."""
        self.rows[label] = rows
        self.scales[label] = scales
        self._last_features[label] = {}
        self.counts[label] = len(rows)

    def _measure_energies(self, label: int) -> None:
        """Note the energies of the rows of a class as they are stored, rounded."""
        self._energies[label] = self.of_class(label).square().sum(1).tolist()

    def trim(self) -> None:
        """Drop directions until ``total`` holds; ``outside`` gets their energy."""
        if self.total is None or len(self) <= self.total:
            return
        for label, n_surplus in enumerate(self._surplus(self.total)):
            if n_surplus:
                self._drop_weakest(label, n_surplus)

    def _surplus(self, total: int) -> list[int]:
        """Return how many directions each class gives up, so that ``total`` are left.

        In each round, the classes with the most directions give up one each; in the
        last round, where fewer are to go, those whose next direction is the weakest.

        Args:
            total: directions of all classes that are left, at most as many as now.
        """
        sizes = self.counts.tolist()  # directions that each class still has
        surplus = [0] * len(sizes)
        n_too_many = len(self) - total  # of all classes together
        while n_too_many:
            largest_size = max(sizes)
            largest_classes = [
                label for label, size in enumerate(sizes) if size == largest_size
            ]
            # By the energy of the direction that each would give up next: a class
            # lists its directions from the weakest on.
            largest_classes.sort(
                key=lambda label: self._energies[label][surplus[label]]
            )
            giving_classes = largest_classes[:n_too_many]
            for label in giving_classes:
                sizes[label] -= 1
                surplus[label] += 1
            n_too_many -= len(giving_classes)
        return surplus

    def _drop_weakest(self, label: int, number: int) -> None:
        """Drop the weakest directions of a class; ``outside`` gets their energy."""
        self.outside[label] += sum(self._energies[label][:number])
        rows = self.rows[label][number:]
        scales = self.scales[label]
        if self.eight_bits:
            scales = scales[number:]
        # Clones free the memory of the rows that are dropped.
        self._replace_rows(label, rows.clone(), scales.clone())
        self._energies[label] = self._energies[label][number:]

    def grow(self, n_classes: int) -> None:
        """Add classes without directions, up to a larger number."""
        for _ in range(n_classes - len(self.rows)):
            rows, scales = self._empty(0)
            self.rows.append(rows)
            self.scales.append(scales)
            self._energies.append([])
            self._last_features.append({})
        self.outside = grown(self.outside, n_classes)
        self.counts = grown(self.counts, n_classes)

    def keep_features(self, count: int) -> None:
        """Drop all features but the last ``count``, where a budget gets small.

        ``outside`` shrinks by as much as the squared lengths of the directions do.
        """
        cut_classes = []
        for label in range(len(self.rows)):
            cut_classes.append(self._cached_last_features(label, count))
        self.length = count
        for label, last in enumerate(cut_classes):
            self.outside[label] *= last.energy_share
            self._replace_rows(label, last.rows, last.scales)
            self._energies[label] = last.energies

    def _cached_last_features(self, label: int, count: int) -> LastFeatures:
        """Return the directions of a class cut to the last ``count`` features.

        They are computed again only if the class changed.
        """
        of_class = self._last_features[label]
        if count not in of_class:
            of_class[count] = self._compute_last_features(label, count)
        return of_class[count]

    def _compute_last_features(self, label: int, count: int) -> LastFeatures:
        """Cut the directions of a class to the last ``count`` features.

        They are made principal directions again, and rounded as they would be stored.

        Args:
            label: the class.
            count: number of features that stay.

        Returns:
            Rows, scales and energies (squared lengths) of the cut directions, and the
            share of the energy of all features that they have.
        """
        cut_rows = self.of_class(label)[:, -count:]  # (k, count)
        energy = sum(self._energies[label])  # of all features
        if energy:
            energy_share = float(cut_rows.square().sum()) / energy
        else:  # of a class without directions, as if its scatter were spread evenly
            energy_share = count / self.length
        # Cut directions are not orthogonal, so principal ones take their place.
        cut_class = ClassDirections(
            n_classes=1,
            length=count,
            per_class=self.per_class,
            eight_bits=self.eight_bits,
        )
        cut_class._store(0, _principal(cut_rows))
        return LastFeatures(
            rows=cut_class.rows[0],
            scales=cut_class.scales[0],
            energies=cut_class._energies[0],
            energy_share=energy_share,
        )

    def forget(self, label: int) -> None:
        """Remove all that is held of a class."""
        self._store(label, torch.zeros(0, self.length, dtype=torch.float64))
        self.outside[label] = 0

    # Bytes, saving and loading

    def _empty(self, count: int) -> tuple[Tensor, Tensor]:
        """Return rows and scales of a class with ``count`` directions of zeros."""
        rows = torch.zeros(count, self.length, dtype=self.dtype)
        if self.eight_bits:
            blocks = math.ceil(self.length / BLOCK)
            return rows, torch.zeros(count, blocks, dtype=torch.bfloat16)
        return rows, torch.zeros(1, dtype=torch.float32)

    @classmethod
    def bytes_of_one(cls, length: int, eight_bits: bool) -> int:
        """Return the bytes of a direction of so many features, with its scales."""
        with torch.device("meta"):
            empty = cls(0, length, 1, eight_bits=eight_bits)
            return tensor_bytes(empty._empty(1)) - tensor_bytes(empty._empty(0))

    def tensors(self) -> list[Tensor]:
        """Return the tensors that hold the directions."""
        return [*self.rows, *self.scales, self.counts, self.outside]

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the directions by name; those of all classes are in one tensor."""
        rows, scales = self._empty(0)
        return {
            "directions": torch.cat([rows, *self.rows]),
            "direction_counts": self.counts,
            "direction_scales": torch.cat([scales[:0], *self.scales]),
            "outside": self.outside,
        }

    def check_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Raise ``StateError`` unless a saved state fits these directions.

        It has to be of as many classes and features, and of no more directions than a
        class may have.

        Args:
            tensors: of the state, by the names of ``named_tensors``.
        """
        rows = tensors["directions"]
        counts = tensors["direction_counts"]
        if not self._shapes_fit(tensors) or not self._counts_fit(rows, counts):
            raise StateError(
                f"the state has directions of the shape {tuple(rows.shape)} for counts "
                f"{counts.tolist()[:10]}; they do not belong to {len(self.rows)} "
                f"classes of at most {self.per_class} directions of length "
                f"{self.length}"
            )
        check_not_negative("direction_scales", tensors["direction_scales"])
        check_not_negative("outside", tensors["outside"])

    def _shapes_fit(self, tensors: dict[str, Tensor]) -> bool:
        """Whether tensors of a saved state have shapes and dtypes of these directions.

        Stored values are rounded, and times their scale they are the directions. The
        scales are one of each class or, of int8 values, one of each row and block of 32
        features. The shape of the rows themselves follows from the counts, so
        ``_counts_fit`` checks it.

        Args:
            tensors: by the names of ``named_tensors``: ``directions``, the rows of all
                classes one class below the other; ``direction_scales``;
                ``direction_counts``, the number of rows of each class; and ``outside``,
                the part of each class's scatter that its directions leave out.
        """
        rows = tensors["directions"]
        scales = tensors["direction_scales"]
        n_classes = len(self.rows)
        empty_rows, empty_scales = self._empty(0)  # for their dtypes
        scales_shape: tuple[int, ...] = (n_classes,)
        if self.eight_bits:
            _, n_blocks = empty_scales.shape
            scales_shape = (len(rows), n_blocks)
        return (
            tensors["direction_counts"].shape == (n_classes,)
            and tensors["outside"].shape == (n_classes,)
            and scales.shape == scales_shape
            and scales.dtype == empty_scales.dtype
            and rows.dtype == empty_rows.dtype
        )

    def _counts_fit(self, rows: Tensor, counts: Tensor) -> bool:
        """Whether the counts of a state are possible and add up to its rows."""
        if ((counts < 0) | (counts > self.per_class)).any():
            return False
        return rows.shape == (int(counts.sum()), self.length)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Replace the directions of all classes by those of a saved state.

        Args:
            tensors: by the names of ``named_tensors``, checked by ``check_tensors``;
                rows of all classes are one below the other, and so are their scales.
        """
        self.counts.copy_(tensors["direction_counts"])
        self.outside.copy_(tensors["outside"])
        n_directions = self.counts.tolist()  # of each class
        n_scales = [1] * len(n_directions)  # a float16 class has one
        if self.eight_bits:  # where each direction has its own
            n_scales = n_directions
        rows_of_classes = tensors["directions"].split(n_directions)
        scales_of_classes = tensors["direction_scales"].split(n_scales)
        # Copies: a view would keep the rows of all classes in memory.
        self.rows = [rows.clone() for rows in rows_of_classes]
        self.scales = [scales.clone() for scales in scales_of_classes]
        self._last_features = [{} for _ in n_directions]
        for label in range(len(n_directions)):
            self._measure_energies(label)


def _not_rounding(energies: Tensor) -> Tensor:
    """Return a mask of ascending energies that are more than rounding."""
    return energies > NO_ENERGY * energies[-1].clamp_min(0)


def _principal(rows: Tensor) -> Tensor:
    """Return the principal directions of rows, weakest first, without rounding."""
    if not len(rows):
        return rows
    energies, vectors = torch.linalg.eigh(rows @ rows.mT)
    return vectors[:, _not_rounding(energies)].mT @ rows
