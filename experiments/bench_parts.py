"""Measure where the time of a stream image goes.

    python experiments/bench_parts.py --output docs/results

Each row is a run of `crumb run` on JPEG photos: class-instance, SqueezeNet 1.0 with
random weights, batches of 16. Rows are presets, strategies and sizes of the image
files. Times are milliseconds an image in later experiences, when there is replay; the
fastest counts. A strategy in the place of a preset has the settings of preset `paper`;
the times of `offline` are those of its ten epochs.

  decode   reading and decoding the file
  resize   to 224 pixels
  F        the frozen layers
  search   for memory blocks
  P        the plastic layers: forward and backward pass, optimiser; the statistics of
           preset recommended
  replay   the same for memories, and decoding them
  rest     everything else, such as Avalanche's loop, batches and storage

Writes parts.csv and parts.png (or another --name) to --output.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from support.bench import bench_parser, clock_of, photos
from support.common_options import run_script
from support.pictures import set_title

from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.models import extraction
from crumb_avalanche.report.pictures import COLOURS, STYLE, save
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.session import PreparedRun, Session
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.tables import format_table

PRESETS = ("paper", "tuned", "recommended")
PIXELS = (64, 224, 1080)
PARTS = ("decode", "resize", "F", "search", "P", "replay", "rest")
NAMES = {"features": "F", "plastic": "P"}  # of the stopwatch
PART_COLOURS = (*COLOURS[:6], "0.75")
CLASSES = 8
OBJECTS = 2  # of a class, one of them held out
OFFLINE_EPOCHS = 10
QUICK_IMAGES = 4
Clock = Callable[[], float]


@dataclass(frozen=True)
class Row:
    """Milliseconds of the parts of a stream image.

    Attributes:
        preset: preset or strategy.
        pixels: side of the photos.
        parts: milliseconds by part.
    """

    preset: str
    pixels: int
    parts: dict[str, float]

    @property
    def total(self) -> float:
        """Milliseconds of all parts."""
        return sum(self.parts.values())

    @property
    def cells(self) -> list[str]:
        """Preset, side and parts as text."""
        times = [f"{self.parts[part]:.3f}" for part in PARTS]
        return [self.preset, str(self.pixels), *times]


@contextmanager
def timed_reading(stopwatch: Any, clock: Clock) -> Iterator[None]:
    """Measure decoding and resizing of images besides what the stopwatch measures."""

    def timed(name: str, function: Callable) -> Callable:
        def measure(*arguments):
            with stopwatch.measure(name):
                return function(*arguments)

        return measure

    read = timed("decode", FrameTable.read)
    resize = timed("resize", PixelTransform.__call__)
    with (
        patch.object(extraction, "time", SimpleNamespace(perf_counter=clock)),
        patch.object(FrameTable, "read", read),
        patch.object(PixelTransform, "__call__", resize),
    ):
        yield


def milliseconds(settings: RunSettings, clock: Clock) -> dict[str, float]:
    """Milliseconds of the parts of a stream image, of the fastest later experience.

    Args:
        settings: of the run.
        clock: seconds.
    """
    fastest: dict[str, float] = {}
    with Session.of(PreparedRun.of(RunPlan.of(settings))) as session:
        stream = session.stream.benchmark.train_stream
        with timed_reading(session.model.stopwatch, clock):
            for number, experience in enumerate(stream):
                times = _milliseconds_of_experience(session, experience, clock)
                if number == 0 and len(stream) > 1:
                    continue  # there is no replay yet
                if not fastest or sum(times.values()) < sum(fastest.values()):
                    fastest = times
    return fastest


def _milliseconds_of_experience(
    session: Session, experience: Any, clock: Clock
) -> dict[str, float]:
    """Train on an experience; return milliseconds of an image, by `PARTS`."""
    stopwatch = session.model.stopwatch
    before = dict(stopwatch.seconds)
    start = clock()
    session.strategy.train(experience, eval_streams=[])
    total = clock() - start
    seconds = {}
    for name, seconds_now in stopwatch.seconds.items():
        seconds[NAMES.get(name, name)] = seconds_now - before.get(name, 0)
    seconds["rest"] = total - sum(seconds.values())
    n_images = len(experience.dataset)
    return {name: 1000 * seconds.get(name, 0.0) / n_images for name in PARTS}


def settings_of(preset: str, root: Path, options: argparse.Namespace) -> RunSettings:
    """Settings of the run of a preset, or of a strategy with preset `paper`.

    Args:
        preset: name of the preset or strategy.
        root: folder of the photos: class/object/clip.
        options: the command line's.
    """
    settings: dict[str, Any] = dict(
        preset=preset,
        dataset_root=str(root),
        runtime=options.runtime,
        threads=options.threads,
        weights="none",
        batch_size=16,
        first_epochs=1,
        progress=False,
    )
    if preset not in PRESETS:
        settings |= dict(preset="paper", strategy=preset)
    if preset == "offline":
        settings["first_epochs"] = OFFLINE_EPOCHS
    if preset == "recommended":  # the whole image alone, as the others
        settings["method"] = {"looks": "1"}
    if options.quick:
        settings |= dict(backbone="small_cnn", image_size=32)
    else:
        settings["head_kernel"] = 1
    return RunSettings("clip_folder", **settings)


def rows_of_size(pixels: int, options: argparse.Namespace) -> list[Row]:
    """Measure all presets on photos of a size, in turns; the fastest turn counts."""
    clock = clock_of(options)
    images = QUICK_IMAGES if options.quick else options.images
    fastest: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = photos(Path(folder), CLASSES, OBJECTS, images, pixels, noise=6)
        for preset in options.presets * options.repeats:
            torch.manual_seed(0)
            torch.set_num_threads(options.threads)
            parts = milliseconds(settings_of(preset, root, options), clock)
            row = Row(preset, pixels, parts)
            if preset not in fastest or row.total < fastest[preset].total:
                fastest[preset] = row
    return list(fastest.values())


def picture(rows: Sequence[Row], title: str) -> Figure:
    """Plot a bar for each row, put together from its parts."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 1.6 + 0.36 * len(rows)), layout="constrained")
        set_title(figure, title)
        axes = figure.subplots()
        left = np.zeros(len(rows))
        for part, colour in zip(PARTS, PART_COLOURS):
            values = np.array([row.parts[part] for row in rows])
            axes.barh(
                range(len(rows)),
                values,
                left=left,
                color=colour,
                label=part,
                height=0.7,
            )
            left += values
        _annotate_totals(axes, left)
        names = [f"{row.preset}, {row.pixels:,} pixels" for row in rows]
        axes.set(
            yticks=range(len(rows)),
            yticklabels=names,
            xlabel="milliseconds for an image of the stream",
        )
        axes.invert_yaxis()
        axes.margins(x=0.08)
        figure.legend(loc="outside lower center", ncols=len(PARTS), frameon=False)
    return figure


