"""FeCAM: Mahalanobis distances to class means (Goswami et al., NeurIPS 2023)."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.methods.gaussians import EQUAL, ClassGaussians
from crumb_avalanche.methods.registry import register
from crumb_avalanche.system.setting_ranges import Factor, NotNegative, Positive

# Share of the mean variance below which a covariance counts as singular.
LEAST_ISOTROPIC = 1e-6


class ShrunkCovariance(NamedTuple):
    """The shrunk covariance ``a I + V^T J V`` of a class, and its inverse by Woodbury.

    ``(a I + V^T J V)^-1 = (I - V^T (a J + V V^T)^-1 V) / a``, where ``J`` is diagonal
    and its last entry may be -1.

    Attributes:
        rows: ``V``, ``(k + 1, D)`` float64.
        inverse: of ``a J + V V^T``, ``(k + 1, k + 1)``.
        isotropic: ``a``.
        deviations: ``(D,)``, roots of the covariance's diagonal.
    """

    rows: Tensor
    inverse: Tensor
    isotropic: float
    deviations: Tensor

    def distances(self, points: Tensor, mean: Tensor) -> Tensor:
        """Compute squared Mahalanobis distances to a class mean, ``(B,)``.

        They are ``d (a I + V^T J V)^-1 d^T = (|d|^2 - d V^T (a J + V V^T)^-1 V d^T) /
        a``, by Woodbury, for the covariance scaled to a diagonal of 1.

        Args:
            points: ``(B, D)`` float64, features of images, of length 1.
            mean: ``(D,)``, of the class, of length 1.
        """
        # Scaling the covariance by 1 / deviations is scaling differences by deviations.
        difference = points * self.deviations - mean * self.deviations  # d
        along = difference @ self.rows.mT  # d V^T, (B, k + 1)
        explained = (along @ self.inverse * along).sum(1)
        unexplained = difference.square().sum(1) - explained
        return unexplained / self.isotropic


class Solution(NamedTuple):
    """Means of length 1, ``(C, D)`` float64, and the covariance of each class."""

    means: Tensor
    covariances: list[ShrunkCovariance]


@register(
    "fecam",
    summary="class means of frozen features, nearest by Mahalanobis distance",
    source=(
        "Goswami et al., FeCAM: Exploiting the Heterogeneity of Class Distributions, "
        "NeurIPS 2023"
    ),
    stores="a mean and principal directions for each class",
)
class FeCAM(ClassGaussians):
    """Classifier by the class mean with the smallest Mahalanobis distance.

    Features are raised to a power (Tukey). A covariance ``C`` of these is shrunk to ``C
    + s_1 V_1 I + s_2 V_2 (1 - I)``, with the mean ``V_1`` of its variances and ``V_2``
    of its other elements, and scaled to a diagonal of 1. Distances are those of
    features and means of length 1.

    Deviations: the sign of a feature is kept and its absolute value raised to the
    power, because the power of negative features is undefined (the paper leaves out the
    power there). A covariance without variance, such as that of one image or of equal
    ones, is the unit matrix after scaling. Avalanche's ``FeCAM`` shrinks twice, which
    equals once with ``s (2 + s)``: the default 3 is its 1. Covariances are stored as
    principal directions, as many as the budget buys; with fewer than a class needs, the
    rest of its variance is spread evenly.

    Attributes:
        shrink_diagonal: ``s_1``, shrinkage of variances, in units of their mean.
        shrink_others: ``s_2``, shrinkage of other elements, in units of their mean; at
            most ``s_1``.
        tukey: exponent of the features' absolute values.

    Raises:
        ValueError: ``shrink_others`` is above ``shrink_diagonal``.
    """

    shrink_diagonal: Positive = 3.0
    shrink_others: NotNegative = 3.0
    tukey: Factor = 0.5

    def _allocate(
        self,
        n_classes: int,
        length: int,
        directions: int = 0,
        whole: bool = False,
        total_directions: int | None = None,
    ) -> None:
        """Allocate empty statistics, after a check of the shrinkage.

        Args:
            n_classes: number of classes.
            length: ``D``, number of features.
            directions: largest number of principal directions of a class.
            whole: whether there is a common scatter.
            total_directions: largest number of directions of all classes, or ``None``.

        Raises:
            ValueError: the settings make covariances that have no inverse.
        """
        if self.shrink_others > self.shrink_diagonal:
            raise ValueError(
                f"shrink_diagonal is {self.shrink_diagonal} and shrink_others "
                f"{self.shrink_others}; give shrink_others from 0 to shrink_diagonal, "
                "or some covariance is singular"
            )
        super()._allocate(n_classes, length, directions, whole, total_directions)

    def transformed(self, features: Tensor) -> Tensor:
        """Raise the absolute values of ``(B, D)`` features to the power ``tukey``."""
        return features.sign() * features.abs() ** self.tukey

    def _solve(self, seen: Tensor) -> Solution:
        """Compute the shrunk covariance of each class from its stored directions.

        Args:
            seen: ``(n_classes,)`` bool, the ``C`` classes with images.

        Returns:
            Means of length 1, ``(C, D)``, and a covariance for each.
        """
        means = self.means[seen].double()
        counts = self.image_counts[seen].double()  # images of each class
        # The scatter of a class is B^T B of its rows B, and what they leave out.
        scatters = self.stored_scatters(seen)
        rows_of_classes = scatters.rows.split(scatters.counts.tolist())
        # What directions leave out of a covariance, in each of the D directions.
        even_variances = scatters.left_out_traces / counts / means.shape[1]
        covariances = []
        for index, rows in enumerate(rows_of_classes):
            covariance = self._shrunk(
                rows / float(counts[index]) ** 0.5,
                even_variance=float(even_variances[index]),
                squared_mean=float(means[index].square().sum()),
            )
            covariances.append(covariance)
        return Solution(functional.normalize(means, dim=1), covariances)

    def _shrunk(
        self, rows: Tensor, even_variance: float, squared_mean: float
    ) -> ShrunkCovariance:
        """Return the shrunk covariance of ``C = U^T U + e I`` of a class.

        It is ``C + s_1 V_1 I + s_2 V_2 (1 - I)``, where ``V_1`` and ``V_2`` are the
        means of the elements of ``C`` on and off the diagonal, and 1 is the matrix of
        ones: a common summand ``s_2 V_2`` of all elements, and ``s_1 V_1 - s_2 V_2`` on
        the diagonal.

        Args:
            rows: ``U``, ``(k, D)`` float64.
            even_variance: ``e``, variance in every direction.
            squared_mean: squared length of the class mean; variances that are tiny
                beside it are rounding.

        Returns:
            As ``a I + V^T J V`` with ``J`` of ones, or -1 for the last row; the unit
            matrix for a class without variance.
        """
        length = rows.shape[1]
        variances = rows.square().sum(0) + even_variance  # the diagonal, (D,)
        trace = float(variances.sum())
        is_rounding = trace <= EQUAL * squared_mean
        if is_rounding:
            return ShrunkCovariance(
                rows=rows[:0],
                inverse=rows.new_zeros(0, 0),
                isotropic=1.0,
                deviations=torch.ones_like(variances),
            )
        sum_of_elements = float(rows.sum(1).square().sum()) + even_variance * length
        n_off_diagonal = max(length * (length - 1), 1)
        common = self.shrink_others * (sum_of_elements - trace) / n_off_diagonal
        isotropic = max(
            self.shrink_diagonal * trace / length - common,
            LEAST_ISOTROPIC * trace / length,
        )
        # The common summand is one more row of equal values, or its negative.
        common_row = torch.full((1, length), abs(common) ** 0.5, dtype=torch.float64)
        rows = torch.cat([rows, common_row])
        signs = torch.ones(len(rows), dtype=torch.float64)  # J
        if common < 0:
            signs[-1] = -1
        # a J + V V^T, whose inverse is that of Woodbury's identity.
        inner = rows @ rows.mT
        inner.diagonal().add_((isotropic + even_variance) * signs)
        return ShrunkCovariance(
            rows=rows,
            inverse=torch.linalg.inv(inner),
            isotropic=isotropic + even_variance,
            deviations=(variances + isotropic + common).sqrt(),
        )

    def _answers(self, features: Tensor, solution: Solution) -> Tensor:
        """Score ``(B, D)`` features by minus their squared distances: ``(B, C)``."""
        points = functional.normalize(self.transformed(features), dim=1)
        scores = [
            -covariance.distances(points, mean)
            for mean, covariance in zip(
                solution.means, solution.covariances, strict=True
            )
        ]
        return torch.stack(scores, 1)
