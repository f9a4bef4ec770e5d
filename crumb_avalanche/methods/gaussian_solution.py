"""Scores of images by Gaussian classes that share a covariance."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from crumb_avalanche.methods.packed_scatter import mirrored

# Of an axis of the discriminant space, in units of the longest: shorter ones are
# rounding.
LEAST_LENGTH = 1e-5
# Rows that are multiplied at once with those before them: with fewer a product takes
# longer, with more less of the upper half is left out.
ROWS_AT_ONCE = 128
SMALLEST_SHARE = 1e-30  # whose logarithm is finite in float32


class WhitenedRows(NamedTuple):
    """Differences ``x`` from a centre where a common covariance ``S`` is 1.

    Attributes:
        whitened: ``(n, D)``.
        products: ``R S^-1 x`` with the rows of a ``LowRankRoot``, ``(n, K)``; ``None``
            of a ``CholeskyRoot``.
    """

    whitened: Tensor
    products: Tensor | None


class CholeskyRoot(NamedTuple):
    """Map to where a covariance ``S`` is the unit matrix, by its Cholesky root.

    Attributes:
        root: ``(D, D)``, lower.
    """

    root: Tensor

    def whiten(self, rows: Tensor) -> Tensor:
        """Map ``(n, D)`` differences to where ``S`` is 1."""
        return torch.linalg.solve_triangular(self.root, rows.mT, upper=False).mT

    def whitened_rows(self, rows: Tensor) -> WhitenedRows:
        """Map ``(n, D)`` differences; see ``WhitenedRows``."""
        return WhitenedRows(self.whiten(rows), products=None)

    def feature_axes(self, axes: Tensor) -> Tensor:
        """Map ``(D, r)`` axes ``A`` to features' axes ``F``: ``x F = whiten(x) A``."""
        return torch.linalg.solve_triangular(self.root.mT, axes, upper=True)


class LowRankRoot(NamedTuple):
    """Map to where ``S = V (I + Y Y^T) V`` is the unit matrix, by ``K < D`` rows.

    ``V`` is diagonal. With ``L L^T = I + Y^T Y``, the map ``A = (I - Y Z Y^T) / V``
    with ``Z = (L^T + I)^-1 L^-1`` has ``A^T A = S^-1``, by Woodbury's identity. It
    differs from that of a Cholesky root by a rotation. It takes ``K (D + K)`` values
    instead of ``D^2``, and ``K^2 D`` steps to find instead of ``D^3``.

    Attributes:
        deviations: diagonal of ``V``, ``(D,)``.
        rows: ``Y^T``, ``(K, D)``.
        root: ``L``, ``(K, K)``.
        root_and_unit: ``L^T + I``.
        inverse: of ``I + Y^T Y``.
        scale: by which ``V Y`` was divided: ``R = scale Y^T V`` are the rows.
    """

    deviations: Tensor
    rows: Tensor
    root: Tensor
    root_and_unit: Tensor
    inverse: Tensor
    scale: float

    @classmethod
    def of_rows(cls, rows: Tensor, variances: Tensor, images: float) -> "LowRankRoot":
        """Find the map to where a covariance is the unit matrix (whitening).

        The covariance ``R^T R / N + V^2`` is ``V (I + Y Y^T) V`` with ``Y^T = R V^-1 /
        sqrt(N)``; the map follows from the Cholesky root ``L`` of the small matrix ``I
        + Y^T Y``.

        Args:
            rows: ``R``, ``(K, D)`` float64, of ``K < D`` rows.
            variances: ``V^2``, added to the diagonal, ``(D,)``, above 0.
            images: ``N``, that the covariance is of.

        Returns:
            The factors by which ``whiten`` and ``whitened_rows`` compute.
        """
        deviations = variances.sqrt()  # V
        scale = images**0.5
        scaled = rows / (scale * deviations)  # Y^T
        inner = products_of_rows(scaled)  # Y^T Y
        inner.diagonal().add_(1)
        root = torch.linalg.cholesky(inner)
        identity = torch.eye(len(rows), dtype=torch.float64)
        return cls(
            deviations=deviations,
            rows=scaled,
            root=root,
            root_and_unit=(root.mT + identity).contiguous(),  # L^T + I, to whiten
            inverse=torch.cholesky_inverse(root),
            scale=scale,
        )

    def whiten(self, rows: Tensor) -> Tensor:
        """Map ``(n, D)`` differences to where ``S`` is 1."""
        scaled = rows / self.deviations
        return self._whiten(scaled, along=scaled @ self.rows.mT)

    def whitened_rows(self, rows: Tensor) -> WhitenedRows:
        """Map ``(n, D)`` differences; see ``WhitenedRows``."""
        scaled = rows / self.deviations
        along = scaled @ self.rows.mT  # most of the time, once for both
        products = self.scale * (along @ self.inverse)
        return WhitenedRows(self._whiten(scaled, along), products)

    def _whiten(self, scaled: Tensor, along: Tensor) -> Tensor:
        """Map ``(n, D)`` differences divided by ``V``.

        Args:
            scaled: the differences.
            along: ``(n, K)``, their products with ``Y``.
        """
        lower = torch.linalg.solve_triangular(self.root, along.mT, upper=False)
        upper = torch.linalg.solve_triangular(self.root_and_unit, lower, upper=True)
        return scaled - upper.mT @ self.rows

    def products_of_class(self, rows: slice) -> Tensor:
        """Return ``R S^-1 R^T`` of the ``k`` rows of a class, ``(k, k)``.

        Of all rows it is ``scale^2 (1 - (1 + Y^T Y)^-1)``.
        """
        products = -self.inverse[rows, rows]
        products.diagonal().add_(1)
        return self.scale**2 * products