def _annotate_totals(axes: Axes, totals: np.ndarray) -> None:
    """Write the total at the end of each bar."""
    for index, total in enumerate(totals):
        axes.annotate(
            f"{total:.1f}",
            (total, index),
            (4, 0),
            textcoords="offset points",
            va="center",
        )


def main() -> None:
    parser = bench_parser(__doc__, repeats=1, json=False)
    add = parser.add_argument
    add(
        "--output",
        type=Path,
        default=Path("runs/parts"),
        help="folder for table and picture",
    )
    add(
        "--presets",
        nargs="+",
        default=list(PRESETS),
        help="presets of crumb run, or strategies",
    )
    add("--name", default="parts", help="name of the two files")
    add(
        "--pixels",
        nargs="+",
        type=int,
        default=list(PIXELS),
        help="sides of the photos",
    )
    add("--runtime", default="torch", help="what runs F")
    add("--quick", action="store_true", help="images of 32 pixels, a small network")
    add("--images", type=int, default=32, help="of each of the two objects of a class")
    options = parser.parse_args()
    rows = []
    for pixels in options.pixels:
        rows += rows_of_size(pixels, options)
    rows.sort(key=lambda row: options.presets.index(row.preset))
    header = ["preset", "pixels", *PARTS]
    cells = [row.cells for row in rows]
    write_csv(options.output / f"{options.name}.csv", [header, *cells])
    threads = "1 thread" if options.threads == 1 else f"{options.threads} threads"
    kind = "CPU time" if options.cpu_time else "time"
    title = (
        f"Where the {kind} of a stream image goes ({threads}, --runtime "
        f"{options.runtime})"
    )
    save(picture(rows, title), options.output, options.name)
    print(format_table(header, cells))
    print(f"written to {options.output}: {options.name}.csv, .png and .svg")


if __name__ == "__main__":
    run_script(main, smoke_test=False)
