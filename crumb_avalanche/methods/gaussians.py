"""Means and covariances of classes, from which several classifiers are computed."""

import copy
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from crumb_avalanche.methods.closed_form import ClosedForm, Form, copy_tensors
from crumb_avalanche.methods.directions import ClassDirections
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.system.tensor_file import tensor_bytes

# Share of the mean square below which a variance is one of rounding.
EQUAL = 1e-10
# Directions of a class, where the number of classes is not known; more do not help.
MOST_DIRECTIONS = 64
BLOCK = 64  # rows of a strip of ``PackedScatter``
# Of an axis of the discriminant space, in units of the longest: shorter ones are
# rounding.
LEAST_LENGTH = 1e-5
SMALLEST_SHARE = 1e-30  # whose logarithm is finite in float32


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
            products = rows[:, start : start + BLOCK].mT @ rows[:, : strip.shape[1]]
            strips.append(strip + products.float())
        self.strips = strips

    def keep(self, count: int) -> None:
        """Keep the last columns and rows."""
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


class StoredScatters(NamedTuple):
    """What directions hold of the scatters of ``C`` classes.

    Attributes:
        rows: ``B`` of the classes, one below the other, ``(sum of k, D)`` float64;
            ``B^T B`` of a class is the part of its scatter that is stored.
        counts: ``(C,)`` int32, the numbers ``k`` of rows of each class.
        outside: ``(C,)`` float64, the parts of the traces that the rows leave out.
    """

    rows: Tensor
    counts: Tensor
    outside: Tensor