def products_of_rows(rows: Tensor) -> Tensor:
    """Return ``R R^T`` of ``(K, D)`` rows, of which one half is computed."""
    products = rows.new_empty(len(rows), len(rows))
    for start in range(0, len(rows), ROWS_AT_ONCE):
        end = min(start + ROWS_AT_ONCE, len(rows))
        torch.mm(rows[start:end], rows[:end].mT, out=products[start:end, :end])
    return mirrored(products)


class Span(NamedTuple):
    """The space that the class means span, whitened by the shrunk common covariance.

    Attributes:
        axes: ``(D, r)`` float64, orthonormal; coordinates are those along them.
        means: ``(C, r)``, the class means in the space.
        lengths: ``(r,)``, deviations of the means along its axes, times the root of
            ``C``.
    """

    axes: Tensor
    means: Tensor
    lengths: Tensor

    @classmethod
    def of_means(cls, whitened_means: Tensor) -> "Span":
        """Find the space that class means span, and the means in it.

        Args:
            whitened_means: ``(C, D)`` float64, minus their mean, where the common
                covariance is the unit matrix.

        Returns:
            Orthonormal ``axes``, ``(D, r)``, with the ``lengths`` of the means along
            them, ``(r,)``; and the coordinates of the means, ``(C, r)``.
        """
        axes, lengths = _principal_axes(whitened_means)  # columns, longest first
        axes = axes[:, : len(whitened_means) - 1]  # C points span no more
        lengths_of_axes = lengths[: axes.shape[1]]
        is_no_rounding = lengths_of_axes > LEAST_LENGTH * lengths[0]
        axes = axes[:, is_no_rounding]
        return cls(
            axes=axes,
            means=whitened_means @ axes,
            lengths=lengths[: axes.shape[1]],
        )


