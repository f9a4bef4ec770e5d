"""Perturbed feature maps: locations shuffled or half of the features removed (paper, "shape bias", Fig. 4)."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor


def spatial_perturbation(maps: Tensor, generator: Generator) -> Tensor:
    """Shuffle the locations of each map ``(B, C, H, W)``, with a permutation for each image."""
    batch, channels, height, width = maps.shape
    order = torch.stack([torch.randperm(height * width, generator=generator) for _ in range(batch)]).to(maps.device)
    moved = maps.flatten(2).gather(2, order.unsqueeze(1).expand(-1, channels, -1))
    return moved.view(maps.shape).contiguous(memory_format=torch.channels_last)


def feature_perturbation(maps: Tensor, generator: Generator) -> Tensor:
    """Set a random half of the channels of each map ``(B, C, H, W)`` to zero, drawn for each image."""
    batch, channels = maps.shape[:2]
    kept = torch.ones(batch, channels, device=maps.device)
    for row in kept:
        row[torch.randperm(channels, generator=generator)[: channels // 2].to(maps.device)] = 0
    return maps * kept.view(batch, channels, 1, 1)


MAP_PERTURBATIONS: dict[str, Callable[[Tensor, Generator], Tensor]] = {
    "spatial": spatial_perturbation,
    "feature": feature_perturbation,
}
