"""Count the floating-point operations of a training step; the same on every machine, unlike its seconds."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from crumb_avalanche.models.penultimate import evaluating
from crumb_avalanche.models.split_model import SplitModel

PASSES = 3  # a backward pass computes two products where the forward pass has one


@torch.no_grad()
def step_flops(model: SplitModel) -> tuple[int, int]:
    """Count operations of F, and of a training step of P, for one image.

    Counts convolutions and matrix products; codes, losses and the optimiser are left out. The backward pass of P counts
    twice its forward pass.

    Args:
        model: in any mode, which is restored.

    Returns:
        ``(forward pass of F, forward and backward pass of P)``.
    """
    side = model.image_size
    with evaluating(model):
        with FlopCounterMode(display=False) as extraction:
            maps = model.feature_extractor(torch.zeros(1, 3, side, side, device=model.pixel_mean.device)).float()
        with FlopCounterMode(display=False) as answer:
            model.plastic_layers(maps)
    return extraction.get_total_flops(), PASSES * answer.get_total_flops()
