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

measures a step of preset `tuned` (replay by compute, blocks of 64 values) and one of
preset `paper` (a replay batch after each new batch, with at least one memory of each
class that the new batch does not have) by the number of classes seen, with a memory of
every class, each by the time of F forward and P forward and backward of the same batch:
float32, eager. With --json, one object of the ratios.
"""

import argparse
import ctypes
import statistics
from functools import partial

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
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from crumb_avalanche import Codebook, CodeBuffer, CRUMBStrategy, split_backbone
from crumb_avalanche.models.codebook import init_matched_
from crumb_avalanche.models.runtimes import use_runtime
from crumb_avalanche.runs.plan import preset_settings
from crumb_avalanche.runs.tables import table

BATCH = 21
TUNED = preset_settings("tuned")
RECIPES = {
    "tuned": (TUNED["codebook_dim"], dict(replay_compute=TUNED["replay_compute"])),
    "paper": (16, dict(replay_steps=1)),
}


def dataset_of(images: torch.Tensor, labels: torch.Tensor) -> AvalancheDataset:
    """A data set of images and labels."""
    targets = DataAttribute(labels.tolist(), "targets")
    return AvalancheDataset([TensorDataset(images, labels)], data_attributes=[targets])


def crumb_of(model, memories: int = 417, **settings) -> CRUMBStrategy:
    """CRUMB with the paper's optimiser, one epoch an experience, and no evaluation."""
    weights = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(weights, 1e-3, 0.9, weight_decay=1e-4)
    own = dict(first_epochs=1, train_mb_size=BATCH, evaluator=None, **settings)
    return CRUMBStrategy(
        model=model, optimizer=optimizer, storage_policy=CodeBuffer(memories), **own
    )


def working_bytes(function) -> int:
    """Peak of resident memory in a call, minus resident memory before it, in bytes."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallopt(
        -3, 65536
    )  # M_MMAP_THRESHOLD: freed blocks above it go back to the system
    function()
    libc.malloc_trim(0)
    reset_peak()
    before = resident("VmRSS")
    function()
    return max(0, resident("VmHWM") - before)


def plain_codes(feature_map: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Codes from the whole ``(B, H, W, G, n)`` similarity tensor, as the reference code computes them."""
    slices = feature_map.permute(0, 2, 3, 1).unflatten(3, (-1, blocks.shape[1]))
    return (slices @ functional.normalize(blocks, dim=1).t()).argmax(dim=-1)


