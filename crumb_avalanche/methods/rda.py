"""Regularised discriminant analysis in a stream.

Friedman, "Regularized Discriminant Analysis", JASA 1989. The covariance of each class
is stored as a few principal directions, which are updated batch by batch.

Prior art: Deep SRDA (Khawand, Hanappe and Colliaux, ICCV Workshops 2023, arXiv
2309.08353) updates full covariances of classes image by image, on frozen features, and
blends them with a common one. LR-RGDA (Rao et al., arXiv 2602.00144) gives each class a
covariance of low rank beside a common one, and solves with Woodbury's identity. Both
are in ``srda`` and ``lr_rgda``. What differs here: the common covariance is shrunk by
``D / N`` towards its diagonal, and directions take 8 bits a value, are updated in the
stream and within a budget.
"""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from crumb_avalanche.methods.closed_form import LOWEST_SCORE
from crumb_avalanche.methods.gaussian_solution import Solution
from crumb_avalanche.methods.gaussians import MOST_DIRECTIONS, BlendedGaussians
from crumb_avalanche.methods.registry import register
from crumb_avalanche.methods.shortage import shortage
from crumb_avalanche.methods.typicality import MeansSpan, Typicality, above_rounding
from crumb_avalanche.system.setting_ranges import NotNegative, Positive, Share

# Directions of a class; with fewer, fewer features answer better.
LEAST_OF_ALL_FEATURES = 8
# Of a feature in the shrinkage, in units of the mean variance.
LEAST_VARIANCE = 1e-3


