"""Ridge regression on a random projection of features: RanPAC, ACIL, GACL and F-OAL.

RanPAC (McDonnell et al., NeurIPS 2023) sums up the Gram matrix and solves the regression when it is asked. ACIL (Zhuang
et al., NeurIPS 2022), GACL (NeurIPS 2024) and F-OAL (NeurIPS 2024) update inverse and weights recursively; for the same
ridge both give the same answers after every batch, up to rounding, so that one class serves all four.
"""

import torch
from torch import Tensor

from crumb_avalanche.methods.closed_form import ClassStatistics, grown

RIDGES = tuple(10.0**power for power in range(-5, 3))  # smaller ones are near the rounding of a float32 matrix
MOST_FITTED = 0.95  # share of the images beyond which so many effective parameters fit noise
ROUNDING = 1e-5  # sum of squared residuals of an image below which float32 sums say nothing
BETTER = 1e-3  # share by which a smaller ridge has to lower the error, so that rounding decides nothing


def chosen_ridge(values: Tensor, energies: Tensor, images: int) -> float:
    """Return the one of ``RIDGES`` with the smallest generalised cross validation error.

    For ``N`` images with one-hot targets the error is ``N r / (N - p)^2``, with the sum of squared residuals ``r`` and
    the number of effective parameters ``p``. Both follow from the Gram matrix and the class sums. Ridges with ``p``
    above 95 % of the images are left out; if all are, the largest ridge is returned, and so it is of equally good ones.

    Args:
        values: eigenvalues of the Gram matrix, ``(M,)``.
        energies: squared lengths of the class sums along its eigenvectors, ``(M,)``.
        images: ``N``.
    """
    best, least = RIDGES[-1], float("inf")
    for ridge in reversed(RIDGES):
        shrunk = values + ridge
        parameters = float((values / shrunk).sum())
        if parameters > MOST_FITTED * images:
            break
        residuals = images - float((energies * (values + 2 * ridge) / shrunk.square()).sum())
        error = max(residuals, ROUNDING * images) / (images - parameters) ** 2
        if error < (1 - BETTER) * least:
            best, least = ridge, error
    return best


class RandomProjection(ClassStatistics):
    """Ridge regression on a random projection of the features (RanPAC, section 4).

    ``H = relu(X W)`` with a fixed Gaussian ``W``, or ``H = sigmoid(X W / D^(1/2))`` for features of size 1 (F-OAL). The
    state holds the Gram matrix ``H^T H``, the class sums ``Y^T H`` and the seed of ``W``, which is drawn on first use.
    The order of the images does not matter, up to rounding.

    ``forget`` removes the sum of a class and leaves the Gram matrix: the removed images count from then on as images of
    none of the classes.

    Args:
        n_classes, length: see ``ClassMeans``.
        projection: number of columns ``M`` of ``W``.
        ridge: summand of the Gram matrix's diagonal, in units of the diagonal's mean. 0 chooses it from ``RIDGES`` by
            generalised cross validation (Golub, Heath and Wahba, 1979) whenever the regression is solved. RanPAC
            chooses it on a held-out fifth of every step, which needs a second Gram matrix; this needs no byte more.
        seed: seed of ``W``.
        activation: ``relu`` or ``sigmoid``.

    Attributes:
        gram: ``(M, M)`` float32, 1,638,400 bytes at 640.
        sums: ``(n_classes, M)`` float32.
        counts: ``(n_classes,)`` int32, images of each class.
    """

    remains_after_forget = "the share of the removed images in the Gram matrix"
    _cached = ("_solution", "_weights")

    def __init__(
        self,
        n_classes: int,
        length: int,
        projection: int = 640,
        ridge: float = 1e-3,
        seed: int = 0,
        activation: str = "relu",
    ):
        self.settings = {
            "n_classes": n_classes,
            "length": length,
            "projection": projection,
            "ridge": ridge,
            "seed": seed,
        }
        if activation != "relu":  # older states have no such setting
            self.settings["activation"] = activation
        self.gram = torch.zeros(projection, projection)
        self.sums = torch.zeros(n_classes, projection)
        self.counts = torch.zeros(n_classes, dtype=torch.int32)
        self.length, self.ridge, self.seed, self.activation = length, ridge, seed, activation
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
        values = features.double() @ self._weights
        return values.relu() if self.activation == "relu" else (values / self.length**0.5).sigmoid()

    def _update(self, features, labels):
        hidden = self.project(features)
        self.gram = (self.gram.double() + hidden.mT @ hidden).float()
        self.sums.index_add_(0, labels, hidden.float())
        self.counts.index_add_(0, labels, torch.ones_like(labels, dtype=torch.int32))

    def _solve(self, seen):
        gram, sums = self.gram.double(), self.sums[seen].double().mT
        unit = float(gram.diagonal().mean()) or 1.0  # 0 where all features are
        if self.ridge:
            gram.diagonal().add_(self.ridge * unit)
            return torch.linalg.solve(gram, sums)
        values, vectors = torch.linalg.eigh(gram)
        values, along = values.clamp_min(0), vectors.mT @ sums
        ridge = unit * chosen_ridge(values / unit, along.square().sum(1) / unit, int(self.counts.sum()))
        return vectors @ (along / (values + ridge).unsqueeze(1))

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
