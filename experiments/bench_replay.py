"""Measure a stream step of preset `tuned`, and one of preset `paper`, beside the networks alone, by number of classes.

    python experiments/bench_replay.py

Prints a row for each number of classes seen; with --json, one object of the ratios. Each is the time of a step divided
by that of the bare step of the same batch (F forward, P forward and backward), the fastest of interleaved rounds:
  tuned  replay by compute (`--replay-compute`), blocks of 64 values
  paper  a replay batch after each new batch, with at least one memory of each class that the new batch does not have
Float32, random images and random weights of SqueezeNet, a memory of every class.
"""

import argparse
import json
import time

import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
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


def seconds_of_bare(strategy: CRUMBStrategy, images: torch.Tensor) -> float:
    """Seconds of F forward and P forward and backward for a batch."""
    model = strategy.model.train()
    start = time.perf_counter()
    functional.cross_entropy(model.classify(model.features(images)), torch.zeros(len(images)).long()).backward()
    seconds = time.perf_counter() - start
    model.zero_grad()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, nargs="+", default=[8, 100, 1000], help="numbers of classes seen")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch and faiss")
    parser.add_argument("--batches", type=int, default=4, help="stream batches per measurement")
    parser.add_argument("--repeats", type=int, default=5, help="rounds, of which the fastest counts")
    parser.add_argument("--json", action="store_true", help="print only the ratios, as one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images = torch.randint(256, (BATCH * options.batches, 3, 224, 224), dtype=torch.uint8)
    ratios: dict[int, dict[str, float]] = {}
    for count in options.classes:
        first = experience(images[:BATCH], torch.arange(count))
        later = benchmark_from_datasets(train=[experience(images, torch.arange(len(images)) % 2)]).train_stream
        ratios[count] = {}
        for recipe in RECIPES:  # one after the other: large batches of one would slow down the other's memory
            strategy, step, bare = taught(recipe, count, first), float("inf"), float("inf")
            for _ in range(options.repeats):
                start = time.perf_counter()
                strategy.train(later, eval_streams=[])
                step = min(step, (time.perf_counter() - start) / options.batches)
                bare = min(bare, seconds_of_bare(strategy, images[:BATCH]))
            ratios[count][recipe] = step / bare
    if not options.json:
        print(
            table(["classes", *RECIPES], [[str(n), *(f"{r:.2f}" for r in row.values())] for n, row in ratios.items()])
        )
    print(json.dumps(ratios))


if __name__ == "__main__":
    with safe_output():
        main()