class ClassGaussians(ClosedForm):
    """Base of classifiers by class means, class covariances and a common covariance.

    A class covariance is stored as principal directions. It is exact, up to rounding,
    for a class of at most one image more than ``directions``, and for all classes where
    ``directions`` is the number of features. Without a common scatter, the common
    covariance is the sum over the classes. With a common scatter and ``directions=0``,
    classes have no covariance of their own, and no bytes for one. ``merge`` and
    ``forget`` do what ``RegularizedDiscriminant`` says of its own.

    Attributes:
        classes: means and counts.
        directions: the directions of all classes, or ``None``.
        scatter: the common scatter, or ``None``.
        eight_bits: whether directions are int8 instead of float16.
    """

    classes: ClassMeans
    directions: ClassDirections | None
    scatter: PackedScatter | None
    eight_bits = False

    budgeted = True
    _free = frozenset({"n_classes", "total_directions"})

    def _allocate(
        self,
        n_classes: int,
        length: int,
        directions: int = 0,
        whole: bool = False,
        total_directions: int | None = None,
    ) -> None:
        """Allocate the statistics.

        Args:
            n_classes: number of classes.
            length: ``D``, number of features.
            directions: largest number of directions of a class.
            whole: whether there is a common scatter.
            total_directions: largest number of directions of all classes, or ``None``.
        """
        self.classes = ClassMeans(n_classes, length)
        self.directions = None
        self.scatter = None
        if whole:
            self.scatter = PackedScatter(length)
        if directions or not whole:
            self.directions = ClassDirections(
                n_classes,
                length,
                per_class=directions,
                total=total_directions,
                eight_bits=self.eight_bits,
            )

    # What a budget buys

    @classmethod
    def item_bytes(cls, length: int, settings: Mapping[str, Any]) -> int:
        eight_bits = settings.get("eight_bits", cls.eight_bits)
        return ClassDirections.bytes_of_one(length, eight_bits)

    @staticmethod
    def directions_of_each(n_classes: int, items: int) -> int:
        """Return the directions of each class that a budget buys.

        Raises:
            ValueError: it buys none.
        """
        if items < n_classes:
            raise ValueError(
                f"the budget buys {items} principal directions, but the stream has "
                f"{n_classes} classes, which need at least one each; raise the budget "
                "(mem_size)"
            )
        return items // n_classes

    @classmethod
    def bought(
        cls, n_classes: int, length: int, items: int, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        of_each = cls.directions_of_each(n_classes, items)
        return {"directions": min(of_each, length)}

    @classmethod
    def for_budget(cls: type[Form], length: int, budget: int, head_length: int) -> Form:
        return cls(0, length, directions=MOST_DIRECTIONS)

    @property
    def allocated_classes(self) -> int:
        means = self.classes.means
        row_bytes = means.stride(0) * means.element_size()
        return means.untyped_storage().nbytes() // row_bytes

    def least_bytes(self, classes: int) -> int:
        """Return the bytes of so many classes with a direction each."""
        without_directions = super().least_bytes(classes)
        if self.directions is None:
            return without_directions
        return without_directions + classes * self._direction_bytes()

    def _direction_bytes(self) -> int:
        return self.item_bytes(self.settings["length"], self.settings)

    def share(self, classes: int, budget: int) -> str:
        if self.directions is None:
            return ""
        room = budget - self._bytes_without_images(classes)
        total = room // self._direction_bytes()
        present = len(self.directions)
        self.limit(total)
        if total >= present:
            return ""
        return (
            f"{present - total} of {present} directions of classes are given up, the "
            "weakest first"
        )

    def limit(self, total_directions: int | None) -> None:
        """Set the largest number of directions of all classes, now and in updates.

        The classes with the most directions lose their weakest ones, which count as
        spread in no particular direction.

        Args:
            total_directions: the number; ``None`` is no limit.

        Raises:
            ValueError: the number is negative.
        """
        if total_directions is not None and total_directions < 0:
            raise ValueError(
                f"total_directions is {total_directions}; give at least 0, or None for "
                "no limit"
            )
        self.settings["total_directions"] = total_directions
        if self.directions is not None:
            self.directions.total = total_directions
            self.directions.trim()
        self._solution = None

    # Statistics

    def transformed(self, features: Tensor) -> Tensor:
        """Compute the values whose statistics are stored, of ``(B, D)`` features."""
        return features

    def stored_scatters(self, seen: Tensor) -> StoredScatters:
        """Return what the directions hold of the classes of a mask."""
        if self.directions is None:
            n_classes = int(seen.sum())
            return StoredScatters(
                rows=torch.zeros(0, self.means.shape[1], dtype=torch.float64),
                counts=torch.zeros(n_classes, dtype=torch.int32),
                outside=torch.zeros(n_classes, dtype=torch.float64),
            )
        labels = seen.nonzero().flatten().tolist()
        return StoredScatters(
            rows=self.directions.of_classes(labels),
            counts=self.directions.counts[seen],
            outside=self.directions.outside[seen].double(),
        )

    def common_covariance(self, seen: Tensor, scatters: StoredScatters) -> Tensor:
        """Compute the common covariance within classes, weighted by images.

        Returns:
            ``(D, D)`` float64: the common scatter's, or from what classes hold.
        """
        if self.scatter is None:
            scatter = scatters.rows.mT @ scatters.rows
            scatter.diagonal().add_(scatters.outside.sum() / len(scatter))
        else:
            scatter = self.scatter.whole()
        return scatter.div_(float(self.image_counts[seen].sum()))

    def mean_variance(self, covariance: Tensor, seen: Tensor) -> float:
        """Return the mean of a covariance's diagonal.

        It is 1 for a single image of each class or equal ones.
        """
        variance = float(covariance.diagonal().mean())
        mean_square = float(self.means[seen].double().square().mean())
        if variance > EQUAL * mean_square:
            return variance
        return 1.0

    @property
    def image_counts(self):
        return self.classes.counts

    @property
    def means(self) -> Tensor:
        """Means of the classes, ``(n_classes, D)`` float32."""
        return self.classes.means

    @property
    def remains_after_forget(self):
        if self.scatter is None:
            return ""
        return "the share of the removed images in the common scatter"

    def _update(self, features, labels):
        increments = self.classes.absorb(self.transformed(features), labels)
        for label, rows in increments.items():
            if self.scatter is not None:
                self.scatter.add(rows)
            if self.directions is not None:
                self.directions.extend(label, rows)
        if self.directions is not None:
            self.directions.trim()

    def _merge(self, other, labels):
        for merged in self.classes.absorb_means(other.classes, labels):
            if self.scatter is not None:
                self.scatter.add(merged.between)
            if self.directions is not None:
                rows = other.directions.of_class(merged.theirs)
                self.directions.extend(merged.mine, torch.cat([rows, merged.between]))
                outside = other.directions.outside[merged.theirs]
                self.directions.outside[merged.mine] += outside
        if self.scatter is not None:
            self.scatter.merge(other.scatter)
        if self.directions is not None:
            self.directions.trim()

    def _grow(self, n_classes):
        self.classes.grow(n_classes)
        if self.directions is not None:
            self.directions.grow(n_classes)

    def _forget(self, label):
        before = int(self.image_counts.sum())
        self.classes.forget(label)
        if self.directions is not None:
            self.directions.forget(label)
        if self.scatter is not None:
            self.scatter.scale(int(self.image_counts.sum()) / before)

    # Saving and loading

    def _statistics(self) -> list[ClassMeans | ClassDirections | PackedScatter]:
        statistics = (self.classes, self.directions, self.scatter)
        return [held for held in statistics if held is not None]

    def named_tensors(self):
        named = {}
        for statistics in self._statistics():
            named.update(statistics.named_tensors())
        return named

    def tensors(self):
        tensors = list(self.classes.tensors())
        if self.directions is not None:
            tensors += self.directions.tensors()
        if self.scatter is not None:
            tensors += self.scatter.strips
        return tensors

    def _check_values(self, tensors):
        self.classes._check_values(tensors)

    def _load(self, tensors):
        if self.directions is not None:
            self.directions.check(tensors)
        held = self.classes.named_tensors()
        scatter = None
        if self.scatter is not None:
            # New strips, because copies of this instance share the present ones.
            scatter = PackedScatter(self.scatter.length)
            held.update(scatter.named_tensors())
        copy_tensors(tensors, held)
        self.scatter = scatter
        if self.directions is not None:
            self.directions.load(tensors)


class Span(NamedTuple):
    """The space that the class means span, where the common covariance is 1.

    It is the shrunk common covariance. ``(x - centre) projection`` maps features to the
    space.

    Attributes:
        projection: ``(D, r)`` float64.
        means: ``(C, r)``, the class means in the space.
        lengths: ``(r,)``, deviations of the means along its axes, times the root of
            ``C``.
    """

    projection: Tensor
    means: Tensor
    lengths: Tensor


def span_of(means: Tensor, white: Tensor, root: Tensor) -> Span:
    """Find the space that class means span.

    Args:
        means: ``(C, D)`` float64, minus their mean.
        white: ``(D, C)``, the same where the common covariance is the unit matrix.
        root: ``(D, D)`` Cholesky root of the common covariance.
    """
    axes, lengths, _ = torch.linalg.svd(white, full_matrices=False)
    axes = axes[:, : len(means) - 1]
    lengths_of_axes = lengths[: axes.shape[1]]
    axes = axes[:, lengths_of_axes > LEAST_LENGTH * lengths[0]]
    projection = torch.linalg.solve_triangular(root.mT, axes, upper=True)
    return Span(
        projection=projection,
        means=means @ projection,
        lengths=lengths[: axes.shape[1]],
    )


class Group(NamedTuple):
    """Gaussians ``a_c I + U_c^T U_c`` of classes with equally many directions.

    Woodbury: the inverse is ``(I - W^T W) / a`` with ``W = R^-1 U`` and ``R R^T = a I +
    U U^T``, a matrix of ``k x k``.

    Attributes:
        members: ``(C,)`` int64, columns of the classes in the scores.
        rows: ``W``, ``(C k, r)``.
        offsets: ``W m``, ``(C, k)``.
        isotropic: ``a``, ``(C,)``.
        log_determinants: of the covariances, ``(C,)``.
    """

    members: Tensor
    rows: Tensor
    offsets: Tensor
    isotropic: Tensor
    log_determinants: Tensor

    @classmethod
    def solve(
        cls, members: Tensor, spreads: Tensor, means: Tensor, isotropic: Tensor
    ) -> "Group":
        """Solve for some classes.

        Args:
            members: see the class.
            spreads: ``U``, ``(C, k, r)`` float64.
            means: ``m``, ``(C, r)``.
            isotropic: see the class.
        """
        inner = spreads @ spreads.mT
        inner.diagonal(dim1=1, dim2=2).add_(isotropic[:, None])
        root = torch.linalg.cholesky(inner)
        rows = torch.linalg.solve_triangular(root, spreads, upper=False)
        logs = 2 * root.diagonal(dim1=1, dim2=2).log().sum(1)
        logs += (spreads.shape[2] - spreads.shape[1]) * isotropic.log()
        return cls(
            members=members,
            rows=rows.flatten(0, 1),
            offsets=(rows @ means.unsqueeze(2)).squeeze(2),
            isotropic=isotropic,
            log_determinants=logs,
        )

    def scores(self, points: Tensor, distances: Tensor) -> Tensor:
        """Compute log-densities up to a constant, ``(B, members)``.

        Args:
            points: ``(B, r)``.
            distances: ``(B, all classes)``, squared, to the class means.
        """
        lengths = distances.index_select(1, self.members)
        if self.offsets.shape[1]:
            along = (points @ self.rows.mT).reshape(-1, *self.offsets.shape)
            along = along - self.offsets
            lengths = lengths - along.square().sum(2)
        return -(lengths / self.isotropic + self.log_determinants) / 2


def grouped(
    spreads: Tensor, counts: Tensor, means: Tensor, isotropic: Tensor
) -> list[Group]:
    """Solve for all classes, those with equally many directions together.

    Args:
        spreads: ``U`` of the classes, one below the other, ``(sum of k, r)``.
        counts: ``k`` of each class, ``(C,)``.
        means: ``(C, r)``.
        isotropic: ``(C,)``; see ``Group``.
    """
    of_classes = spreads.split(counts.tolist())
    groups = []
    for count in counts.unique():
        members = (counts == count).nonzero().flatten()
        stacked = torch.stack([of_classes[index] for index in members.tolist()])
        groups.append(Group.solve(members, stacked, means[members], isotropic[members]))
    return groups


@dataclass
class Solution:
    """What ``BlendedGaussians`` answer by, where the common covariance is 1.

    It is the shrunk common covariance.

    Attributes:
        centre: ``(D,)``, mean of the class means.
        projection: ``(D, r)``, from features minus ``centre`` to the space; ``None``
            for that of all features.
        root: ``(D, D)`` Cholesky root of the shrunk common covariance.
        means: ``(C, r)``, or ``(C, D)``.
        groups: the classes.
        order: ``(C,)``, the column of each class among those of the groups.
        span: the space of the class means.
        log_priors: ``(C,)``, added to the densities; or 0.
        part: the solution of the last features alone.
        part_share: share of its answer.
        temperature: of both answers.
    """

    centre: Tensor
    projection: Tensor | None
    root: Tensor
    means: Tensor
    groups: list[Group]
    order: Tensor
    span: Span
    log_priors: Tensor | float = 0.0
    part: "Solution | None" = None
    part_share: float = 0.0
    temperature: float = 1.0

    def white(self, rows: Tensor) -> Tensor:
        """Map ``(n, D)`` differences to where the common covariance is 1."""
        return torch.linalg.solve_triangular(self.root, rows.mT, upper=False).mT

    def scores(self, features: Tensor, white: Tensor | None = None) -> Tensor:
        """Compute log-densities up to a constant, ``(B, C)`` float64.

        With ``part``, the scores of both answers together.

        Args:
            features: ``(B, D)`` float64.
            white: what the method of this name returns of ``features - centre``, where
                it is known already.
        """
        scores = self._log_densities(features - self.centre, white)
        # The probability of a single class is 1.
        if self.part is None or len(self.means) == 1:
            return scores
        last_features = features[:, -len(self.part.centre) :]
        return self._mixed(scores, self.part.scores(last_features))

    def _log_densities(self, rows: Tensor, white: Tensor | None) -> Tensor:
        if self.projection is not None:
            points = rows @ self.projection
        elif white is None:
            points = self.white(rows)
        else:
            points = white
        distances = (
            points.square().sum(1, keepdim=True)
            - 2 * points @ self.means.mT
            + self.means.square().sum(1)
        )
        of_groups = [group.scores(points, distances) for group in self.groups]
        scores = torch.cat(of_groups, 1).index_select(1, self.order)
        return scores + self.log_priors

    def _mixed(self, scores: Tensor, part_scores: Tensor) -> Tensor:
        """Mix the probabilities of two answers, as scores."""
        answers = torch.stack([scores, part_scores]) / self.temperature
        shares = scores.new_tensor([1 - self.part_share, self.part_share])
        log_shares = shares.clamp_min(SMALLEST_SHARE).log()
        mixed = answers.log_softmax(2) + log_shares[:, None, None]
        return self.temperature * mixed.logsumexp(0)


class BlendedGaussians(ClassGaussians):
    """Base of classifiers by Gaussians whose covariances blend two.

    The covariances are ``b_c S + a_c C_c``, where ``S`` is the common one after
    shrinkage, and ``C_c`` what the directions hold of that of a class.

    Attributes:
        span: compare classes in the space that their means span where ``S`` is the unit
            matrix.
    """

    span = False

    @abstractmethod
    def _shrink(self, common: Tensor, seen: Tensor) -> None:
        """Shrink the common covariance of the classes of a mask, in place."""

    @abstractmethod
    def _blend(self, counts: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``a_c`` and ``b_c``, ``(C,)`` each.

        Args:
            counts: ``(C,)`` float64, images of the classes.
            left_out: ``(C,)``, shares of their traces that directions leave out.
        """

    def _solve(self, seen) -> Solution:
        means = self.means[seen].double()
        centre = means.mean(0)
        scatters = self.stored_scatters(seen)
        common = self.common_covariance(seen, scatters)
        self._shrink(common, seen)
        root = cholesky_in_place(common)
        white = torch.linalg.solve_triangular(root, (means - centre).mT, upper=False)
        span = span_of(means - centre, white, root)
        if self.span:
            projection = span.projection
            rows = scatters.rows @ projection
            points = span.means
        else:
            projection = None
            rows = torch.linalg.solve_triangular(root, scatters.rows.mT, upper=False).mT
            points = white.mT
        groups = self._groups(seen, scatters, rows, points)
        return Solution(
            centre=centre,
            projection=projection,
            root=root,
            means=points,
            groups=groups,
            order=torch.cat([group.members for group in groups]).argsort(),
            span=span,
        )

    def _groups(
        self, seen: Tensor, scatters: StoredScatters, rows: Tensor, points: Tensor
    ) -> list[Group]:
        """Solve for all classes, from rows and means in the space of the solution."""
        counts = self.image_counts[seen].double()
        owners = torch.arange(len(points)).repeat_interleave(scatters.counts)
        energies = scatters.rows.square().sum(1)
        stored = torch.zeros_like(scatters.outside).index_add_(0, owners, energies)
        traces = scatters.outside + stored
        left_out = scatters.outside / traces.clamp_min(1e-300)
        of_class, isotropic = self._blend(counts, left_out)
        spreads = (of_class / counts).sqrt()[owners, None] * rows
        return grouped(spreads, scatters.counts, points, isotropic)

    def _answers(self, features, solution):
        return solution.scores(self.transformed(features))
