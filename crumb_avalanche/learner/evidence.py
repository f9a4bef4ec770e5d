"""How images relate to the classes of a closed form: scores, distances, and where in an image the evidence lies."""

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.learner.nothing import DRAWN
from crumb_avalanche.methods.closed_form import LOWEST_SCORE, ClosedForm
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.gaussians import Solution
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.ranpac import RandomProjection
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.models.penultimate import evaluating, unpooled_head_input
from crumb_avalanche.models.split_model import SplitModel

WHITENED = (
    RegularizedDiscriminant,
    StreamingLDA,
)  # forms whose cosines are seen in a whitened space
STRENGTH = (
    1000.0  # mean square of the images of nothing, in units of the common covariance
)
# Distance and cosine as cosines that are added. Chosen by the area under the ROC curve
# that ``experiments/open_set.py`` measures, on half of the pairs of classes of ETH-80,
# on sign digits and with ``--development --photos``.
# added by a relative distance as large as the root mean square length of the class
# means
DISTANCE = 0.025
# of the sum from one class to many, so that one usual threshold serves 1 to 8 classes
RISE = 0.35
# squared distance of means from the plane of the others, per feature, at which both
# cosines weigh half
OUTSIDE = 0.1
_TINY = 1e-12  # below the square of any distance or deviation that matters


class Evidence(NamedTuple):
    """Scores and distances of ``B`` images, from a closed form that knows ``C`` classes.

    Attributes:
        scores: ``(B, C)`` float64, divided by the usual temperature of the closed form.
        labels: ``(C,)`` int64, the class of each column.
        counts: ``(C,)`` int64, images that each class was learned from.
        typicality: ``(B, 3)`` float64, larger for images like those of the classes: the
            closeness to the nearest class relative to that of an image of any class;
            the cosine between the image and the class mean of nearest direction; and
            that cosine apart from images that show nothing, where there are any. In a
            whitened space the first two are in units of a cosine, to be added.
        apart: ``(B,)`` float64, the last one without the directions of what was shown
            as nothing; ``None`` if nothing was.
    """

    scores: Tensor
    labels: Tensor
    counts: Tensor
    typicality: Tensor
    apart: Tensor | None = None

    @property
    def best(self) -> int:
        """The class with the largest mean score: the answer for all images together."""
        return int(self.labels[self.scores.mean(0).argmax()])


def evidence(
    statistics: ClosedForm, features: Tensor, nothing: Tensor | None = None
) -> Evidence:
    """Compute scores and distances of images.

    Regularised discriminant and streaming LDA: in the space whitened with the common
    covariance, minus the relative Mahalanobis distance (Ren et al., 2021), and a mean
    of two cosines: within the span of the class means, and apart from images that show
    nothing, seen from their mean in a space without their directions. The further class
    means lie from the plane of the others, the more the latter counts: what is outside
    the span tells new classes only then. Class means: minus the distance of unit
    vectors, and their cosine. Random projection: the largest score, and its ratio with
    the root of the leverage of the regression. Other closed forms: the largest score.

    Args:
        statistics: a closed form with at least one class.
        features: ``(B, D)`` float, on the CPU.
        nothing: ``(n, D)`` features of images that show nothing, ``DRAWN`` of them
            drawn, the others shown; for regularised discriminant and streaming LDA.

    Raises:
        ValueError: the closed form has no class yet, or its scores are not finite: no
            images have such statistics.
    """
    labels = statistics.image_counts.nonzero().flatten()
    if not len(labels):
        raise ValueError(
            "the closed form has no class yet; update it with images first"
        )
    try:
        found, typicality, apart = _found(statistics, features.double(), nothing)
        finite = bool(found.isfinite().all() and typicality.isfinite().all())
    except torch.linalg.LinAlgError:
        finite = False
    if not finite:
        raise ValueError(
            "the statistics of the classes give scores that are not finite; teach anew, or load a copy"
        )
    counts = statistics.image_counts[labels].long()
    return Evidence(found / statistics.temperature, labels, counts, typicality, apart)


