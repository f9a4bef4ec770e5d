r"""Measure the library on one GPU, within ten minutes: correct, quick, and beside a CPU.

    python experiments/gpu.py --dataset-root ETH80 --weights WEIGHTS

In this order, each part with its own time limit:

  tests    the tests that need a GPU (pytest -m cuda)
  step     time of a stream step of CRUMB / time of its networks alone, and how often
           the host waits for the GPU in a step, as torch's profiler counts it
  F        images/s of the frozen layers in float32, in bf16, and compiled with
           channels-last maps; their share of the product of matrices of that type
  search   time of a broadcast product and argmax over all similarities of 256 blocks of
           16 values / time of the library's search
  run      one run of ETH-80 on the GPU and on the CPU: accuracies and seconds

Without --dataset-root the run is one of rendered shapes, whose accuracies mean nothing.
Writes `gpu.csv` and `gpu.md` to --output. Ends at once where there is no GPU.
"""

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_step import crumb_of, dataset_of, plain_codes
from support.common_options import run_script
from support.tables import write_table
from torch import Tensor

from crumb_avalanche import Codebook, split_backbone
from crumb_avalanche.models.initialisers import init_matched_
from crumb_avalanche.models.layers import step_flops
from crumb_avalanche.models.runtimes import use_runtime
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.runs.settings import RunSettings

ROOT = Path(__file__).parents[1]
HEADER = ["part", "figure", "value", "unit"]
# What the CUDA runtime calls a host that waits for the GPU.
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
MATRIX = 8192  # side of the matrices whose product is the card's peak
TESTS_SECONDS = 180


@dataclass(frozen=True)
class Figure:
    """A measured figure, one line of the table."""

    part: str
    name: str
    value: float | str
    unit: str

    @property
    def line(self) -> list[str]:
        """Values of `HEADER`."""
        value = self.value
        if not isinstance(value, str):
            value = f"{value:.4g}"
        return [self.part, self.name, value, self.unit]


@dataclass(frozen=True)
class Sizes:
    """How much is measured; smaller for tests.

    Attributes:
        backbone: network.
        pixels: side of the images.
        batch: images of a step.
        batches: steps that are timed together.
        f_batch: images that pass F together.
        repeats: turns of each, of which the fastest counts.
    """

    backbone: str = "squeezenet1_0"
    pixels: int = 224
    batch: int = 21
    batches: int = 8
    f_batch: int = 256
    repeats: int = 5


