"""Mahalanobis distances to class means (FeCAM; Goswami et al., NeurIPS 2023)."""

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.methods.gaussians import EQUAL, ClassGaussians
from crumb_avalanche.methods.registry import register
from crumb_avalanche.system.setting_ranges import Factor, NotNegative, Positive

LEAST_ROUND = (
    1e-6  # share of the mean variance below which a covariance counts as singular
)


@register(
    "fecam",
    summary="class means of frozen features, nearest by Mahalanobis distance",
    source="Goswami et al., FeCAM: Exploiting the Heterogeneity of Class Distributions, NeurIPS 2023",
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
        if self.shrink_others > self.shrink_diagonal:
            raise ValueError(
                f"shrink_diagonal is {self.shrink_diagonal} and shrink_others {self.shrink_others}; give shrink_others "
                "from 0 to shrink_diagonal, or some covariance is singular"
            )
        super()._allocate(n_classes, length, directions, whole, total_directions)

    def transformed(self, features):
        return features.sign() * features.abs() ** self.tukey

    def _solve(self, seen):
        means, counts = self.means[seen].double(), self.image_counts[seen].double()
        directions, numbers, outside = self.held(seen)
        rows, even = (
            directions.split(numbers.tolist()),
            outside / counts / means.shape[1],
        )
        solved = [
            self._shrunk(
                its / float(count) ** 0.5, float(rest), float(mean.square().sum())
            )
            for its, count, rest, mean in zip(rows, counts, even, means)
        ]
        return functional.normalize(means, dim=1), solved

    def _shrunk(
        self, rows: Tensor, even: float, size: float
    ) -> tuple[Tensor, Tensor, float, Tensor]:
        """Return the shrunk covariance of ``U^T U`` plus ``even`` in every direction, ``a I + V^T J V``.

        ``size`` is the squared length of the mean, which tells variances from rounding.

        Returns:
            ``V``, ``(k + 1, D)``; the inverse of ``a J + V V^T``, where ``J`` is
            diagonal and its last entry may be -1; ``a``; and the roots of the
            covariance's diagonal. Woodbury: ``(a I + V^T J V)^-1 = (I - V^T (a J + V
            V^T)^-1 V) / a``.
        """
        length = rows.shape[1]
        variances = rows.square().sum(0) + even
        trace = float(variances.sum())
        if trace <= EQUAL * size:
            return rows[:0], rows.new_zeros(0, 0), 1.0, torch.ones_like(variances)
        total = float(rows.sum(1).square().sum()) + even * length  # of all elements
        others = self.shrink_others * (total - trace) / max(length * (length - 1), 1)
        round_part = max(
            self.shrink_diagonal * trace / length - others, LEAST_ROUND * trace / length
        )
        rows = torch.cat(
            [rows, torch.full((1, length), abs(others) ** 0.5, dtype=torch.float64)]
        )
        signs = torch.ones(len(rows), dtype=torch.float64)
        signs[-1] = -1 if others < 0 else 1
        inner = rows @ rows.mT
        inner.diagonal().add_((round_part + even) * signs)
        return (
            rows,
            torch.linalg.inv(inner),
            round_part + even,
            (variances + round_part + others).sqrt(),
        )

    def _answers(self, features, solution):
        means, solved = solution
        points, scores = functional.normalize(self.transformed(features), dim=1), []
        for mean, (rows, inverse, round_part, deviations) in zip(means, solved):
            # Of points scaled by the deviations: the covariance before scaling to a
            # diagonal of 1 serves.
            rest = points * deviations - mean * deviations
            along = rest @ rows.mT
            scores.append(
                ((along @ inverse * along).sum(1) - rest.square().sum(1)) / round_part
            )
        return torch.stack(scores, 1)