def _found(
    statistics: ClosedForm, features: Tensor, nothing: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute scores, typicality and ``apart``. Each closed form has its own way: see ``evidence``."""
    if isinstance(statistics, (*WHITENED, ClassMeans)):
        space = _solved(statistics, nothing)
        rows = (
            features
            if isinstance(statistics, WHITENED)
            else functional.normalize(features)
        ) - space.centre
        white = space.white(rows)
        relative, cosine, last, *others = space.values(rows, white)
        if isinstance(
            statistics, RegularizedDiscriminant
        ):  # scores in the same space, not computed a second time
            scores = statistics.solved().scores(features, white).clamp_min(LOWEST_SCORE)
        else:
            scores = statistics.solution()(features)
        return (
            scores,
            torch.stack([relative, cosine, last], 1),
            others[0] if others else None,
        )
    scores = statistics.solution()(features)
    relative = scores.amax(1)
    if type(statistics) is not RandomProjection:
        return (
            scores,
            relative.unsqueeze(1).expand(-1, 3) / statistics.temperature,
            None,
        )
    hidden = statistics.project(features)
    leverage = (
        torch.linalg.solve_triangular(_solved(statistics), hidden.mT, upper=False)
        .square()
        .sum(0)
    )
    cosine = relative / leverage.clamp_min(_TINY).sqrt()
    return scores, torch.stack([relative, cosine, cosine], 1), None


class _Cosine(NamedTuple):
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
    ) -> "_Cosine":
        """Find the cosines from ``(n, D)`` features of images that show nothing, and ``(C, D)`` class means."""
        middle = nothing.mean(0)
        spread = white(nothing - middle).mT
        spread = (
            spread
            * (
                STRENGTH * spread.shape[1] / spread.square().sum().clamp_min(_TINY)
            ).sqrt()
        )
        root = torch.linalg.cholesky(
            torch.eye(len(nothing), dtype=torch.float64) + spread.mT @ spread
        )
        lift = torch.linalg.solve_triangular(root, spread.mT, upper=False).mT
        places = white(means - middle).mT
        towards = places - lift @ (lift.mT @ places)
        lengths = (places * towards).sum(0).clamp_min(_TINY).sqrt()
        return cls(white((centre - middle).unsqueeze(0))[0], lift, towards / lengths)

    def __call__(self, white: Tensor) -> Tensor:
        """Return the largest cosine of ``(B, D)`` whitened rows, seen from the centre of the classes."""
        places = white + self.shift
        lengths = places.square().sum(1) - (places @ self.lift).square().sum(1)
        return (places @ self.towards).amax(1) / lengths.clamp_min(_TINY).sqrt()


class _Space(NamedTuple):
    """Span of the class means, in the space where the common covariance ``S`` is the unit matrix, or of unit vectors.

    Attributes:
        centre: ``(D,)``, mean of the class means.
        projection: ``(D, r)``, from features minus ``centre`` to the span.
        means: ``(C, r)``, the class means in the span, whose axes are their principal
            ones.
        white: function from ``(n, D)`` rows to the space.
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
    cosines: tuple[_Cosine, ...] = ()

    @classmethod
    def of_means(
        cls,
        means: Tensor,
        white: Callable[[Tensor], Tensor] = lambda rows: rows,
        back: Callable[[Tensor], Tensor] = lambda rows: rows,
    ) -> "_Space":
        """Find the span.

        Args:
            means: ``(C, D)`` float64.
            white: function from ``(n, D)`` rows ``X`` to ``X S^-1/2``.
            back: function from these to ``X S^-1``.
        """
        centre = means.mean(0)
        rows = white(means - centre)
        lengths, vectors = torch.linalg.eigh(rows @ rows.mT)
        kept = _not_zero(lengths)
        projection = back(rows).mT @ (vectors[:, kept] / lengths[kept].sqrt())
        return cls(centre, projection, (means - centre) @ projection, white)

    @classmethod
    def of_solution(cls, solution: Solution) -> "_Space":
        """Take the span from the solution of a regularised discriminant."""
        span = solution.span
        kept = _not_zero(span.lengths.square())
        return cls(
            solution.centre,
            span.projection[:, kept],
            span.means[:, kept],
            solution.white,
        )

    def values(self, rows: Tensor, white: Tensor) -> tuple[Tensor, ...]:
        """Compute distances and cosines of ``(B, D)`` float64 features.

        Args:
            rows: the features minus ``centre``.
            white: the same in the whitened space.

        Returns:
            Relative distance and cosine as in ``evidence``, seen from the centre, with
            distances within the span of the means; and that of each of ``cosines``, or
            the one with no images of nothing. ``(B,)`` float64 each.
        """
        places, squares = rows @ self.projection, self.means.square().sum(1)
        products = (places @ functional.normalize(self.means).mT).amax(1)
        plain = products / white.square().sum(1).clamp_min(_TINY).sqrt()
        # As a product: torch's exporter to ONNX has no cdist in every version.
        nearest = (squares - 2 * places @ self.means.mT).amin(1) + places.square().sum(
            1
        )
        if self.background is None:
            return -nearest, plain, plain
        apart = [cosine(white) for cosine in self.cosines] or [plain]
        relative = (
            places.square() @ self.background - nearest
        ) / squares.mean().clamp_min(_TINY).sqrt()
        relative = DISTANCE * relative + RISE * (1 - 1 / len(self.means))
        within = 2 * products / places.square().sum(1).clamp_min(_TINY).sqrt() - 1
        return relative, (1 - self.outside) * within + self.outside * apart[0], *apart


_held: WeakKeyDictionary[ClosedForm, tuple[Any, Any, Any]] = WeakKeyDictionary()


def _solved(statistics: ClosedForm, nothing: Tensor | None = None) -> Any:
    """Return the space of a Gaussian, or the root of a Gram matrix; solved once after each change."""
    solved, held = statistics.solved(), _held.get(statistics)
    if (
        held is None or held[0] is not solved or held[1] is not nothing
    ):  # another one after each change
        held = _held[statistics] = solved, nothing, _solve(statistics, nothing)
    return held[2]


def _solve(statistics: ClosedForm, nothing: Tensor | None) -> Any:
    labels = statistics.image_counts.nonzero().flatten()
    if isinstance(statistics, RandomProjection):
        gram = statistics.gram.double()
        gram.diagonal().add_(statistics.ridge * (float(gram.diagonal().mean()) or 1.0))
        return torch.linalg.cholesky(gram)
    if not isinstance(statistics, WHITENED):
        assert isinstance(statistics, ClassMeans)
        return _Space.of_means(
            functional.normalize(statistics.means[labels].double(), dim=1)
        )
    means = statistics.means[labels].double()
    if isinstance(statistics, StreamingLDA):
        values, vectors = torch.linalg.eigh(statistics.covariance.double())
        roots = (
            (1 - statistics.shrinkage) * values.clamp_min(0) + statistics.shrinkage
        ).sqrt()
        space = _Space.of_means(
            means,
            lambda rows: rows @ vectors / roots,
            lambda rows: rows / roots @ vectors.mT,
        )
    else:
        space = _Space.of_solution(statistics.solved())
    lengths = space.means.square().sum(0)
    # The length of a row of the transposed pseudo-inverse is 1 / (distance of its mean
    # from the plane of the others).
    inverse = space.means / lengths
    height = float((1 / inverse.square().sum(1).clamp_min(_TINY)).mean()) / len(
        space.centre
    )
    outside = height**2 / (height**2 + OUTSIDE**2)
    space = space._replace(background=1 / (1 + lengths / len(means)), outside=outside)
    if nothing is None:
        return space
    banks = [nothing[:DRAWN]] if len(nothing) <= DRAWN else [nothing[:DRAWN], nothing]
    seen = (
        _Cosine.of_rows(bank.double(), means, space.centre, space.white)
        for bank in banks
    )
    return space._replace(cosines=tuple(seen))


def _not_zero(lengths: Tensor) -> Tensor:
    """Return a mask of the squared lengths that are more than rounding."""
    return lengths > _TINY + 1e-9 * lengths.amax() if len(lengths) else lengths > 0


def evidence_by_location(
    model: SplitModel,
    features: FeatureMoments,
    statistics: ClosedForm,
    pixels: Tensor,
    taught: list[int],
) -> Tensor:
    """Attribute the margin of an answer to the locations of an image; see ``shares_of``.

    Args:
        pixels: ``(1, 3, h, w)`` uint8.
        taught: classes that may be answered.

    Returns:
        ``(H, W)`` float64 on the grid of the map that enters the plastic layers.
    """
    with torch.no_grad(), evaluating(model):
        maps = model.features(pixels)
        before_head, averaged_by_network = unpooled_head_input(model, maps)
        maps = model.places(maps)
    tapped = [maps, before_head] if features.maps else [before_head]
    used = [values.double().requires_grad_() for values in tapped]
    # The network's own average has no deviations.
    scores = statistics.scores(features.of_layers(used, averaged_by_network, _TINY))[
        0, taught
    ]
    shares = torch.zeros(1, 1, *maps.shape[2:], dtype=torch.float64)
    for found in shares_of(scores, used):
        if found.dim() == 4:  # a last layer without locations says nothing of them
            scale = found.numel() / shares.numel()
            shares += scale * functional.interpolate(
                found, size=shares.shape[2:], mode="bilinear"
            )
    return shares[0, 0]


def shares_of(scores: Tensor, layers: list[Tensor]) -> list[Tensor]:
    """Attribute the margin of an answer to the locations of the layers that its ``(C,)`` scores were computed from.

    The margin is the largest score minus the second; with one class, the score. A
    location's share is the derivative of the margin by its values, times the difference
    of these values from their mean over locations, summed over channels.

    Args:
        layers: ``(1, C, H, W)`` each, or ``(1, C)`` without locations.

    Returns:
        ``(1, 1, H, W)`` each, or zeros ``(1, 1)``.
    """
    best = scores.topk(min(2, len(scores))).values
    gradients = torch.autograd.grad(
        best[0] - best[1] if len(best) > 1 else best[0], layers
    )
    shares = []
    for layer, gradient in zip(layers, gradients):
        values = layer.detach()
        mean = values.mean((2, 3), keepdim=True) if values.dim() == 4 else values
        shares.append(((values - mean) * gradient).sum(1, keepdim=True))
    return shares
