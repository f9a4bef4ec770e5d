"""Mahalanobis distances to class means (FeCAM; Goswami et al., NeurIPS 2023)."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.methods.gaussians import EQUAL, ClassGaussians, LowRankCovariance
from crumb_avalanche.methods.registry import register
from crumb_avalanche.system.setting_ranges import Factor, NotNegative, Positive

LEAST_ROUND = 1e-6  # share of the mean variance below which a covariance counts as singular


@register(
    "fecam",
    summary="class means of frozen features, nearest by Mahalanobis distance",
    source="Goswami et al., FeCAM: Exploiting the Heterogeneity of Class Distributions, NeurIPS 2023",
    stores="a mean and principal directions for each class; or a mean for each class, and one covariance",
)
class FeCAM(ClassGaussians):
    """Classifier by the class mean with the smallest Mahalanobis distance.

    Features are raised to a power (Tukey). A covariance ``C`` of these is shrunk to
    ``C + s_1 V_1 I + s_2 V_2 (1 - I)``, with the mean ``V_1`` of its variances and ``V_2`` of its other elements, and
    scaled to a diagonal of 1. Distances are those of features and means of length 1.

    Deviations: the sign of a feature is kept and its absolute value raised to the power, because the power of negative
    features is undefined (the paper leaves out the power there). A covariance without variance, such as that of one
    image or of equal ones, is the unit matrix after scaling. The common covariance is that within classes, weighted by
    images. Avalanche's ``FeCAM`` shrinks twice, which equals once with ``s (2 + s)``: the default 3 is its 1. With
    fewer ``directions`` than a class needs, the rest of its variance is spread evenly.

    Attributes:
        covariance: ``class`` for a covariance of each class, as principal directions: as many as the budget buys, and
            the full covariance where it buys as many as there are features (``2 D**2`` bytes a class). ``common`` for
            one covariance of all classes, in ``2 D (D + 64)`` bytes.
        shrink_diagonal: ``s_1``, shrinkage of variances, in units of their mean.
        shrink_others: ``s_2``, shrinkage of other elements, in units of their mean; at most ``s_1``.
        tukey: exponent of the features' absolute values.

    Raises:
        ValueError: ``shrink_others`` is above ``shrink_diagonal``.
    """

    covariance: Literal["class", "common"] = "class"
    shrink_diagonal: Positive = 3.0
    shrink_others: NotNegative = 3.0
    tukey: Factor = 0.5

    def _allocate(
        self, n_classes: int, length: int, directions: int = 0, whole: bool = False, total_directions: int | None = None
    ) -> None:
        if self.shrink_others > self.shrink_diagonal:
            raise ValueError(
                f"shrink_diagonal is {self.shrink_diagonal} and shrink_others {self.shrink_others}; give shrink_others "
                "from 0 to shrink_diagonal, or some covariance is singular"
            )
        common = self.covariance == "common"
        super()._allocate(n_classes, length, 0 if common else directions, common, total_directions)

    @classmethod
    def bought(cls, n_classes: int, length: int, items: int, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {} if settings["covariance"] == "common" else super().bought(n_classes, length, items, settings)

    def transformed(self, features):
        return features.sign() * features.abs() ** self.tukey

    def _solve(self, seen):
        means = self.classes.means[seen].double()
        places, sizes = functional.normalize(means, dim=1), means.square().sum(1)
        common, rows, outside = self.covariances(seen)
        if self.scatter is not None:
            return [self._common(common, places, float(sizes.mean()))]
        return [
            self._own(its, float(rest) / its.shape[1], place, float(size))
            for its, rest, place, size in zip(rows, outside, places.split(1), sizes)
        ]

    def _shrinkage(self, trace: float, total: float) -> tuple[float, float]:
        """Return the summands of the unit matrix and of the matrix of ones, from the sums of ``C``'s elements."""
        length = self.settings["length"]
        variance, other = trace / length, (total - trace) / max(length * (length - 1), 1)
        diagonal, others = self.shrink_diagonal * variance, self.shrink_others * other
        return max(diagonal - others, LEAST_ROUND * variance), others

    def _common(self, matrix: Tensor, means: Tensor, size: float) -> "_Distances":
        """Distances for a full covariance, which all classes share."""
        if matrix.trace() <= EQUAL * size:
            return _Distances(None, torch.ones(len(matrix), dtype=torch.float64), means)
        round_part, others = self._shrinkage(float(matrix.trace()), float(matrix.sum()))
        matrix += others
        matrix.diagonal().add_(round_part)
        return _Distances(torch.linalg.cholesky(matrix), matrix.diagonal().sqrt(), means)

    def _own(self, rows: Tensor, even: float, mean: Tensor, size: float) -> "_Distances":
        """Distances for ``U^T U`` and the variance ``even`` in every direction, of one class."""
        variances = rows.square().sum(0) + even
        if variances.sum() <= EQUAL * size:
            return _Distances(None, torch.ones_like(variances), mean)
        trace = float(variances.sum())
        round_part, others = self._shrinkage(trace, float(rows.sum(1).square().sum()) + even * len(variances))
        ones = torch.full((1, len(variances)), abs(others) ** 0.5, dtype=torch.float64)
        signs = torch.ones(len(rows) + 1, dtype=torch.float64)
        signs[-1] = -1 if others < 0 else 1
        covariance = LowRankCovariance(torch.cat([rows, ones]), round_part + even, signs)
        return _Distances(covariance, (variances + round_part + others).sqrt(), mean)

    def _answers(self, features, solution):
        points = functional.normalize(self.transformed(features), dim=1)
        return -torch.cat([part.to(points) for part in solution], 1)


class _Distances:
    """Squared Mahalanobis distances to means for a covariance that is scaled to a diagonal of 1.

    Args:
        covariance: Cholesky root, ``(D, D)``, or ``LowRankCovariance``, before scaling; ``None`` for the unit matrix.
        deviations: roots of its diagonal, ``(D,)``.
        means: ``(C, D)``.
    """

    def __init__(self, covariance: Tensor | LowRankCovariance | None, deviations: Tensor, means: Tensor):
        self.covariance, self.deviations, self.means = covariance, deviations, means
        self.places = self._whitened(means) if isinstance(covariance, Tensor) else means * deviations

    def _whitened(self, points: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.covariance, (points * self.deviations).mT, upper=False).mT

    def to(self, points: Tensor) -> Tensor:
        """Compute the distances of ``(B, D)`` points; ``(B, C)``."""
        if isinstance(self.covariance, LowRankCovariance):
            scaled = points * self.deviations
            return torch.stack([self.covariance.distances(scaled - place) for place in self.places], 1)
        places = points if self.covariance is None else self._whitened(points)
        # As a product: torch's exporter to ONNX has no cdist in every version.
        return places.square().sum(1, keepdim=True) - 2 * places @ self.places.mT + self.places.square().sum(1)
