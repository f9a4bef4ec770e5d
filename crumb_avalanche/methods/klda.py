"""Linear discriminant analysis of random Fourier features (KLDA; Momeni, Mazumder and Liu, AAAI 2025)."""

import math

import torch
from torch import Tensor

from crumb_avalanche.methods.gaussians import ClassGaussians


class KernelLDA(ClassGaussians):
    """Linear discriminant analysis in the space of the kernel ``exp(-g |x - y|^2)``.

    Features become ``z = (2 / M)^(1/2) cos(x W + p)`` with Gaussian ``W`` of variance ``2 g`` and uniform phases ``p``;
    products of these approximate the kernel. Scores are ``w z - w m / 2`` with ``w = (S + e v I)^-1 m`` for class means
    ``m`` of ``z``, the common covariance ``S`` within classes, and its mean variance ``v``. ``W`` and ``p`` are drawn
    from the seed on first use; the state does not hold them.

    Deviation: the inverse is that of ``S + e v I``; which regulariser the paper uses is not known here. Its ensemble of
    several seeds is not built.

    Args:
        n_classes, length: see ``ClassMeans``.
        projection: number ``M`` of random Fourier features.
        gamma: ``g``, in units of 1 by the squared unit of the features.
        shrinkage: ``e``, above 0.
        seed: seed of ``W`` and ``p``.
    """

    _cached = ("_solution", "_drawn")

    def __init__(
        self,
        n_classes: int,
        length: int,
        projection: int = 640,
        gamma: float = 1e-4,
        shrinkage: float = 0.1,
        seed: int = 0,
    ):
        self.settings = {
            "n_classes": n_classes,
            "length": length,
            "projection": projection,
            "gamma": gamma,
            "shrinkage": shrinkage,
            "seed": seed,
        }
        self._hold(n_classes, projection, directions=0, whole=True)
        self._drawn: tuple[Tensor, Tensor] | None = None

    def __getstate__(self):
        return {**self.__dict__, "_drawn": None}

    def transformed(self, features):
        length, projection = self.settings["length"], self.settings["projection"]
        if self._drawn is None:
            generator = torch.Generator().manual_seed(self.settings["seed"])
            weights = torch.randn(length, projection, generator=generator, dtype=torch.float64)
            phases = torch.rand(projection, generator=generator, dtype=torch.float64)
            self._drawn = (2 * self.settings["gamma"]) ** 0.5 * weights, 2 * math.pi * phases
        weights, phases = self._drawn
        return (2 / projection) ** 0.5 * (features.double() @ weights + phases).cos()

    def _solve(self, seen):
        common, _, _ = self.covariances(seen)
        variance = self.mean_variance(common, seen)
        common.diagonal().add_(self.settings["shrinkage"] * variance)
        means = self.classes.means[seen].double()
        weights = torch.cholesky_solve(means.mT, torch.linalg.cholesky(common)).mT
        return weights, (weights * means).sum(1) / 2

    def _answers(self, features, solution):
        weights, offsets = solution
        return self.transformed(features) @ weights.mT - offsets
