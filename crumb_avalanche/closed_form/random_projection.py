"""Ridge regression on a random projection of features (RanPAC; McDonnell et al., NeurIPS 2023)."""

import torch
from torch import Tensor

from crumb_avalanche.closed_form.class_statistics import ClassStatistics, grown


class RandomProjection(ClassStatistics):
    """Ridge regression on a random ReLU projection of the features (RanPAC, section 4).

    ``H = relu(X W)`` with a fixed Gaussian ``W``. The state holds the Gram matrix ``H^T H``, the class sums ``Y^T H``
    and the seed of ``W``, which is drawn on first use. The order of the images does not matter, up to rounding.

    ``forget`` removes the sum of a class and leaves the Gram matrix: the removed images count from then on as images of
    none of the classes.

    Args:
        n_classes, length: see ``ClassMeans``.
        projection: number of columns ``M`` of ``W``.
        ridge: summand of the Gram matrix's diagonal, in units of the diagonal's mean.
        seed: seed of ``W``.

    Attributes:
        gram: ``(M, M)`` float32, 1,638,400 bytes at 640.
        sums: ``(n_classes, M)`` float32.
        counts: ``(n_classes,)`` int32, images of each class.
    """

    remains_after_forget = "the share of the removed images in the Gram matrix"
    _cached = ("_solution", "_weights")

    def __init__(self, n_classes: int, length: int, projection: int = 640, ridge: float = 1e-3, seed: int = 0):
        self.settings = {
            "n_classes": n_classes,
            "length": length,
            "projection": projection,
            "ridge": ridge,
            "seed": seed,
        }
        self.gram = torch.zeros(projection, projection)
        self.sums = torch.zeros(n_classes, projection)
        self.counts = torch.zeros(n_classes, dtype=torch.int32)
        self.length, self.ridge, self.seed = length, ridge, seed
        self._weights: Tensor | None = None

    def __getstate__(self):
        return {**self.__dict__, "_weights": None}

    @property
    def image_counts(self):
        return self.counts

    def project(self, features: Tensor) -> Tensor:
        """Compute ``H``, ``(B, M)`` float64."""
        if self._weights is None:
            generator = torch.Generator().manual_seed(self.seed)
            self._weights = torch.randn(self.length, len(self.gram), generator=generator, dtype=torch.float64)
        return (features.double() @ self._weights).relu()

    def _update(self, features, labels):
        hidden = self.project(features)
        self.gram = (self.gram.double() + hidden.mT @ hidden).float()
        self.sums.index_add_(0, labels, hidden.float())
        self.counts.index_add_(0, labels, torch.ones_like(labels, dtype=torch.int32))

    def _solve(self, seen):
        gram = self.gram.double()
        gram.diagonal().add_(self.ridge * (float(gram.diagonal().mean()) or 1.0))  # 0 where all features are
        return torch.linalg.solve(gram, self.sums[seen].double().mT)

    def _answers(self, features, solution):
        return self.project(features) @ solution

    def named_tensors(self):
        return {"gram": self.gram, "sums": self.sums, "counts": self.counts}

    def _merge(self, other, labels):
        self.gram += other.gram
        for theirs, mine in labels.items():
            self.sums[mine] += other.sums[theirs]
            self.counts[mine] += other.counts[theirs]

    def _grow(self, n_classes):
        self.sums, self.counts = grown(self.sums, n_classes), grown(self.counts, n_classes)

    def _forget(self, label):
        self.sums[label] = 0
        self.counts[label] = 0
        if not self.counts.any():
            self.gram.zero_()
