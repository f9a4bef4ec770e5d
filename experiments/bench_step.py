"""Measure the search for memory blocks and a stream step, beside plain code.

    python experiments/bench_step.py                                # bf16, compiled F
    python experiments/bench_step.py --precision fp32 --no-compile  # as crumb run

Ratios are printed last, because times depend on the machine; with --json, they alone:

  search_speedup        time of a broadcast product and argmax over all similarities /
                        time of the library's search
  search_working_bytes  peak of resident memory during the search, minus resident memory
                        before it
  step_over_bare        time of a stream step (F, search, P, replay, optimiser,
                        Avalanche's loop, data loading) / time of its networks alone at
                        the same precision (F forward, P forward and backward, twice)
  step_speedup          time of the reference code's float32 NCHW step / time of the
                        library's step

    python experiments/bench_step.py --classes 8 100 1000

measures a step of preset `tuned` (replay by compute, blocks of 32 values) and one of
preset `paper` (a replay batch after each new batch, with at least one memory of each
class that the new batch does not have, or at most 32 memories) by the number of classes
seen, with a memory of every class, each by the time of F forward and P forward and
backward of the same batch: float32, eager. The milliseconds of a step stand below;
--recipes chooses some of the three. With --json, one object of the ratios.
"""

import argparse
import ctypes
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from support.bench import (
    bench_parser,
    clock_of,
    fastest,
    report,
    reset_peak,
    resident,
    seconds,
)
from support.common_options import run_script
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from crumb_avalanche import Codebook, CodeBuffer, CRUMBStrategy, split_backbone
from crumb_avalanche.models.initialisers import init_matched_
from crumb_avalanche.models.layers import trainable
from crumb_avalanche.models.map_store import FeatureMemo
from crumb_avalanche.models.runtimes import use_runtime
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.runs.plan import preset_settings
from crumb_avalanche.runs.tables import format_table

BATCH = 21
MEMORIES = 417
TUNED = preset_settings("tuned")
TUNED_LENGTH = 32  # of a row, which follows from the size of SqueezeNet's maps
LIMIT = 32  # memories in a replay batch
RECIPES = {
    "tuned": (TUNED_LENGTH, dict(replay_compute=TUNED["replay_compute"])),
    "paper": (16, dict(replay_steps=1)),
    f"paper, limit {LIMIT}": (16, dict(replay_steps=1, replay_limit=LIMIT)),
}
MAP_SHAPE = (512, 13, 13)  # channels, height and width of a map of SqueezeNet
WARM_UP = 2  # experiences: F is compiled, the buffer filled
M_MMAP_THRESHOLD = -3  # of mallopt: larger freed blocks go back to the system


def dataset_of(images: Tensor, labels: Tensor) -> AvalancheDataset:
    """A data set of images and labels."""
    targets = DataAttribute(labels.tolist(), "targets")
    return AvalancheDataset([TensorDataset(images, labels)], data_attributes=[targets])


def crumb_of(model: SplitModel, memories: int = MEMORIES, **settings) -> CRUMBStrategy:
    """CRUMB with the paper's optimiser, one epoch an experience, and no evaluation."""
    weights = trainable(model).values()
    return CRUMBStrategy(
        model=model,
        optimizer=torch.optim.SGD(weights, 1e-3, 0.9, weight_decay=1e-4),
        storage_policy=CodeBuffer(memories),
        first_epochs=1,
        train_mb_size=BATCH,
        evaluator=None,
        **settings,
    )


