"""Means and covariances of classes, from which several classifiers are computed."""

import copy
import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.methods.closed_form import ClosedForm, Form, copy_tensors
from crumb_avalanche.methods.directions import ClassDirections
from crumb_avalanche.methods.ncm import ClassMeans

EQUAL = 1e-10  # share of the mean square below which a variance is one of rounding
MOST_DIRECTIONS = 64  # of a class, where the number of classes is not known; more do not help
BLOCK = 64


class PackedScatter:
    """Running sum ``X^T X`` of batches of rows of ``length`` columns, stored as strips of its lower half.

    Takes ``2 * D * (D + 64)`` bytes instead of ``4 * D**2``. Strip ``i`` of ``strips`` holds rows ``64 i`` to
    ``64 (i + 1)`` up to the diagonal block, float32; strips are replaced, never changed in place: copies share them.
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

    def keep(self, kept: int) -> None:
        """Keep the last columns and rows."""
        matrix = self.whole()[-kept:, -kept:]
        self.length = kept
        self.strips = [matrix[start : start + BLOCK, : start + BLOCK].float() for start in range(0, kept, BLOCK)]

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


class ClassGaussians(ClosedForm):
    """Base class of classifiers by class means, class covariances and a common covariance.

    A class covariance is stored as principal directions. It is exact, up to rounding, for a class of at most one image
    more than ``directions``, and for all classes where ``directions`` is the number of features. Without a common
    scatter, the common covariance is the sum over the classes. With a common scatter and ``directions=0``, classes have
    no covariance of their own, and no bytes for one. ``merge`` and ``forget`` do what ``RegularizedDiscriminant`` says
    of its own.

    Attributes:
        classes: means and counts.
        directions: the directions of all classes, or ``None``.
        scatter: the common scatter, or ``None``.
    """

    classes: ClassMeans
    directions: ClassDirections | None
    scatter: PackedScatter | None
    eight_bits = False  # whether directions are int8 instead of float16

    budgeted = True
    _free = frozenset({"n_classes", "total_directions"})

    @classmethod
    def item_bytes(cls, length: int, settings: Mapping[str, Any]) -> int:
        return ClassDirections.bytes_of_one(length, settings.get("eight_bits", cls.eight_bits))

    @staticmethod
    def each(n_classes: int, items: int) -> int:
        """Return the directions of each class that a budget buys; raise ``ValueError`` if it buys none."""
        if items < n_classes:
            raise ValueError(
                f"the budget buys {items} principal directions, but the stream has {n_classes} classes, which need at "
                "least one each; raise the budget (mem_size)"
            )
        return items // n_classes

    @classmethod
    def bought(cls, n_classes: int, length: int, items: int, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {"directions": min(cls.each(n_classes, items), length)}

    @classmethod
    def for_budget(cls: type[Form], length: int, budget: int, kept: int) -> Form:
        return cls(0, length, directions=MOST_DIRECTIONS)

    @property
    def places(self) -> int:
        means = self.classes.means
        return means.untyped_storage().nbytes() // means.stride(0) // means.element_size()

    def class_bytes(self, label: int) -> int:
        held = 0 if self.directions is None else int(self.directions.counts[label])
        return super().class_bytes(label) + held * self._direction_bytes()

    def least_bytes(self, classes: int) -> int:
        """Return the bytes of so many classes with a direction each."""
        return super().least_bytes(classes) + (0 if self.directions is None else classes * self._direction_bytes())

    def _direction_bytes(self) -> int:
        return self.item_bytes(self.settings["length"], self.settings)

    def share(self, classes: int, budget: int) -> str:
        if self.directions is None:
            return ""
        total = (budget - self._bytes_without_images(classes)) // self._direction_bytes()
        held = len(self.directions)
        self.limit(total)
        return f"{held - total} of {held} directions of classes are given up, the weakest first" if total < held else ""

    def limit(self, total_directions: int | None) -> None:
        """Set the largest number of directions of all classes, now and in later updates; ``None`` is no limit.

        The classes with the most directions lose their weakest ones, which count as spread in no particular direction.

        Raises:
            ValueError: the number is negative.
        """
        if total_directions is not None and total_directions < 0:
            raise ValueError(f"total_directions is {total_directions}; give at least 0, or None for no limit")
        self.settings["total_directions"] = total_directions
        if self.directions is not None:
            self.directions.total = total_directions
            self.directions.trim()
        self._solution = None

    def _allocate(
        self, n_classes: int, length: int, directions: int = 0, whole: bool = False, total_directions: int | None = None
    ) -> None:
        self.classes = ClassMeans(n_classes, length)
        self.directions, self.scatter = None, PackedScatter(length) if whole else None
        if directions or not whole:
            self.directions = ClassDirections(n_classes, length, directions, total_directions, self.eight_bits)

    def transformed(self, features: Tensor) -> Tensor:
        """Compute the values whose statistics are stored, from ``(B, D)`` float features."""
        return features

    def covariances(self, seen: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Return the covariances of the classes of a mask, all float64.

        Returns:
            The common covariance within classes, ``(D, D)``, weighted by images. Rows ``U`` of each class, ``(k, D)``;
            ``U^T U`` is the part of its covariance that the directions hold. The parts of the traces that these leave
            out, ``(classes,)``.
        """
        counts = self.classes.counts[seen].double()
        if self.directions is None:
            none = torch.zeros(0, self.classes.means.shape[1], dtype=torch.float64)
            rows, outside = [none] * len(counts), torch.zeros_like(counts)
        else:
            rows = [self.directions.of_class(label) for label in seen.nonzero().flatten().tolist()]
            outside = self.directions.outside[seen].double()
        if self.scatter is None:
            together = torch.cat(rows)
            common = together.mT @ together
            common.diagonal().add_(outside.sum() / len(common))
        else:
            common = self.scatter.whole()
        rows = [its / count**0.5 for its, count in zip(rows, counts.tolist())]
        return common / counts.sum(), rows, outside / counts

    def mean_variance(self, covariance: Tensor, seen: Tensor) -> float:
        """Return the mean of a covariance's diagonal, or 1 for a single image of each class or equal ones."""
        variance, size = float(covariance.diagonal().mean()), float(self.classes.means[seen].double().square().mean())
        return variance if variance > EQUAL * size else 1.0

    @property
    def image_counts(self):
        return self.classes.counts

    @property
    def remains_after_forget(self):
        return "" if self.scatter is None else "the share of the removed images in the common scatter"

    def _update(self, features, labels):
        for label, rows in self.classes.absorb(self.transformed(features), labels).items():
            if self.scatter is not None:
                self.scatter.add(rows)
            if self.directions is not None:
                self.directions.extend(label, rows)
        if self.directions is not None:
            self.directions.trim()

    def _parts(self) -> list[ClassMeans | ClassDirections | PackedScatter]:
        return [part for part in (self.classes, self.directions, self.scatter) if part is not None]

    def tensors(self):
        strips = [] if self.scatter is None else self.scatter.strips
        return [*self.classes.tensors(), *([] if self.directions is None else self.directions.tensors()), *strips]

    def named_tensors(self):
        return {name: tensor for part in self._parts() for name, tensor in part.named_tensors().items()}

    def _load(self, tensors):
        if self.directions is not None:
            self.directions.check(tensors)
        scatter = None if self.scatter is None else PackedScatter(self.scatter.length)  # copies share the strips
        copy_tensors(tensors, {**self.classes.named_tensors(), **(scatter.named_tensors() if scatter else {})})
        self.scatter = scatter
        if self.directions is not None:
            self.directions.load(tensors)

    def _merge(self, other, labels):
        for theirs, mine, between in self.classes.absorb_means(other.classes, labels):
            if self.scatter is not None:
                self.scatter.add(between)
            if self.directions is not None:
                self.directions.extend(mine, torch.cat([other.directions.of_class(theirs), between]))
                self.directions.outside[mine] += other.directions.outside[theirs]
        if self.scatter is not None:
            self.scatter.merge(other.scatter)
        if self.directions is not None:
            self.directions.trim()

    def _grow(self, n_classes):
        self.classes.grow(n_classes)
        if self.directions is not None:
            self.directions.grow(n_classes)

    def _forget(self, label):
        before = int(self.classes.counts.sum())
        self.classes.forget(label)
        if self.directions is not None:
            self.directions.forget(label)
        if self.scatter is not None:
            self.scatter.scale(int(self.classes.counts.sum()) / before)


