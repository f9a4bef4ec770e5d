"""Regularised discriminant analysis in a stream (Friedman, "Regularized Discriminant Analysis", JASA 1989).

The covariance of each class is stored as a few principal directions, which are updated batch by batch.
"""

import torch
from torch import Tensor

from crumb_avalanche.closed_form.class_means import ClassMeans
from crumb_avalanche.closed_form.class_statistics import ClassStatistics
from crumb_avalanche.closed_form.packed_scatter import PackedScatter

NO_DENSITY = -1e30  # log-density of a class without an image: below all others, and finite in float32


class RegularizedDiscriminant(ClassStatistics):
    """Classifier by Gaussians whose covariances lie between a common one and that of each class.

    The diagonal of the common within-class covariance ``S`` is increased by ``e`` times its mean, with
    ``e = min(1, s D / N)`` for ``N`` images: fewer images give more shrinkage. The class means, whitened with ``S``,
    span a space in which the common covariance is the unit matrix; there, class ``c`` has the covariance
    ``(1 - a) I + a C_c``. Scores are log-densities.

    ``merge`` is exact for means, counts, traces and a full common scatter. It keeps the principal directions of both
    instances together, as an update does; they equal those of one instance trained on both parts only if
    ``directions`` spans the whole scatter of a class.

    Args:
        n_classes, length: see ``ClassMeans``.
        directions: number of principal directions stored for each class.
        whole: whether to store the full common scatter; otherwise it is the sum over the classes' directions.
        own: share ``a`` of a class's own covariance.
        shrinkage: factor ``s`` of the shrinkage.

    Attributes:
        classes: means and counts.
        directions: ``(n_classes, directions, D)`` float16; ``B_c^T B_c`` approximates the scatter of class ``c``.
        outside: ``(n_classes,)`` float32, the part of the scatter's trace that the directions leave out.
        scatter: the full common scatter, or ``None``.
    """

    def __init__(
        self,
        n_classes: int,
        length: int,
        directions: int,
        whole: bool = False,
        own: float = 0.3,
        shrinkage: float = 1.0,
    ):
        self.settings = {
            "n_classes": n_classes,
            "length": length,
            "directions": directions,
            "whole": whole,
            "own": own,
            "shrinkage": shrinkage,
        }
        self.classes = ClassMeans(n_classes, length)
        self.directions = torch.zeros(n_classes, directions, length, dtype=torch.float16)
        self.outside = torch.zeros(n_classes)
        self.scatter = PackedScatter(length) if whole else None
        self.own, self.shrinkage = own, shrinkage
        self._solution: _Solution | None = None

    def update(self, features, labels):
        for label, rows in self.classes.absorb(features, labels).items():
            if self.scatter is not None:
                self.scatter.add(rows)
            self._extend(label, rows)
        self._solution = None

    def _extend(self, label: int, rows: Tensor) -> None:
        """Update the directions of a class whose scatter grows by ``R^T R`` for rows ``R``."""
        count = self.directions.shape[1]
        together = torch.cat([self.directions[label].double(), rows])
        energies, vectors = torch.linalg.eigh(together @ together.mT)
        self.directions[label] = vectors[:, -count:].mT @ together
        self.outside[label] += energies[:-count].clamp_min(0).sum()

    def scores(self, features):
        if self._solution is None:  # only after an update
            self._solution = self._solve()
        seen = self.classes.counts > 0
        scores = torch.full((len(features), len(seen)), NO_DENSITY, dtype=torch.float64)
        scores[:, seen] = self._solution.scores(features.double())
        return scores

    def named_tensors(self):
        strips = {} if self.scatter is None else self.scatter.named_tensors()
        return {**self.classes.named_tensors(), "directions": self.directions, "outside": self.outside, **strips}

    def _merge(self, other):
        for label, between in self.classes.absorb_means(other.classes).items():
            self._extend(label, torch.cat([other.directions[label].double(), between]))
            if self.scatter is not None:
                self.scatter.add(between)
        self.outside += other.outside
        if self.scatter is not None:
            self.scatter.merge(other.scatter)

    def _solve(self) -> "_Solution":
        seen = self.classes.counts > 0
        counts, means = self.classes.counts[seen].double(), self.classes.means[seen].double()
        directions, outside = self.directions[seen].double(), self.outside[seen].double()
        total, length = float(counts.sum()), means.shape[1]
        if self.scatter is None:
            flat = directions.flatten(0, 1)
            common = flat.mT @ flat
            common.diagonal().add_(outside.sum() / length)
        else:
            common = self.scatter.whole()
        common /= total
        variance = float(common.diagonal().mean()) or 1.0  # 0 for a single image or equal ones
        common.diagonal().add_(min(1.0, self.shrinkage * length / total) * variance)
        root = torch.linalg.cholesky(common)
        centre = means.mean(0)
        white = torch.linalg.solve_triangular(root, (means - centre).mT, upper=False)
        basis = torch.linalg.svd(white, full_matrices=False)[0][:, : len(means) - 1]
        projection = torch.linalg.solve_triangular(root.mT, basis, upper=True)
        kept = directions.square().sum((1, 2))
        rest = outside / (outside + kept).clamp_min(1e-12)
        spread = (self.own / counts).sqrt()[:, None, None] * (directions @ projection)
        return _Solution(centre, projection, (means - centre) @ projection, spread, 1 - self.own + self.own * rest)


class _Solution:
    """Gaussians with covariances ``a_c I + U_c^T U_c`` in the discriminant space.

    Args:
        centre, projection: ``(D,)`` and ``(D, r)``; ``(x - centre) projection`` maps features to the space.
        means: ``(C, r)``.
        spread: ``U``, ``(C, k, r)``.
        round_part: ``a``, ``(C,)``.
    """

    def __init__(self, centre: Tensor, projection: Tensor, means: Tensor, spread: Tensor, round_part: Tensor):
        self.centre, self.projection, self.means = centre, projection, means
        self.spread, self.round_part = spread, round_part
        # Woodbury: (a I + U^T U)^-1 = (I - U^T (a I + U U^T)^-1 U) / a, with k x k matrices instead of r x r.
        inner = spread @ spread.mT
        inner.diagonal(dim1=1, dim2=2).add_(round_part[:, None])
        self.inner_root = torch.linalg.cholesky(inner)
        self.offsets = (spread @ means.unsqueeze(2)).squeeze(2)  # (C, k): U m
        count, space = spread.shape[1:]
        logs = self.inner_root.diagonal(dim1=1, dim2=2).log().sum(1)
        self.log_determinants = 2 * logs + (space - count) * round_part.log()

    def scores(self, features: Tensor) -> Tensor:
        """Compute log-densities up to a constant, ``(B, C)`` float64."""
        places = (features - self.centre) @ self.projection
        distances = places.square().sum(1, keepdim=True) - 2 * places @ self.means.mT + self.means.square().sum(1)
        along = (places @ self.spread.flatten(0, 1).mT).view(len(places), *self.offsets.shape) - self.offsets
        solved = torch.linalg.solve_triangular(self.inner_root, along.permute(1, 2, 0), upper=False)  # (C, k, B)
        lengths = (distances - solved.square().sum(1).mT) / self.round_part
        return -(lengths + self.log_determinants) / 2
