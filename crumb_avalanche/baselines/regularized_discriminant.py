"""Regularised discriminant analysis in a stream: class means and each class's own principal directions.

Friedman, "Regularized Discriminant Analysis", JASA 1989, with covariances as few directions each that are brought up to
date batch by batch. Nothing is learned by gradients: F and P stay as they were loaded.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from crumb_avalanche.baselines.class_statistics import ClassMeans, ClassStatistics, ClosedFormStrategy, closed_form
from crumb_avalanche.baselines.entry import Entry, Recipe
from crumb_avalanche.closed_form.packed_scatter import PackedScatter
from crumb_avalanche.models.penultimate import evaluating, head_input
from crumb_avalanche.models.split_model import SplitModel

# The common covariance is kept whole where that leaves the first number of directions a class; beside it more than the
# second are of no use.
LEAST_BESIDE_WHOLE, MOST_BESIDE_WHOLE = 4, 32


@dataclass(frozen=True)
class RdaSettings:
    """Settings of regularised discriminant analysis.

    Attributes:
        own: share of a class's own covariance beside the common one; 0 is linear discriminant analysis.
        shrinkage: of the common covariance, in units of features by images. 1, for frames of a video are alike: they
            tell less of it than as many unrelated images.
        maps: features of the map that enters the plastic layers, beside those of the head's input.
        deviations: deviations over locations, beside means.
        power: to which features are raised, with their sign; 1 leaves them.
    """

    own: float = 0.3
    shrinkage: float = 1.0
    maps: bool = True
    deviations: bool = True
    power: float = 0.7

    def __post_init__(self):
        if not 0 <= self.own < 1:
            raise ValueError(f"own is {self.own}; it is a share: at least 0 and below 1")
        if not self.shrinkage > 0:
            raise ValueError(f"shrinkage is {self.shrinkage}; give a positive number, or some covariance is singular")
        if not 0 < self.power <= 1:
            raise ValueError(f"power is {self.power}; features are raised to it: above 0 and at most 1")


class MomentFeatures:
    """Moments over locations of the feature map and of the head's input.

    They are raised to a power below 1, with their sign: activations are skewed, and a Gaussian is not.

    Args:
        settings: which.
    """

    def __init__(self, settings: RdaSettings):
        self.settings = settings

    @torch.no_grad()
    def __call__(self, model: SplitModel, images: Tensor) -> Tensor:
        """``(B, D)`` float32 of images as for ``SplitModel.features``; P in evaluation mode."""
        return self._of_maps(model, model.features(images))

    def length(self, model: SplitModel) -> int:
        """``D``: 2,048 for SqueezeNet."""
        return self._of_maps(model, torch.zeros(1, *model.map_shape, device=model.pixel_mean.device)).shape[1]

    @torch.no_grad()
    def _of_maps(self, model: SplitModel, maps: Tensor) -> Tensor:
        with evaluating(model):
            before_head = head_input(model, maps)
        moments = []
        for values in (maps, before_head) if self.settings.maps else (before_head,):
            moments += [values] if values.dim() == 2 else mean_and_deviation(values)[: 1 + self.settings.deviations]
        joined = torch.cat(moments, 1)
        return joined.sign() * joined.abs() ** self.settings.power


def mean_and_deviation(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Over locations, ``(B, C)`` each of ``(B, C, ...)``."""
    # One image at a time stays in a processor's cache: eight times faster.
    parts = maps.split(1) if maps.device.type == "cpu" else [maps]
    means, deviations = [], []
    for part in parts:
        places = part.movedim(1, -1).flatten(1, -2)
        means.append(places.mean(1))
        deviations.append((places - means[-1].unsqueeze(1)).square_().mean(1).sqrt_())
    return torch.cat(means), torch.cat(deviations)


NO_DENSITY = -1e30  # log-density of a class without an image: below all others, and finite in float32