class LowRankCovariance:
    """Squared Mahalanobis distances for the covariance ``a I + U^T J U``, with matrices of ``k`` rows only.

    Woodbury: ``(a I + U^T J U)^-1 = (I - U^T (a J + U U^T)^-1 U) / a``.

    Args:
        rows: ``U``, ``(k, D)`` float64.
        round_part: ``a``, above 0.
        signs: diagonal of ``J``, 1 or -1, ``(k,)``; default 1.

    Attributes:
        log_determinant: logarithm of the determinant of the covariance, for ``J = I``.
    """

    def __init__(self, rows: Tensor, round_part: float, signs: Tensor | None = None):
        self.rows, self.round_part = rows, round_part
        inner = rows @ rows.mT
        inner.diagonal().add_(round_part if signs is None else round_part * signs)
        self.inverse = torch.linalg.inv(inner)
        logs = torch.linalg.slogdet(inner).logabsdet
        self.log_determinant = float(logs) + (rows.shape[1] - len(rows)) * math.log(round_part)

    def distances(self, rest: Tensor) -> Tensor:
        """Compute ``x^T C^-1 x`` for each of ``(B, D)`` float64 rows ``x``; ``(B,)``."""
        along = rest @ self.rows.mT
        return (rest.square().sum(1) - (along @ self.inverse * along).sum(1)) / self.round_part