def wait_for(device: torch.device) -> None:
    """Wait for all work of a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_on(
    device: torch.device, function: Callable[[], object], repeats: int
) -> float:
    """Seconds of the fastest call after a first one, with all work of the device."""
    durations = []
    for _ in range(1 + repeats):
        wait_for(device)
        start = time.perf_counter()
        function()
        wait_for(device)
        durations.append(time.perf_counter() - start)
    return min(durations[1:])


# Parts


def tests() -> list[Figure]:
    """Do the tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-n", "0", "-q"]
    try:
        process = subprocess.run(
            [*command, str(ROOT / "tests")],
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=TESTS_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return [Figure("tests", "result", f"not done in {TESTS_SECONDS} s", "")]
    print(process.stdout[-4000:])
    result = process.stderr[-200:]
    lines = process.stdout.strip().splitlines()
    if lines:
        result = lines[-1]
    return [Figure("tests", "result", result, "")]


def model_of(
    device: torch.device, sizes: Sizes, n_classes: int, length: int = 16
) -> SplitModel:
    """An untrained model on a device, which costs what a trained one does."""
    model = split_backbone(
        sizes.backbone,
        None,
        n_classes=n_classes,
        codebook=Codebook(256, length),
        image_size=sizes.pixels,
    )
    return model.to(device)


def step(device: torch.device, sizes: Sizes) -> list[Figure]:
    """Time a stream step beside its networks alone, and count the host's waits."""
    from avalanche.benchmarks import benchmark_from_datasets

    torch.manual_seed(0)
    rounds = sizes.repeats + 3
    model = model_of(device, sizes, n_classes=2 * rounds)
    strategy = crumb_of(model, device=device)
    count = sizes.batch * sizes.batches
    shape = (count, 3, sizes.pixels, sizes.pixels)
    images = torch.randint(256, shape, dtype=torch.uint8)
    labels = torch.arange(count) % 2
    datasets = [dataset_of(images, labels + 2 * number) for number in range(rounds)]
    experiences = iter(benchmark_from_datasets(train=datasets).train_stream)

    def learn() -> None:
        strategy.train(next(experiences), eval_streams=[])

    learn()
    step_seconds = seconds_on(device, learn, sizes.repeats) / sizes.batches
    replayed = torch.rand(sizes.batch, *model.map_shape, device=device)
    batch = images[: sizes.batch].to(device)
    model.train()
    bare = partial(_networks_alone, model, batch, replayed)
    bare_seconds = seconds_on(device, bare, sizes.repeats)
    waits = waits_of(profiled(device, learn))
    figures = [
        Figure("step", "a step of CRUMB", 1e3 * step_seconds, "ms"),
        Figure("step", "its networks alone", 1e3 * bare_seconds, "ms"),
        Figure("step", "step over bare", step_seconds / bare_seconds, "times"),
    ]
    for name in WAITS:
        waits_a_step = waits[name] / sizes.batches
        figures.append(Figure("step", name, waits_a_step, "waits a step"))
    return figures


def _networks_alone(model: SplitModel, images: Tensor, replayed: Tensor) -> None:
    """Do F forward, and P forward and backward for new and for replayed maps."""
    for maps in (model.features(images), replayed):
        labels = torch.zeros(len(maps), dtype=torch.long, device=maps.device)
        torch.nn.functional.cross_entropy(model.classify(maps), labels).backward()
        model.zero_grad()


def profiled(device: torch.device, function: Callable[[], object]) -> Iterable[Any]:
    """Return the events of a call as torch's profiler sums them up by name."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        function()
        wait_for(device)
    return profile.key_averages()


def waits_of(events: Iterable[Any]) -> Counter[str]:
    """Count how often the host waited, by what the CUDA runtime calls it."""
    counts: Counter[str] = Counter()
    for event in events:
        if event.key in WAITS:
            counts[event.key] += event.count
    return counts


def frozen_layers(device: torch.device, sizes: Sizes) -> list[Figure]:
    """Measure images/s of F in each way to compute it, beside the card's peak."""
    shape = (sizes.f_batch, 3, sizes.pixels, sizes.pixels)
    images = torch.randint(256, shape, dtype=torch.uint8).to(device)
    flops = flops_of(sizes)
    variants = {  # precision, whether F is compiled, and type of its products
        "float32": ("fp32", False, torch.float32),
        "bf16": ("bf16", False, torch.bfloat16),
        "compiled bf16, channels-last": ("bf16", True, torch.bfloat16),
    }
    figures = []
    for name, (precision, compiled, dtype) in variants.items():
        model = model_of(device, sizes, n_classes=2).eval()
        model.set_precision(precision)
        if compiled:
            use_runtime(model, "compiled")
        extract = partial(_extract, model, images)
        rate = sizes.f_batch / seconds_on(device, extract, sizes.repeats)
        share = 100 * rate * flops / peak(device, dtype)
        figures.append(Figure("F", name, rate, "images/s"))
        figures.append(Figure("F", f"{name}, of the peak", share, "%"))
    return figures


@torch.no_grad()
def _extract(model: SplitModel, images: Tensor) -> Tensor:
    return model.extract(images)


def flops_of(sizes: Sizes) -> int:
    """Floating-point operations of F for an image."""
    extractor_flops, _ = step_flops(model_of(torch.device("cpu"), sizes, n_classes=2))
    return extractor_flops


def peak(device: torch.device, dtype: torch.dtype, side: int = MATRIX) -> float:
    """Floating-point operations/s of a product of large matrices of a type."""
    matrix = torch.ones(side, side, dtype=dtype, device=device)
    product = partial(torch.matmul, matrix, matrix)
    return 2 * side**3 / seconds_on(device, product, 3)


def search(device: torch.device, sizes: Sizes) -> list[Figure]:
    """Time the search of 256 blocks of 16 values beside a plain product."""
    model = model_of(torch.device("cpu"), sizes, n_classes=2)
    maps = torch.relu(torch.randn(sizes.batch, *model.map_shape) * 20 - 8)
    init_matched_(model.codebook, maps, torch.Generator().manual_seed(0))
    model = model.to(device)
    maps = maps.to(device)
    maps = maps.contiguous(memory_format=torch.channels_last)
    blocks = model.codebook.blocks.detach()
    plain = partial(plain_codes, maps, blocks)
    times = {
        "a plain product": seconds_on(device, plain, sizes.repeats),
        "the search": seconds_on(
            device, partial(model.codebook.encode, maps), sizes.repeats
        ),
    }
    figures = []
    for name, duration in times.items():
        figures.append(Figure("search", name, 1e3 * duration, "ms"))
    speedup = times["a plain product"] / times["the search"]
    return [*figures, Figure("search", "speedup", speedup, "times")]


def run_on(device: str, options: argparse.Namespace) -> dict[str, Any]:
    """Do a run on a device and return its result."""
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.run import run_once

    settings = RunSettings(
        benchmark="eth80" if options.dataset_root else "toy_shapes_short",
        dataset_root=options.dataset_root,
        weights=options.weights,
        output=str(Path(options.output) / device),
        device=device,
        overwrite=True,
        progress=False,
    )
    return run_once(RunPlan.of(settings), verbose=False)


def run(options: argparse.Namespace) -> list[Figure]:
    """Do a run on the GPU and on the CPU."""
    figures = []
    accuracies = {}
    for device in ("cuda", "cpu"):
        result = run_on(device, options)
        accuracies[device] = result["final_accuracy"]
        figures.append(Figure("run", f"{device}, time", result["seconds"], "s"))
        figures.append(Figure("run", f"{device}, accuracy", accuracies[device], "%"))
    difference = accuracies["cuda"] - accuracies["cpu"]
    return [*figures, Figure("run", "GPU minus CPU", difference, "points")]


def write(output: Path, figures: Sequence[Figure]) -> None:
    """Write the table of all figures so far."""
    write_table(output, "gpu", HEADER, [figure.line for figure in figures])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], allow_abbrev=False
    )
    add = parser.add_argument
    add("--dataset-root", metavar="DIR", help="folder of ETH-80")
    add("--weights", default="none", help="weights of the run, as for crumb run")
    add("--output", default="runs/gpu", metavar="DIR")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise ValueError(
            "there is no GPU here (torch.cuda.is_available() is False): call this "
            "where torch sees one"
        )
    device = torch.device("cuda")
    sizes = Sizes()
    measurements: dict[str, Callable[[], list[Figure]]] = {
        "tests": tests,
        "step": partial(step, device, sizes),
        "F": partial(frozen_layers, device, sizes),
        "search": partial(search, device, sizes),
        "run": partial(run, options),
    }
    figures = [Figure("card", "name", torch.cuda.get_device_name(device), "")]
    for name, measure in measurements.items():
        try:
            figures += measure()
        except Exception as error:  # the other parts are measured all the same
            reason = " ".join(str(error).split())[:200]
            figures.append(
                Figure(name, "failed", f"{type(error).__name__}: {reason}", "")
            )
        write(Path(options.output), figures)
    return 0


if __name__ == "__main__":
    run_script(main, smoke_test=False)
