"""What a ``RegularizedDiscriminant`` answers by: its classes where the common covariance is the unit matrix."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# By which log-densities are divided for probabilities: they count as independent what hardly is. Chosen on held-out
# images of 40 of 50 classes of CIFAR-100 and of Tiny-ImageNet, SqueezeNet 1.0.
TEMPERATURE = 2.7
SMALLEST_SHARE = 1e-30  # whose logarithm is finite in float32


class Span(NamedTuple):
    """The space that the class means span, where the shrunk common covariance is the unit matrix.

    Attributes:
        projection: ``(D, r)``; ``(x - centre) projection`` maps features to the space.
        means: ``(C, r)``.
        root: ``(D, D)`` Cholesky root of the shrunk common covariance.
        lengths: ``(r,)``, deviations of the means along the axes of the space, times the root of ``C``.
    """

    projection: Tensor
    means: Tensor
    root: Tensor
    lengths: Tensor


class Solution:
    """Gaussians with covariances ``a_c I + U_c^T U_c`` where the shrunk common covariance is the unit matrix.

    Args:
        centre: ``(D,)``, mean of the class means.
        projection: ``(D, r)``, from features minus ``centre`` to the space; ``None`` for that of all features.
        root: ``(D, D)`` Cholesky root of the shrunk common covariance.
        means: ``(C, r)``, or ``(C, D)``.
        spreads: ``U``, ``(k, r)`` or ``(k, D)`` for each class.
        round_part: ``a``, ``(C,)``.
        span: the space that the class means span.

    Attributes:
        part: the solution of the last features alone, or ``None``.
        part_share: the share of its answer.
    """

    part: "Solution | None" = None
    part_share = 0.0

    def __init__(
        self,
        centre: Tensor,
        projection: Tensor | None,
        root: Tensor,
        means: Tensor,
        spreads: Sequence[Tensor],
        round_part: Tensor,
        span: Span,
    ):
        self.centre, self.root, self.means, self.span, self._projection = centre, root, means, span, projection
        # Classes with equally many directions are solved together.
        sizes = torch.tensor([len(spread) for spread in spreads])
        self.groups = []
        for size in sizes.unique().tolist():
            members = (sizes == size).nonzero().flatten()
            spread = torch.stack([spreads[place] for place in members.tolist()])
            self.groups.append((members, _Group(spread, means[members], round_part[members])))

    @property
    def projection(self) -> Tensor:
        """``(D, r)`` or ``(D, D)``; ``places`` without a triangular solution."""
        if self._projection is not None:
            return self._projection
        unit = torch.eye(len(self.root), dtype=self.root.dtype)
        return torch.linalg.solve_triangular(self.root.mT, unit, upper=True)

    def places(self, features: Tensor) -> Tensor:
        """Map ``(B, D)`` features to the space."""
        rows = features - self.centre
        if self._projection is not None:
            return rows @ self._projection
        return torch.linalg.solve_triangular(self.root, rows.mT, upper=False).mT

    def scores(self, features: Tensor) -> Tensor:
        """Compute log-densities up to a constant, ``(B, C)`` float64, or with ``part`` the scores of both."""
        if self.part is None:
            return self._scores(features)
        return mixed(self._scores(features), self.part.scores(features[:, -len(self.part.centre) :]), self.part_share)

    def _scores(self, features: Tensor) -> Tensor:
        places = self.places(features)
        distances = places.square().sum(1, keepdim=True) - 2 * places @ self.means.mT + self.means.square().sum(1)
        for members, group in self.groups:
            distances[:, members] = group.scores(places, distances[:, members])
        return distances


def mixed(scores: Tensor, others: Tensor, share: float) -> Tensor:
    """Return the scores of ``(1 - share) p + share q``, with ``p`` and ``q`` from ``(B, C)`` log-densities.

    Those of a single class are its log-densities in ``scores``: its probability is 1.
    """
    if scores.shape[1] == 1:
        return scores
    shares = scores.new_tensor([1 - share, share]).clamp_min(SMALLEST_SHARE).log()
    answers = torch.stack([scores, others]) / TEMPERATURE
    return TEMPERATURE * (answers.log_softmax(2) + shares[:, None, None]).logsumexp(0)


class _Group:
    """Gaussians with covariances ``a_c I + U_c^T U_c`` of classes with equally many directions.

    Args:
        spread: ``U``, ``(C, k, r)``.
        means: ``(C, r)``.
        round_part: ``a``, ``(C,)``.
    """

    def __init__(self, spread: Tensor, means: Tensor, round_part: Tensor):
        self.spread, self.round_part = spread, round_part
        # Woodbury: (a I + U^T U)^-1 = (I - U^T (a I + U U^T)^-1 U) / a, with k x k matrices instead of r x r.
        inner = spread @ spread.mT
        inner.diagonal(dim1=1, dim2=2).add_(round_part[:, None])
        self.inner_root = torch.linalg.cholesky(inner)
        self.offsets = (spread @ means.unsqueeze(2)).squeeze(2)  # (C, k): U m
        count, space = spread.shape[1:]
        logs = self.inner_root.diagonal(dim1=1, dim2=2).log().sum(1)
        self.log_determinants = 2 * logs + (space - count) * round_part.log()

    def scores(self, places: Tensor, distances: Tensor) -> Tensor:
        """Compute log-densities up to a constant from points ``(B, r)`` and their squared distances to the means."""
        along = (places @ self.spread.flatten(0, 1).mT).view(len(places), *self.offsets.shape) - self.offsets
        solved = torch.linalg.solve_triangular(self.inner_root, along.permute(1, 2, 0), upper=False)  # (C, k, B)
        lengths = (distances - solved.square().sum(1).mT) / self.round_part
        return -(lengths + self.log_determinants) / 2
