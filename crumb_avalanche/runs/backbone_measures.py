"""Measure a backbone: its cut, maps, codes, weights and speed."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.models.extraction import IMAGES_AT_A_TIME
from crumb_avalanche.models.layers import PASSES, step_flops
from crumb_avalanche.models.recorded_backbones import BackboneRecord
from crumb_avalanche.models.split_backbone import random_backbone, usual_codebook_dim
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.process import preserve_rng_state
from crumb_avalanche.system.tensor_file import tensor_bytes

SECONDS = 0.5  # of measured passes
# Sides in pixels of the images of those built-in networks that take small ones.
SMALL_SIDES = {"small_cnn": 64, "slim_resnet18": 32, "resnet32": 32, "mlp": 32}


@dataclass(frozen=True)
class CodesOfMap:
    """Codes of one feature map with memory blocks of the usual length.

    Attributes:
        codebook_dim: length of a memory block; 0 without a codebook.
        n_codes: number of codes of a map, each a byte.
    """

    codebook_dim: int = 0
    n_codes: int = 0


@torch.no_grad()
def measure_backbone(
    name: str,
    image_size: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> BackboneRecord:
    """Build a backbone with random weights and measure it for half a second.

    Does not change the RNG state. Sizes are in MB (1e6 bytes), speed in images per
    second on the CPU.

    Args:
        name: of the backbone.
        image_size: side of the images in pixels; default that of the backbone.
        clock: function that returns seconds.

    Raises:
        ImportError: timm is needed and not installed.
        ValueError: unknown name, or a network that cannot be cut.
    """
    with preserve_rng_state():
        model = random_backbone(name, image_size=image_size or SMALL_SIDES.get(name))
        model.eval()
        side = model.image_size
        images = torch.randint(
            0, 256, (IMAGES_AT_A_TIME, 3, side, side), dtype=torch.uint8
        )
    codes = usual_codes(model)  # of one map, with a codebook of the usual block length
    # Of F, and of a training step of P, for one image.
    extraction_flops, training_flops = step_flops(model)
    # A training step of P is PASSES times as much as its forward pass.
    forward_flops = extraction_flops + training_flops // PASSES
    # The moments of the map that the method of the preset ``recommended`` learns from.
    moments = FeatureMoments(**RegularizedDiscriminant.moments)
    return BackboneRecord(
        backbone=name,
        pixels=side,
        stored_after=last_stage(model),
        map_shape="x".join(map(str, model.map_shape)),
        codebook_dim=codes.codebook_dim,
        code_bytes=codes.n_codes,
        trained=bytes_without_head(model, "plastic_layers.") / 1e6,
        features=moments.length(model),  # numbers for an image
        megabytes=bytes_without_head(model) / 1e6,
        gflops=forward_flops / 1e9,
        images_per_second=images_per_second(model, images, clock),
    )


def last_stage(model: SplitModel) -> str:
    """Return the name of the last module of F; empty if F has no modules."""
    if not model.stages:
        return ""
    return model.stages[-1]


def usual_codes(model: SplitModel) -> CodesOfMap:
    """Return the codes of a map with a codebook of the usual block length."""
    if model.extractor_is_empty:
        return CodesOfMap()
    channels, height, width = model.map_shape
    codebook_dim = usual_codebook_dim(model)
    codes_of_location = channels // codebook_dim
    return CodesOfMap(codebook_dim, n_codes=codes_of_location * height * width)


def bytes_without_head(model: SplitModel, prefix: str = "") -> int:
    """Return the bytes of a network's weights without those of its head.

    Only weights count whose names begin with ``prefix``.
    """
    head = f".{model.head}."
    return tensor_bytes(
        weight
        for name, weight in model.state_dict().items()
        if head not in name and name.startswith(prefix)
    )


def images_per_second(
    model: SplitModel, images: Tensor, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return how many images a network answers in a second.

    Args:
        model: the network, which is in evaluation mode.
        images: ``(B, 3, H, W)`` uint8, a batch that passes again and again.
        clock: function that returns seconds.
    """
    model(images)  # the first pass takes longer
    start = clock()
    n_images = 0
    while clock() - start < SECONDS:
        model(images)
        n_images += len(images)
    return n_images / (clock() - start)