def working_bytes(function: Callable[[], object]) -> int:
    """Peak of resident memory in a call, minus resident memory before it, in bytes."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(M_MMAP_THRESHOLD, 65536)
    function()
    libc.malloc_trim(0)
    reset_peak()
    before = resident("VmRSS")
    function()
    return max(0, resident("VmHWM") - before)


def plain_codes(feature_map: Tensor, blocks: Tensor) -> Tensor:
    """Codes ``(B, H, W, G)`` from the whole similarity tensor ``(B, H, W, G, n)``.

    The reference code computes them so.
    """
    slices = feature_map.permute(0, 2, 3, 1).unflatten(3, (-1, blocks.shape[1]))
    similarities = slices @ functional.normalize(blocks, dim=1).t()
    return similarities.argmax(dim=-1)


class PlainStep:
    """A stream step of the reference code: float32, NCHW, both branches.

    Replay is a step of its own.
    """

    def __init__(self, n_classes: int, replay: int):
        model = split_backbone(weights=None, n_classes=n_classes, codebook=Codebook())
        plain = torch.contiguous_format
        self.extract = model.feature_extractor.to(memory_format=plain)
        self.classify = model.plastic_layers.to(memory_format=plain).train()
        self.classify.dropout = nn.Dropout()
        self.blocks = nn.Parameter(torch.rand(256, 16))
        weights = [*self.classify.parameters(), self.blocks]
        self.optimizer = torch.optim.SGD(weights, 1e-3, 0.9, weight_decay=1e-4)
        self.stored = torch.randint(256, (replay, 13, 13, 32))
        self.stored_labels = torch.arange(replay) % n_classes

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        """Learn a batch, and replay the stored codes."""
        feature_map = self.extract(images).detach()
        codes = plain_codes(feature_map, self.blocks.detach())
        loss = functional.cross_entropy(self.rebuilt(codes), labels)
        direct_loss = functional.cross_entropy(self.classify(feature_map), labels)
        self.step(loss + 0 * direct_loss)
        replayed = self.rebuilt(self.stored)
        self.step(5 * functional.cross_entropy(replayed, self.stored_labels))

    def rebuilt(self, codes: Tensor) -> Tensor:
        """Logits of the maps that are rebuilt from codes ``(B, H, W, G)``."""
        maps = self.blocks[codes].flatten(3).permute(0, 3, 1, 2)
        return self.classify(maps)

    def step(self, loss: Tensor) -> None:
        """Take a step of the optimiser, with clamped gradients."""
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.optimizer.param_groups[0]["params"]:
            parameter.grad.clamp_(-10, 10)
        self.optimizer.step()


def networks_alone(model: SplitModel, images: Tensor, replayed: Tensor) -> None:
    """Do F forward, and P forward and backward for new and for replayed maps."""
    _train_on(model, model.features(images))
    _train_on(model, replayed)


def _train_on(model: SplitModel, maps: Tensor) -> None:
    """Do P forward and backward for maps."""
    logits = model.classify(maps)
    functional.cross_entropy(logits, torch.arange(len(logits)) % 2).backward()
    model.zero_grad()


def mean_seconds(
    function: Callable[[], object], count: int, clock: Callable[[], float]
) -> float:
    """Mean time of `count` calls."""
    return statistics.fmean(seconds(function, clock) for _ in range(count))


def time_steps(
    model: SplitModel, images: Tensor, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Time a stream step of CRUMB, its networks alone, and a step of the plain code.

    Args:
        model: whose precision and runtime are set as the options say.
        images: of every experience, which has two classes of its own.
        options: the command line's.

    Returns:
        Seconds in each round by ``step``, ``bare`` (the networks alone) and ``plain``.
    """
    clock = clock_of(options)
    model.set_precision(options.precision)
    if options.compile:
        use_runtime(model, "compiled")
    strategy = crumb_of(model)
    labels = torch.arange(len(images)) % 2
    rounds = range(options.repeats + WARM_UP)
    datasets = [dataset_of(images, labels + 2 * number) for number in rounds]
    experiences = iter(benchmark_from_datasets(train=datasets).train_stream)
    for _ in range(WARM_UP):
        strategy.train(next(experiences), eval_streams=[])
    plain_images = torch.randn(BATCH, 3, 224, 224)
    plain = partial(PlainStep(4, BATCH), plain_images, labels[:BATCH])
    plain()
    times: dict[str, list[float]] = {"step": [], "bare": [], "plain": []}
    for _ in range(options.repeats):
        experience = next(experiences)
        # As many as the step replays: as many of each class, and a batch at least.
        classes = set(experience.dataset.targets)
        n_replayed = len(strategy.storage_policy.sample(classes, BATCH))
        replayed_maps = torch.rand(n_replayed, *MAP_SHAPE)
        replayed_maps = replayed_maps.contiguous(memory_format=torch.channels_last)
        bare = partial(networks_alone, model, images[:BATCH], replayed_maps)
        model.train()
        bare()
        learn = partial(strategy.train, experience, eval_streams=[])
        times["step"].append(seconds(learn, clock) / options.batches)
        model.train()
        times["bare"].append(mean_seconds(bare, options.batches, clock))
        times["plain"].append(mean_seconds(plain, 3, clock))
    return times


