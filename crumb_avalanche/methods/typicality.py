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
        """Measure how typical images are of the classes by their scores alone.

        Args:
            scores: ``(B, C)`` float64, of ``C`` classes.
            values_of: function from scores of some classes to values ``(B, 3)``, larger
                ones of more typical images.
            left_out: column of a class; the values are computed without it, too, as if
                it had not been learned. ``None`` for no class.
        """
        typicality = cls(scores, values_of(scores))
        if left_out is None:
            return typicality
        scores_of_others = without_row(scores.mT, left_out).mT  # without its column
        return typicality._replace(left_out=values_of(scores_of_others))


class Whitening(NamedTuple):
    """Map to the space where a covariance ``S`` is the unit matrix.

    Attributes:
        vectors: ``(D, D)``, the eigenvectors of ``S`` as columns.
        roots: ``(D,)``, the roots of its eigenvalues.
    """

    vectors: Tensor
    roots: Tensor

    def whiten(self, rows: Tensor) -> Tensor:
        """Map ``(n, D)`` rows ``X`` to ``X S^-1/2``."""
        return rows @ self.vectors / self.roots


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
        cls, whitened_nothing: Tensor, whitened_means: Tensor
    ) -> "NothingCosine":
        """Prepare cosines with class means, apart from images that show nothing.

        These show no object: they are drawn, or shown by a person as a background. The
        cosines are those of the inner product ``x (1 + V V^T)^-1 y^T`` of rows seen
        from the mean of these images, with a multiple ``V V^T`` of their scatter: next
        to nothing of their directions is left.

        Args:
            whitened_nothing: ``(n, D)`` float64, images that show nothing, where the
                common covariance is 1.
            whitened_means: ``(C, D)``, class means, seen from the same centre.
        """
        nothing_mean = whitened_nothing.mean(0)
        # V, (D, n), scaled so that the images have a mean squared length of STRENGTH.
        spread = (whitened_nothing - nothing_mean).mT
        energy = spread.square().sum().clamp_min(TINY)
        spread = spread * (STRENGTH * spread.shape[1] / energy).sqrt()
        # Woodbury: (1 + V V^T)^-1 = 1 - V (1 + V^T V)^-1 V^T = 1 - lift lift^T.
        identity = torch.eye(len(whitened_nothing), dtype=torch.float64)
        root = torch.linalg.cholesky(identity + spread.mT @ spread)  # R, (n, n)
        # V R^-T, (D, n)
        lift = torch.linalg.solve_triangular(root, spread.mT, upper=False).mT
        from_nothing = (whitened_means - nothing_mean).mT  # y^T of the classes, (D, C)
        towards = from_nothing - lift @ (lift.mT @ from_nothing)  # (1 + V V^T)^-1 y^T
        lengths = (from_nothing * towards).sum(0).clamp_min(TINY).sqrt()  # of each y
        return cls(shift=-nothing_mean, lift=lift, towards=towards / lengths)

    def __call__(self, whitened: Tensor) -> Tensor:
        """Return the cosines of ``(B, D)`` whitened rows with the means: ``(B, C)``.

        The rows are seen from the centre of the classes.
        """
        shifted = whitened + self.shift
        squares = shifted.square().sum(1) - (shifted @ self.lift).square().sum(1)
        return (shifted @ self.towards) / squares.clamp_min(TINY).sqrt().unsqueeze(1)


