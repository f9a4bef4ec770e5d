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
from support.bench import bench_parser, clock_of, crumb_of, dataset_of, fastest, report
from support.common_options import run_script
from torch.nn import functional

from crumb_avalanche import Codebook, split_backbone
from crumb_avalanche.runs.plan import preset_settings
from crumb_avalanche.runs.tables import table

BATCH = 21
TUNED = preset_settings("tuned")
RECIPES = {
    "tuned": (TUNED["codebook_dim"], dict(replay_compute=TUNED["replay_compute"])),
    "paper": (16, dict(replay_steps=1)),
}


def bare_step(model, images: torch.Tensor) -> None:
    """Do F forward and P forward and backward for a batch."""
    model.train()
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
        first = dataset_of(images[torch.arange(count) % BATCH], torch.arange(count))
        later = dataset_of(images, torch.arange(len(images)) % 2)
        first, later = (benchmark_from_datasets(train=[one]).train_stream for one in (first, later))
        ratios[count] = {}
        for recipe, (length, replay) in RECIPES.items():  # in turns, large batches of one slow down the other's memory
            torch.manual_seed(0)
            model = split_backbone(weights=None, n_classes=count, codebook=Codebook(256, length))
            strategy = crumb_of(model, BATCH, max(417, count), **replay)
            strategy.train(first, eval_streams=[])
            assert len(strategy.storage_policy.classes) == count
            step = partial(strategy.train, later, eval_streams=[])
            functions = {"step": step, "bare": partial(bare_step, model, images[:BATCH])}
            found = fastest(functions, options.repeats, clock_of(options))
            ratios[count][recipe] = found["step"] / options.batches / found["bare"]
    rows = [[str(count), *(f"{ratio:.2f}" for ratio in row.values())] for count, row in ratios.items()]
    report(options, ratios, [table(["classes", *RECIPES], rows)])


if __name__ == "__main__":
    run_script(main)
