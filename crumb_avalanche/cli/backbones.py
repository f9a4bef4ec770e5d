"""``crumb backbones``: list networks with cut, map, size and speed."""

import torch

from crumb_avalanche.models.backbone_names import PREFIX, full_name
from crumb_avalanche.models.backbones import BACKBONES
from crumb_avalanche.runs.backbone_speed import TESTED, measured
from crumb_avalanche.runs.command_settings import BackbonesSettings
from crumb_avalanche.runs.tables import table

COLUMNS = ["backbone", "pixels", "cut after", "map", "d", "features", "MB", "GFLOPs", "images/s"]


def main(settings: BackbonesSettings) -> None:
    """Measure the named backbones, or the built-in ones, and print a table."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    names = [full_name(name) for name in settings.names] or list(BACKBONES)
    rows = []
    for name in names:
        facts = measured(name, settings.image_size)
        shape = "x".join(map(str, facts.map_shape))
        cut, dim = (facts.cut, str(facts.codebook_dim)) if facts.cut else ("-", "-")
        row = [name, str(facts.image_size), cut, shape, dim, f"{facts.features:,}"]
        rows.append([*row, f"{facts.bytes / 1e6:.1f}", f"{facts.flops / 1e9:.2f}", f"{facts.images_per_second:.3g}"])
    print(table(COLUMNS, rows))
    print(f"images/s: forward passes of 8 images with random weights, {torch.get_num_threads()} threads")
    if not settings.names:
        print(f"{PREFIX}NAME is any network of timm (pip install 'crumb-avalanche[timm]'). Tested families:")
        print("\n".join(f"  {family}: {', '.join(PREFIX + name for name in some)}" for family, some in TESTED.items()))
