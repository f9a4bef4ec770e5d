"""Measure where the time of a stream image goes, for presets, strategies and sizes of the image files.

    python experiments/bench_parts.py --output docs/results

Each row is a run of `crumb run` on JPEG photos: class-instance, SqueezeNet 1.0 with
random weights, batches of 16. Times are milliseconds an image in later experiences,
when there is replay; the fastest counts. A strategy in the place of a preset has the
settings of preset `paper`; the times of `offline` are those of its ten epochs.
  decode   reading and decoding the file resize   to 224 pixels F        the frozen
  layers search   for memory blocks P        the plastic layers: forward and backward
  pass, optimiser; the statistics of preset recommended replay   the same for memories,
  and decoding them rest     everything else, such as Avalanche's loop, batches and
  storage
Writes parts.csv and parts.png (or another --name) to --output.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import matplotlib
import numpy as np
import torch
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
from crumb_avalanche.runs.session import Session
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.tables import table

PRESETS = ("paper", "tuned", "recommended")
PIXELS = (64, 224, 1080)
PARTS = ("decode", "resize", "F", "search", "P", "replay", "rest")
NAMES = {"features": "F", "plastic": "P"}  # of the stopwatch
CLASSES, OBJECTS = 8, 2  # one object of a class is held out


def milliseconds(settings: RunSettings, clock: Callable[[], float]) -> dict[str, float]:
    """Milliseconds of the parts of a stream image."""
    with Session.build(RunPlan.of(settings)) as session:
        model, strategy = session.model, session.strategy

        def timed(name, function):
            def wrapped(*arguments):
                with model.stopwatch.measure(name):
                    return function(*arguments)

            return wrapped

        best: dict[str, float] = {}
        with (
            patch.object(extraction, "time", SimpleNamespace(perf_counter=clock)),
            patch.object(FrameTable, "read", timed("decode", FrameTable.read)),
            patch.object(
                PixelTransform, "__call__", timed("resize", PixelTransform.__call__)
            ),
        ):
            for number, experience in enumerate(session.stream.benchmark.train_stream):
                before, start = dict(model.stopwatch.seconds), clock()
                strategy.train(experience, eval_streams=[])
                total = clock() - start
                now = model.stopwatch.seconds.items()
                found = {
                    NAMES.get(name, name): seconds - before.get(name, 0)
                    for name, seconds in now
                }
                found["rest"] = total - sum(found.values())
                later = number or len(session.stream.benchmark.train_stream) == 1
                if later and (not best or total < sum(best.values())):
                    best, images = found, len(experience.dataset)
    return {part: 1000 * best.get(part, 0.0) / images for part in PARTS}


def picture(rows: list[dict], title: str) -> Figure:
    """Plot a bar for each row, put together from its parts."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 1.6 + 0.36 * len(rows)), layout="constrained")
        set_title(figure, title)
        axes = figure.subplots()
        left = np.zeros(len(rows))
        for part, colour in zip(PARTS, (*COLOURS[:6], "0.75")):
            values = np.array([row[part] for row in rows])
            axes.barh(
                range(len(rows)),
                values,
                left=left,
                color=colour,
                label=part,
                height=0.7,
            )
            left += values
        for place, total in enumerate(left):
            axes.annotate(
                f"{total:.1f}",
                (total, place),
                (4, 0),
                textcoords="offset points",
                va="center",
            )
        names = [f"{row['preset']}, {row['pixels']:,} pixels" for row in rows]
        axes.set(
            yticks=range(len(rows)),
            yticklabels=names,
            xlabel="milliseconds for an image of the stream",
        )
        axes.invert_yaxis()
        axes.margins(x=0.08)
        figure.legend(loc="outside lower center", ncols=len(PARTS), frameon=False)
    return figure


def main() -> None:
    parser = bench_parser(__doc__, repeats=1, json=False)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("runs/parts"),
        help="folder for table and picture",
    )
    parser.add_argument(
        "--presets",
        nargs="+",
        default=list(PRESETS),
        help="presets of crumb run, or strategies",
    )
    parser.add_argument("--name", default="parts", help="name of the two files")
    parser.add_argument(
        "--pixels",
        nargs="+",
        type=int,
        default=list(PIXELS),
        help="sides of the photos",
    )
    parser.add_argument("--runtime", default="torch", help="what runs F")
    parser.add_argument(
        "--quick", action="store_true", help="images of 32 pixels, a small network"
    )
    parser.add_argument(
        "--images", type=int, default=32, help="of each of the two objects of a class"
    )
    options = parser.parse_args()
    clock = clock_of(options)
    size = (
        dict(backbone="small_cnn", image_size=32)
        if options.quick
        else dict(head_kernel=1)
    )
    rows = []
    for pixels in options.pixels:
        with tempfile.TemporaryDirectory() as folder:
            root = photos(
                Path(folder),
                CLASSES,
                OBJECTS,
                4 if options.quick else options.images,
                pixels,
                noise=6,
            )
            fastest: dict[str, dict[str, float]] = {}
            for preset in options.presets * options.repeats:
                chosen = (
                    {"preset": preset}
                    if preset in PRESETS
                    else {"preset": "paper", "strategy": preset}
                )
                chosen |= dict(
                    runtime=options.runtime,
                    threads=options.threads,
                    weights="none",
                    batch_size=16,
                    **size,
                )
                chosen |= dict(
                    first_epochs=10 if preset == "offline" else 1, progress=False
                )
                settings = RunSettings("clip_folder", dataset_root=str(root), **chosen)
                torch.manual_seed(0)
                torch.set_num_threads(options.threads)
                found = milliseconds(settings, clock)
                fastest[preset] = min(
                    found,
                    fastest.get(preset, found),
                    key=lambda parts: sum(parts.values()),
                )
            rows += [
                {"preset": preset, "pixels": pixels, **parts}
                for preset, parts in fastest.items()
            ]
    rows.sort(key=lambda row: options.presets.index(row["preset"]))
    shown = [
        {
            name: f"{value:.3f}" if name in PARTS else value
            for name, value in row.items()
        }
        for row in rows
    ]
    columns = ["preset", "pixels", *PARTS]
    write_csv(
        options.output / f"{options.name}.csv",
        [columns, *([row[name] for name in columns] for row in shown)],
    )
    what = f"{options.threads} thread{'s' * (options.threads > 1)}, --runtime {options.runtime}"
    title = f"Where the {'CPU ' * options.cpu_time}time of a stream image goes ({what})"
    save(picture(rows, title), options.output, options.name)
    print(table(list(shown[0]), [list(map(str, row.values())) for row in shown]))
    print(f"written to {options.output}: {options.name}.csv, .png and .svg")


if __name__ == "__main__":
    run_script(main)
