r"""Calibration of probabilities, and images of classes that were never taught.

    python experiments/open_set.py --eth80 ETH80 --sign-digits DIGITS --cifar100 CIFAR100 --tiny-imagenet TINY \
        --weights WEIGHTS --features FOLDER

A learner in closed form is taught lesson by lesson; each lesson is predicted before it is learned, and nothing else
calibrates it (`learner.calibration`). CIFAR-100 and Tiny-ImageNet (50 classes each, 10 of them left out)
are for development: the score for unknown images was chosen on them. ETH-80 (2 of 8 classes left out: all 28 pairs) and
sign digits (3 of 10; held-out people) are reported. Shares are of images of held-out objects, people or photos.
Writes `open_set.csv` (tables), `open_set_runs.csv` (each run) and `open_set.png` to --output. With --json it prints one
object: `ece`, `auroc` and `known_rejected` of the first method by stream.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from support.common_options import QUICK_BENCHMARK, run_script
from support.open_set import METHODS, Measured, Stream, add_network_options, features_of, network_of, run_stream
from support.pictures import bars
from support.statistics import interval

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.report.pictures import save
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import table

DEVELOPMENT = ("cifar100", "tiny_imagenet")
MEASURES = ("accuracy", "ece", "ece_usual", "known_rejected", "unknown_rejected", "auroc")
PHOTOS = 50, 80, 20  # classes of the photo streams, and training and test images of each


@dataclass(frozen=True)
class Run:
    """One run of a stream, whose number chooses what is held out, and the names of the classes not taught."""

    stream: str
    method: str
    run: int
    left_out: tuple[str, ...]
    measured: Measured


def photos(root: Path) -> FrameTable:
    """The table of 50 classes of a folder of class folders, with 80 training and 20 test images each."""
    from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames

    whole = ClipFolderFrames(root)
    count, *images = PHOTOS
    rows = []
    for name in whole.classes[:: max(1, len(whole.classes) // count)][:count]:
        for split, number in zip(("train", "test"), images):
            rows += whole.rows(split, name)[:number].tolist()
    return FrameTable([whole[row] for row in rows], whole.root, whole.reader, whole.name)


def redrawn(table: FrameTable, run: int) -> FrameTable:
    """Return a table of photos with the same rows, of which each run holds out others.

    The last files of a class are no fair sample: names of photos may follow the terms that found them.
    """
    draws, split = np.random.default_rng(run), np.array(table.split, dtype=object)
    for name in table.classes:
        rows = np.concatenate([table.rows("train", name), table.rows("test", name)])
        split[rows] = split[draws.permutation(rows)]
    frames = [replace(table[row], split=split[row]) for row in range(len(table))]
    return FrameTable(frames, table.root, table.reader, table.name)


def streams_of(chosen: argparse.Namespace) -> list[Stream]:
    """Return the streams of the command line."""
    if chosen.quick:
        shapes = get_benchmark(QUICK_BENCHMARK).table(None, 0)
        return [Stream("shapes", lambda run: shapes, 2)]
    streams = []
    for name in DEVELOPMENT:
        if root := getattr(chosen, name):
            streams.append(Stream(name, partial(redrawn, photos(Path(root) / "train")), 10))
    for name, benchmark, left_out in (("eth80", "eth80", 2), ("sign_digits", "clip_folder", 3)):
        if root := getattr(chosen, name):
            streams.append(Stream(name, partial(get_benchmark(benchmark).table, root), left_out))
    if not streams:
        raise ValueError("there is no data: give --eth80, --sign-digits, --cifar100 or --tiny-imagenet, or --quick")
    return streams


def left_out_sets(stream: Stream, classes: int, runs: int) -> list[tuple[int, ...]]:
    """Return the classes that the open runs leave out: all combinations if there are at most 28 and ten runs."""
    every = list(itertools.islice(itertools.combinations(range(classes), stream.left_out), 29))
    if len(every) <= 28 and runs >= 10:
        return every
    draws = [np.random.default_rng(run).permutation(classes)[: stream.left_out] for run in range(runs)]
    return [tuple(sorted(draw.tolist())) for draw in draws]


def runs_of(stream: Stream, methods: Sequence[str], model: SplitModel, key: str, chosen: argparse.Namespace):
    """Yield the runs of a stream: with all classes taught, and with some left out."""
    count = chosen.development_runs if stream.name in DEVELOPMENT else chosen.runs
    held: dict[str, np.ndarray] = {}
    for method in methods:
        moments = METHODS[method][0]
        closed = [(run, ()) for run in range(count)]
        sets = left_out_sets(stream, len(stream.tables(0).classes), count)
        for run, unknown in closed + [(place % max(count, 1), labels) for place, labels in enumerate(sets)]:
            frames = stream.tables(run)
            kind = repr(vars(moments))
            if kind not in held:  # every run of a stream has the same rows, split in another way
                held[kind] = features_of(model, moments, frames, chosen.features, key)
            kept = moments.of_head().length(model)
            measured = run_stream(method, frames, held[kind], kept, unknown, run, candidates=method == "rda")
            names = tuple(frames.classes[label] for label in unknown)
            print(f"{stream.name} {method} run {run} without {', '.join(names) or 'none'}: {measured}", file=sys.stderr)
            yield Run(stream.name, method, run, names, measured)


def values_of(runs: Sequence[Run], stream: str, method: str, measure: str) -> list[float]:
    """Return the values of a measure: of accuracy and calibration from runs with all classes, else from open runs."""
    closed = measure in ("accuracy", "ece", "ece_usual")
    some = [run for run in runs if (run.stream, run.method) == (stream, method)]
    chosen = [run.measured for run in some if closed == (not run.left_out)]
    return [one.auroc["chosen"] if measure == "auroc" else getattr(one, measure) for one in chosen]


def text_of(values: Sequence[float]) -> str:
    """Format mean and 95 % interval."""
    mean, half = interval(values)
    return f"{mean:.3f}" if np.isnan(half) else f"{mean:.3f} ± {half:.3f}"


def summary(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return header and lines of the table of streams and methods."""
    lines = []
    for place in dict.fromkeys((run.stream, run.method) for run in runs):
        lines.append([", ".join(place), *(text_of(values_of(runs, *place, measure)) for measure in MEASURES)])
    header = ["accuracy", "ECE", "ECE, usual temperature", "known rejected", "unknown rejected", "AUROC"]
    return ["stream, method", *header], lines