def _principal_axes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the principal axes of ``(C, D)`` rows, and the lengths along them.

    Axes are columns, longest first, ``(D, min(C, D))``. Of more rows than columns they
    are eigenvectors of ``R^T R``, which is found in a fifth of the time: lengths are
    exact to 1e-8 of the longest one then, which is far below ``LEAST_LENGTH``.
    """
    if len(rows) <= rows.shape[1]:
        axes, lengths, _ = torch.linalg.svd(rows.mT, full_matrices=False)
        return axes, lengths
    squares, axes = torch.linalg.eigh(products_of_rows(rows.mT))
    return axes.flip(1), squares.flip(0).clamp_min(0).sqrt()


class Group(NamedTuple):
    """Gaussians ``b_c I + U_c^T U_c`` of classes with equally many directions.

    Woodbury: the inverse is ``(I - W^T W) / b`` with ``W = R^-1 U`` and ``R R^T = b I +
    U U^T``, a matrix of ``k x k``.

    Attributes:
        members: ``(C,)`` int64, columns of the classes in the scores.
        rows: ``W``, ``(C k, r)``.
        offsets: ``W m``, ``(C, k)``.
        isotropic: ``b``, ``(C,)``.
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
        """Solve for Gaussian classes of covariances ``b I + U^T U``.

        Each has ``k`` directions ``U``, equally many, so they are solved as one batch.
        By Woodbury, the inverse is ``(I - W^T W) / b`` with ``W = R^-1 U``, where ``R
        R^T = b I + U U^T`` is of ``k x k`` only. From the squared distance
        ``|x - m|^2`` of a point, ``scores`` subtracts ``|W x - W m|^2``.

        Args:
            members: ``(C,)`` int64, columns of the classes in the scores.
            spreads: ``U``, ``(C, k, r)`` float64.
            means: ``m``, ``(C, r)``.
            isotropic: ``b``, ``(C,)``.
        """
        _, n_directions, n_features = spreads.shape  # k of a class, r of a point
        inner = spreads @ spreads.mT
        inner.diagonal(dim1=1, dim2=2).add_(isotropic[:, None])
        root = torch.linalg.cholesky(inner)  # R
        rows = torch.linalg.solve_triangular(root, spreads, upper=False)  # W
        # The determinant of the covariance is that of R R^T times b^(r - k): the other
        # directions have the isotropic variance.
        log_determinants = 2 * root.diagonal(dim1=1, dim2=2).log().sum(1)
        log_determinants += (n_features - n_directions) * isotropic.log()
        return cls(
            members=members,
            # (C k, r): one product with the points gives W x of all classes.
            rows=rows.flatten(0, 1),
            offsets=(rows @ means.unsqueeze(2)).squeeze(2),  # W m, (C, k)
            isotropic=isotropic,
            log_determinants=log_determinants,
        )

    def scores(self, points: Tensor, distances: Tensor) -> Tensor:
        """Compute log-densities of the classes up to a constant, ``(B, members)``.

        They are ``-(d + log |covariance|) / 2`` with the squared Mahalanobis distance
        ``d = (|x - m|^2 - |W x - W m|^2) / b``, by Woodbury, of a point ``x`` and a
        class of mean ``m`` and covariance ``b (I - W^T W)^-1``.

        Args:
            points: ``(B, r)``, ``x``.
            distances: ``(B, all classes)``, squared, to the class means.
        """
        squares = distances.index_select(1, self.members)
        has_directions = self.offsets.shape[1] > 0  # offsets are W m, (C, k)
        if has_directions:
            along = (points @ self.rows.mT).reshape(-1, *self.offsets.shape)  # W x
            along = along - self.offsets
            squares = squares - along.square().sum(2)
        return -(squares / self.isotropic + self.log_determinants) / 2