class PlainStep:
    """A stream step of the reference code: float32, NCHW, both branches, a separate replay step."""

    def __init__(self, n_classes: int, replay: int):
        model = split_backbone(weights=None, n_classes=n_classes, codebook=Codebook())
        self.extract = model.feature_extractor.to(memory_format=torch.contiguous_format)
        self.classify = model.plastic_layers.to(
            memory_format=torch.contiguous_format
        ).train()
        self.classify.dropout = nn.Dropout()
        self.blocks = nn.Parameter(torch.rand(256, 16))
        self.optimizer = torch.optim.SGD(
            [*self.classify.parameters(), self.blocks], 1e-3, 0.9, weight_decay=1e-4
        )
        self.stored = torch.randint(256, (replay, 13, 13, 32))
        self.stored_labels = torch.arange(replay) % n_classes

    def __call__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        feature_map = self.extract(images).detach()
        loss = functional.cross_entropy(
            self.rebuilt(plain_codes(feature_map, self.blocks.detach())), labels
        )
        self.step(
            loss + 0 * functional.cross_entropy(self.classify(feature_map), labels)
        )
        self.step(
            5 * functional.cross_entropy(self.rebuilt(self.stored), self.stored_labels)
        )

    def rebuilt(self, codes: torch.Tensor) -> torch.Tensor:
        return self.classify(self.blocks[codes].flatten(3).permute(0, 3, 1, 2))

    def step(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self.optimizer.param_groups[0]["params"]:
            parameter.grad.clamp_(-10, 10)
        self.optimizer.step()


def steps(
    model, images: torch.Tensor, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Seconds of a stream step, of its networks alone and of the plain step, in each round."""
    model.set_precision(options.precision)
    if options.compile:
        use_runtime(model, "compiled")
    strategy, labels = crumb_of(model), torch.arange(len(images)) % 2
    datasets = [
        dataset_of(images, labels + 2 * number) for number in range(options.repeats + 2)
    ]  # two new classes
    experiences = iter(benchmark_from_datasets(train=datasets).train_stream)
    for _ in range(2):  # compiles, fills the buffer
        strategy.train(next(experiences), eval_streams=[])
    plain = partial(
        PlainStep(4, BATCH), torch.randn(BATCH, 3, 224, 224), labels[:BATCH]
    )
    plain()

    def bare(replayed: torch.Tensor) -> None:
        for maps_of in (lambda: model.features(images[:BATCH]), lambda: replayed):
            logits = model.classify(maps_of())
            functional.cross_entropy(logits, torch.arange(len(logits)) % 2).backward()
            model.zero_grad()

    times: dict[str, list[float]] = {"step": [], "bare": [], "plain": []}
    for _ in range(options.repeats):
        experience = next(experiences)
        # As many as the step replays: as many of each class, and a batch at least.
        replay = len(
            strategy.storage_policy.sample(set(experience.dataset.targets), BATCH)
        )
        replayed = torch.rand(replay, 512, 13, 13).contiguous(
            memory_format=torch.channels_last
        )
        model.train()
        bare(replayed)
        learn = partial(strategy.train, experience, eval_streams=[])
        times["step"].append(seconds(learn, clock_of(options)) / options.batches)
        model.train()
        for name, count, function in (
            ("bare", options.batches, partial(bare, replayed)),
            ("plain", 3, plain),
        ):
            times[name].append(
                statistics.fmean(
                    seconds(function, clock_of(options)) for _ in range(count)
                )
            )
    return times


def bare_step(model, images: torch.Tensor) -> None:
    """Do F forward and P forward and backward for a batch."""
    model.train()
    functional.cross_entropy(
        model.classify(model.features(images)), torch.zeros(len(images)).long()
    ).backward()
    model.zero_grad()


def by_classes(
    images: torch.Tensor, options: argparse.Namespace
) -> dict[int, dict[str, float]]:
    """Time of a step of each recipe by that of its networks alone, by the number of classes seen."""
    ratios: dict[int, dict[str, float]] = {}
    for count in options.classes:
        first = dataset_of(images[torch.arange(count) % BATCH], torch.arange(count))
        later = dataset_of(images, torch.arange(len(images)) % 2)
        first, later = (
            benchmark_from_datasets(train=[one]).train_stream for one in (first, later)
        )
        ratios[count] = {}
        for (
            recipe,
            (length, replay),
        ) in (
            RECIPES.items()
        ):  # in turns, large batches of one slow down the other's memory
            torch.manual_seed(0)
            model = split_backbone(
                weights=None, n_classes=count, codebook=Codebook(256, length)
            )
            strategy = crumb_of(model, max(417, count), **replay)
            strategy.train(first, eval_streams=[])
            assert len(strategy.storage_policy.classes) == count
            step = partial(strategy.train, later, eval_streams=[])
            functions = {
                "step": step,
                "bare": partial(bare_step, model, images[:BATCH]),
            }
            found = fastest(functions, options.repeats, clock_of(options))
            ratios[count][recipe] = found["step"] / options.batches / found["bare"]
    return ratios


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument(
        "--classes", type=int, nargs="+", default=[], help="numbers of classes seen"
    )
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compile F",
    )
    parser.add_argument(
        "--batches", type=int, default=8, help="stream batches per measurement"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one batch, one round, float32, not compiled",
    )
    options = parser.parse_args()
    if options.quick:
        options.batches, options.repeats, options.precision, options.compile = (
            1,
            1,
            "fp32",
            False,
        )
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    images = torch.randint(
        256, (BATCH * options.batches, 3, 224, 224), dtype=torch.uint8
    )
    if options.classes:
        ratios = by_classes(images, options)
        rows = [
            [str(count), *(f"{ratio:.2f}" for ratio in row.values())]
            for count, row in ratios.items()
        ]
        return report(options, ratios, [table(["classes", *RECIPES], rows)])
    model = split_backbone(
        weights=None, n_classes=2 * (options.repeats + 3), codebook=Codebook()
    )
    maps = torch.relu(
        torch.randn(BATCH, 512, 13, 13) * 20 - 8
    )  # about 65 % zeros, as after a ReLU
    init_matched_(model.codebook, maps, torch.Generator().manual_seed(0))
    maps = maps.contiguous(memory_format=torch.channels_last)
    blocks = model.codebook.blocks.detach()
    # The plain code has no rule for all-zero slices.
    defined = maps.permute(0, 2, 3, 1).unflatten(3, (-1, 16)).any(dim=-1)
    ours = model.codebook.encode(maps).permute(0, 2, 3, 1).long()
    assert torch.equal(plain_codes(maps, blocks)[defined], ours[defined]), (
        "the two searches disagree"
    )
    parts = {
        "plain": lambda: plain_codes(maps, blocks),
        "ours": lambda: model.codebook.encode(maps),
    }
    part = fastest(parts, options.repeats, clock_of(options))
    times = steps(model, images, options)
    step, bare, plain = (min(times[name]) for name in ("step", "bare", "plain"))
    figures = {
        "search_speedup": part["plain"] / part["ours"],
        # Last, because it changes how memory is allocated from then on.
        "search_working_bytes": working_bytes(parts["ours"]),
        # The median of rounds, as rounds replay other numbers of maps.
        "step_over_bare": statistics.median(
            one / other for one, other in zip(times["step"], times["bare"])
        ),
        "step_speedup": plain / step,
    }
    lines = [
        "search: "
        + ", ".join(f"{1e3 * some:.1f} ms {name}" for name, some in part.items())
    ]
    lines.append(
        f"stream step: {1e3 * plain:.1f} ms plain, {1e3 * step:.1f} ms ours, {1e3 * bare:.1f} ms bare"
    )
    report(
        options,
        figures,
        [*lines, f"images/s: {BATCH / plain:.1f} plain, {BATCH / step:.1f} ours"],
    )


if __name__ == "__main__":
    run_script(main)
