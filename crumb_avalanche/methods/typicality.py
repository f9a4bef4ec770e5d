"""How typical images are of classes.

By the span of the class means, and apart from images that show nothing.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

# Rows of the features of images that show nothing: so many of drawn images, then those
# of images that a person showed.
DRAWN = 16
# Mean square of the images of nothing, in units of the common covariance.
STRENGTH = 1000.0
# Distance and cosine as cosines that are added. Chosen by the area under the ROC curve
# that ``experiments/open_set.py`` measures, on half of the pairs of classes of ETH-80,
# on sign digits and with ``--development --photos``.
# DISTANCE is added by a relative distance as large as the root mean square length of
# the class means.
DISTANCE = 0.025
# Of the sum from one class to many, so that one usual threshold serves 1 to 8 classes.
RISE = 0.35
# Squared distance of means from the plane of the others, per feature, at which both
# cosines weigh half.
OUTSIDE = 0.1
TINY = 1e-12  # below the square of any distance or deviation that matters


class Typicality(NamedTuple):
    """Scores of ``B`` images, and how like the images of classes they are.

    They are of the ``C`` classes with images.

    Attributes:
        scores: ``(B, C)`` float64.
        values: ``(B, 3)`` float64, larger for images like those of the classes: the
            closeness to the nearest class relative to that of an image of any class;
            the cosine between the image and the class mean of nearest direction; and
            that cosine apart from images that show nothing, where there are any.
        apart: ``(B,)`` float64, the last one without the directions of what was shown
            as nothing; ``None`` if nothing was.
    """

    scores: Tensor
    values: Tensor
    apart: Tensor | None = None

    @classmethod
    def of_three(
        cls, scores: Tensor, relative: Tensor, cosine: Tensor, last: Tensor
    ) -> "Typicality":
        """Join three values of each image, ``(B,)`` each."""
        return cls(scores, torch.stack([relative, cosine, last], 1))


class Whitening(NamedTuple):
    """Map to the space where a covariance ``S`` is the unit matrix.

    Attributes:
        vectors: ``(D, D)``, the eigenvectors of ``S`` as columns.
        roots: ``(D,)``, the roots of its eigenvalues.
    """

    vectors: Tensor
    roots: Tensor

    def white(self, rows: Tensor) -> Tensor:
        """Map ``(n, D)`` rows ``X`` to ``X S^-1/2``."""
        return rows @ self.vectors / self.roots

    def back(self, rows: Tensor) -> Tensor:
        """Map ``(n, D)`` rows ``X S^-1/2`` to ``X S^-1``."""
        return rows / self.roots @ self.vectors.mT


class NothingCosine(NamedTuple):
    """Cosines with class means, seen from the mean of images that show nothing.

    A multiple of their scatter, ``V V^T``, is added to the covariance of the whitened
    space, by Woodbury's identity, which leaves next to nothing of their directions.

    Attributes:
        shift: ``(D,)``, from their mean to the centre of the classes, whitened.
        lift: ``(D, n)``; ``|z|^2 - |z lift|^2`` is the squared length of a whitened row
            ``z``.
        towards: ``(D, C)``; ``z towards`` are the products with class means of length
            1.
    """

    shift: Tensor
    lift: Tensor
    towards: Tensor

    @classmethod
    def of_rows(
        cls,
        nothing: Tensor,
        means: Tensor,
        centre: Tensor,
        white: Callable[[Tensor], Tensor],
    ) -> "NothingCosine":
        """Find the cosines.

        Args:
            nothing: ``(n, D)`` float64 features of images that show nothing.
            means: ``(C, D)`` class means.
            centre: ``(D,)``, mean of the class means.
            white: function from ``(n, D)`` rows to the whitened space.
        """
        nothing_mean = nothing.mean(0)
        # V, scaled so that the images have a mean squared length of STRENGTH.
        spread = white(nothing - nothing_mean).mT
        energy = spread.square().sum().clamp_min(TINY)
        spread = spread * (STRENGTH * spread.shape[1] / energy).sqrt()
        # Woodbury: (1 + V V^T)^-1 = 1 - V (1 + V^T V)^-1 V^T = 1 - lift lift^T.
        unit = torch.eye(len(nothing), dtype=torch.float64)
        root = torch.linalg.cholesky(unit + spread.mT @ spread)
        lift = torch.linalg.solve_triangular(root, spread.mT, upper=False).mT
        white_means = white(means - nothing_mean).mT
        towards = white_means - lift @ (lift.mT @ white_means)
        lengths = (white_means * towards).sum(0).clamp_min(TINY).sqrt()
        shift = white((centre - nothing_mean).unsqueeze(0))[0]
        return cls(shift=shift, lift=lift, towards=towards / lengths)

    def __call__(self, white_rows: Tensor) -> Tensor:
        """Return the largest cosine of ``(B, D)`` whitened rows.

        The rows are seen from the centre of the classes.
        """
        shifted = white_rows + self.shift
        squares = shifted.square().sum(1) - (shifted @ self.lift).square().sum(1)
        return (shifted @ self.towards).amax(1) / squares.clamp_min(TINY).sqrt()


class MeansSpan(NamedTuple):
    """Span of the class means, in a whitened space or of unit vectors.

    Attributes:
        centre: ``(D,)``, mean of the class means.
        projection: ``(D, r)``, from features minus ``centre`` to the span.
        means: ``(C, r)``, the class means in the span, whose axes are their principal
            ones.
        white: function from ``(n, D)`` rows to the whitened space.
        background: ``(r,)``, factors of squares in units of the total covariance;
            ``None`` for unit vectors.
        outside: share of the cosine apart from images that show nothing.
        cosines: with images that are drawn, and with those shown, too; maybe neither.
    """

    centre: Tensor
    projection: Tensor
    means: Tensor
    white: Callable[[Tensor], Tensor]
    background: Tensor | None = None
    outside: float = 0.0
    cosines: tuple[NothingCosine, ...] = ()

    @classmethod
    def of_unit_vectors(cls, means: Tensor) -> "MeansSpan":
        """Find the span of ``(C, D)`` float64 class means of length 1."""
        return cls._of_means(means, white=_unchanged, back=_unchanged)

    @classmethod
    def of_whitened(cls, means: Tensor, whitening: Whitening) -> "MeansSpan":
        """Find the span of ``(C, D)`` float64 class means in a whitened space."""
        return cls._of_means(means, white=whitening.white, back=whitening.back)

    @classmethod
    def _of_means(
        cls,
        means: Tensor,
        white: Callable[[Tensor], Tensor],
        back: Callable[[Tensor], Tensor],
    ) -> "MeansSpan":
        """Find the space that class means span.

        Args:
            means: ``(C, D)`` float64.
            white: maps rows to where the common covariance is 1.
            back: maps rows of that space to weights of the features.
        """
        centre = means.mean(0)
        rows = white(means - centre)
        lengths, vectors = torch.linalg.eigh(rows @ rows.mT)
        axes = above_rounding(lengths)
        projection = back(rows).mT @ (vectors[:, axes] / lengths[axes].sqrt())
        in_span = (means - centre) @ projection
        return cls(centre=centre, projection=projection, means=in_span, white=white)

    def against_background(
        self, means: Tensor, nothing: Tensor | None = None
    ) -> "MeansSpan":
        """Return the span with the background, and with cosines apart from nothing.

        Args:
            means: ``(C, D)`` float64 class means.
            nothing: ``(n, D)`` features of images that show nothing, ``DRAWN`` of them
                drawn, the others shown.
        """
        squares = self.means.square().sum(0)
        # The length of a row of the transposed pseudo-inverse is 1 / (distance of its
        # mean from the plane of the others).
        inverse = self.means / squares
        heights = 1 / inverse.square().sum(1).clamp_min(TINY)
        height = float(heights.mean()) / len(self.centre)
        span = self._replace(
            background=1 / (1 + squares / len(means)),
            outside=height**2 / (height**2 + OUTSIDE**2),
        )
        if nothing is None:
            return span
        banks = [nothing[:DRAWN]]
        if len(nothing) > DRAWN:
            banks.append(nothing)
        cosines = [
            NothingCosine.of_rows(bank.double(), means, self.centre, self.white)
            for bank in banks
        ]
        return span._replace(cosines=tuple(cosines))

    def typicality(self, scores: Tensor, rows: Tensor, white: Tensor) -> Typicality:
        """Compute distances and cosines, seen from the centre.

        Of unit vectors: minus the distance to the nearest class mean within the span,
        and the cosine with the one of nearest direction.

        In a whitened space: minus the relative Mahalanobis distance (Ren et al., 2021)
        within the span, and a mean of two cosines, both in units of a cosine, to be
        added. One cosine is within the span, the other apart from images that show
        nothing, seen from their mean in a space without their directions. The further
        class means lie from the plane of the others, the more the latter counts: what
        is outside the span tells new classes only then.

        Args:
            scores: ``(B, C)`` of the images.
            rows: ``(B, D)`` float64, the features minus ``centre``.
            white: the same in the whitened space.
        """
        in_span = rows @ self.projection
        mean_squares = self.means.square().sum(1)
        products = (in_span @ functional.normalize(self.means).mT).amax(1)
        cosine = products / white.square().sum(1).clamp_min(TINY).sqrt()
        squares = in_span.square().sum(1)
        # As a product: torch's exporter to ONNX has no cdist in every version.
        nearest = (mean_squares - 2 * in_span @ self.means.mT).amin(1) + squares
        if self.background is None:
            return Typicality.of_three(scores, -nearest, cosine, cosine)
        apart = [nothing_cosine(white) for nothing_cosine in self.cosines]
        if not apart:
            apart = [cosine]
        difference = in_span.square() @ self.background - nearest
        relative = difference / mean_squares.mean().clamp_min(TINY).sqrt()
        relative = DISTANCE * relative + RISE * (1 - 1 / len(self.means))
        within = 2 * products / squares.clamp_min(TINY).sqrt() - 1
        mixed = (1 - self.outside) * within + self.outside * apart[0]
        typicality = Typicality.of_three(scores, relative, mixed, apart[0])
        if len(apart) == 1:
            return typicality
        return typicality._replace(apart=apart[1])


def above_rounding(squares: Tensor) -> Tensor:
    """Return a mask of the squared lengths that are more than rounding."""
    if not len(squares):
        return squares > 0
    return squares > TINY + 1e-9 * squares.amax()


def _unchanged(rows: Tensor) -> Tensor:
    return rows
