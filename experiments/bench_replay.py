"""Measure a stream step of preset `tuned`, and one of preset `paper`, beside the networks alone, by number of classes.

    python experiments/bench_replay.py

Prints a row for each number of classes seen; with --json, one object of the ratios. Each is the time of a step divided
by that of the bare step of the same batch (F forward, P forward and backward), the fastest of interleaved rounds:
  tuned  replay by compute (`--replay-compute`), blocks of 64 values
  paper  a replay batch after each new batch, with at least one memory of each class that the new batch does not have
Float32, random images and random weights of SqueezeNet, a memory of every class.
"""

from functools import partial

import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from support.bench import bench_parser, clock_of, fastest, report
from torch.nn import functional
from torch.utils.data import TensorDataset

from benchmarks_toybox_ilab.tables.text import safe_output
from crumb_avalanche import Codebook, CodeBuffer, CRUMBStrategy, split_backbone
from crumb_avalanche.runs.plan import preset_settings
from crumb_avalanche.runs.tables import table

BATCH = 21
TUNED = preset_settings("tuned")
RECIPES = {
    "tuned": (TUNED["codebook_dim"], dict(replay_compute=TUNED["replay_compute"])),
    "paper": (16, dict(replay_steps=1)),
}


def experience(images: torch.Tensor, labels: torch.Tensor) -> AvalancheDataset:
    """An experience of these images, repeated until each label has one."""
    images = images[torch.arange(len(labels)) % len(images)]
    return AvalancheDataset(
        [TensorDataset(images, labels)], data_attributes=[DataAttribute(labels.tolist(), "targets")]
    )


def taught(recipe: str, n_classes: int, first: AvalancheDataset) -> CRUMBStrategy:
    """A strategy that has learned an experience of all classes, and holds a memory of each."""
    length, replay = RECIPES[recipe]
    torch.manual_seed(0)
    model = split_backbone(weights=None, n_classes=n_classes, codebook=Codebook(256, length))
    strategy = CRUMBStrategy(
        model=model,
        optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-3, 0.9, weight_decay=1e-4),
        storage_policy=CodeBuffer(max(417, n_classes)),
        first_epochs=1,
        train_mb_size=BATCH,
        evaluator=None,
        **replay,
    )
    strategy.train(benchmark_from_datasets(train=[first]).train_stream, eval_streams=[])
    assert len(strategy.storage_policy.classes) == n_classes
    return strategy


def bare_step(strategy: CRUMBStrategy, images: torch.Tensor) -> None:
    """Do F forward and P forward and backward for a batch."""
    model = strategy.model.train()
    functional.cross_entropy(model.classify(model.features(images)), torch.zeros(len(images)).long()).backward()
    model.zero_grad()


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument("--classes", type=int, nargs="+", default=[8, 100, 1000], help="numbers of classes seen")
    parser.add_argument("--batches", type=int, default=4, help="stream batches per measurement")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images = torch.randint(256, (BATCH * options.batches, 3, 224, 224), dtype=torch.uint8)
    ratios: dict[int, dict[str, float]] = {}
    for count in options.classes:
        first = experience(images[:BATCH], torch.arange(count))
        later = benchmark_from_datasets(train=[experience(images, torch.arange(len(images)) % 2)]).train_stream
        ratios[count] = {}
        for recipe in RECIPES:  # one after the other: large batches of one would slow down the other's memory
            strategy = taught(recipe, count, first)
            functions = {
                "step": partial(strategy.train, later, eval_streams=[]),
                "bare": partial(bare_step, strategy, images[:BATCH]),
            }
            found = fastest(functions, options.repeats, clock_of(options))
            ratios[count][recipe] = found["step"] / options.batches / found["bare"]
    rows = [[str(count), *(f"{ratio:.2f}" for ratio in row.values())] for count, row in ratios.items()]
    report(options, ratios, [table(["classes", *RECIPES], rows)])


if __name__ == "__main__":
    with safe_output():
        main()
