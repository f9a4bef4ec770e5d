"""Regularised discriminant analysis in a stream (Friedman, "Regularized Discriminant Analysis", JASA 1989).

The covariance of each class is stored as a few principal directions, which are updated batch by batch.

Prior art: Deep SRDA (Khawand, Hanappe and Colliaux, ICCV Workshops 2023, arXiv 2309.08353) updates full covariances
of classes image by image, on frozen features, and blends them with a common one. LR-RGDA (Rao et al., arXiv 2602.00144)
gives each class a covariance of low rank beside a common one, and solves with Woodbury's identity. Both are in
``srda`` and ``lr_rgda``. What differs here: the common covariance is shrunk by ``D / N`` towards its diagonal, and
directions take 8 bits a value, are updated in the stream and within a budget.
"""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from crumb_avalanche.methods.directions import ClassDirections
from crumb_avalanche.methods.gaussians import MOST_DIRECTIONS, ClassGaussians, PackedScatter, mirrored
from crumb_avalanche.methods.rda_solution import Solution, Span
from crumb_avalanche.methods.registry import register
from crumb_avalanche.system.setting_ranges import NotNegative, Positive, Share

LEAST_OF_ALL_FEATURES = 8  # directions of a class; with fewer, fewer features answer better
LEAST_VARIANCE = 1e-3  # of a feature in the shrinkage, in units of the mean variance
LEAST_LENGTH = 1e-5  # of an axis of the discriminant space, in units of the longest: shorter ones are rounding


