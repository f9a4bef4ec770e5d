"""Measure the frozen layers F of networks in each runtime that is installed, beside eager torch in float32.

    python experiments/bench_runtimes.py

Images per second, pixels to maps, with random weights; with --json, one object:
  {network: {batch: {runtime: images per second}, "auto_over_eager": {batch: ratio}}}
``eager`` is F in channels-last order in parts of 8 images, normalisation included, as
the library ran it before it had runtimes. ``auto`` is what --runtime auto chooses here.
"""

import os
from collections.abc import Callable
from functools import partial

import torch
from support.bench import bench_parser, clock_of, fastest, report
from support.common_options import run_script
from torch import Tensor

from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.runtimes import RUNTIMES, RuntimeRefusedError, use_runtime
from crumb_avalanche.models.split_model import SplitModel

NETWORKS = ("squeezenet1_0", "mobilenet_v2", "resnet18")
BATCHES = (1, 8, 21)


@torch.no_grad()
def eager(model: SplitModel, pixels: Tensor) -> Tensor:
    """Run F in eager float32, in parts that fit the caches."""
    maps = []
    for some in pixels.split(8):
        images = (some.float() / 255 - model.pixel_mean) / model.pixel_std
        maps.append(
            model.feature_extractor(
                images.contiguous(memory_format=torch.channels_last)
            ).float()
        )
    return torch.cat(maps)


def noise(count: int) -> Tensor:
    """Images of noise."""
    return torch.randint(0, 256, (count, 3, 224, 224), dtype=torch.uint8)


def opened(
    network: str, names: list[str]
) -> tuple[dict[str, Callable[[Tensor], Tensor]], list[str]]:
    """Return F in each runtime, and a note about each."""
    torch.manual_seed(0)
    model, notes = (
        split_backbone(network, weights=None, n_classes=2, codebook=None).eval(),
        [],
    )
    functions: dict[str, Callable[[Tensor], Tensor]] = {"eager": partial(eager, model)}
    for name in names:
        own = SplitModel(
            model.feature_extractor, model.plastic_layers, model.head
        ).eval()
        try:
            notes.append(f"  {name}: {use_runtime(own, name).described}")
        except RuntimeRefusedError as error:
            notes.append(f"  {name} is left out: {error}")
        else:
            functions[name] = own.extract
    return functions, notes


def main() -> None:
    parser = bench_parser(__doc__, repeats=20)
    parser.add_argument(
        "--networks", nargs="+", default=list(NETWORKS), help="backbones"
    )
    parser.add_argument(
        "--batches",
        nargs="+",
        type=int,
        default=list(BATCHES),
        help="numbers of images",
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="measure torch.compile too: half a minute more each",
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    names = [
        "auto",
        *(name for name in RUNTIMES if options.compiled or name != "compiled"),
    ]
    os.environ.pop("CRUMB_RUNTIME", None)
    figures: dict[str, dict] = {}
    lines = []
    for network in options.networks:
        functions, notes = opened(network, names)
        lines += [network, *notes]
        speeds, ratios = {}, {}
        for batch in options.batches:
            calls = {
                name: partial(function, noise(batch))
                for name, function in functions.items()
            }
            found = fastest(calls, options.repeats, clock_of(options))
            speeds[batch] = {name: batch / seconds for name, seconds in found.items()}
            ratios[batch] = speeds[batch]["auto"] / speeds[batch]["eager"]
            row = "  ".join(
                f"{name} {speed:.0f}" for name, speed in speeds[batch].items()
            )
            lines.append(
                f"  {batch:3d} images  {row}  auto over eager {ratios[batch]:.2f}"
            )
        figures[network] = {**speeds, "auto_over_eager": ratios}
    report(options, figures, lines)


if __name__ == "__main__":
    run_script(main)