def bare_step(model: SplitModel, images: Tensor) -> None:
    """Do F forward and P forward and backward for a batch."""
    model.train()
    logits = model.classify(model.features(images))
    labels = torch.zeros(len(images)).long()
    functional.cross_entropy(logits, labels).backward()
    model.zero_grad()


@dataclass(frozen=True)
class StepCost:
    """Seconds of a step, and of its networks alone."""

    step: float
    bare: float

    @property
    def ratio(self) -> float:
        """Time of the step by that of the networks."""
        return self.step / self.bare

    @property
    def milliseconds(self) -> float:
        """Time of the step."""
        return 1000 * self.step


def step_costs(
    images: Tensor, options: argparse.Namespace
) -> dict[int, dict[str, StepCost]]:
    """Measure a step of each recipe, by the number of classes seen, and recipe."""
    costs: dict[int, dict[str, StepCost]] = {}
    for n_classes in options.classes:
        costs[n_classes] = {}
        # In turns: large batches of one slow down the other's memory.
        for recipe in options.recipes:
            costs[n_classes][recipe] = _step_cost(recipe, n_classes, images, options)
    return costs


def _step_cost(
    recipe: str, n_classes: int, images: Tensor, options: argparse.Namespace
) -> StepCost:
    """Measure a step of a recipe that has a memory of each of `n_classes`.

    The memories are filled from one image of each class; the steps that are measured
    learn `images`, of two classes.
    """
    labels = torch.arange(n_classes)
    one_image_a_class = stream_of(images[labels % BATCH], labels)
    two_classes = stream_of(images, torch.arange(len(images)) % 2)
    length, replay = RECIPES[recipe]
    torch.manual_seed(0)
    codebook = Codebook(256, length)
    model = split_backbone(weights=None, n_classes=n_classes, codebook=codebook)
    strategy = crumb_of(model, max(MEMORIES, n_classes), **replay)
    model.feature_memo = FeatureMemo(BATCH)  # filling needs F once an image
    strategy.train(one_image_a_class, eval_streams=[])
    model.feature_memo = None
    assert len(strategy.storage_policy.classes) == n_classes
    functions = {
        "step": partial(strategy.train, two_classes, eval_streams=[]),
        "bare": partial(bare_step, model, images[:BATCH]),
    }
    times = fastest(functions, options.repeats, clock_of(options))
    return StepCost(step=times["step"] / options.batches, bare=times["bare"])


def stream_of(images: Tensor, labels: Tensor) -> Any:
    """A stream of one experience."""
    dataset = dataset_of(images, labels)
    return benchmark_from_datasets(train=[dataset]).train_stream


