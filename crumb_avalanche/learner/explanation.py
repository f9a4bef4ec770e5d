"""Where in an image the evidence for an answer lies."""

import torch
from torch import Tensor

from crumb_avalanche.closed_form.class_statistics import ClassStatistics
from crumb_avalanche.closed_form.feature_moments import FeatureMoments
from crumb_avalanche.models.penultimate import evaluating, head_input
from crumb_avalanche.models.split_model import SplitModel

_TINY = 1e-12  # below the square of any deviation that matters; keeps the root differentiable


def evidence_by_location(
    model: SplitModel, features: FeatureMoments, statistics: ClassStatistics, pixels: Tensor, taught: list[int]
) -> Tensor:
    """Attribute the margin of an answer to the locations of an image.

    The margin is the answer's score minus that of the runner-up; with one class taught, the score. A location's share
    is the derivative of the margin by its values in the feature maps, times these values, summed over channels. If the
    features are means over locations and the scores linear in them, as in streaming LDA, the shares add up to the
    margin but for a constant. For powers, deviations and covariances of classes they are a first-order attribution.

    Args:
        pixels: ``(1, 3, h, w)`` uint8.
        taught: classes that may be answered.

    Returns:
        ``(H, W)`` float64 on the grid of the map that enters the plastic layers.
    """
    with torch.no_grad(), evaluating(model):
        maps = model.features(pixels)
        before_head = head_input(model, maps)
    used = [maps, before_head] if features.maps else [before_head]
    used = [values.double().requires_grad_() for values in used]
    scores = statistics.scores(moments(used, features))[0, taught]
    best = scores.topk(min(2, len(taught))).values
    margin = best[0] - best[1] if len(best) > 1 else best[0]
    shares = torch.zeros(maps.shape[2:], dtype=torch.float64)
    for values, gradient in zip(used, torch.autograd.grad(margin, used)):
        if values.dim() == 4:
            here = (values * gradient).sum(1, keepdim=True).detach()
            shares += _on_grid(here, maps.shape[2:])[0, 0]
    return shares


def moments(used: list[Tensor], features: FeatureMoments) -> Tensor:
    """Compute ``(B, D)`` features as ``FeatureMoments`` does, with derivatives."""
    parts = []
    for values in used:
        if values.dim() == 2:
            parts.append(values)
            continue
        places = values.flatten(2)
        parts.append(places.mean(2))
        if features.deviations:
            parts.append((places.var(2, correction=0) + _TINY).sqrt())
    joined = torch.cat(parts, 1)
    if features.power == 1:
        return joined
    return joined.sign() * (joined.abs() + _TINY) ** features.power


def _on_grid(shares: Tensor, size: torch.Size) -> Tensor:
    """Bring ``(1, 1, h, w)`` shares to another grid; their sum stays."""
    if shares.shape[2:] == size:
        return shares
    scaled = torch.nn.functional.interpolate(shares, size=tuple(size), mode="bilinear", align_corners=False)
    total = scaled.sum()
    return scaled * (shares.sum() / total) if total != 0 else scaled