def comparison(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return header and lines of the table of scores for unknown images, with the Gaussian learner `rda`."""
    areas: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        if run.method == "rda" and run.left_out:
            for name, area in run.measured.auroc.items():
                areas.setdefault(name, {}).setdefault(run.stream, []).append(area)
    streams = list(dict.fromkeys(run.stream for run in runs if run.method == "rda"))
    lines = [[name, *(text_of(found[stream]) for stream in streams)] for name, found in areas.items()]
    return ["score", *(f"{name} (development)" if name in DEVELOPMENT else name for name in streams)], lines


def picture(runs: Sequence[Run]) -> Figure:
    """Plot a panel for each measure with a bar for each stream and method."""
    titles = {"ece": "expected calibration error", "known_rejected": "known images rejected", "auroc": "AUROC, unknown"}
    panels: dict[str, dict[str, dict[str, list[float]]]] = {title: {} for title in titles.values()}
    for stream, method in dict.fromkeys((run.stream, run.method) for run in runs):
        for measure, title in titles.items():
            panels[title].setdefault(method, {})[stream] = values_of(runs, stream, method, measure)
    return bars(panels, "calibration and unknown classes")


def run_rows(runs: Sequence[Run]) -> list[list[object]]:
    """Return header and a row for each run."""
    rows: list[list[object]] = [["stream", "method", "run", "left_out", *MEASURES]]
    for run in runs:
        values = [getattr(run.measured, name) for name in MEASURES[:-1]] + [run.measured.auroc.get("chosen")]
        shown = ["" if value is None else f"{value:.5f}" for value in values]
        rows.append([run.stream, run.method, run.run, " ".join(run.left_out), *shown])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--eth80", metavar="DIR", help="folder of the images of ETH-80")
    parser.add_argument("--sign-digits", metavar="DIR", help="folder of sign digits: digit/people/photos")
    parser.add_argument("--cifar100", metavar="DIR", help="folder of CIFAR-100 as images, with train/class/")
    parser.add_argument("--tiny-imagenet", metavar="DIR", help="folder of Tiny-ImageNet, with train/class/")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, help="closed forms")
    parser.add_argument("--runs", type=int, default=10, help="runs of ETH-80 and sign digits")
    parser.add_argument("--development-runs", type=int, default=3, help="runs of CIFAR-100 and Tiny-ImageNet")
    parser.add_argument("--output", default="runs/open_set", help="folder of tables and picture")
    add_network_options(parser)
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.runs = 1
    streams = streams_of(chosen)
    model, key = network_of(chosen)
    runs = [run for stream in streams for run in runs_of(stream, chosen.methods, model, key, chosen)]
    output = Path(chosen.output)
    tables = [summary(runs), comparison(runs)]
    write_csv(output / "open_set.csv", [row for header, lines in tables for row in (header, *lines)])
    write_csv(output / "open_set_runs.csv", run_rows(runs))
    save(picture(runs), output, "open_set")
    if chosen.json:
        figures: dict[str, dict[str, float]] = {"ece": {}, "auroc": {}, "known_rejected": {}}
        for measure, found in figures.items():
            for stream in streams:
                found[stream.name] = float(np.mean(values_of(runs, stream.name, chosen.methods[0], measure)))
        print(json.dumps(figures))
        return
    for title, (header, lines) in zip(("Mean and 95 % interval over runs", "AUROC of scores, rda"), tables):
        print(f"\n{title}\n{table(header, lines)}")
    print(f"\nwritten to {output}: open_set.csv, open_set_runs.csv, open_set.png, open_set.svg")


if __name__ == "__main__":
    run_script(main)
