"""Where in an image the evidence for an answer lies."""

import torch
from torch import Tensor, nn

from crumb_avalanche.closed_form.class_statistics import ClassStatistics
from crumb_avalanche.closed_form.feature_moments import FeatureMoments
from crumb_avalanche.models.penultimate import averaged, evaluating, head_input
from crumb_avalanche.models.split_model import SplitModel

_TINY = 1e-12  # below the square of any deviation that matters; keeps the root differentiable


def evidence_by_location(
    model: SplitModel, features: FeatureMoments, statistics: ClassStatistics, pixels: Tensor, taught: list[int]
) -> Tensor:
    """Attribute the margin of an answer to the locations of an image.

    The margin is the answer's score minus that of the runner-up; with one class taught, the score. A location's share
    is the derivative of the margin by its values in the feature maps, times the difference of these values from the
    midpoint of both classes' means, summed over channels. For a linear discriminant of means over locations (streaming
    LDA) the shares add up to the margin. For powers, deviations and covariances of classes they are a first-order
    attribution.

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
    deviations = [features.deviations] * (len(used) - 1) + [features.deviations and not averaged_by_network]
    scores = statistics.scores(moments(used, deviations, features.power))[0, taught]
    best = scores.topk(min(2, len(taught)))
    margin = best.values[0] - best.values[1] if len(taught) > 1 else best.values[0]
    nearest = [taught[place] for place in best.indices.tolist()]
    shares = torch.zeros(maps.shape[2:], dtype=torch.float64)
    start = 0
    for values, with_deviation, gradient in zip(used, deviations, torch.autograd.grad(margin, used)):
        channels = values.shape[1]
        if values.dim() == 4:
            middle = midpoint(statistics, nearest, features.power, slice(start, start + channels), values)
            here = ((values - middle) * gradient).sum(1, keepdim=True).detach()
            shares += _on_grid(here, maps.shape[2:])[0, 0]
        start += channels * (2 if with_deviation and values.dim() == 4 else 1)
    return shares


def midpoint(statistics: ClassStatistics, labels: list[int], power: float, places: slice, values: Tensor) -> Tensor:
    """Return the mean of classes' means over locations, ``(1, C, 1, 1)``; without class means, that of the image.

    Args:
        labels: the classes.
        power: of the features.
        places: where the means of these channels are among the features.
        values: ``(1, C, H, W)`` map of the image.
    """
    means = getattr(getattr(statistics, "classes", statistics), "means", None)
    if means is None:
        return values.detach().mean((2, 3), keepdim=True)
    middle = means[labels].double().mean(0)[places]
    return (middle.sign() * middle.abs() ** (1 / power)).view(1, -1, 1, 1)


def unpooled_head_input(model: SplitModel, maps: Tensor) -> tuple[Tensor, bool]:
    """Compute the input of the head, ``(1, D, H, W)`` if it is averaged over locations, else ``(1, D)``.

    Returns:
        The values, and whether the network averages them before the head.
    """
    pooled: list[Tensor] = []
    pools = [layer for layer in model.plastic_layers.modules() if isinstance(layer, nn.AdaptiveAvgPool2d)]
    handles = [pool.register_forward_pre_hook(lambda _, given: pooled.append(given[0])) for pool in pools]
    try:
        values = head_input(model, maps)
    finally:
        for handle in handles:
            handle.remove()
    if values.dim() == 2 and pooled and torch.allclose(averaged(pooled[-1].float()), values, rtol=1e-4, atol=1e-5):
        return pooled[-1].float(), True
    return values, False


def moments(used: list[Tensor], deviations: list[bool], power: float) -> Tensor:
    """Compute ``(B, D)`` features as ``FeatureMoments`` does, with derivatives."""
    parts = []
    for values, with_deviation in zip(used, deviations):
        if values.dim() == 2:
            parts.append(values)
            continue
        places = values.flatten(2)
        parts.append(places.mean(2))
        if with_deviation:
            parts.append((places.var(2, correction=0) + _TINY).sqrt())
    joined = torch.cat(parts, 1)
    return joined if power == 1 else joined.sign() * (joined.abs() + _TINY) ** power


def _on_grid(shares: Tensor, size: torch.Size) -> Tensor:
    """Bring ``(1, 1, h, w)`` shares to another grid; their sum stays."""
    if shares.shape[2:] == size:
        return shares
    scaled = torch.nn.functional.interpolate(shares, size=tuple(size), mode="bilinear", align_corners=False)
    total = scaled.sum()
    return scaled * (shares.sum() / total) if total != 0 else scaled
