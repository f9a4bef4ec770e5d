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
        left_out: ``(B, 3)`` float64, the values if one class had not been learned;
            ``None`` if none was left out.
    """

    scores: Tensor
    values: Tensor
    apart: Tensor | None = None
    left_out: Tensor | None = None

    @classmethod
    def of_scores(
        cls,
        scores: Tensor,
        values_of: Callable[[Tensor], Tensor],
        left_out: int | None,
    ) -> "Typicality":
        """Measure images by their scores alone.

        Args:
            scores: ``(B, C)``.
            values_of: returns the values of scores, ``(B, 3)``.
            left_out: column of a class without which they are measured, too.
        """
        typicality = cls(scores, values_of(scores))
        if left_out is None:
            return typicality
        others = without_row(scores.mT, left_out).mT
        return typicality._replace(left_out=values_of(others))


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
        """Return the cosines of ``(B, D)`` whitened rows with the means: ``(B, C)``.

        The rows are seen from the centre of the classes.
        """
        shifted = white_rows + self.shift
        squares = shifted.square().sum(1) - (shifted @ self.lift).square().sum(1)
        return (shifted @ self.towards) / squares.clamp_min(TINY).sqrt().unsqueeze(1)


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
        span = self._replace(
            background=1 / (1 + squares / len(means)),
            outside=_outside(self.means / squares, len(self.centre)),
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

    def typicality(
        self, scores: Tensor, rows: Tensor, white: Tensor, left_out: int | None = None
    ) -> Typicality:
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
            left_out: column of a class; the values are computed without it, too.
        """
        points = rows @ self.projection
        lengths = white.square().sum(1).clamp_min(TINY).sqrt()
        cosines = [nothing_cosine(white) for nothing_cosine in self.cosines]
        apart = None
        if cosines:
            apart = cosines[0].amax(1)
        background = None
        if self.background is not None:
            background = points.square() @ self.background
        seen = SeenPoints(points, self.means, lengths, background, apart)
        typicality = Typicality(scores, seen.values(self.outside))
        if len(cosines) > 1:
            typicality = typicality._replace(apart=cosines[1].amax(1))
        if left_out is None or len(self.means) < 2:
            return typicality
        if cosines:
            apart = without_row(cosines[0].mT, left_out).mT.amax(1)
        without = self._without(left_out, points, lengths, apart)
        return typicality._replace(left_out=without)

    def _without(
        self, column: int, points: Tensor, lengths: Tensor, apart: Tensor | None
    ) -> Tensor:
        """Compute the values of images in the span of the means but one.

        It takes ``C r`` steps an image: nothing is solved again. The covariance of the
        space stays as it is.

        Args:
            column: of the class left out.
            points: ``(B, r)`` of the images.
            lengths: ``(B,)`` of the images in the whitened space.
            apart: ``(B,)``, cosines with the other means apart from what shows nothing.
        """
        squares = self.means.square().sum(0)
        # Rows of the transposed pseudo-inverse: each is normal to the plane of the
        # other means.
        normals = self.means / squares
        normal = functional.normalize(normals[column], dim=0)
        if self.means.shape[1] < len(self.means) - 1:
            normal = torch.zeros_like(normal)  # the other means span the same space
        means = without_row(self.means, column)
        centre = means.mean(0)
        lengths = (
            (lengths.square() - 2 * points @ centre + centre @ centre)
            .clamp_min(TINY)
            .sqrt()
        )
        points = points - centre
        points = points - (points @ normal).unsqueeze(1) * normal
        background = None
        outside = 0.0
        if self.background is not None:
            background = self._background_without(column, points, squares)
            in_plane = without_row(normals, column)
            in_plane = in_plane - (in_plane @ normal).unsqueeze(1) * normal
            outside = _outside(in_plane, len(self.centre))
        seen = SeenPoints(points, means - centre, lengths, background, apart)
        return seen.values(outside)

    def _background_without(
        self, column: int, points: Tensor, squares: Tensor
    ) -> Tensor:
        """Return the squared lengths of points by the total covariance but of a class.

        By the identity of Sherman and Morrison: without a mean ``m`` of ``C``, the
        scatter of the others around their own mean is less by ``C / (C - 1) m m^T``.
        """
        n_others = len(self.means) - 1
        mean = self.means[column]
        weights = 1 / (1 + squares / n_others)
        along = weights * mean
        share = (1 + 1 / n_others) / n_others
        surplus = share * (points @ along).square() / (1 - share * (mean @ along))
        return points.square() @ weights + surplus


class SeenPoints(NamedTuple):
    """Images in the span of class means, seen from the centre of the means.

    Attributes:
        points: ``(B, r)`` of the images.
        means: ``(C, r)`` of the classes.
        lengths: ``(B,)`` of the images in the whitened space.
        background: ``(B,)``, squared lengths by the total covariance; ``None`` for unit
            vectors.
        apart: ``(B,)``, cosines apart from images that show nothing; maybe ``None``.
    """

    points: Tensor
    means: Tensor
    lengths: Tensor
    background: Tensor | None
    apart: Tensor | None

    def values(self, outside: float) -> Tensor:
        """Return the values of a ``Typicality``, ``(B, 3)``.

        Args:
            outside: share of the cosine apart from images that show nothing.
        """
        mean_squares = self.means.square().sum(1)
        products = (self.points @ functional.normalize(self.means).mT).amax(1)
        cosine = products / self.lengths
        squares = self.points.square().sum(1)
        # As a product: torch's exporter to ONNX has no cdist in every version.
        nearest = (mean_squares - 2 * self.points @ self.means.mT).amin(1) + squares
        if self.background is None:
            return torch.stack([-nearest, cosine, cosine], 1)
        apart = cosine
        if self.apart is not None:
            apart = self.apart
        difference = self.background - nearest
        relative = difference / mean_squares.mean().clamp_min(TINY).sqrt()
        relative = DISTANCE * relative + RISE * (1 - 1 / len(self.means))
        within = 2 * products / squares.clamp_min(TINY).sqrt() - 1
        mixed = (1 - outside) * within + outside * apart
        return torch.stack([relative, mixed, apart], 1)


def _outside(normals: Tensor, length: int) -> float:
    """Return the share of the cosine apart from images that show nothing.

    Args:
        normals: ``(C, r)``; the length of each is 1 / (distance of its class mean from
            the plane of the others).
        length: number of features.
    """
    heights = 1 / normals.square().sum(1).clamp_min(TINY)
    height = float(heights.mean()) / length
    return height**2 / (height**2 + OUTSIDE**2)


def without_row(rows: Tensor, index: int) -> Tensor:
    """Return the rows but one."""
    return torch.cat([rows[:index], rows[index + 1 :]])


def above_rounding(squares: Tensor) -> Tensor:
    """Return a mask of the squared lengths that are more than rounding."""
    if not len(squares):
        return squares > 0
    return squares > TINY + 1e-9 * squares.amax()


def _unchanged(rows: Tensor) -> Tensor:
    """Return rows as they are: the whitening of unit vectors."""
    return rows