class RegularizedDiscriminant(ClassStatistics):
    """Gaussians of all classes, each with a covariance between the common one and its own.

    The common covariance ``S`` within classes gets ``e`` times its mean variance on its diagonal, with
    ``e = min(1, s D / N)`` for ``N`` images: the less is known of it, the more. In the space that is spanned by the
    class means after whitening with ``S``, where the common covariance is the unit matrix, class ``c`` has the
    covariance ``(1 - a) I + a C_c``. Scores are log-densities.

    Args:
        n_classes, length: see ``ClassMeans``.
        directions: principal directions that are kept of each class.
        whole: keep the common scatter as a whole; off: it is the sum of what is kept of the classes.
        own: ``a``.
        shrinkage: ``s``.

    Attributes:
        classes: means and counts.
        directions: ``(n_classes, directions, D)`` float16; ``B_c^T B_c`` is about the scatter of class ``c``.
        outside: ``(n_classes,)`` float32, the part of the scatter's trace that the directions leave out.
        scatter: the common one, or ``None``.
    """

    unsaved = ("_solution",)

    def __init__(
        self,
        n_classes: int,
        length: int,
        directions: int,
        whole: bool = False,
        own: float = 0.3,
        shrinkage: float = 1.0,
    ):
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
        """Bring the directions of a class up to date with rows that its scatter grows by."""
        count = self.directions.shape[1]
        together = torch.cat([self.directions[label].double(), rows])
        energies, vectors = torch.linalg.eigh(together @ together.mT)
        self.directions[label] = vectors[:, -count:].mT @ together
        self.outside[label] += energies[:-count].clamp_min(0).sum()

    def scores(self, features):
        if self._solution is None:  # only after learning
            self._solution = self._solve()
        seen = self.classes.counts > 0
        scores = torch.full((len(features), len(seen)), NO_DENSITY, dtype=torch.float64)
        scores[:, seen] = self._solution.scores(features.double())
        return scores

    def tensors(self):
        strips = [] if self.scatter is None else self.scatter.strips
        return [*self.classes.tensors(), self.directions, self.outside, *strips]

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
        variance = float(common.diagonal().mean()) or 1.0  # 1: a single image, or all alike
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
        centre, projection: ``(D,)`` and ``(D, r)``; a feature ``x`` is at ``(x - centre) projection``.
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
        """Log-densities but for a constant, ``(B, C)`` float64."""
        places = (features - self.centre) @ self.projection
        distances = places.square().sum(1, keepdim=True) - 2 * places @ self.means.mT + self.means.square().sum(1)
        along = (places @ self.spread.flatten(0, 1).mT).view(len(places), *self.offsets.shape) - self.offsets
        solved = torch.linalg.solve_triangular(self.inner_root, along.permute(1, 2, 0), upper=False)  # (C, k, B)
        lengths = (distances - solved.square().sum(1).mT) / self.round_part
        return -(lengths + self.log_determinants) / 2


def build_rda(recipe: Recipe) -> ClosedFormStrategy:
    """As many directions a class as the budget buys, and the common covariance if it leaves enough of them.

    Raises:
        ValueError: it does not buy one for each class.
    """
    features, classes = MomentFeatures(recipe.method), recipe.n_classes
    if recipe.mem_size < classes:
        raise ValueError(
            f"the budget buys {recipe.mem_size} principal directions, but the stream has {classes} classes, which take "
            "one each at least; raise the budget (mem_size)"
        )
    length = features.length(recipe.model)
    directions = recipe.mem_size // classes
    beside_whole = directions - math.ceil(PackedScatter.bytes_of(length) / (direction_bytes(length) * classes))
    whole = beside_whole >= LEAST_BESIDE_WHOLE
    kept = min(beside_whole, MOST_BESIDE_WHOLE) if whole else directions
    method = recipe.method
    statistics = RegularizedDiscriminant(classes, length, kept, whole, method.own, method.shrinkage)
    return closed_form(recipe, statistics, features)


def direction_bytes(length: int) -> int:
    """Bytes of one direction of one class."""
    return 2 * length


RDA = Entry(
    name="rda",
    summary="a Gaussian of frozen features for each class, with principal directions of its own",
    source="Friedman, Regularized Discriminant Analysis, JASA 1989; covariances as directions kept up to date",
    stores="a mean and principal directions for each class, and the common covariance where there is room for it",
    build=build_rda,
    method=RdaSettings,
    item_bytes=lambda model, method: direction_bytes(MomentFeatures(method).length(model)),
    fixed_bytes=lambda model, method, n_classes: 4 * n_classes * (MomentFeatures(method).length(model) + 2),
    each_class=True,
    gradient=False,
)
