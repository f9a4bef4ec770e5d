"""Distances of images from all classes of a closed form, besides its scores."""

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.ranpac import RandomProjection
from crumb_avalanche.methods.rda import TEMPERATURE, RegularizedDiscriminant, Solution
from crumb_avalanche.methods.slda import StreamingLDA

# Temperature of each closed form's scores: median of the best ones for held-out images of 40 of 50 classes of
# CIFAR-100 and of Tiny-ImageNet, SqueezeNet 1.0.
TEMPERATURES = {RegularizedDiscriminant: TEMPERATURE, StreamingLDA: 4.6, ClassMeans: 0.014, RandomProjection: 0.06}
_TINY = 1e-12


class Evidence(NamedTuple):
    """Scores and distances of ``B`` images, from a closed form that knows ``C`` classes.

    Attributes:
        scores: ``(B, C)`` float64, divided by the usual temperature of the closed form.
        labels: ``(C,)`` int64, the class of each column.
        counts: ``(C,)`` int64, images that each class was learned from.
        typicality: ``(B, 3)`` float64, larger for images like those of the classes: minus the logarithm of the part
            of the image that no combination of class means explains; the closeness to the nearest class relative to
            that of an image of any class; and the cosine between the image and the class mean of nearest direction.
    """

    scores: Tensor
    labels: Tensor
    counts: Tensor
    typicality: Tensor


def evidence(statistics: ClosedForm, features: Tensor, scores: Tensor | None = None) -> Evidence:
    """Compute scores and distances of images.

    Regularised discriminant and streaming LDA: in the space whitened with the common covariance, the squared length
    outside the span of the class means, minus the relative Mahalanobis distance (Ren et al., 2021), and the cosine seen
    from the mean of the class means. Class means: the same of unit vectors, not whitened, with the plain distance.
    Random projection: the leverage of the regression, the largest score, and their ratio with the root of the leverage.

    Args:
        statistics: a closed form with at least one class.
        features: ``(B, D)`` float, on the CPU.
        scores: ``(B, C)``, of the classes with images, where they are computed already.

    Raises:
        TypeError: the closed form is of a kind without distances.
        ValueError: the closed form has no class yet, or its scores are not finite: no images have such statistics.
    """
    kind = type(statistics)
    if kind not in TEMPERATURES:
        names = ", ".join(known.__name__ for known in TEMPERATURES)
        raise TypeError(f"there are no distances for {kind.__name__}; give one of {names}")
    labels = statistics.image_counts.nonzero().flatten()
    if not len(labels):
        raise ValueError("the closed form has no class yet; update it with images first")
    try:
        found = statistics.scores(features)[:, labels] if scores is None else scores.double()
        typicality = _typicality(statistics, features, found)
        finite = bool(found.isfinite().all() and typicality.isfinite().all())
    except torch.linalg.LinAlgError:
        finite = False
    if not finite:
        raise ValueError("the statistics of the classes give scores that are not finite; teach anew, or load a copy")
    return Evidence(found / TEMPERATURES[kind], labels, statistics.image_counts[labels].long(), typicality)


def typicality_without(statistics: ClosedForm, features: Tensor, label: int) -> Tensor | None:
    """Compute the typicality of images of a class as if it had no class mean: that of images of an unknown class.

    The common covariance still holds the class, so that its images look somewhat less strange than those of a class
    that was never learned.

    Args:
        statistics: a closed form that knows the class.
        features: ``(B, D)`` float, on the CPU.
        label: the class.

    Returns:
        ``(B, 3)`` float64, see ``Evidence``; ``None`` if less than two other classes are known.
    """
    labels = statistics.image_counts.nonzero().flatten()
    others = labels != label
    if int(others.sum()) < 2:
        return None
    by_scores = isinstance(statistics, RandomProjection)
    scores = statistics.scores(features)[:, labels[others]] if by_scores else features.new_zeros(0)
    return _typicality(statistics, features, scores, others)


def _typicality(statistics: ClosedForm, features: Tensor, scores: Tensor, classes: Tensor | None = None) -> Tensor:
    """Compute ``Evidence.typicality`` for ``classes``, a mask of those with images; of Gaussians without ``scores``."""
    if isinstance(statistics, RandomProjection):
        hidden = statistics.project(features)
        unexplained = torch.linalg.solve_triangular(_solved(statistics), hidden.mT, upper=False).square().sum(0)
        relative = scores.amax(1)
        cosine = relative / unexplained.clamp_min(_TINY).sqrt()
    else:
        unexplained, nearest, background, cosine = distances(statistics, features, classes)
        relative = background - nearest
    return torch.stack([-unexplained.clamp_min(_TINY).log(), relative, cosine], 1)


