"""KLDA: linear discriminant analysis of random Fourier features.

Momeni, Mazumder and Liu, AAAI 2025.
"""

import math
from abc import abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from crumb_avalanche.methods.gaussians import ClassGaussians
from crumb_avalanche.methods.ranpac import WITHOUT_BUDGET, FillsBudget, Projection
from crumb_avalanche.methods.registry import register
from crumb_avalanche.system.setting_ranges import NotNegative, Positive


class FourierFeatures(NamedTuple):
    """What random Fourier features are computed with.

    Attributes:
        weights: ``W``, ``(D, M)`` float64.
        phases: ``p``, ``(M,)`` float64.
    """

    weights: Tensor
    phases: Tensor


class FourierDiscriminant(FillsBudget, ClassGaussians):
    """Base of linear discriminant analysis of random Fourier features (RFF).

    Rahimi and Recht, NeurIPS 2007: ``z = (2 / M)^(1/2) cos(x W + p)`` with Gaussian
    ``W`` of variance ``2 g`` and uniform phases ``p``. Products of these approximate
    the kernel ``exp(-g |x - y|^2)``. ``W`` and ``p`` are drawn from the seed on first
    use; the state does not hold them.

    Attributes:
        projection: number ``M`` of random Fourier features; 0 for as many as the budget
            buys, or 640 without a budget.
        gamma: ``g``, in units of 1 by the squared unit of the features. In a run these
            have a mean square of 1 (``equal_lengths``), so that it does not depend on
            their scale. 0 is 1 by their number.
    """

    projection: Projection = 0
    gamma: NotNegative = 0.0

    moments: ClassVar = dict(equal_lengths=True)
    _cached_names = ("_solution", "_drawn")

    def _allocate(self, n_classes: int, length: int, seed: int = 0) -> None:  # type: ignore[override]
        """Allocate class means and a common scatter of the random features."""
        super()._allocate(n_classes, self.projection or WITHOUT_BUDGET, whole=True)
        self._drawn: FourierFeatures | None = None

    def __getstate__(self):
        return {**super().__getstate__(), "_drawn": None}

    def transformed(self, features: Tensor) -> Tensor:
        """Compute random Fourier features ``(B, M)`` of ``(B, D)`` features."""
        projection = self.classes.means.shape[1]  # M
        fourier = self._fourier_features()
        angles = features.double() @ fourier.weights + fourier.phases
        return (2 / projection) ** 0.5 * angles.cos()

    def _fourier_features(self) -> FourierFeatures:
        """Return weights and phases of random Fourier features, drawn by the seed.

        Products of the features ``cos(x W + phases)`` approximate the kernel
        ``exp(-gamma |x - y|^2)`` up to a factor: weights are normal with the variance
        ``2 gamma``, phases uniform from 0 to ``2 pi``. They are drawn once, on first
        use.

        Returns:
            Weights ``(length, n)`` and phases ``(n,)``, float64.
        """
        if self._drawn is None:
            length = self.settings["length"]
            n_fourier_features = self.classes.means.shape[1]
            gamma = self.gamma or 1 / length  # 0 stands for the default
            generator = torch.Generator().manual_seed(self.settings["seed"])
            # Tensors of inference mode could not enter a gradient later.
            with torch.inference_mode(False):
                weights = torch.randn(
                    length, n_fourier_features, generator=generator, dtype=torch.float64
                )
                phases = torch.rand(
                    n_fourier_features, generator=generator, dtype=torch.float64
                )
                self._drawn = FourierFeatures(
                    weights=(2 * gamma) ** 0.5 * weights,
                    phases=2 * math.pi * phases,
                )
        return self._drawn

    @abstractmethod
    def _shrink(self, common: Tensor, seen: Tensor) -> None:
        """Add to a common covariance, ``(M, M)`` float64, in place.

        Args:
            common: the covariance.
            seen: ``(n_classes,)`` bool, the classes with images.
        """

    def _solve(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights ``(C, M)`` and offsets ``(C,)`` of a linear discriminant."""
        covariance = self.common_covariance(seen, self.stored_scatters(seen))
        self._shrink(covariance, seen)
        means = self.means[seen].double()
        root = torch.linalg.cholesky(covariance)
        weights = torch.cholesky_solve(means.mT, root).mT
        offsets = (weights * means).sum(1) / 2
        return weights, offsets

    def _answers(self, features: Tensor, solution: tuple[Tensor, Tensor]) -> Tensor:
        """Score ``(B, D)`` features: ``(B, C)`` products with the weights."""
        weights, offsets = solution
        return self.transformed(features) @ weights.mT - offsets


@register(
    "klda",
    summary=(
        "linear discriminant analysis of random Fourier features of frozen features"
    ),
    source=(
        "Momeni et al., Continual Learning Using a Kernel-Based Method Over Foundation "
        "Models, AAAI 2025"
    ),
    stores=(
        "a mean of the random features for each class, and one covariance; not the "
        "random matrix, which has a seed"
    ),
)
class KernelLDA(FourierDiscriminant):
    """Linear discriminant analysis in the space of the kernel ``exp(-g |x - y|^2)``.

    Scores are ``w z - w m / 2`` with ``w = (S + e v I)^-1 m`` for class means ``m`` of
    random Fourier features ``z``, the common covariance ``S`` within classes, and its
    mean variance ``v``.

    Deviation: the inverse is that of ``S + e v I``; which regulariser the paper uses is
    not known here. Its ensemble of several seeds is not built.

    Attributes:
        projection: see ``FourierDiscriminant``.
        gamma: see ``FourierDiscriminant``.
        shrinkage: ``e``, share of the unit matrix in the covariance, in units of the
            mean variance.
    """

    gamma: Positive = 1e-4
    shrinkage: Positive = 0.1

    def _shrink(self, common: Tensor, seen: Tensor) -> None:
        """Add the unit matrix, in units of the mean variance, to a covariance."""
        variance = self.mean_variance(common, seen)
        common.diagonal().add_(self.shrinkage * variance)