@register(
    "rda",
    summary=(
        "a Gaussian of frozen features for each class, with principal directions of "
        "its own"
    ),
    source=(
        "Friedman, Regularized Discriminant Analysis, JASA 1989; covariances as "
        "directions kept up to date"
    ),
    stores="a mean and principal directions for each class",
    each_class=True,
)
class RegularizedDiscriminant(BlendedGaussians):
    """Gaussians whose covariances lie between a common one and that of each class.

    The blend is Friedman's and Deep SRDA's, the low rank of a class's own covariance
    and its solution LR-RGDA's.

    The diagonal of the common within-class covariance ``S`` is increased by ``e`` times
    its mean, or with ``diagonal`` by ``e`` times itself, with ``e = min(1, s D / N)``
    for ``N`` images: fewer images give more shrinkage. Where classes have fewer than
    four images, its mean takes the place of the diagonal; see ``shortage``.

    Class ``c`` of ``n`` images has the covariance ``(1 - a_c) S + a_c C_c`` with ``a_c
    = a n / (n + k)``: a class of few images has nearly the common covariance. Scores
    are log-densities, of all features or, with ``span``, of their projections on the
    space that the class means span where ``S`` is the unit matrix.

    With ``part``, the last features answer alone, too, from the same statistics: ``p =
    (1 - w) p_all + w p_part`` for softmaxes of log-densities divided by the temperature
    ``T``; scores are ``T log p`` then.

    ``merge`` is exact for means, counts, traces and a full common scatter. It keeps the
    principal directions of both instances together, as an update does; they equal those
    of one instance trained on both parts, and the order of images does not matter, only
    where ``directions`` spans the whole scatter of a class. ``forget`` leaves nothing
    of a class but its share of a full common scatter, which counts from then on as that
    of the images that are left.

    Typical images have a small relative Mahalanobis distance (Ren et al., 2021) and the
    direction of a class mean, both where ``S`` is the unit matrix; see ``MeansSpan``.

    Attributes:
        own: share ``a`` of a class's own covariance; the rest is the common one. 0 is
            linear discriminant analysis.
        own_images: ``k``, the images with which a class has half of the share ``a``; 0
            gives every class ``a``, and serves streams of classes of unequal size
            better.
        shrinkage: factor ``s`` of the shrinkage, in units of features by images. The
            default of 1 is large because frames of a video are alike and determine a
            covariance less well than as many unrelated images.
        diagonal: shrink each feature by its own variance instead of the mean variance.
        span: compare classes in the space that their means span: less accurate on new
            objects of the classes taught, more where their images come from another
            source than those taught.
        eight_bits: store directions as int8 with a scale for each 32 values, instead of
            float16: about twice as many in the same bytes.
        head_share: share ``w`` of the answer that the head's input alone gives, where
            there are other features, too.
        drop_features: give up the features of the map, for good, when a further class
            leaves less than 8 directions of each class with them.

    Raises:
        ValueError: ``part``, the number of the last features that answer alone, too, is
            not below ``length``.
    """

    own: Share = 0.1
    own_images: NotNegative = 0.0
    shrinkage: Positive = 1.0
    diagonal: bool = True
    span: bool = False
    eight_bits: bool = True
    head_share: Share = 1 / 3
    drop_features: bool = True

    temperature = 2.7  # log-densities count as independent what hardly is
    apart_from_nothing = True
    moments: ClassVar = dict(maps=True, power=0.7, equal_lengths=True, cells=2)
    _free = frozenset({"n_classes", "total_directions", "part"})
    _changing = frozenset({"n_classes", "length", "total_directions", "part"})

    def _allocate(
        self,
        n_classes: int,
        length: int,
        directions: int = 0,
        whole: bool = False,
        total_directions: int | None = None,
        part: int = 0,
    ) -> None:
        """Allocate empty statistics, after a check of ``part``.

        Args:
            n_classes: number of classes.
            length: ``D``, number of features.
            directions: largest number of principal directions of a class.
            whole: whether there is a common scatter.
            total_directions: largest number of directions of all classes, or ``None``.
            part: number of the last features that answer a second time, alone; it is
                recorded in ``settings`` by the constructor.

        Raises:
            ValueError: ``part`` is not below ``length``.
        """
        if not 0 <= part < max(1, length):
            raise ValueError(
                f"part is {part}; give 0 or a number of features below length, {length}"
            )
        super()._allocate(n_classes, length, directions, whole, total_directions)

    # What a budget buys

    @classmethod
    def fixed_bytes(
        cls, n_classes: int, length: int, head_length: int, settings: Mapping[str, Any]
    ) -> int:
        """Return the bytes before any direction, of features that are not dropped."""
        if settings["drop_features"]:
            length = head_length
        return super().fixed_bytes(n_classes, length, head_length, settings)

    @classmethod
    def for_stream(
        cls,
        n_classes: int,
        length: int,
        head_length: int,
        n_items: int,
        seed: int,
        settings: Mapping[str, Any],
    ) -> "RegularizedDiscriminant":
        """Build statistics for a run, without classes: none depends on those to come.

        Where features are those of the map and of the head, there is a second answer by
        the head's alone, the last ones, which counts by ``head_share``; none if that
        is 0.

        Args:
            n_classes: classes of the stream.
            length: number of features.
            head_length: number of the last features, those of the head's input.
            n_items: principal directions that the budget buys in all, checked here. The
                strategy limits the directions to the budget as classes come.
            seed: without effect.
            settings: settings of the method by name.

        Raises:
            ValueError: there is less than a direction for each class.
        """
        cls.check_directions(n_classes, n_items)
        part = 0  # number of the last features that give the second answer
        if head_length < length and settings["head_share"]:
            part = head_length
        return cls(
            n_classes=0,  # they are added as they come
            length=length,
            directions=MOST_DIRECTIONS,  # of a class
            part=part,
            **settings,
        )

    @classmethod
    def for_budget(
        cls, length: int, budget: int, head_length: int
    ) -> "RegularizedDiscriminant":
        """Build an instance without classes, whose directions the budget limits later.

        Where features are those of the map and of the head, there is a second answer by
        the head's alone, the last ones.
        """
        part = 0  # number of the last features that give the second answer
        if head_length < length:
            part = head_length
        return cls(n_classes=0, length=length, directions=MOST_DIRECTIONS, part=part)

    def holds(self, n_classes: int, budget: int, head_length: int) -> bool:
        """Whether so many classes fit, of the head's features alone if need be."""
        if not self._can_drop(head_length):
            return super().holds(n_classes, budget, head_length)
        of_head = {"n_classes": 0, "length": head_length, "part": 0}
        smaller = type(self)(**{**self.settings, **of_head})
        return smaller.least_bytes(n_classes) <= budget

    def _can_drop(self, head_length: int) -> bool:
        """Whether there are features of the map, and the settings let them go."""
        return head_length < self.settings["length"] and self.drop_features

    def fit_features(self, n_classes: int, budget: int, head_length: int) -> str:
        """Give the features of the map up if they leave a budget too few directions."""
        length = self.settings["length"]
        if not self._can_drop(head_length):
            return ""
        direction_bytes = n_classes * LEAST_OF_ALL_FEATURES * self._direction_bytes()
        if self._bytes_without_images(n_classes) + direction_bytes <= budget:
            return ""
        self.keep_features(head_length)
        return (
            f"{length - head_length} of {length} features, those of the feature map, "
            "are given up, and with them what was recorded of the confidence"
        )

    def keep_features(self, count: int) -> None:
        """Keep the last features of all statistics, and forget the others.

        It makes the statistics smaller. What the directions of a class leave out of the
        trace of its scatter shrinks in proportion to their squared lengths.

        Args:
            count: number of features to keep.

        Raises:
            ValueError: there are fewer features, or none is left.
        """
        length = self.settings["length"]
        if not 0 < count <= length:
            raise ValueError(
                f"the number of features to keep is {count}; give 1 to {length}"
            )
        if self.scatter is not None:
            self.scatter.keep(count)
        # A view would keep the memory of all features.
        self.classes.means = self.classes.means[:, -count:].clone()
        self.classes.settings["length"] = count
        if self.directions is not None:
            self.directions.keep_features(count)
        self.settings["length"] = count
        if self.settings["part"] >= count:  # all that is left would answer twice
            self.settings["part"] = 0
        self._solution = None  # the cached one is outdated

    # The rule

    def _shrink(self, common: Tensor, seen: Tensor) -> None:
        """Shrink a common covariance, in place: its diagonal grows."""
        images = float(self.image_counts[seen].sum())
        common.diagonal().add_(self._variances_added(common.diagonal(), images))

    def _variances_added(self, diagonal: Tensor, images: float) -> Tensor:
        """Return what shrinking adds to the diagonal of the common covariance.

        It is ``e v`` with ``e = min(1, s D / N)``, the setting ``shrinkage`` ``s``, and
        the mean variance ``v`` or, with the setting ``diagonal``, each feature's own.
        Few images do not tell a feature's own variance: by the ``shortage`` of images,
        it gives way to the mean.

        Args:
            diagonal: ``(D,)`` float64 of the covariance, the variances.
            images: ``N``, that the covariance is of.

        Returns:
            ``(D,)`` float64, above 0.
        """
        shrinkage = min(1.0, self.shrinkage * len(diagonal) / images)
        # The mean is 0 for a single image or equal ones.
        variance = float(diagonal.mean()) or 1.0
        mean_variances = torch.full_like(diagonal, variance)
        if not self.diagonal:
            return shrinkage * mean_variances
        own_variances = diagonal.clamp_min(LEAST_VARIANCE * variance)
        counts = self.image_counts[self.image_counts > 0]
        lacking = shortage(counts.tolist())
        return shrinkage * own_variances.lerp(mean_variances, lacking)

    def _blend(self, counts: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``a_c`` and what the common covariance is multiplied by, ``(C,)``.

        Images of a class decide how much its own covariance counts; what its directions
        leave out of it has the shape of the common one.
        """
        of_class = self.own * counts / (counts + self.own_images)
        return of_class, 1 - of_class + of_class * left_out

    def _solve(self, seen: Tensor) -> Solution:
        """Solve for all features and, with ``part``, for the last ones alone."""
        solution = super()._solve(seen)
        if self.settings["part"]:
            of_last_features = copy.deepcopy(self)
            of_last_features.keep_features(self.settings["part"])
            solution.part = of_last_features.solution()
            solution.part_share = self.head_share
            solution.temperature = self.temperature
        return solution

    def _typical_space(self, nothing: Tensor | None) -> MeansSpan:
        """Return the span of the class means where the common covariance is 1.

        Args:
            nothing: features of images that show nothing, or ``None``.
        """
        solution = self.solution()
        is_axis = above_rounding(solution.span.lengths.square())
        span = MeansSpan(
            centre=solution.centre,
            axes=solution.span.axes[:, is_axis],
            means=solution.span.means[:, is_axis],
            whiten=solution.whiten,
            whitened_means=solution.whitened_means,
        )
        return span.against_background(nothing)

    def _typicality(
        self, features: Tensor, space: MeansSpan, left_out: int | None
    ) -> Typicality:
        """Measure ``(B, D)`` features by relative distance and cosine."""
        solution = self.solution()
        whitened_rows = solution.whitened_rows(features)
        # Scores in the same space, which is not computed a second time.
        scores = solution.scores(features, whitened_rows).clamp_min(LOWEST_SCORE)
        whitened = whitened_rows.whitened
        return space.typicality(scores, whitened=whitened, left_out=left_out)