class ProductGroup(NamedTuple):
    """The same Gaussians, by the products of an image with the rows of all classes.

    What ``Group`` computes of points where the common covariance is 1, it computes of
    the ``products`` of ``WhitenedRows``: points have as many values as features,
    products as many as rows.

    Attributes:
        members, offsets, isotropic, log_determinants: see ``Group``.
        columns: of the products with the rows of the classes, ``(C k,)`` int64.
        factors: ``R^-1`` times the spread of each class, ``(C, k, k)``.
    """

    members: Tensor
    columns: Tensor
    factors: Tensor
    offsets: Tensor
    isotropic: Tensor
    log_determinants: Tensor

    @classmethod
    def solve(
        cls,
        members: Tensor,
        columns: Tensor,
        spreads: Tensor,
        row_products: Tensor,
        mean_products: Tensor,
        isotropic: Tensor,
        length: int,
    ) -> "ProductGroup":
        """Solve for classes whose covariance is ``isotropic I + spread^2 R^T R``.

        ``R`` are ``k`` of the ``K`` rows that all classes share. By the identity of
        Woodbury and the matrix determinant lemma, all follows from the Cholesky factor
        of the ``k x k`` matrix ``isotropic I + spread^2 R R^T``.

        Args:
            members: ``(C,)`` int64, columns of the classes in the scores.
            columns: ``(C, k)`` int64, which of the ``K`` rows each class has.
            spreads: factor of the rows of each class, ``(C,)``.
            row_products: ``R R^T``, ``(C, k, k)``, of the rows of each class.
            mean_products: ``(C, K)``, of the class means with all rows.
            isotropic: ``(C,)``, variance of each class in all directions.
            length: ``D``, number of features.
        """
        n_directions = columns.shape[1]  # k
        # isotropic I + spread^2 R R^T = L L^T
        matrix = spreads.square()[:, None, None] * row_products
        matrix.diagonal(dim1=1, dim2=2).add_(isotropic[:, None])
        cholesky = torch.linalg.cholesky(matrix)
        identity = torch.eye(n_directions, dtype=torch.float64)
        scaled_unit = spreads[:, None, None] * identity
        # spread * L^-1
        factors = torch.linalg.solve_triangular(cholesky, scaled_unit, upper=False)
        # Of each mean with the rows of its class, (C, k).
        own_products = mean_products.gather(1, columns)
        log_determinants = 2 * cholesky.diagonal(dim1=1, dim2=2).log().sum(1)
        # The other D - k directions have the isotropic variance.
        log_determinants += (length - n_directions) * isotropic.log()
        return cls(
            members=members,
            columns=columns.flatten(),
            factors=factors,
            offsets=(factors @ own_products.unsqueeze(2)).squeeze(2),
            isotropic=isotropic,
            log_determinants=log_determinants,
        )

    def scores(self, products: Tensor, distances: Tensor) -> Tensor:
        """Compute log-densities of the classes up to a constant, ``(B, members)``.

        They are ``-(d + log |covariance|) / 2`` with the squared Mahalanobis distance
        ``d = (|x - m|^2 - |W x - W m|^2) / b``, by Woodbury, where ``W x`` follows from
        the products of an image with the rows.

        Args:
            products: ``(B, K)``, of the images with the ``K`` rows of all classes.
            distances: ``(B, all classes)``, squared, to the class means.
        """
        squares = distances.index_select(1, self.members)
        has_directions = self.offsets.shape[1] > 0  # offsets are W m, (C, k)
        if has_directions:
            # (B, C, k): of each image with the rows of each class.
            class_products = products.index_select(1, self.columns)
            class_products = class_products.reshape(-1, *self.offsets.shape)
            along = (self.factors @ class_products.unsqueeze(3)).squeeze(3)  # W x
            squares = squares - (along - self.offsets).square().sum(2)
        return -(squares / self.isotropic + self.log_determinants) / 2


def solve_groups(
    spreads: Tensor, counts: Tensor, means: Tensor, isotropic: Tensor
) -> list[Group]:
    """Solve for Gaussian classes of covariances ``isotropic I + U^T U``.

    Those with equally many directions make a group, which is solved as one batch.

    Args:
        spreads: ``U`` of the classes, one below the other, ``(sum of k, r)``.
        counts: ``k``, directions of each class, ``(C,)``.
        means: of the classes, ``(C, r)``.
        isotropic: variance of each class in all directions, ``(C,)``.
    """
    spreads_of_classes = spreads.split(counts.tolist())
    groups = []
    for count in counts.unique():
        members = (counts == count).nonzero().flatten()  # numbers of these classes
        group_spreads = [spreads_of_classes[label] for label in members.tolist()]
        group = Group.solve(
            members=members,
            spreads=torch.stack(group_spreads),
            means=means[members],
            isotropic=isotropic[members],
        )
        groups.append(group)
    return groups


