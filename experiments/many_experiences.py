"""Measure whether an experience takes longer after many others: recurring classes, checkpoints, one test at the end.

    python experiments/many_experiences.py --experiences 10000

Each experience brings images of one of a few classes, in turn. The time of an experience is that between two
checkpoints. The ratio of the median of the last hundred to that of the first hundred is printed for each strategy;
with --json, the ratios alone. On a machine that does other work, look at the time of the processor.
"""

import argparse
import io
import json
import statistics
import tempfile
import time
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path

import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from torch.utils.data import TensorDataset

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.tables.text import safe_output
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.recorder import Recorder
from crumb_avalanche.runs.resume import Resume
from crumb_avalanche.runs.run import build_session, learn
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.stream import Stream
from crumb_avalanche.system.process import set_up_process
from crumb_avalanche.system.setting_ranges import NEVER

STRATEGIES = ("ncm", "slda", "rda", "crumb")
CLASSES, IMAGES, SIDE = 20, 4, 32
COMPARED = 100  # experiences at each end


class TimedResume(Resume):
    """Checkpoints of a run, and when each was written."""

    times: list[tuple[float, float]]

    def save(self, position) -> None:
        super().save(position)
        self.times.append((time.perf_counter(), time.process_time()))


def images_of(label: int, seed: int) -> AvalancheDataset:
    """Noisy images of the colour of a class."""
    random = torch.Generator().manual_seed(label)
    colour = torch.rand(1, 3, 1, 1, generator=random)
    random.manual_seed(1000 + seed)
    pixels = colour + 0.1 * torch.randn(IMAGES, 3, SIDE, SIDE, generator=random)
    pixels = (255 * pixels.clamp(0, 1)).to(torch.uint8)
    labels = torch.full((IMAGES,), label)
    attributes = [DataAttribute(labels.tolist(), "targets"), DataAttribute([0] * IMAGES, "targets_task_labels", True)]
    rows = DataAttribute(list(range(IMAGES)), "frame_row")
    return AvalancheDataset([TensorDataset(pixels, labels)], data_attributes=[*attributes, rows])


def stream_of(experiences: int) -> Stream:
    """A stream in which class follows class, again and again; a test experience for each class."""
    some = [images_of(label, seed) for seed in range(5) for label in range(CLASSES)]
    train = [some[number % len(some)] for number in range(experiences)]
    test = [images_of(label, 99) for label in range(CLASSES)]
    benchmark = benchmark_from_datasets(train=train, test=test)
    benchmark.n_classes = CLASSES
    benchmark.class_names = [f"class{label}" for label in range(CLASSES)]
    entry = get_benchmark("toy_shapes_short")
    return Stream(entry, entry.table(None, 0), benchmark, [], "many experiences")


def seconds_of(strategy: str, stream: Stream, folder: Path) -> tuple[list[float], list[float], float]:
    """Seconds of each experience but the first, those of the processor, and the accuracy at the end."""
    settings = RunSettings(
        **dict(benchmark="toy_shapes_short", strategy=strategy, preset="paper", backbone="small_cnn", weights="none"),
        **dict(image_size=SIDE, first_epochs=1, batch_size=IMAGES, budget_images=300, threads=1, progress=False),
        **dict(evaluate_every=NEVER, output=str(folder)),
    )
    plan = RunPlan.of(settings)
    set_up_process(1, 0)
    resume = TimedResume(folder, plan, {}, time.perf_counter())
    resume.times = []
    recorder = Recorder(len(stream.benchmark.train_stream), False)
    with redirect_stdout(io.StringIO()), build_session(plan, stream, recorder, resume) as session:
        learn(session, folder, recorder.ledger, resume, False)
    passed, used = ([after - before for before, after in pairwise(times)] for times in zip(*resume.times))
    return passed, used, resume.progress.accuracy_after[-1] or 0.0


def ratio_of(seconds: list[float]) -> tuple[float, str]:
    """The ratio of the last experiences to the first, and the times as text."""
    first, last = (statistics.median(part) for part in (seconds[:COMPARED], seconds[-COMPARED:]))
    return last / first, f"{1000 * first:.1f} ms, {1000 * last:.1f} ms at the end, ratio {last / first:.2f}"


def main() -> None:
    """Print the ratio for each strategy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--experiences", type=int, default=10_000)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    parser.add_argument("--json", action="store_true", help="print the ratios alone")
    chosen = parser.parse_args()
    if chosen.experiences < 2 * COMPARED:
        parser.error(f"--experiences is {chosen.experiences}; give {2 * COMPARED} or more")
    stream, ratios = stream_of(chosen.experiences), {}
    for strategy in chosen.strategies:
        with tempfile.TemporaryDirectory() as folder:
            passed, used, accuracy = seconds_of(strategy, stream, Path(folder))
        ratios[strategy], text = ratio_of(passed)
        if not chosen.json:
            text += f"; of the processor {ratio_of(used)[1]}"
            print(f"{strategy}: {text}; {sum(passed):.0f} s in all, {accuracy:.1f} % right", flush=True)
    if chosen.json:
        print(json.dumps(ratios))


if __name__ == "__main__":
    with safe_output():
        main()