@dataclass(frozen=True)
class Search:
    """A search for memory blocks, plain and ours, of the same maps.

    Attributes:
        maps: ``(B, C, H, W)``, channels last.
        codebook: whose rows are searched.
    """

    maps: Tensor
    codebook: Codebook

    @classmethod
    def of(cls, codebook: Codebook) -> "Search":
        """Initialise a codebook from maps of about 65 % zeros, as after a ReLU."""
        maps = torch.relu(torch.randn(BATCH, *MAP_SHAPE) * 20 - 8)
        init_matched_(codebook, maps, torch.Generator().manual_seed(0))
        return cls(maps.contiguous(memory_format=torch.channels_last), codebook)

    def plain(self) -> Tensor:
        """Codes of the plain search."""
        return plain_codes(self.maps, self.codebook.blocks.detach())

    def ours(self) -> Tensor:
        """Codes of the library's search."""
        return self.codebook.encode(self.maps)

    def check(self) -> None:
        """Check that both agree; the plain code has no rule for all-zero slices."""
        ours = self.ours().permute(0, 2, 3, 1).long()
        slices = self.maps.permute(0, 2, 3, 1).unflatten(3, (-1, 16))
        defined = slices.any(dim=-1)
        same = torch.equal(self.plain()[defined], ours[defined])
        assert same, "the two searches disagree"


def report_classes(images: Tensor, options: argparse.Namespace) -> None:
    """Report the cost of a step by the number of classes."""
    ratios: dict[int, dict[str, float]] = {}
    rows = []
    times = []
    for n_classes, cost_of_recipe in step_costs(images, options).items():
        ratios[n_classes] = {}
        row = [str(n_classes)]
        times_of_count = [str(n_classes)]
        for name, cost in cost_of_recipe.items():
            ratios[n_classes][name] = cost.ratio
            row.append(f"{cost.ratio:.2f}")
            times_of_count.append(f"{cost.milliseconds:.0f} ms")
        rows.append(row)
        times.append(times_of_count)
    header = ["classes", *options.recipes]
    report(options, ratios, [format_table(header, rows), format_table(header, times)])


def report_step(images: Tensor, options: argparse.Namespace) -> None:
    """Report the speed of the search and of a step."""
    n_classes = 2 * (options.repeats + 3)
    model = split_backbone(weights=None, n_classes=n_classes, codebook=Codebook())
    search = Search.of(model.codebook)
    search.check()
    functions = {"plain": search.plain, "ours": search.ours}
    seconds = fastest(functions, options.repeats, clock_of(options))
    times = time_steps(model, images, options)
    step = min(times["step"])
    bare = min(times["bare"])
    plain = min(times["plain"])
    # The median of rounds, as rounds replay other numbers of maps.
    ratios = [ours / alone for ours, alone in zip(times["step"], times["bare"])]
    figures = {
        "search_speedup": seconds["plain"] / seconds["ours"],
        # Last, because it changes how memory is allocated from then on.
        "search_working_bytes": working_bytes(search.ours),
        "step_over_bare": statistics.median(ratios),
        "step_speedup": plain / step,
    }
    step_seconds = {"plain": plain, "ours": step, "bare": bare}
    lines = [
        f"search: {_milliseconds_text(seconds)}",
        f"stream step: {_milliseconds_text(step_seconds)}",
        f"images/s: {BATCH / plain:.1f} plain, {BATCH / step:.1f} ours",
    ]
    report(options, figures, lines)


def _milliseconds_text(seconds: dict[str, float]) -> str:
    """Times by name, as text for people."""
    return ", ".join(f"{1e3 * value:.1f} ms {name}" for name, value in seconds.items())


def main() -> None:
    parser = bench_parser(__doc__)
    add = parser.add_argument
    add("--classes", type=int, nargs="+", default=[], help="numbers of classes seen")
    add("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES), metavar="NAME")
    add("--precision", choices=["fp32", "bf16"], default="bf16")
    add(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compile F",
    )
    add("--batches", type=int, default=8, help="stream batches per measurement")
    add(
        "--quick",
        action="store_true",
        help="one batch, one round, float32, not compiled",
    )
    options = parser.parse_args()
    if options.quick:
        options.batches = 1
        options.repeats = 1
        options.precision = "fp32"
        options.compile = False
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    shape = (BATCH * options.batches, 3, 224, 224)
    images = torch.randint(256, shape, dtype=torch.uint8)
    if options.classes:
        report_classes(images, options)
    else:
        report_step(images, options)


if __name__ == "__main__":
    run_script(main, smoke_test=False)
