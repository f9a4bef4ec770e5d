"""RanDumb: nearest class mean of decorrelated random Fourier features.

Prabhu et al., "Random Representations Outperform Online Continually Learned
Representations", NeurIPS 2024 (arXiv 2402.08823).
"""

from torch import Tensor

from crumb_avalanche.methods.klda import FourierDiscriminant
from crumb_avalanche.methods.registry import register


def oracle_shrinkage(covariance: Tensor, n_images: int) -> float:
    """Return the share of a covariance that shrinkage replaces by the unit matrix.

    It is the oracle approximating shrinkage (OAS), from 0 to 1.

    Chen, Wiesel, Eldar and Hero, "Shrinkage Algorithms for MMSE Covariance
    Estimation", IEEE Transactions on Signal Processing 2010, eq. 23 as
    scikit-learn's ``OAS`` has it: with the mean ``a`` of the squares of all ``M x M``
    entries of the covariance and the mean variance ``v``::

        r = (a + v^2) / ((n + 1) (a - v^2 / M)),  at most 1

    Args:
        covariance: ``(M, M)`` of features.
        n_images: ``n``, number of the images that it is of.
    """
    mean_square = float(covariance.square().mean())
    variance = float(covariance.diagonal().mean())
    numerator = mean_square + variance**2
    denominator = (n_images + 1) * (mean_square - variance**2 / len(covariance))
    if denominator <= numerator:
        return 1.0
    return numerator / denominator


@register(
    "randumb",
    summary="nearest class mean of decorrelated random Fourier features",
    source=(
        "Prabhu et al., Random Representations Outperform Online Continually Learned "
        "Representations, NeurIPS 2024"
    ),
    stores=(
        "a mean of the random features for each class, and one covariance; not the "
        "random matrix, which has a seed"
    ),
)
class RanDumb(FourierDiscriminant):
    """Mahalanobis distance to class means of random Fourier features.

    The three steps of RanDumb, numbered here::

        (1) embed:        z = (2 / M)^(1/2) cos(x W + p)
        (2) decorrelate:  S_r = (1 - r) S + r v I
        (3) classify:     argmin_c (z - m_c)^T S_r^-1 (z - m_c)

    ``S`` is the common covariance within classes, ``v`` its mean variance, and ``r``
    follows from both and the number of images (``oracle_shrinkage``), so that nothing
    is tuned. Scores are (3) without the part that all classes share.

    The paper embeds pixels, in 25,000 dimensions that take 2.5 GB; here the features of
    the frozen network are embedded, as in its comparison with pretrained networks, in
    as many as the budget buys. Deviations: the authors shrink the covariance of each
    class and weigh them by images, and mirror every training image.

    Attributes:
        projection: see ``FourierDiscriminant``.
        gamma: see ``FourierDiscriminant``; 0 is what the authors take, 1 by the number
            of features of variance 1.
    """

    def _shrink(self, common: Tensor, seen: Tensor) -> None:
        """Shrink a common covariance towards the unit matrix, in place (step 2)."""
        n_images = int(self.image_counts[seen].sum())
        variance = self.mean_variance(common, seen)
        # Else the images are equal, and ``mean_variance`` is 1.
        is_above_rounding = variance == float(common.diagonal().mean())
        share = 1.0
        if is_above_rounding:
            share = oracle_shrinkage(common, n_images)
        common.mul_(1 - share)
        common.diagonal().add_(share * variance)
