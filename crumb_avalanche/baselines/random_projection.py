"""RanPAC: ridge regression on a random projection of frozen features.

McDonnell, Gong, Parvaneh, Abbasnejad and van den Hengel, "RanPAC: Random Projections and Pre-trained Models for
Continual Learning", NeurIPS 2023; without its first-session fine-tuning, for F and P stay frozen here.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from crumb_avalanche.baselines.class_statistics import ClassStatistics, closed_form, feature_length
from crumb_avalanche.baselines.entry import Entry


class RandomProjection(ClassStatistics):
    """Ridge regression on a random ReLU projection of the features (RanPAC, section 4).

    ``H = relu(X W)`` with a Gaussian ``W`` that never changes. Only its seed has to be kept: ``W`` itself, drawn from
    it when first needed, is working memory and in no checkpoint. The Gram matrix ``H^T H`` and the class sums ``H^T Y``
    count.

    Args:
        n_classes, length: see ``ClassMeans``.
        projection: ``M``, columns of ``W``.
        ridge: added to the Gram matrix's diagonal, in units of its mean.
        seed: of ``W``.

    Attributes:
        gram: ``(M, M)`` float32, 1,638,400 bytes at 640.
        sums: ``(M, n_classes)`` float32.
    """

    unsaved = ("_weights", "_solution")  # they follow from what is kept

    def __init__(self, n_classes: int, length: int, projection: int = 640, ridge: float = 1e-3, seed: int = 0):
        self.gram = torch.zeros(projection, projection)
        self.sums = torch.zeros(projection, n_classes)
        self.length, self.ridge, self.seed = length, ridge, seed
        self._weights: Tensor | None = None
        self._solution: Tensor | None = None

    def __getstate__(self):
        return {**self.__dict__, "_weights": None}

    def project(self, features: Tensor) -> Tensor:
        """``(B, M)`` float64."""
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
        if self._solution is None:
            gram = self.gram.double()
            gram.diagonal().add_(self.ridge * gram.diagonal().mean())
            self._solution = torch.linalg.solve(gram, self.sums.double())
        return self.project(features) @ self._solution

    def tensors(self):
        return [self.gram, self.sums]


@dataclass(frozen=True)
class RanpacSettings:
    """Settings of RanPAC.

    Attributes:
        projection: length M of the random features; the Gram matrix takes ``4 * M**2`` bytes. The authors' 10,000 take
            400 MB; 640 keep within the 2.26 MB of 15 images, up to 240 classes.
        ridge: of the regression, in units of the Gram matrix's mean diagonal. (The authors choose it anew after every
            experience on images held back, which a single pass does not have.)
    """

    projection: int = 640
    ridge: float = 1e-3

    def __post_init__(self):
        if self.projection < 1:
            raise ValueError(f"projection is {self.projection}; give at least 1 random feature")
        if not self.ridge > 0:
            raise ValueError(f"ridge is {self.ridge}; give a positive number, or the equations may have no solution")


RANPAC = Entry(
    name="ranpac",
    summary="ridge regression on a random projection of frozen features",
    source="McDonnell et al., RanPAC: Random Projections and Pre-trained Models for Continual Learning, NeurIPS 2023",
    stores="the Gram matrix of the random features, and their sum for each class",
    build=lambda recipe: closed_form(
        recipe,
        RandomProjection(
            recipe.n_classes, feature_length(recipe.model), recipe.method.projection, recipe.method.ridge, recipe.seed
        ),
    ),
    method=RanpacSettings,
    fixed_bytes=lambda model, method, n_classes: 4 * method.projection * (method.projection + n_classes),
    gradient=False,
)
