"""Deep SRDA: streaming regularised discriminant analysis of frozen features.

Khawand, Hanappe and Colliaux, ICCV Workshops 2023, arXiv 2309.08353.
"""

import torch
from torch import Tensor

from crumb_avalanche.methods.gaussian_solution import Solution
from crumb_avalanche.methods.gaussians import BlendedGaussians
from crumb_avalanche.methods.registry import register
from crumb_avalanche.system.setting_ranges import PositiveShare, Share


@register(
    "srda",
    summary=(
        "a Gaussian of frozen features for each class, its covariance blended with the "
        "common one"
    ),
    source=(
        "Khawand et al., Continual Learning with Deep Streaming Regularized "
        "Discriminant Analysis, ICCVW 2023"
    ),
    stores=(
        "a mean and principal directions for each class, all of them where the budget "
        "buys as many"
    ),
    each_class=True,
)
class StreamingRda(BlendedGaussians):
    """Streaming regularised discriminant analysis.

    Scores are log-densities with the covariances ``(1 - e) (a C_c + (1 - a) S) + e v
    I``, plus the logarithms of the classes' shares of the images. ``own`` 0 is
    streaming LDA, and towards 1 it is quadratic discriminant analysis.

    Deviations: means and covariances are exact at any time, those of a first image
    included (the paper starts at another matrix); the unit matrix is weighed by the
    mean variance ``v``, so that the scale of the features does not matter; covariances
    are not initialised on base classes. With fewer ``directions`` than a class needs,
    the part of its covariance that they leave out has the shape of the common one.

    Attributes:
        own: share ``a`` of a class's own covariance; the rest is the common one.
        shrinkage: share ``e`` of the unit matrix, in units of the mean variance.
    """

    own: Share = 0.1
    shrinkage: PositiveShare = 0.1

    def _shrink(self, common: Tensor, seen: Tensor) -> None:
        """Make a common covariance ``(1 - e) (1 - a) S + e v I``, in place."""
        variance = self.mean_variance(common, seen)
        common *= (1 - self.shrinkage) * (1 - self.own)
        common.diagonal().add_(self.shrinkage * variance)

    def _blend(self, counts: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``a_c`` and ``b_c``, ``(C,)`` each; see ``BlendedGaussians``.

        Args:
            counts: ``(C,)`` float64, images of the classes.
            left_out: ``(C,)``, shares of their traces that directions leave out.
        """
        own_weight = (1 - self.shrinkage) * self.own
        common_weight = (1 - self.shrinkage) * (1 - self.own)
        of_class = torch.full_like(counts, own_weight)
        # The common covariance has its weight already; what directions leave out of a
        # class has its shape, too.
        return of_class, 1 + own_weight / common_weight * left_out

    def _solve(self, seen: Tensor) -> Solution:
        """Solve for Gaussians whose classes are as probable as their images."""
        solution = super()._solve(seen)
        counts = self.image_counts[seen].double()
        solution.log_priors = (counts / counts.sum()).log()
        return solution