@register(
    "rda",
    summary="a Gaussian of frozen features for each class, with principal directions of its own",
    source="Friedman, Regularized Discriminant Analysis, JASA 1989; covariances as directions kept up to date",
    stores="a mean and principal directions for each class",
    each_class=True,
)
class RegularizedDiscriminant(ClassGaussians):
    """Classifier by Gaussians whose covariances lie between a common one and that of each class.

    The blend is Friedman's and Deep SRDA's, the low rank of a class's own covariance and its solution LR-RGDA's.

    The diagonal of the common within-class covariance ``S`` is increased by ``e`` times its mean, or with ``diagonal``
    by ``e`` times itself, with ``e = min(1, s D / N)`` for ``N`` images: fewer images give more shrinkage. Class ``c``
    of ``n`` images has the covariance ``(1 - a_c) S + a_c C_c`` with ``a_c = a n / (n + k)``: a class of few images has
    nearly the common covariance. Scores are log-densities, of all features or, with ``span``, of their projections on
    the space that the class means span where ``S`` is the unit matrix.

    With ``part``, the last features answer alone, too, from the same statistics: ``p = (1 - w) p_all + w p_part``,
    where ``w`` is the share of the part, and ``p_all`` and ``p_part`` are softmaxes of log-densities that are divided
    by ``TEMPERATURE``. Scores are ``TEMPERATURE log p`` then.

    ``merge`` is exact for means, counts, traces and a full common scatter. It keeps the principal directions of both
    instances together, as an update does; they equal those of one instance trained on both parts only if ``directions``
    spans the whole scatter of a class. Under the same condition the order of the images does not matter, up to the
    rounding of the directions.

    ``forget`` leaves nothing of a class, unless there is a full common scatter: this keeps the share of the removed
    images, and counts from then on as the scatter of the images that are left.

    ``update`` takes an eigendecomposition of as many rows as a class has directions and new images, 512 images at a
    time. The first ``scores`` after a change factors the ``(D, D)`` common covariance and the ``(D, C)`` means of ``C``
    classes, and projects all directions.

    Args:
        n_classes, length: see ``ClassMeans``.
        directions: largest number of principal directions of each class.
        whole: whether to store the full common scatter; otherwise it is the sum over the classes' directions.
        total_directions: largest number of directions of all classes, or ``None`` for no limit; see ``limit``.
        part: number of the last features that answer alone, too; 0 for none.
        own: share ``a`` of a class's own covariance; the rest is the common one. 0 is linear discriminant analysis.
        own_images: ``k``, the images with which a class has half of the share ``a``; 0 gives every class ``a``, and
            serves streams of classes of unequal size better.
        shrinkage: factor ``s`` of the shrinkage, in units of features by images. The default of 1 is large because
            frames of a video are alike and determine a covariance less well than as many unrelated images.
        diagonal: shrink each feature by its own variance instead of the mean variance.
        span: compare classes in the space that their means span: less accurate on new objects of the classes taught,
            more where their images come from another source than those taught.
        eight_bits: store directions as int8 with a scale for each 32 values, instead of float16: about twice as many in
            the same bytes.
        head_share: share ``w`` of the answer that the head's input alone gives, where there are other features, too.
        drop_features: give up the features of the map, for good, when a further class leaves less than 8 directions of
            each class with them.

    Raises:
        ValueError: ``part`` is not below ``length``.

    Attributes:
        classes: means and counts.
        directions: the directions, and the parts of the scatters' traces that these leave out.
        scatter: the full common scatter, or ``None``.
    """

    directions: ClassDirections

    moments: ClassVar = dict(maps=True, power=0.7, equal_lengths=True, cells=2)
    _free = frozenset({"n_classes", "total_directions", "part"})
    _changing = frozenset({"n_classes", "length", "total_directions", "part"})

    def __init__(
        self,
        n_classes: int,
        length: int,
        directions: int = 0,
        whole: bool = False,
        total_directions: int | None = None,
        part: int = 0,
        *,
        own: Share = 0.1,
        own_images: NotNegative = 0.0,
        shrinkage: Positive = 1.0,
        diagonal: bool = True,
        span: bool = False,
        eight_bits: bool = True,
        head_share: Share = 1 / 3,
        drop_features: bool = True,
    ):
        if not 0 <= part < max(1, length):
            raise ValueError(f"part is {part}; give 0 or a number of features below length, {length}")
        self._hold(n_classes, length, directions, whole, total_directions, eight_bits)
        if self.directions is None:  # present even if there may be none
            self.directions = ClassDirections(n_classes, length, 0, eight_bits=eight_bits)

    @classmethod
    def fixed_bytes(cls, n_classes: int, length: int, kept: int, settings: Mapping[str, Any]) -> int:
        narrow = kept if settings["drop_features"] else length
        return super().fixed_bytes(n_classes, narrow, kept, settings)

    @classmethod
    def for_stream(
        cls, n_classes: int, length: int, kept: int, items: int, seed: int, settings: Mapping[str, Any]
    ) -> "RegularizedDiscriminant":
        """Build an instance without classes: nothing depends on those to come."""
        cls.each(n_classes, items)  # raises where the budget is too small
        part = kept if kept < length and settings["head_share"] else 0
        return cls(0, length, MOST_DIRECTIONS, part=part, **settings)

    @classmethod
    def for_budget(cls, length: int, budget: int, kept: int) -> "RegularizedDiscriminant":
        return cls(0, length, MOST_DIRECTIONS, part=kept if kept < length else 0)

    def narrow(self, classes: int, budget: int, kept: int) -> str:
        length = self.settings["length"]
        needed = self._bytes_without_images(classes) + classes * LEAST_OF_ALL_FEATURES * self._direction_bytes()
        if kept >= length or needed <= budget or not self.settings["drop_features"]:
            return ""
        self.keep_features(kept)
        return (
            f"{length - kept} of {length} features, those of the feature map, are given up, and with them what was "
            "recorded of the confidence"
        )

    def keep_features(self, kept: int) -> None:
        """Keep the last ``kept`` features; the statistics are those of them alone from then on.

        Means, counts and a full common scatter are exact. What the directions of a class leave out of the trace of its
        scatter is divided as their squared lengths are.
        """
        if self.scatter is not None:
            matrix = self.scatter.whole()[-kept:, -kept:]
            self.scatter = PackedScatter(len(matrix))
            self.scatter.add_matrix(matrix)
        self.classes.keep_features(kept)
        self.directions.keep_features(kept)
        self.settings["length"] = kept
        if self.settings["part"] >= kept:
            self.settings["part"] = 0
        self._solution = None

    def _answers(self, features, solution):
        return solution.scores(features)

    def _solve(self, seen) -> Solution:
        counts, means = self.classes.counts[seen].double(), self.classes.means[seen].double()
        directions = self.directions.of_classes(seen.nonzero().flatten().tolist())
        numbers, outside = self.directions.counts[seen], self.directions.outside[seen].double()
        total, length = float(counts.sum()), means.shape[1]
        common = _summed(directions, outside) if self.scatter is None else self.scatter.whole()
        common /= total
        variance = float(common.diagonal().mean()) or 1.0  # 0 for a single image or equal ones
        shares = common.diagonal().clamp_min(LEAST_VARIANCE * variance) if self.settings["diagonal"] else variance
        common.diagonal().add_(min(1.0, self.settings["shrinkage"] * length / total) * shares)
        root = mirrored(common).mT  # equal to common, in the order of axes in which the root takes its memory
        torch.linalg.cholesky(root, out=root)
        centre = means.mean(0)
        white = torch.linalg.solve_triangular(root, (means - centre).mT, upper=False)
        vectors, lengths, _ = torch.linalg.svd(white, full_matrices=False)
        basis = vectors[:, : len(means) - 1]
        basis = basis[:, lengths[: len(basis.mT)] > LEAST_LENGTH * lengths[0]]
        projection = torch.linalg.solve_triangular(root.mT, basis, upper=True)
        owners = torch.arange(len(means)).repeat_interleave(numbers)
        kept = torch.zeros_like(outside).index_add_(0, owners, directions.square().sum(1))
        rest = outside / (outside + kept).clamp_min(1e-300)
        own = self.settings["own"] * counts / (counts + self.settings["own_images"])
        if self.settings["span"]:
            rows, places = directions @ projection, (means - centre) @ projection
        else:
            rows, places = torch.linalg.solve_triangular(root, directions.mT, upper=False).mT, white.mT
        spreads = ((own / counts).sqrt()[owners, None] * rows).split(numbers.tolist())
        space = Span(projection, (means - centre) @ projection, root, lengths[: len(basis.mT)])
        solution = Solution(
            centre, projection if self.settings["span"] else None, root, places, spreads, 1 - own + own * rest, space
        )
        if self.settings["part"]:
            alone = copy.deepcopy(self)
            alone.keep_features(self.settings["part"])
            solution.part, solution.part_share = alone.solution(), self.settings["head_share"]
        return solution


def _summed(directions: Tensor, outside: Tensor) -> Tensor:
    """Return the sum of scatters, ``(D, D)`` float64, of ``(k, D)`` directions and the traces that they leave out."""
    common = directions.mT @ directions
    common.diagonal().add_(outside.double().sum() / len(common))
    return common
