"""Ridge regression on a random projection of features (RanPAC; McDonnell et al., NeurIPS 2023)."""

import torch
from torch import Tensor

from crumb_avalanche.closed_form.class_statistics import ClassStatistics


class RandomProjection(ClassStatistics):
    """Ridge regression on a random ReLU projection of the features (RanPAC, section 4).

    ``H = relu(X W)`` with a fixed Gaussian ``W``. The state holds the Gram matrix ``H^T H``, the class sums ``H^T Y``
    and the seed of ``W``, which is drawn on first use.

    Args:
        n_classes, length: see ``ClassMeans``.
        projection: number of columns ``M`` of ``W``.
        ridge: summand of the Gram matrix's diagonal, in units of the diagonal's mean.
        seed: seed of ``W``.

    Attributes:
        gram: ``(M, M)`` float32, 1,638,400 bytes at 640.
        sums: ``(M, n_classes)`` float32.
    """

    def __init__(self, n_classes: int, length: int, projection: int = 640, ridge: float = 1e-3, seed: int = 0):
        self.settings = {
            "n_classes": n_classes,
            "length": length,
            "projection": projection,
            "ridge": ridge,
            "seed": seed,
        }
        self.gram = torch.zeros(projection, projection)
        self.sums = torch.zeros(projection, n_classes)
        self.length, self.ridge, self.seed = length, ridge, seed
        self._weights: Tensor | None = None
        self._solution: Tensor | None = None

    def __getstate__(self):
        return {**self.__dict__, "_weights": None}

    def project(self, features: Tensor) -> Tensor:
        """Compute ``H``, ``(B, M)`` float64."""
        if self._weights is None:
            generator = torch.Generator().manual_seed(self.seed)
            self._weights = torch.randn(self.length, len(self.gram), generator=generator, dtype=torch.float64)
        return (features.double() @ self._weights).relu()

    def update(self, features, labels):
        hidden = self.project(features)
        self.gram = (self.gram.double() + hidden.mT @ hidden).float()
        self.sums.index_add_(1, labels, hidden.mT.float())
        self._solution = None

    def scores(self, features):
        if self._solution is None:  # only after an update
            gram = self.gram.double()
            gram.diagonal().add_(self.ridge * gram.diagonal().mean())
            self._solution = torch.linalg.solve(gram, self.sums.double())
        return self.project(features) @ self._solution

    def named_tensors(self):
        return {"gram": self.gram, "sums": self.sums}

    def _merge(self, other):
        self.gram += other.gram
        self.sums += other.sums
