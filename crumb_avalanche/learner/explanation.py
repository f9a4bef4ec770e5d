"""Where in an image the evidence for an answer lies."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.images.looks import looks_of
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.features import FeatureMoments, middle_of
from crumb_avalanche.methods.typicality import TINY
from crumb_avalanche.models.penultimate import evaluating, unpooled_head_input
from crumb_avalanche.models.split_model import SplitModel


def explanation(
    classifier: Classifier, model: SplitModel, pixels: Tensor, shares: Sequence[float]
) -> Tensor:
    """Attribute the margin of an answer to the locations of an image.

    The margin is the score of the answer minus that of the runner-up. It is a sum over
    the views of the image, weighted as their scores are; so is the attribution. A look
    is a middle part of the image, or the whole; each gives one or two views, which are
    parts of its feature map.

    Args:
        classifier: what answers.
        model: the network.
        pixels: uint8 of one image in each look, as ``LookTransform`` returns them.
        shares: side of each look in units of that of the image.

    Returns:
        ``(h, w)`` float64, of the whole image.
    """
    attribution = torch.zeros(pixels.shape[-2:], dtype=torch.float64)
    look_weights = classifier.look_weights
    weights = look_weights.weights()  # how much the scores of each view count
    weight_of_view = dict(zip(look_weights.used_views, weights, strict=True))
    pixels_of_look = dict(zip(shares, looks_of(pixels), strict=True))
    looks = classifier.looks
    # For each look the features of its views, in the order of the views' numbers.
    moments_of_looks = looks.windows(classifier.features_of_statistics(model))
    view = 0  # number of the view among those of all looks, used or not
    for number, share in enumerate(looks.shares):
        for moments in moments_of_looks[number]:
            if view in weight_of_view and share in pixels_of_look:
                form = classifier.forms.by_look[number]
                look = pixels_of_look[share]
                of_view = attributed_to_view(
                    form, classifier.classes.numbers, model, moments, look
                )
                # The part of the whole image that the look shows, in place.
                _add_to_middle(attribution, weight_of_view[view] * of_view, share)
            view += 1
    return attribution


def attributed_to_view(
    form: ClosedForm,
    taught: Sequence[int],
    model: SplitModel,
    moments: FeatureMoments,
    look: Tensor,
) -> Tensor:
    """Attribute the margin of an answer to the locations of one view of an image.

    Args:
        form: what answers, of the look that the view is of.
        taught: numbers of the classes that may be the answer.
        model: the network.
        moments: what is computed of the maps of the view.
        look: pixels of the part of the image that the view is of, ``(1, 3, h, w)``
            uint8.

    Returns:
        ``(H, W)`` float64 on the grid of the map that enters the plastic layers.
    """
    with torch.no_grad(), evaluating(model):
        maps = model.features(look)
        # The input of the head, and whether the network averages it over locations.
        before_head, averaged_by_network = unpooled_head_input(model, maps)
        maps = model.patch_grid(maps)  # without the tokens of a transformer
    layers = [before_head]
    if moments.maps:  # features of the maps themselves, too
        layers = [maps, before_head]
    # In float64, which the statistics score in; gradients are taken at these copies.
    layers = [values.double().requires_grad_() for values in layers]
    # The network's own average has no deviations.
    features = moments.of_layers(layers, averaged_by_network, TINY)
    scores = form.scores(features)[0, taught]
    attribution = torch.zeros(1, 1, *maps.shape[2:], dtype=torch.float64)
    for of_layer in attributed_to_layers(scores, layers):
        if of_layer.dim() == 4:  # a last layer without locations says nothing of them
            # Its sum stays the same on a grid of another size.
            scale = of_layer.numel() / attribution.numel()
            attribution += scale * functional.interpolate(
                of_layer, size=attribution.shape[2:], mode="bilinear"
            )
    return attribution[0, 0]


def attributed_to_layers(scores: Tensor, layers: list[Tensor]) -> list[Tensor]:
    """Attribute the margin of an answer to locations of the layers behind its scores.

    The margin is the largest score minus the second; with one class, the score. The
    part of a location is the derivative of the margin by its values, times the
    difference of these values from their mean over locations, summed over channels.

    Args:
        scores: ``(C,)``, with a graph that leads to the layers.
        layers: ``(1, C, H, W)`` each, or ``(1, C)`` without locations.

    Returns:
        ``(1, 1, H, W)`` each, or zeros ``(1, 1)``.
    """
    largest = scores.topk(min(2, len(scores))).values
    margin = largest[0]
    if len(largest) > 1:
        margin = largest[0] - largest[1]
    gradients = torch.autograd.grad(margin, layers)
    attributions = []
    for layer, gradient in zip(layers, gradients):
        values = layer.detach()
        mean = values
        if values.dim() == 4:
            mean = values.mean((2, 3), keepdim=True)
        attributions.append(((values - mean) * gradient).sum(1, keepdim=True))
    return attributions


def _add_to_middle(attribution: Tensor, of_view: Tensor, share: float) -> None:
    """Add the attribution of a view, enlarged, to the middle of that of the image.

    Args:
        attribution: ``(h, w)`` of the image, which is changed in place.
        of_view: ``(h', w')``.
        share: sides of the middle, in units of those of the image.
    """
    top, bottom = middle_of(attribution.shape[0], share)
    left, right = middle_of(attribution.shape[1], share)
    enlarged = functional.interpolate(
        of_view[None, None], size=(bottom - top, right - left), mode="bilinear"
    )
    attribution[top:bottom, left:right] += enlarged[0, 0]
