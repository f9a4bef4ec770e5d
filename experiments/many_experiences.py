"""Measure whether an experience takes longer after many others: recurring classes, checkpoints, one test at the end.

    python experiments/many_experiences.py --experiences 10000

Each experience brings images of one of a few classes, in turn. The time of an experience is that between two
checkpoints. Prints the ratio of the median of the last hundred to that of the first hundred for each strategy, elapsed
or with --cpu-time of the processor; with --json, the ratios alone.
"""

import io
import statistics
import tempfile
import time
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path

import torch
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from support.bench import bench_parser, clock_of, report
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

CLASSES, IMAGES, SIDE = 20, 4, 32
COMPARED = 100  # experiences at each end


class TimedResume(Resume):
    """Checkpoints of a run, and when each was written by a clock."""

    def save(self, position) -> None:
        super().save(position)
        self.times.append(self.clock())


def images_of(label: int, seed: int) -> AvalancheDataset:
    """Noisy images of the colour of a class."""
    random = torch.Generator().manual_seed(label)
    colour = torch.rand(1, 3, 1, 1, generator=random)
    random.manual_seed(1000 + seed)
    pixels = colour + 0.1 * torch.randn(IMAGES, 3, SIDE, SIDE, generator=random)
    labels = torch.full((IMAGES,), label)
    attributes = [DataAttribute(labels.tolist(), "targets"), DataAttribute([0] * IMAGES, "targets_task_labels", True)]
    attributes.append(DataAttribute(list(range(IMAGES)), "frame_row"))
    return AvalancheDataset([TensorDataset((255 * pixels.clamp(0, 1)).byte(), labels)], data_attributes=attributes)


def stream_of(experiences: int) -> Stream:
    """A stream in which class follows class, again and again; a test experience for each class."""
    some = [images_of(label, seed) for seed in range(5) for label in range(CLASSES)]
    train = [some[number % len(some)] for number in range(experiences)]
    benchmark = benchmark_from_datasets(train=train, test=[images_of(label, 99) for label in range(CLASSES)])
    benchmark.n_classes = CLASSES
    benchmark.class_names = [f"class{label}" for label in range(CLASSES)]
    entry = get_benchmark("toy_shapes_short")
    return Stream(entry, entry.table(None, 0), benchmark, [], "many experiences")


def seconds_of(strategy: str, stream: Stream, folder: Path, clock) -> list[float]:
    """Seconds of each experience but the first."""
    settings = RunSettings(
        **dict(benchmark="toy_shapes_short", strategy=strategy, preset="paper", backbone="small_cnn", weights="none"),
        **dict(image_size=SIDE, first_epochs=1, batch_size=IMAGES, budget_images=300, threads=1, progress=False),
        **dict(evaluate_every=NEVER, output=str(folder)),
    )
    plan = RunPlan.of(settings)
    set_up_process(1, 0)
    resume = TimedResume(folder, plan, {}, time.perf_counter())
    resume.times, resume.clock = [], clock
    recorder = Recorder(len(stream.benchmark.train_stream), False)
    with redirect_stdout(io.StringIO()), build_session(plan, stream, recorder, resume) as session:
        learn(session, folder, recorder.ledger, resume, False)
    return [after - before for before, after in pairwise(resume.times)]


def main() -> None:
    parser = bench_parser(__doc__, threads=1)
    parser.add_argument("--experiences", type=int, default=10_000)
    parser.add_argument("--strategies", nargs="+", default=["ncm", "slda", "rda", "crumb"])
    options = parser.parse_args()
    if options.experiences < 2 * COMPARED:
        parser.error(f"--experiences is {options.experiences}; give {2 * COMPARED} or more")
    stream, ratios, lines = stream_of(options.experiences), {}, []
    for strategy in options.strategies:
        with tempfile.TemporaryDirectory() as folder:
            taken = seconds_of(strategy, stream, Path(folder), clock_of(options))
        first, last = (statistics.median(part) for part in (taken[:COMPARED], taken[-COMPARED:]))
        ratios[strategy] = last / first
        lines.append(f"{strategy}: {1000 * first:.1f} ms, {1000 * last:.1f} ms at the end, ratio {last / first:.2f}")
    report(options, ratios, lines)


if __name__ == "__main__":
    with safe_output():
        main()
