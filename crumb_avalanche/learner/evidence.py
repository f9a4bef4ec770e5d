"""How images relate to the classes of a closed form, and where in an image it shows."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.typicality import TINY
from crumb_avalanche.models.penultimate import evaluating, unpooled_head_input
from crumb_avalanche.models.split_model import SplitModel

MOST_CLIPS = 4  # of a class; what more of them change was not measured


class Evidence(NamedTuple):
    """Scores and distances of ``B`` images, from a closed form of ``C`` classes.

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
        left_out: ``(B, 3)`` float64, the typicality if one class had not been learned;
            ``None`` if none was left out.
        clips: ``(C,)`` int64, clips that each class was learned from; ``None`` counts
            as one each.
    """

    scores: Tensor
    labels: Tensor
    counts: Tensor
    typicality: Tensor
    apart: Tensor | None = None
    left_out: Tensor | None = None
    clips: Tensor | None = None

    @property
    def taught(self) -> float:
        """See ``mean_log``."""
        if self.clips is None:
            return 0.0
        return mean_log(self.clips.tolist())

    @property
    def best(self) -> int:
        """The class with the largest mean score: the answer for all images together."""
        return int(self.labels[self.scores.mean(0).argmax()])


def mean_log(clips: Sequence[int]) -> float:
    """Return the mean logarithm of the clips of each class, of which 4 count at most.

    Args:
        clips: of each class, at least one class.
    """
    logs = [math.log(min(max(1, count), MOST_CLIPS)) for count in clips]
    return sum(logs) / len(logs)


def evidence(
    statistics: ClosedForm,
    features: Tensor,
    nothing: Tensor | None = None,
    left_out: int | None = None,
) -> Evidence:
    """Compute scores of images, and how typical they are of the classes.

    What typical means is the method's own: see ``ClosedForm.typicality``.

    Args:
        statistics: a closed form with at least one class.
        features: ``(B, D)`` float, on the CPU.
        nothing: ``(n, D)`` features of images that show nothing, ``DRAWN`` of them
            drawn, the others shown; for forms that are ``apart_from_nothing``.
        left_out: a class without which typicality is measured, too; without effect
            where it has no images, or no other class has.

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
        column = None
        if left_out is not None and len(labels) > 1 and left_out in labels:
            column = int((labels < left_out).sum())
        answers = statistics.typicality(features, nothing, column)
        finite = bool(
            answers.scores.isfinite().all() and answers.values.isfinite().all()
        )
    except torch.linalg.LinAlgError:
        finite = False
    if not finite:
        raise ValueError(
            "the statistics of the classes give scores that are not finite; teach "
            "anew, or load a copy"
        )
    counts = statistics.image_counts[labels].long()
    return Evidence(
        scores=answers.scores / statistics.temperature,
        labels=labels,
        counts=counts,
        typicality=answers.values,
        apart=answers.apart,
        left_out=answers.left_out,
    )


def evidence_by_location(
    model: SplitModel,
    features: FeatureMoments,
    statistics: ClosedForm,
    pixels: Tensor,
    taught: list[int],
) -> Tensor:
    """Attribute the margin of an answer to locations of an image; see ``shares_of``.

    Args:
        pixels: ``(1, 3, h, w)`` uint8.
        taught: classes that may be answered.

    Returns:
        ``(H, W)`` float64 on the grid of the map that enters the plastic layers.
    """
    with torch.no_grad(), evaluating(model):
        maps = model.features(pixels)
        before_head, averaged_by_network = unpooled_head_input(model, maps)
        maps = model.patch_grid(maps)
    tapped = [maps, before_head] if features.maps else [before_head]
    used = [values.double().requires_grad_() for values in tapped]
    # The network's own average has no deviations.
    scores = statistics.scores(features.of_layers(used, averaged_by_network, TINY))[
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
    """Attribute the margin of an answer to locations of the layers behind its scores.

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
