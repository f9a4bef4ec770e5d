"""Measure the frozen layers F in each installed runtime, beside eager torch.

    python experiments/bench_runtimes.py

Images per second, pixels to maps, with random weights; with --json, one object:

  {network: {batch: {runtime: images per second}, "auto_over_eager": {batch: ratio}}}

``eager`` is F in channels-last order in parts of 8 images, normalisation included, as
the library ran it before it had runtimes. ``auto`` is what --runtime auto chooses here.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from support.bench import bench_parser, clock_of, fastest, report
from support.common_options import run_script
from torch import Tensor

from crumb_avalanche.models.runtimes import RUNTIMES, RuntimeRefusedError, use_runtime
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.models.split_model import SplitModel

NETWORKS = ("squeezenet1_0", "mobilenet_v2", "resnet18")
BATCHES = (1, 8, 21)
CHUNK = 8  # images


@torch.no_grad()
def eager(model: SplitModel, pixels: Tensor) -> Tensor:
    """Run F in eager float32, in chunks that fit the caches."""
    maps = []
    for chunk in pixels.split(CHUNK):
        images = (chunk.float() / 255 - model.pixel_mean) / model.pixel_std
        images = images.contiguous(memory_format=torch.channels_last)
        maps.append(model.feature_extractor(images).float())
    return torch.cat(maps)


def noise(count: int) -> Tensor:
    """Images of noise, ``(count, 3, 224, 224)`` uint8."""
    return torch.randint(0, 256, (count, 3, 224, 224), dtype=torch.uint8)


@dataclass(frozen=True)
class Opened:
    """A network in several runtimes.

    Attributes:
        functions: F by the name of the runtime.
        notes: a line about each runtime.
    """

    functions: dict[str, Callable[[Tensor], Tensor]]
    notes: list[str]

    @classmethod
    def of(cls, network: str, runtimes: Sequence[str]) -> "Opened":
        """Open a network in the runtimes that take it."""
        torch.manual_seed(0)
        model = split_backbone(network, weights=None, n_classes=2, codebook=None).eval()
        functions: dict[str, Callable[[Tensor], Tensor]] = {
            "eager": partial(eager, model)
        }
        notes = []
        for name in runtimes:
            split = SplitModel(
                model.feature_extractor, model.plastic_layers, model.head
            )
            split.eval()
            try:
                notes.append(f"  {name}: {use_runtime(split, name).described}")
            except RuntimeRefusedError as error:
                notes.append(f"  {name} is left out: {error}")
            else:
                functions[name] = split.extract
        return cls(functions, notes)


def main() -> None:
    parser = bench_parser(__doc__, repeats=20)
    add = parser.add_argument
    add("--networks", nargs="+", default=list(NETWORKS), help="backbones")
    add(
        "--batches",
        nargs="+",
        type=int,
        default=list(BATCHES),
        help="numbers of images",
    )
    add(
        "--compiled",
        action="store_true",
        help="measure torch.compile too: half a minute more each",
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    runtimes = ["auto", *RUNTIMES]
    if not options.compiled:
        runtimes.remove("compiled")
    os.environ.pop("CRUMB_RUNTIME", None)
    clock = clock_of(options)
    figures: dict[str, dict] = {}
    lines = []
    for network in options.networks:
        opened = Opened.of(network, runtimes)
        lines += [network, *opened.notes]
        speeds: dict[int, dict[str, float]] = {}
        ratios: dict[int, float] = {}
        for batch in options.batches:
            images = noise(batch)
            calls = {
                name: partial(function, images)
                for name, function in opened.functions.items()
            }
            seconds = fastest(calls, options.repeats, clock)
            speed = {name: batch / time for name, time in seconds.items()}
            speeds[batch] = speed
            ratios[batch] = speed["auto"] / speed["eager"]
            row = "  ".join(f"{name} {value:.0f}" for name, value in speed.items())
            ratio = f"auto over eager {ratios[batch]:.2f}"
            lines.append(f"  {batch:3d} images  {row}  {ratio}")
        figures[network] = {**speeds, "auto_over_eager": ratios}
    report(options, figures, lines)


if __name__ == "__main__":
    run_script(main, smoke_test=False)