class BlendedGaussians(ClassGaussians):
    """Base class of classifiers by log-densities of Gaussians with the covariances ``a C_c + b S + r v I``.

    ``C_c`` is the covariance of a class, ``S`` the common one within classes, and ``v`` the mean variance.
    """

    @abstractmethod
    def _weights(self) -> tuple[float, float, float]:
        """Return ``a``, ``b`` above 0, and ``r`` above 0."""

    def _log_priors(self, counts):
        """Return the logarithms of the classes' prior probabilities."""
        return torch.zeros_like(counts)

    def _rest(self, outside, rows, own, share):
        """Return what the directions of a class leave out of its covariance, as a share of the common part."""
        return 0.0

    def _solve(self, seen):
        own, share, ridge = self._weights()
        common, rows, outside = self.covariances(seen)
        variance = self.mean_variance(common, seen)
        common *= share
        common.diagonal().add_(ridge * variance)
        root = torch.linalg.cholesky(common)
        means = torch.linalg.solve_triangular(root, self.classes.means[seen].double().mT, upper=False).mT
        # Where the common part is the unit matrix, the rows of a class are U root^-T.
        covariances = [
            LowRankCovariance(
                own**0.5 * torch.linalg.solve_triangular(root, its.mT, upper=False).mT,
                1 + self._rest(float(rest), its, own, share),
            )
            for its, rest in zip(rows, outside)
        ]
        return root, means, covariances, self._log_priors(self.classes.counts[seen].double())

    def _answers(self, features, solution):
        root, means, covariances, log_priors = solution
        points = torch.linalg.solve_triangular(root, self.transformed(features).mT, upper=False).mT
        scores = [
            -(covariance.distances(points - mean) + covariance.log_determinant) / 2
            for mean, covariance in zip(means, covariances)
        ]
        return torch.stack(scores, 1) + log_priors
