"""Measure a backbone: its cut, maps, codes, weights and speed."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.models.backbones import split_backbone, usual_codebook_dim
from crumb_avalanche.models.extraction import IMAGES_AT_A_TIME
from crumb_avalanche.models.layers import PASSES, step_flops
from crumb_avalanche.models.recorded_backbones import BackboneRecord
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.process import preserve_rng_state
from crumb_avalanche.system.tensor_file import tensor_bytes

SECONDS = 0.5  # of measured passes
# Sides of the images of built-in networks for small ones, in pixels.
SIDES = {"small_cnn": 64, "slim_resnet18": 32, "resnet32": 32, "mlp": 32}


@dataclass(frozen=True)
class Codes:
    """Codes of a map with memory blocks of the usual length.

    Attributes:
        dim: length of a block; 0 without a codebook.
        count: codes of a map, one byte each.
    """

    dim: int = 0
    count: int = 0


@torch.no_grad()
def measured(
    name: str,
    image_size: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> BackboneRecord:
    """Build a backbone with random weights and measure it for half a second.

    Does not change the RNG state.

    Args:
        name: of the backbone.
        image_size: side of the images in pixels; default that of the backbone.
        clock: function that returns seconds.

    Raises:
        ImportError: timm is needed and not installed.
        ValueError: unknown name, or a network that cannot be cut.
    """
    with preserve_rng_state():
        model = split_backbone(
            name,
            None,
            n_classes=1,
            codebook=None,
            image_size=image_size or SIDES.get(name),
        ).eval()
        side = model.image_size
        images = torch.randint(
            0, 256, (IMAGES_AT_A_TIME, 3, side, side), dtype=torch.uint8
        )
    codes = usual_codes(model)
    extraction, training = step_flops(model)
    moments = FeatureMoments(**RegularizedDiscriminant.moments)
    return BackboneRecord(
        backbone=name,
        pixels=side,
        stored_after=last_stage(model),
        map_shape="x".join(map(str, model.map_shape)),
        codebook_dim=codes.dim,
        code_bytes=codes.count,
        trained=bytes_without_head(model, "plastic_layers.") / 1e6,
        features=moments.length(model),
        megabytes=bytes_without_head(model) / 1e6,
        gflops=(extraction + training // PASSES) / 1e9,
        images_per_second=images_per_second(model, images, clock),
    )


def last_stage(model: SplitModel) -> str:
    """Return the name of the last module of F; empty if F is."""
    if not model.stages:
        return ""
    return model.stages[-1]


def usual_codes(model: SplitModel) -> Codes:
    """Return what codes of a map a codebook of the usual length gives."""
    if not model.stages:
        return Codes()
    channels, height, width = model.map_shape
    dim = usual_codebook_dim(model)
    return Codes(dim=dim, count=channels // dim * height * width)


def bytes_without_head(model: SplitModel, part: str = "") -> int:
    """Return the bytes of the weights of a network without its head.

    ``part`` begins the names of the weights that count.
    """
    head = f".{model.head}."
    return tensor_bytes(
        weight
        for name, weight in model.state_dict().items()
        if head not in name and name.startswith(part)
    )


def images_per_second(
    model: SplitModel, images: Tensor, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the speed of forward passes of a batch, by a clock in seconds."""
    model(images)  # the first pass takes longer
    start = clock()
    count = 0
    while clock() - start < SECONDS:
        model(images)
        count += len(images)
    return count / (clock() - start)
