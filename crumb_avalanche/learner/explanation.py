"""Where in an image the evidence for an answer lies."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.features import FeatureMoments, cell_means
from crumb_avalanche.models.penultimate import averaged, evaluating, head_input
from crumb_avalanche.models.split_model import SplitModel

_TINY = 1e-12  # below the square of any deviation that matters; keeps the root differentiable


def evidence_by_location(
    model: SplitModel, features: FeatureMoments, statistics: ClosedForm, pixels: Tensor, taught: list[int]
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
    scores = statistics.scores(features.of_layers(used, _mean_and_deviation, averaged_by_network, _TINY))[0, taught]
    best = scores.topk(min(2, len(taught)))
    margin = best.values[0] - best.values[1] if len(taught) > 1 else best.values[0]
    nearest = [taught[place] for place in best.indices.tolist()]
    means = _midpoints(statistics, nearest, features, [values.detach() for values in used], averaged_by_network)
    shares = torch.zeros(maps.shape[2:], dtype=torch.float64)
    for values, middle, gradient in zip(used, means, torch.autograd.grad(margin, used)):
        if values.dim() == 4:
            here = ((values - middle) * gradient).sum(1, keepdim=True).detach()
            shares += _on_grid(here, maps.shape[2:])[0, 0]
    return shares


def _midpoints(
    statistics: ClosedForm, labels: list[int], features: FeatureMoments, layers: list[Tensor], averaged: bool
) -> list[Tensor]:
    """Return the means of classes' means for the locations of each layer, ``(1, C, H, W)`` or ``(1, C, 1, 1)``.

    Without class means, they are those of the image.

    Args:
        labels: the classes.
        layers: the layers of one image, as for ``FeatureMoments.of_layers``.
        averaged: whether the network averages the last layer.
    """
    class_means = getattr(getattr(statistics, "classes", statistics), "means", None)
    middle, middles = None if class_means is None else class_means[labels].double().mean(0), []
    start = 0
    for place, values in enumerate(layers):
        last = place == len(layers) - 1
        cells = features.cells if place == 0 and features.maps and values.dim() == 4 else 1
        length = values.shape[1] * cells**2
        if middle is None or values.dim() == 2:
            middles.append(values.flatten(2).mean(2).view(1, -1, 1, 1) if values.dim() == 4 else values)
        else:
            found = middle[start : start + length]
            if features.equal_lengths:  # the scale is that of the image
                of_image = cell_means(values, cells)
                found = found * (of_image.abs() ** features.power).norm() / length**0.5
            found = (found.sign() * found.abs() ** (1 / features.power)).view(1, -1, cells, cells)
            middles.append(functional.interpolate(found, size=values.shape[2:]) if cells > 1 else found)
        start += length
        if values.dim() == 4 and features.deviations and not (averaged and last):
            start += values.shape[1]
    return middles


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


def _mean_and_deviation(values: Tensor) -> tuple[Tensor, Tensor]:
    """Compute moments as ``mean_and_deviation`` does, with derivatives."""
    places = values.flatten(2)
    return places.mean(2), (places.var(2, correction=0) + _TINY).sqrt()


def _on_grid(shares: Tensor, size: torch.Size) -> Tensor:
    """Bring ``(1, 1, h, w)`` shares to another grid; their sum stays."""
    if shares.shape[2:] == size:
        return shares
    scaled = functional.interpolate(shares, size=tuple(size), mode="bilinear", align_corners=False)
    total = scaled.sum()
    return scaled * (shares.sum() / total) if total != 0 else scaled
