"""Perturbed feature maps: without their shape, or without half of their features (paper, "shape bias", Fig. 4)."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor


def spatial_perturbation(maps: Tensor, generator: Generator) -> Tensor:
    """The feature vectors of each map at other locations, drawn for each image; `(B, C, H, W)` of both."""
    batch, channels, height, width = maps.shape
    order = torch.stack([torch.randperm(height * width, generator=generator) for _ in range(batch)]).to(maps.device)
    moved = maps.flatten(2).gather(2, order.unsqueeze(1).expand(-1, channels, -1))
    return moved.view(maps.shape).contiguous(memory_format=torch.channels_last)


def feature_perturbation(maps: Tensor, generator: Generator) -> Tensor:
    """A random half of the features of each map set to zero, drawn for each image; `(B, C, H, W)` of both."""
    batch, channels = maps.shape[:2]
    kept = torch.ones(batch, channels, device=maps.device)
    for row in kept:
        row[torch.randperm(channels, generator=generator)[: channels // 2].to(maps.device)] = 0
    return maps * kept.view(batch, channels, 1, 1)


MAP_PERTURBATIONS: dict[str, Callable[[Tensor, Generator], Tensor]] = {
    "spatial": spatial_perturbation,
    "feature": feature_perturbation,
}