def distances(
    statistics: ClosedForm, features: Tensor, classes: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute squared distances and cosines in the space whitened with the common covariance.

    Args:
        statistics: a regularised discriminant, streaming LDA or class means (of unit vectors, not whitened) with at
            least one class.
        features: ``(B, D)`` float, on the CPU.
        classes: ``(C,)`` bool, the classes with images whose means count; default all. The common covariance is that of
            all classes.

    Returns:
        The squared length outside the span of the class means, the squared distance to the nearest mean within the
        span, that to the centre in units of the total covariance, which is 0 for class means, and the largest cosine
        between the image and a class mean, both seen from the centre; ``(B,)`` float64 each.
    """
    values = features.double()
    values = functional.normalize(values) if type(statistics) is ClassMeans else values
    return _solved(statistics).distances(values, classes)


Solve = Callable[[Tensor], Tensor]


class _Space(NamedTuple):
    """Span of the class means, in the space where the common covariance ``S`` is the unit matrix.

    Attributes:
        centre: ``(D,)``, mean of the class means.
        projection: ``(D, r)``, from features minus ``centre`` to the span.
        means: ``(C, r)``, the class means in the span.
        background: ``(r,)``, factors of squares in units of the total covariance, 0 where there is none.
        squares: function from ``(n, D)`` rows to their squared lengths in the space.
    """

    centre: Tensor
    projection: Tensor
    means: Tensor
    background: Tensor
    squares: Callable[[Tensor], Tensor]

    @classmethod
    def of_means(cls, means: Tensor, solve: Solve, background: bool = True) -> "_Space":
        """Find the span.

        Args:
            means: ``(C, D)`` float64.
            solve: function from ``(n, D)`` rows ``X`` to ``X S^-1``.
            background: whether to compute distances to the centre in units of the total covariance.
        """
        centre = means.mean(0)
        rows = means - centre
        white = solve(rows)
        lengths, vectors = torch.linalg.eigh(rows @ white.mT)
        kept = _not_zero(lengths)
        lengths = lengths[kept]
        projection = white.mT @ (vectors[:, kept] / lengths.sqrt())
        factors = background / (1 + lengths / len(means))
        return cls(centre, projection, rows @ projection, factors, lambda rows: (rows * solve(rows)).sum(1))

    @classmethod
    def of_solution(cls, solution: Solution) -> "_Space":
        """Take the span from the solution of a regularised discriminant."""
        span = solution.span
        lengths = span.lengths.square()
        kept = _not_zero(lengths)
        means = span.means[:, kept]
        return cls(
            solution.centre,
            span.projection[:, kept],
            means,
            1 / (1 + lengths[kept] / len(means)),
            lambda rows: torch.linalg.solve_triangular(solution.root, rows.mT, upper=False).square().sum(0),
        )

    def distances(self, features: Tensor, classes: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute what the function ``distances`` returns."""
        rows = features - self.centre
        places, squares = rows @ self.projection, self.squares(rows)
        means, factors = self.means, self.background
        if classes is not None:  # the span of some of the means, seen from their own centre
            centre = means[classes].mean(0)
            squares = squares - 2 * places @ centre + centre.square().sum()
            means, places = means[classes] - centre, places - centre
            lengths, vectors = torch.linalg.eigh(means.mT @ means)
            kept = _not_zero(lengths)
            means, places = means @ vectors[:, kept], places @ vectors[:, kept]
            factors = factors.any() / (1 + lengths[kept] / len(means))
        cosine = (places @ functional.normalize(means).mT).amax(1) / squares.clamp_min(_TINY).sqrt()
        # As a product: torch's exporter to ONNX has no cdist in every version.
        nearest = (means.square().sum(1) - 2 * places @ means.mT).amin(1) + places.square().sum(1)
        return squares - places.square().sum(1), nearest, places.square() @ factors, cosine


_held: WeakKeyDictionary[ClosedForm, tuple[Any, Any]] = WeakKeyDictionary()


def _solved(statistics: ClosedForm) -> Any:
    """Return the space of a Gaussian, or the root of a Gram matrix; solved once after each change."""
    solved, held = statistics.solved(), _held.get(statistics)
    if held is None or held[0] is not solved:  # another one after each change
        labels = statistics.image_counts.nonzero().flatten()
        held = _held[statistics] = solved, _solve(statistics, labels)
    return held[1]


def _solve(statistics: ClosedForm, labels: Tensor) -> Any:
    if isinstance(statistics, RandomProjection):
        gram = statistics.gram.double()
        gram.diagonal().add_(statistics.ridge * (float(gram.diagonal().mean()) or 1.0))
        return torch.linalg.cholesky(gram)
    if isinstance(statistics, ClassMeans):
        return _Space.of_means(functional.normalize(statistics.means[labels].double(), dim=1), lambda rows: rows, False)
    if isinstance(statistics, StreamingLDA):
        values, vectors = torch.linalg.eigh(statistics.covariance.double())
        values = (1 - statistics.shrinkage) * values.clamp_min(0) + statistics.shrinkage
        return _Space.of_means(
            statistics.classes.means[labels].double(), lambda rows: (rows @ vectors / values) @ vectors.mT
        )
    assert isinstance(statistics, RegularizedDiscriminant)
    return _Space.of_solution(statistics.solved())


def _not_zero(lengths: Tensor) -> Tensor:
    """Return a mask of the squared lengths that are more than rounding."""
    return lengths > _TINY + 1e-9 * lengths.amax() if len(lengths) else lengths > 0