@dataclass
class Solution:
    """What ``BlendedGaussians`` score classes by.

    Features are whitened: the shrunk common covariance is the unit matrix.

    Attributes:
        centre: ``(D,)``, mean of the class means.
        projection: ``(D, r)``, from features minus ``centre`` to the space; ``None``
            for that of all features.
        root: of the shrunk common covariance.
        means: ``(C, r)``, or ``(C, D)``.
        whitened_means: ``(C, D)``, the class means minus ``centre``.
        groups: the classes.
        order: ``(C,)``, the column of each class among those of the groups.
        log_priors: ``(C,)``, added to the densities; or 0.
        part: the solution of the last features alone.
        part_share: share of its answer.
        temperature: of both answers.
    """

    centre: Tensor
    projection: Tensor | None
    root: CholeskyRoot | LowRankRoot
    means: Tensor
    whitened_means: Tensor
    groups: list[Group] | list[ProductGroup]
    order: Tensor
    log_priors: Tensor | float = 0.0
    part: "Solution | None" = None
    part_share: float = 0.0
    temperature: float = 1.0

    @cached_property
    def span(self) -> Span:
        """The space of the class means, found when it is first needed."""
        return Span.of_means(self.whitened_means)

    def whiten(self, rows: Tensor) -> Tensor:
        """Map ``(n, D)`` differences to where the common covariance is 1."""
        return self.root.whiten(rows)

    def whitened_rows(self, features: Tensor) -> WhitenedRows:
        """Map ``(B, D)`` float64 features, which are seen from ``centre``."""
        return self.root.whitened_rows(features - self.centre)

    def scores(
        self, features: Tensor, whitened_rows: WhitenedRows | None = None
    ) -> Tensor:
        """Compute log-densities up to a constant, ``(B, C)`` float64.

        With ``part``, a second solution of the last features alone, the answers of both
        are mixed.

        Args:
            features: ``(B, D)`` float64.
            whitened_rows: what the method of this name returns of these features, where
                the caller has it already.
        """
        scores = self._log_densities(features, whitened_rows)
        # Probabilities are mixed, and that of a single class is 1 in both.
        if self.part is None or len(self.means) == 1:
            return scores
        last_features = features[:, -len(self.part.centre) :]
        return self._mixed(scores, self.part.scores(last_features))

    def _log_densities(
        self, features: Tensor, whitened_rows: WhitenedRows | None
    ) -> Tensor:
        """Compute log-densities with the priors, up to a constant: ``(B, C)``.

        Args:
            features: ``(B, D)`` float64, of which all count.
            whitened_rows: these features where the common covariance is 1, if the
                caller has them already.
        """
        products = None  # with the rows of all classes, (B, K), where there are fewer
        if self.projection is not None:
            points = (features - self.centre) @ self.projection
        else:
            points, products = whitened_rows or self.whitened_rows(features)
        # |x - m|^2 = |x|^2 - 2 x m + |m|^2 of points x and class means m, (B, C)
        distances = (
            points.square().sum(1, keepdim=True)
            - 2 * points @ self.means.mT
            + self.means.square().sum(1)
        )
        group_inputs = points if products is None else products
        scores_of_groups = [
            group.scores(group_inputs, distances) for group in self.groups
        ]
        # Columns from the order of the groups to that of the classes.
        scores = torch.cat(scores_of_groups, 1).index_select(1, self.order)
        return scores + self.log_priors

    def _mixed(self, scores: Tensor, part_scores: Tensor) -> Tensor:
        """Mix the probabilities of two answers: ``T log((1 - w) p + w p_part)``.

        Args:
            scores: ``(B, C)`` of all features.
            part_scores: ``(B, C)`` of the last features alone.
        """
        answers = torch.stack([scores, part_scores]) / self.temperature
        shares = scores.new_tensor([1 - self.part_share, self.part_share])
        log_shares = shares.clamp_min(SMALLEST_SHARE).log()
        mixed = answers.log_softmax(2) + log_shares[:, None, None]
        return self.temperature * mixed.logsumexp(0)
