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

EQUAL = 1e-10  # share of the mean square below which a variance is one of rounding
MOST_DIRECTIONS = (
    64  # of a class, where the number of classes is not known; more do not help
)
BLOCK = 64
# of an axis of the discriminant space, in units of the longest: shorter ones are
# rounding
LEAST_LENGTH = 1e-5
SMALLEST_SHARE = 1e-30  # whose logarithm is finite in float32


class PackedScatter:
    """Running sum ``X^T X`` of batches of rows of ``length`` columns, stored as strips of its lower half.

    Takes ``2 * D * (D + 64)`` bytes instead of ``4 * D**2``. Strip ``i`` of ``strips``
    holds rows ``64 i`` to ``64 (i + 1)`` up to the diagonal block, float32; strips are
    replaced, never changed in place: copies share them.
    """

    def __init__(self, length: int):
        self.length = length
        self.strips = [
            torch.zeros(min(BLOCK, length - start), min(start + BLOCK, length))
            for start in range(0, length, BLOCK)
        ]

    def add(self, rows: Tensor) -> None:
        """Add ``(n, D)`` rows."""
        starts = range(0, self.length, BLOCK)
        self.strips = [
            strip
            + (rows[:, start : start + BLOCK].mT @ rows[:, : strip.shape[1]]).float()
            for start, strip in zip(starts, self.strips, strict=True)
        ]

    def keep(self, kept: int) -> None:
        """Keep the last columns and rows."""
        matrix = self.whole()[-kept:, -kept:]
        self.length = kept
        self.strips = [
            matrix[start : start + BLOCK, : start + BLOCK].float()
            for start in range(0, kept, BLOCK)
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
        """Return the full matrix, ``(D, D)`` float64; needs no further memory."""
        matrix = torch.zeros(self.length, self.length, dtype=torch.float64)
        for number, strip in enumerate(self.strips):
            matrix[number * BLOCK : number * BLOCK + BLOCK, : strip.shape[1]] = strip
        return mirrored(matrix)

    @staticmethod
    def bytes_of(length: int) -> int:
        """Return the bytes of the strips for ``D = length``."""
        return 4 * sum(
            min(BLOCK, length - start) * min(start + BLOCK, length)
            for start in range(0, length, BLOCK)
        )


def mirrored(matrix: Tensor) -> Tensor:
    """Copy the lower half of a square matrix onto the upper one, in place; needs no further memory."""
    for rows, start in zip(matrix.split(BLOCK), range(0, len(matrix), BLOCK)):
        matrix[:start, start : start + BLOCK] = rows[:, :start].mT
        diagonal = rows[:, start : start + BLOCK]
        diagonal.copy_(diagonal.tril() + diagonal.tril(-1).mT)
    return matrix


class ClassGaussians(ClosedForm):
    """Base class of classifiers by class means, class covariances and a common covariance.

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
    """

    classes: ClassMeans
    directions: ClassDirections | None
    scatter: PackedScatter | None
    eight_bits = False  # whether directions are int8 instead of float16

    budgeted = True
    _free = frozenset({"n_classes", "total_directions"})

    @classmethod
    def item_bytes(cls, length: int, settings: Mapping[str, Any]) -> int:
        return ClassDirections.bytes_of_one(
            length, settings.get("eight_bits", cls.eight_bits)
        )

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
    def bought(
        cls, n_classes: int, length: int, items: int, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {"directions": min(cls.each(n_classes, items), length)}

    @classmethod
    def for_budget(cls: type[Form], length: int, budget: int, kept: int) -> Form:
        return cls(0, length, directions=MOST_DIRECTIONS)

    @property
    def places(self) -> int:
        means = self.classes.means
        return (
            means.untyped_storage().nbytes() // means.stride(0) // means.element_size()
        )

    def least_bytes(self, classes: int) -> int:
        """Return the bytes of so many classes with a direction each."""
        return super().least_bytes(classes) + (
            0 if self.directions is None else classes * self._direction_bytes()
        )

    def _direction_bytes(self) -> int:
        return self.item_bytes(self.settings["length"], self.settings)

    def share(self, classes: int, budget: int) -> str:
        if self.directions is None:
            return ""
        total = (
            budget - self._bytes_without_images(classes)
        ) // self._direction_bytes()
        held = len(self.directions)
        self.limit(total)
        return (
            f"{held - total} of {held} directions of classes are given up, the weakest first"
            if total < held
            else ""
        )

    def limit(self, total_directions: int | None) -> None:
        """Set the largest number of directions of all classes, now and in later updates; ``None`` is no limit.

        The classes with the most directions lose their weakest ones, which count as
        spread in no particular direction.

        Raises:
            ValueError: the number is negative.
        """
        if total_directions is not None and total_directions < 0:
            raise ValueError(
                f"total_directions is {total_directions}; give at least 0, or None for no limit"
            )
        self.settings["total_directions"] = total_directions
        if self.directions is not None:
            self.directions.total = total_directions
            self.directions.trim()
        self._solution = None

    def _allocate(
        self,
        n_classes: int,
        length: int,
        directions: int = 0,
        whole: bool = False,
        total_directions: int | None = None,
    ) -> None:
        self.classes = ClassMeans(n_classes, length)
        self.directions, self.scatter = None, PackedScatter(length) if whole else None
        if directions or not whole:
            self.directions = ClassDirections(
                n_classes, length, directions, total_directions, self.eight_bits
            )

    def transformed(self, features: Tensor) -> Tensor:
        """Compute the values whose statistics are stored, from ``(B, D)`` float features."""
        return features

    def held(self, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the directions hold of the classes of a mask.

        Returns:
            Rows ``B`` of the classes one below the other, ``(sum of k, D)`` float64;
            ``B^T B`` of a class is the part of its scatter that is stored. Their
            numbers ``k``, ``(C,)``. The parts of the traces that these leave out,
            ``(C,)`` float64.
        """
        if self.directions is None:
            none = torch.zeros(int(seen.sum()), dtype=torch.int32)
            return (
                torch.zeros(0, self.classes.means.shape[1], dtype=torch.float64),
                none,
                none.double(),
            )
        rows = self.directions.of_classes(seen.nonzero().flatten().tolist())
        return (
            rows,
            self.directions.counts[seen],
            self.directions.outside[seen].double(),
        )

    def common_covariance(self, seen: Tensor, rows: Tensor, outside: Tensor) -> Tensor:
        """Compute the common covariance within classes, weighted by images, from what they hold; ``(D, D)`` float64."""
        if self.scatter is None:
            scatter = rows.mT @ rows
            scatter.diagonal().add_(outside.sum() / len(scatter))
        else:
            scatter = self.scatter.whole()
        return scatter.div_(float(self.image_counts[seen].sum()))

    def mean_variance(self, covariance: Tensor, seen: Tensor) -> float:
        """Return the mean of a covariance's diagonal, or 1 for a single image of each class or equal ones."""
        variance, size = (
            float(covariance.diagonal().mean()),
            float(self.means[seen].double().square().mean()),
        )
        return variance if variance > EQUAL * size else 1.0

    @property
    def image_counts(self):
        return self.classes.counts

    @property
    def means(self) -> Tensor:
        """Means of the classes, ``(n_classes, D)`` float32."""
        return self.classes.means

    @property
    def remains_after_forget(self):
        return (
            ""
            if self.scatter is None
            else "the share of the removed images in the common scatter"
        )

    def _update(self, features, labels):
        for label, rows in self.classes.absorb(
            self.transformed(features), labels
        ).items():
            if self.scatter is not None:
                self.scatter.add(rows)
            if self.directions is not None:
                self.directions.extend(label, rows)
        if self.directions is not None:
            self.directions.trim()

    def _parts(self) -> list[ClassMeans | ClassDirections | PackedScatter]:
        return [
            part
            for part in (self.classes, self.directions, self.scatter)
            if part is not None
        ]

    def tensors(self):
        strips = [] if self.scatter is None else self.scatter.strips
        return [
            *self.classes.tensors(),
            *([] if self.directions is None else self.directions.tensors()),
            *strips,
        ]

    def named_tensors(self):
        return {
            name: tensor
            for part in self._parts()
            for name, tensor in part.named_tensors().items()
        }

    def _load(self, tensors):
        if self.directions is not None:
            self.directions.check(tensors)
        scatter = (
            None if self.scatter is None else PackedScatter(self.scatter.length)
        )  # copies share the strips
        copy_tensors(
            tensors,
            {
                **self.classes.named_tensors(),
                **(scatter.named_tensors() if scatter else {}),
            },
        )
        self.scatter = scatter
        if self.directions is not None:
            self.directions.load(tensors)

    def _merge(self, other, labels):
        for theirs, mine, between in self.classes.absorb_means(other.classes, labels):
            if self.scatter is not None:
                self.scatter.add(between)
            if self.directions is not None:
                self.directions.extend(
                    mine, torch.cat([other.directions.of_class(theirs), between])
                )
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


class Span(NamedTuple):
    """The space that the class means span, where the shrunk common covariance is the unit matrix.

    ``(x - centre) projection`` maps features to it, with a projection of ``(D, r)``;
    ``means`` are ``(C, r)``, and ``lengths`` ``(r,)`` are the deviations of the means
    along its axes, times the root of ``C``.
    """

    projection: Tensor
    means: Tensor
    lengths: Tensor


class Group(NamedTuple):
    """Gaussians with covariances ``a_c I + U_c^T U_c`` of classes with equally many directions.

    Woodbury: the inverse is ``(I - W^T W) / a`` with ``W = R^-1 U`` and ``R R^T = a I +
        U U^T``, a matrix of ``k x k``.

    Attributes:
        members: ``(C,)`` int64, columns of the classes in the scores.
        rows: ``W``, ``(C k, r)``.
        offsets: ``W m``, ``(C, k)``.
        round_part, log_determinants: ``a`` and those of the covariances, ``(C,)``.
    """

    members: Tensor
    rows: Tensor
    offsets: Tensor
    round_part: Tensor
    log_determinants: Tensor

    @classmethod
    def of(
        cls, members: Tensor, spreads: Tensor, means: Tensor, round_part: Tensor
    ) -> "Group":
        """Solve for the classes ``members`` with ``U`` in ``spreads``, ``(C, k, r)``."""
        inner = spreads @ spreads.mT
        inner.diagonal(dim1=1, dim2=2).add_(round_part[:, None])
        root = torch.linalg.cholesky(inner)
        rows = torch.linalg.solve_triangular(root, spreads, upper=False)
        logs = 2 * root.diagonal(dim1=1, dim2=2).log().sum(1)
        logs += (spreads.shape[2] - spreads.shape[1]) * round_part.log()
        return cls(
            members,
            rows.flatten(0, 1),
            (rows @ means.unsqueeze(2)).squeeze(2),
            round_part,
            logs,
        )

    def scores(self, places: Tensor, distances: Tensor) -> Tensor:
        """Compute log-densities up to a constant from ``(B, r)`` points and their squared distances to all means."""
        lengths = distances.index_select(1, self.members)
        if self.offsets.shape[1]:
            along = (places @ self.rows.mT).reshape(
                -1, *self.offsets.shape
            ) - self.offsets
            lengths = lengths - along.square().sum(2)
        return -(lengths / self.round_part + self.log_determinants) / 2


@dataclass
class Solution:
    """What ``BlendedGaussians`` answer by: Gaussians where the shrunk common covariance is the unit matrix.

    Attributes:
        centre: ``(D,)``, mean of the class means.
        projection: ``(D, r)``, from features minus ``centre`` to the space; ``None``
            for that of all features.
        root: ``(D, D)`` Cholesky root of the shrunk common covariance.
        means: ``(C, r)``, or ``(C, D)``.
        groups, order: the classes, and the place of each class among those of the
            groups.
        span: the space of the class means.
        log_priors: ``(C,)``, added to the densities; or 0.
        part, part_share, temperature: the solution of the last features alone, the
            share of its answer, and the temperature of both.
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
        """Map ``(n, D)`` differences of features to the space where the shrunk common covariance is the unit matrix."""
        return torch.linalg.solve_triangular(self.root, rows.mT, upper=False).mT

    def scores(self, features: Tensor, white: Tensor | None = None) -> Tensor:
        """Compute log-densities up to a constant, ``(B, C)`` float64, or with ``part`` the scores of both.

        Args:
            features: ``(B, D)`` float64.
            white: what the method of this name returns of ``features - centre``, where
                it is known already.
        """
        rows = features - self.centre
        if self.projection is not None:
            places = rows @ self.projection
        else:
            places = self.white(rows) if white is None else white
        distances = (
            places.square().sum(1, keepdim=True)
            - 2 * places @ self.means.mT
            + self.means.square().sum(1)
        )
        scores = torch.cat(
            [group.scores(places, distances) for group in self.groups], 1
        ).index_select(1, self.order)
        scores = scores + self.log_priors
        if (
            self.part is None or len(self.means) == 1
        ):  # the probability of a single class is 1
            return scores
        answers = (
            torch.stack(
                [scores, self.part.scores(features[:, -len(self.part.centre) :])]
            )
            / self.temperature
        )
        shares = (
            scores.new_tensor([1 - self.part_share, self.part_share])
            .clamp_min(SMALLEST_SHARE)
            .log()
        )
        return self.temperature * (
            answers.log_softmax(2) + shares[:, None, None]
        ).logsumexp(0)


class BlendedGaussians(ClassGaussians):
    """Base class of classifiers by log-densities of Gaussians that blend a covariance of each class with a common one.

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
        """Return ``a_c`` and ``b_c``, from images of classes and the shares of traces that directions leave out."""

    def _solve(self, seen) -> Solution:
        counts, means = self.image_counts[seen].double(), self.means[seen].double()
        directions, numbers, outside = self.held(seen)
        common = self.common_covariance(seen, directions, outside)
        self._shrink(common, seen)
        root = mirrored(
            common
        ).mT  # equal to common, in the order of axes in which the root takes its memory
        torch.linalg.cholesky(root, out=root)
        centre = means.mean(0)
        white = torch.linalg.solve_triangular(root, (means - centre).mT, upper=False)
        vectors, lengths, _ = torch.linalg.svd(white, full_matrices=False)
        basis = vectors[:, : len(means) - 1]
        basis = basis[:, lengths[: len(basis.mT)] > LEAST_LENGTH * lengths[0]]
        projection = torch.linalg.solve_triangular(root.mT, basis, upper=True)
        space = Span(
            projection, (means - centre) @ projection, lengths[: len(basis.mT)]
        )
        if self.span:
            rows, places = directions @ projection, space.means
        else:
            rows, places = (
                torch.linalg.solve_triangular(root, directions.mT, upper=False).mT,
                white.mT,
            )
        owners = torch.arange(len(means)).repeat_interleave(numbers)
        kept = torch.zeros_like(outside).index_add_(
            0, owners, directions.square().sum(1)
        )
        own, round_part = self._blend(
            counts, outside / (outside + kept).clamp_min(1e-300)
        )
        spreads, groups = (
            ((own / counts).sqrt()[owners, None] * rows).split(numbers.tolist()),
            [],
        )
        for number in numbers.unique():
            members = (numbers == number).nonzero().flatten()
            together = torch.stack([spreads[place] for place in members.tolist()])
            groups.append(
                Group.of(members, together, places[members], round_part[members])
            )
        order = torch.cat([group.members for group in groups]).argsort()
        return Solution(
            centre,
            projection if self.span else None,
            root,
            places,
            groups,
            order,
            space,
        )

    def _answers(self, features, solution):
        return solution.scores(self.transformed(features))
