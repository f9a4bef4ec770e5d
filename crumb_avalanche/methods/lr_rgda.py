"""LR-RGDA: Gaussians with class covariances of low rank, on frozen features.

Rao et al., arXiv 2602.00144.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.methods.gaussians import BlendedGaussians
from crumb_avalanche.methods.packed_scatter import PackedScatter
from crumb_avalanche.methods.registry import register
from crumb_avalanche.system.setting_ranges import Count, NotNegative, Positive

# Directions of a class; with fewer, the full common covariance is not stored.
LEAST_BESIDE_SCATTER = 4


@register(
    "lr_rgda",
    summary=(
        "a Gaussian of frozen features for each class, with a covariance of low rank "
        "beside the common one"
    ),
    source=(
        "Rao et al., Scalable Analytic Classifiers with Associative Drift "
        "Compensation, arXiv 2602.00144"
    ),
    stores=(
        "a mean and principal directions for each class, and the common covariance "
        "where there is room for it"
    ),
    each_class=True,
)
class LowRankRda(BlendedGaussians):
    """Gaussians with class covariances of low rank.

    Scores are log-densities with the covariances ``a_1 U_c^T U_c + a_2 S + a_3 v I``,
    where ``U_c^T U_c`` consists of the strongest directions of the covariance of a
    class. They are those of a linear classifier plus a quadratic term in ``k`` products
    for each class (Woodbury). Classes are equally probable.

    Deviations: directions are updated batch by batch instead of computed from the full
    covariance of a class; ``S`` is weighted by images instead of classes; the unit
    matrix is weighed by the mean variance ``v``; nothing compensates for a drift of the
    features (the paper's HopDC), because the network is frozen. The paper's values of
    the three weights are not known here.

    Attributes:
        own: ``a_1``, weight of a class's own covariance.
        common: ``a_2``, weight of the common one.
        ridge: ``a_3``, weight of the unit matrix in units of the mean variance.
        rank: largest number of directions of a class, where the budget buys more.
    """

    own: NotNegative = 0.1
    common: Positive = 0.9
    ridge: Positive = 0.1
    rank: Count = 64

    def _allocate(
        self,
        n_classes: int,
        length: int,
        directions: int = 0,
        whole: bool = False,
        total_directions: int | None = None,
    ) -> None:
        """Allocate the statistics, with at most ``rank`` directions of a class."""
        directions = min(directions, self.rank)
        super()._allocate(n_classes, length, directions, whole, total_directions)

    @classmethod
    def bought(
        cls, n_classes: int, length: int, n_items: int, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Divide the bytes of the directions that a budget buys.

        A common scatter is stored where each class has a few directions beside it.

        Args:
            n_classes: classes of the stream.
            length: number of features.
            n_items: principal directions that the budget buys in all.
            settings: settings of the method by name.

        Returns:
            Arguments of the constructor: ``directions`` of each class, and ``whole``,
            whether there is a common scatter.

        Raises:
            ValueError: there is less than a direction for each class.
        """
        cls.check_directions(n_classes, n_items)
        n_directions = n_items // n_classes  # of each class
        # Directions that each class gives up for the bytes of the common scatter.
        bytes_of_round = cls.item_bytes(length, settings) * n_classes
        scatter_cost = math.ceil(PackedScatter.bytes_of(length) / bytes_of_round)
        has_scatter = n_directions - scatter_cost >= LEAST_BESIDE_SCATTER
        if has_scatter:
            n_directions -= scatter_cost
        return {"directions": min(n_directions, length), "whole": has_scatter}

    def _shrink(self, common: Tensor, seen: Tensor) -> None:
        """Make a common covariance ``a_2 S + a_3 v I``, in place."""
        variance = self.mean_variance(common, seen)
        common *= self.common
        common.diagonal().add_(self.ridge * variance)

    def _blend(self, counts: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``a_c`` and ``b_c``, ``(C,)`` each: ``a_1`` and 1.

        The common covariance is shrunk already, by ``a_2`` and ``a_3``.
        """
        return torch.full_like(counts, self.own), torch.ones_like(counts)
