"""Regularised discriminant analysis in a stream (Friedman, "Regularized Discriminant Analysis", JASA 1989).

The covariance of each class is stored as a few principal directions, which are updated batch by batch.

Prior art: Deep SRDA (Khawand, Hanappe and Colliaux, ICCV Workshops 2023, arXiv 2309.08353) updates full covariances
of classes image by image, on frozen features, and blends them with a common one. LR-RGDA (Rao et al., arXiv 2602.00144)
gives each class a covariance of low rank beside a common one, and solves with Woodbury's identity. Both are in
``blended_gaussians``. What differs here: the common covariance is shrunk by ``D / N`` towards its diagonal, and
directions take 8 bits a value, are updated in the stream and within a budget.
"""

import copy
from typing import ClassVar

import torch
from torch import Tensor

from crumb_avalanche.methods.directions import ClassDirections
from crumb_avalanche.methods.gaussians import ClassGaussians
from crumb_avalanche.methods.packed_scatter import PackedScatter, mirrored
from crumb_avalanche.methods.rda_solution import Solution, Span

LEAST_VARIANCE = 1e-3  # of a feature in the shrinkage, in units of the mean variance
LEAST_LENGTH = 1e-5  # of an axis of the discriminant space, in units of the longest: shorter ones are rounding


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

    ``merge`` is exact for means, counts, traces and a full common scatter, which is dropped if the other instance has
    none. It keeps the principal directions of both instances together, as an update does; they equal those of one
    instance trained on both parts only if ``directions`` spans the whole scatter of a class. Under the same condition
    the order of the images does not matter, up to the rounding of the directions.

    ``forget`` leaves nothing of a class, unless there is a full common scatter: this keeps the share of the removed
    images, and counts from then on as the scatter of the images that are left.

    ``update`` takes an eigendecomposition of as many rows as a class has directions and new images, 512 images at a
    time. The first ``scores`` after a change factors the ``(D, D)`` common covariance and the ``(D, C)`` means of ``C``
    classes, and projects all directions.

    Args:
        n_classes, length: see ``ClassMeans``.
        directions: largest number of principal directions of each class.
        whole: whether to store the full common scatter; otherwise it is the sum over the classes' directions.
        own: share ``a`` of a class's own covariance.
        shrinkage: factor ``s`` of the shrinkage.
        total_directions: largest number of directions of all classes, or ``None`` for no limit; see ``limit``.
        own_images: ``k``, the images with which a class has half of the share ``a``; 0 for ``a`` whatever their number.
        diagonal: shrink each feature by its own variance instead of the mean variance.
        span: compare classes in the space that their means span: less accurate on new objects of the classes taught,
            more where their images come from another source than those taught.
        eight_bits: store directions as int8 instead of float16: about twice as many in the same bytes.
        part: number of the last features that answer alone, too; 0 for none.
        part_share: the share of their answer, at least 0 and below 1.

    Raises:
        ValueError: ``part`` is not below ``length``, or ``part_share`` is no share.

    Attributes:
        classes: means and counts.
        directions: the directions, and the parts of the scatters' traces that these leave out.
        scatter: the full common scatter, or ``None``.
    """

    directions: ClassDirections

    _free = frozenset({"n_classes", "total_directions", "whole", "part", "part_share"})
    _older: ClassVar = {
        **{"own_images": 0.0, "diagonal": False, "span": True, "eight_bits": False},
        **{"part": 0, "part_share": 0.0},
    }

    def __init__(
        self,
        n_classes: int,
        length: int,
        directions: int,
        whole: bool = False,
        own: float = 0.3,
        shrinkage: float = 1.0,
        total_directions: int | None = None,
        own_images: float = 0.0,
        diagonal: bool = False,
        span: bool = True,
        eight_bits: bool = False,
        part: int = 0,
        part_share: float = 0.0,
    ):
        if not 0 <= part < max(1, length):
            raise ValueError(f"part is {part}; give 0 or a number of features below length, {length}")
        if not 0 <= part_share < 1:
            raise ValueError(f"part_share is {part_share}; it is a share: at least 0 and below 1")
        self.settings = {
            "n_classes": n_classes,
            "length": length,
            "directions": directions,
            "whole": whole,
            "own": own,
            "shrinkage": shrinkage,
            "total_directions": None,
            "own_images": own_images,
            "diagonal": diagonal,
            "span": span,
            "eight_bits": eight_bits,
            "part": part,
            "part_share": part_share,
        }
        self._hold(n_classes, length, directions, whole)
        # Present even if there may be none.
        self.directions = ClassDirections(n_classes, length, directions, eight_bits=eight_bits)
        self.own, self.shrinkage, self.own_images, self.diagonal = own, shrinkage, own_images, diagonal
        self.span = span
        self.limit(total_directions)

    def limit(self, total_directions: int | None) -> None:
        """Set the largest number of directions of all classes.

        It holds at once and in every later ``update`` and ``merge``: the classes with the most directions lose their
        weakest ones, which count as spread in no particular direction from then on. Where directions are lost, the time
        of an update includes a look at the number of directions of each class.

        Args:
            total_directions: the number, or ``None`` for no limit.

        Raises:
            ValueError: the number is negative.
        """
        if total_directions is not None and total_directions < 0:
            raise ValueError(f"total_directions is {total_directions}; give at least 0, or None for no limit")
        self.settings["total_directions"] = self.directions.total = total_directions
        self.directions.trim()
        self._solution = None

    def drop_scatter(self) -> None:
        """Drop the full common scatter: the common covariance is the sum over the classes from then on."""
        self.scatter, self.settings["whole"] = None, False
        self._solution = None

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
            self.settings |= {"part": 0, "part_share": 0.0}
        self._solution = None

    def _update(self, features, labels):
        super()._update(features, labels)
        self.directions.trim()

    def _answers(self, features, solution):
        return solution.scores(features)

    def _merge(self, other, labels):
        if other.scatter is None:
            self.drop_scatter()
        super()._merge(other, labels)
        self.directions.trim()

    def _solve(self, seen) -> Solution:
        counts, means = self.classes.counts[seen].double(), self.classes.means[seen].double()
        directions = self.directions.of_classes(seen.nonzero().flatten().tolist())
        numbers, outside = self.directions.counts[seen], self.directions.outside[seen].double()
        total, length = float(counts.sum()), means.shape[1]
        common = _summed(directions, outside) if self.scatter is None else self.scatter.whole()
        common /= total
        variance = float(common.diagonal().mean()) or 1.0  # 0 for a single image or equal ones
        shares = common.diagonal().clamp_min(LEAST_VARIANCE * variance) if self.diagonal else variance
        common.diagonal().add_(min(1.0, self.shrinkage * length / total) * shares)
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
        own = self.own * counts / (counts + self.own_images)
        if self.span:
            rows, places = directions @ projection, (means - centre) @ projection
        else:
            rows, places = torch.linalg.solve_triangular(root, directions.mT, upper=False).mT, white.mT
        spreads = ((own / counts).sqrt()[owners, None] * rows).split(numbers.tolist())
        space = Span(projection, (means - centre) @ projection, root, lengths[: len(basis.mT)])
        solution = Solution(
            centre, projection if self.span else None, root, places, spreads, 1 - own + own * rest, space
        )
        if self.settings["part"]:
            alone = copy.deepcopy(self)
            alone.keep_features(self.settings["part"])
            solution.part, solution.part_share = alone.solution(), self.settings["part_share"]
        return solution


def _summed(directions: Tensor, outside: Tensor) -> Tensor:
    """Return the sum of scatters, ``(D, D)`` float64, of ``(k, D)`` directions and the traces that they leave out."""
    common = directions.mT @ directions
    common.diagonal().add_(outside.double().sum() / len(common))
    return common