class MeansSpan(NamedTuple):
    """Span of the class means, in a whitened space or of unit vectors.

    Attributes:
        centre: ``(D,)``, mean of the class means.
        axes: ``(D, r)``, from the whitened space to the span.
        means: ``(C, r)``, the class means in the span, whose axes are their principal
            ones.
        whiten: function from ``(n, D)`` rows to the whitened space.
        whitened_means: ``(C, D)``, the class means minus ``centre``, whitened.
        background: ``(r,)``, factors of squares in units of the total covariance;
            ``None`` for unit vectors.
        apart_share: share of the cosine apart from images that show nothing.
        nothing_cosines: apart from images that are drawn, and from these and those
            shown; the second one, or both, may be missing.
    """

    centre: Tensor
    axes: Tensor
    means: Tensor
    whiten: Callable[[Tensor], Tensor]
    whitened_means: Tensor
    background: Tensor | None = None
    apart_share: float = 0.0
    nothing_cosines: tuple[NothingCosine, ...] = ()

    @classmethod
    def of_unit_vectors(cls, means: Tensor) -> "MeansSpan":
        """Find the span of ``(C, D)`` float64 class means of length 1."""
        return cls._of_means(means, whiten=_unchanged)

    @classmethod
    def of_whitened(cls, means: Tensor, whitening: Whitening) -> "MeansSpan":
        """Find the span of ``(C, D)`` float64 class means in a whitened space."""
        return cls._of_means(means, whiten=whitening.whiten)

    @classmethod
    def _of_means(
        cls, means: Tensor, whiten: Callable[[Tensor], Tensor]
    ) -> "MeansSpan":
        """Find the space that class means span, and the means in it.

        Args:
            means: ``(C, D)`` float64.
            whiten: function from ``(n, D)`` rows to where the common covariance is 1.
        """
        centre = means.mean(0)
        whitened_means = whiten(means - centre)  # M
        # With M M^T = U E U^T, the principal axes are the columns of M^T U E^-1/2.
        squares, vectors = torch.linalg.eigh(whitened_means @ whitened_means.mT)
        is_axis = above_rounding(squares)
        axes = whitened_means.mT @ (vectors[:, is_axis] / squares[is_axis].sqrt())
        return cls(
            centre=centre,
            axes=axes,
            means=whitened_means @ axes,
            whiten=whiten,
            whitened_means=whitened_means,
        )

    def against_background(self, nothing: Tensor | None = None) -> "MeansSpan":
        """Return this span with what tells known classes from a background.

        That is the Gaussian of images of any class, for relative distances, and cosines
        apart from images that show nothing.

        Args:
            nothing: ``(n, D)`` features of images that show nothing: first ``DRAWN``
                drawn ones, then those that a person showed.
        """
        squares = self.means.square().sum(0)  # along each axis, (r,)
        # Each mean, in units of these squares, is normal to the plane of the others.
        normals = self.means / squares
        span = self._replace(
            # The inverse of the total variance: 1 within classes, and that of means.
            background=1 / (1 + squares / len(self.means)),
            apart_share=_apart_share(normals, len(self.centre)),
        )
        if nothing is None:
            return span
        # In float64, as the statistics are.
        whitened_nothing = self.whiten(nothing.double() - self.centre)
        # Cosines apart from the drawn images, and apart from all.
        image_sets = [whitened_nothing[:DRAWN]]
        has_shown_images = len(nothing) > DRAWN
        if has_shown_images:
            image_sets.append(whitened_nothing)
        cosines = [
            NothingCosine.of_rows(images, self.whitened_means) for images in image_sets
        ]
        return span._replace(nothing_cosines=tuple(cosines))

    def typicality(
        self, scores: Tensor, whitened: Tensor, left_out: int | None = None
    ) -> Typicality:
        """Compute how typical images are of the classes, by distances and cosines.

        All are seen from the centre of the class means.

        Of unit vectors: minus the squared distance to the nearest class mean within the
        span, and the cosine with the one of nearest direction, which the third value
        repeats.

        In a whitened space: minus the relative Mahalanobis distance (Ren et al., 2021)
        within the span, and a mean of two cosines, both in units of a cosine, to be
        added. One cosine is within the span, the other apart from images that show
        nothing, seen from their mean in a space without their directions. The further
        class means lie from the plane of the others, the more the latter counts: what
        is outside the span tells new classes only then.

        Args:
            scores: ``(B, C)`` of the images.
            whitened: ``(B, D)`` float64, the features minus ``centre``, whitened.
            left_out: column of a class; the values are computed without it, too, as if
                it had not been learned.
        """
        points = whitened @ self.axes  # in the span of the means, (B, r)
        lengths = whitened.square().sum(1).clamp_min(TINY).sqrt()
        # (B, C) each: apart from images drawn, and from those drawn and shown.
        cosines = [nothing_cosine(whitened) for nothing_cosine in self.nothing_cosines]
        apart_from_drawn = None
        if cosines:
            apart_from_drawn = cosines[0].amax(1)
        background = None  # squared distances from any class, (B,)
        if self.background is not None:
            background = points.square() @ self.background
        seen_points = SeenPoints(
            points=points,
            means=self.means,
            lengths=lengths,
            background=background,
            apart=apart_from_drawn,
        )
        typicality = Typicality(scores, values=seen_points.values(self.apart_share))
        if len(cosines) > 1:
            typicality = typicality._replace(apart=cosines[1].amax(1))
        if left_out is None or len(self.means) < 2:  # no other class would be left
            return typicality
        if cosines:
            # Without the column of the class.
            cosines_of_others = without_row(cosines[0].mT, left_out).mT
            apart_from_drawn = cosines_of_others.amax(1)
        values_without = self._values_without(
            left_out, points=points, lengths=lengths, apart=apart_from_drawn
        )
        return typicality._replace(left_out=values_without)

    def _values_without(
        self, column: int, points: Tensor, lengths: Tensor, apart: Tensor | None
    ) -> Tensor:
        """Compute how typical images are, as if one class had not been learned.

        The values are those of ``typicality``, in the span of the other means. It takes
        ``C r`` steps an image: nothing is solved again. The covariance of the space
        stays as it is.

        Args:
            column: of the class left out.
            points: ``(B, r)``, the images in the span of all means, seen from their
                centre.
            lengths: ``(B,)``, of the images in the whitened space.
            apart: ``(B,)``, cosines with the other means apart from what shows nothing.

        Returns:
            ``(B, 3)``: closeness to the nearest class, cosine with the mean of nearest
            direction, and that cosine apart from what shows nothing.
        """
        squares = self.means.square().sum(0)  # along each axis, (r,)
        # Axes are the principal ones of the means, so these are the rows of their
        # transposed pseudo-inverse: each is normal to the plane of the other means.
        normals = self.means / squares
        normal = functional.normalize(normals[column], dim=0)
        # The C means, seen from their centre, span C - 1 dimensions unless some are
        # redundant: then the other means have the same span, and no normal.
        is_redundant = self.means.shape[1] < len(self.means) - 1
        if is_redundant:
            normal = torch.zeros_like(normal)
        # Seen from the centre of the other means, |x - c|^2 = |x|^2 - 2 x c + |c|^2.
        means = without_row(self.means, column)
        centre = means.mean(0)
        squared_lengths = lengths.square() - 2 * points @ centre + centre @ centre
        lengths = squared_lengths.clamp_min(TINY).sqrt()
        points = points - centre
        # Projected on the plane of the other means.
        points = points - (points @ normal).unsqueeze(1) * normal
        background = None
        apart_share = 0.0
        if self.background is not None:
            background = self._background_without(column, points, squares)
            # The normals of the other means, projected likewise.
            normals_in_plane = without_row(normals, column)
            along_normal = (normals_in_plane @ normal).unsqueeze(1)
            normals_in_plane = normals_in_plane - along_normal * normal
            apart_share = _apart_share(normals_in_plane, len(self.centre))
        seen_points = SeenPoints(
            points=points,
            means=means - centre,
            lengths=lengths,
            background=background,
            apart=apart,
        )
        return seen_points.values(apart_share)

    def _background_without(
        self, column: int, points: Tensor, squares: Tensor
    ) -> Tensor:
        """Return squared Mahalanobis lengths ``(B,)`` by the total covariance.

        It is that of images of any class but one: 1 within classes, and the covariance
        of the class means. Without a mean ``m`` of ``C``, the scatter of the others
        around their own mean is less by ``C / (C - 1) m m^T``; the inverse follows by
        the identity of Sherman and Morrison.

        Args:
            column: of the class left out.
            points: ``(B, r)`` of the images, seen from the centre of the other means.
            squares: ``(r,)``, sums of squares of all means along the axes.
        """
        n_others = len(self.means) - 1
        mean = self.means[column]  # m
        # With D = 1 + squares / n and s = C / n^2, of n = C - 1 other classes:
        # x (D - s m m^T)^-1 x^T = x D^-1 x^T + s (x D^-1 m)^2 / (1 - s m D^-1 m)
        weights = 1 / (1 + squares / n_others)  # D^-1
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

    def values(self, apart_share: float) -> Tensor:
        """Return how typical images are of the classes, by three values, ``(B, 3)``.

        They are the closeness to the nearest class mean, the cosine with the mean of
        nearest direction, and that cosine apart from images that show nothing; larger
        ones of more typical images. With a background, the closeness is that relative
        to a Gaussian of all classes; without one, it is minus the squared distance, and
        the third value repeats the second.

        Args:
            apart_share: share of the cosine apart from images that show nothing in the
                second value; the rest is the cosine within the span.
        """
        mean_squares = self.means.square().sum(1)
        # Lengths of the images along the direction of the nearest mean.
        products = (self.points @ functional.normalize(self.means).mT).amax(1)
        cosine = products / self.lengths
        squares = self.points.square().sum(1)  # of the lengths within the span
        # |x - m|^2 = |x|^2 + |m|^2 - 2 x m, as torch's exporter to ONNX has no cdist in
        # every version.
        mean_terms = mean_squares - 2 * self.points @ self.means.mT
        nearest_square = mean_terms.amin(1) + squares
        if self.background is None:
            return torch.stack([-nearest_square, cosine, cosine], 1)
        cosine_apart = cosine
        if self.apart is not None:
            cosine_apart = self.apart
        # Squared distance to any class minus that to the nearest one (Ren et al.,
        # 2021), in units of the root mean square length of the means.
        relative_distance = self.background - nearest_square
        relative = relative_distance / mean_squares.mean().clamp_min(TINY).sqrt()
        # Constants chosen by measurement, so that it can be added to a cosine.
        closeness = DISTANCE * relative + RISE * (1 - 1 / len(self.means))
        # Doubled and shifted: a cosine of 0 within the span counts as -1.
        cosine_within = 2 * products / squares.clamp_min(TINY).sqrt() - 1
        mixed = (1 - apart_share) * cosine_within + apart_share * cosine_apart
        return torch.stack([closeness, mixed, cosine_apart], 1)


def _apart_share(normals: Tensor, length: int) -> float:
    """Return the share of the cosine apart from images that show nothing, 0 to 1.

    It is larger the further class means lie from the plane of the others, and one half
    at a squared distance of ``OUTSIDE`` per feature.

    Args:
        normals: ``(C, r)``; the length of each is 1 / (distance of its class mean from
            the plane of the others).
        length: number of features.
    """
    squared_distances = 1 / normals.square().sum(1).clamp_min(TINY)
    per_feature = float(squared_distances.mean()) / length
    return per_feature**2 / (per_feature**2 + OUTSIDE**2)


def without_row(rows: Tensor, index: int) -> Tensor:
    """Return ``(n, D)`` rows without the one of an index."""
    return torch.cat([rows[:index], rows[index + 1 :]])


def above_rounding(squares: Tensor) -> Tensor:
    """Return a mask of the squared lengths of axes that are more than rounding."""
    if not len(squares):
        return squares > 0
    return squares > TINY + 1e-9 * squares.amax()


def _unchanged(rows: Tensor) -> Tensor:
    """Return rows as they are: the whitening of unit vectors."""
    return rows
