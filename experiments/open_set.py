r"""Calibration of probabilities, and images of what was never taught.

    python experiments/open_set.py --eth80 ETH80 --sign-digits DIGITS \
        --photos PLACES --features FOLDER

A learner is taught lesson by lesson; each lesson is predicted before it is learned, and
nothing else calibrates it (`learner.confidence`). CIFAR-100 and Tiny-ImageNet (50
classes each, 10 of them left out) are for development. ETH-80 (2 of 8 classes left out:
all 28 pairs) and sign digits (3 of 10; held-out people) are reported; shares are of
images of held-out objects, people or photos. With --photos, two classes of the scenes
of `scenes.py` are taught one clip each, and asked are other views on other photos,
held-out objects, objects of the other six classes, empty scenes, and the scene of the
clip itself, this also after it was shown as nothing: all 28 pairs of classes for each
split. Writes `open_set.csv` (means), `open_set_runs.csv` (each run), `open_set.png`,
and `open_set_scenes.csv` (each split) to --output.

    python experiments/open_set.py --thresholds --eth80 ETH80 --photos PLACES \
        --backbone NAME --weights WEIGHTS

measures `learner.nothing.THRESHOLDS`: 1, 2, 4 and 8 classes are taught, a clip of each,
in scenes of the photos for development.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from scenes import SIDE, Scenes, cut_outs, half_of
from support.common_options import QUICK_BENCHMARK, run_script
from support.open_set import (
    METHODS,
    Measured,
    Stream,
    add_network_options,
    auroc,
    features_of,
    kept_features,
    learner_of,
    run_stream,
    taught,
)
from support.pictures import bars
from support.statistics import interval

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.report.pictures import save
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import table

DEVELOPMENT = ("cifar100", "tiny_imagenet")
MEASURES = (
    "accuracy",
    "ece",
    "ece_usual",
    "known_rejected",
    "unknown_rejected",
    "auroc",
)
REJECTED = 0.06  # of the taught objects by the usual threshold
EMPTY = 40  # photos without an object that are asked
PHOTOS = (
    50,
    80,
    20,
)  # classes of the photo streams, and training and test images of each


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
    return FrameTable(
        [whole[row] for row in rows], whole.root, whole.reader, whole.name
    )


def redrawn(table: FrameTable, run: int) -> FrameTable:
    """Return a table of photos with the same rows, of which each run holds out others.

    The last files of a class are no fair sample: names of photos may follow the terms
    that found them.
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
            streams.append(
                Stream(name, partial(redrawn, photos(Path(root) / "train")), 10)
            )
    for name, benchmark, left_out in (
        ("eth80", "eth80", 2),
        ("sign_digits", "clip_folder", 3),
    ):
        if root := getattr(chosen, name):
            streams.append(
                Stream(name, partial(get_benchmark(benchmark).table, root), left_out)
            )
    if not streams:
        raise ValueError(
            "there is no data: give --eth80, --sign-digits, --cifar100 or --tiny-imagenet, or --quick"
        )
    return streams


def left_out_sets(stream: Stream, classes: int, runs: int) -> list[tuple[int, ...]]:
    """Return the classes that the open runs leave out: all combinations if there are at most 28 and ten runs."""
    every = list(
        itertools.islice(itertools.combinations(range(classes), stream.left_out), 29)
    )
    if len(every) <= 28 and runs >= 10:
        return every
    draws = [
        np.random.default_rng(run).permutation(classes)[: stream.left_out]
        for run in range(runs)
    ]
    return [tuple(sorted(draw.tolist())) for draw in draws]


def runs_of(stream: Stream, learners: dict[str, Learner], chosen: argparse.Namespace):
    """Yield the runs of a stream: with all classes taught, and with some left out."""
    count = chosen.development_runs if stream.name in DEVELOPMENT else chosen.runs
    for method, learner in learners.items():
        closed = [(run, ()) for run in range(count)]
        sets = left_out_sets(stream, len(stream.tables(0).classes), count)
        # Every run of a stream has the same rows, split in another way.
        features = features_of(learner, stream.tables(0), chosen.features)
        for run, unknown in closed + [
            (place % max(count, 1), labels) for place, labels in enumerate(sets)
        ]:
            frames = stream.tables(run)
            measured = run_stream(learner._classifier, frames, features, unknown, run)
            names = tuple(frames.classes[label] for label in unknown)
            print(
                f"{stream.name} {method} run {run} without {', '.join(names) or 'none'}: {measured}",
                file=sys.stderr,
            )
            yield Run(stream.name, method, run, names, measured)


SCENES = ("known", "held out", "never taught", "empty", "own scene", "own scene, shown")


def scene_images(scenes: Scenes) -> list[tuple[str, int, Image.Image]]:
    """Return how an image is used, the number of its class, and the image; one object of each class is taught."""
    names = list(dict.fromkeys(name for name, _ in scenes.taught))
    places = [
        next(place for place, (name, _) in enumerate(scenes.taught) if name == one)
        for one in names
    ]
    rows: list[tuple[str, int, Image.Image]] = []
    for number, (name, place) in enumerate(zip(names, places)):
        views, own = scenes.taught[place][1], scenes.own[place][0]
        others = [one for one in places if one != place]
        held_out = next(views for one, views in scenes.held_out if one == name)
        rows += [("taught", number, scenes.shown(view, own)) for view in views[:8]]
        rows += [
            ("known", number, scenes.shown(view, scenes.photo()))
            for view in views[8:12]
        ]
        for view in views[12:16]:
            rows.append(
                (
                    "known",
                    number,
                    scenes.shown(view, scenes.own[scenes.draws.choice(others)][0]),
                )
            )
        rows += [
            ("held out", number, scenes.shown(view, scenes.photo()))
            for view in held_out[:4]
        ]
        for use in ("shown",) * 4 + ("own scene",) * 4:  # seen by a camera that moved
            size = round(scenes.draws.uniform(0.8, 1) * SIDE)
            left, top = scenes.draws.integers(0, SIDE - size + 1, 2).tolist()
            rows.append(
                (
                    use,
                    number,
                    own.resize((SIDE, SIDE), box=(left, top, left + size, top + size)),
                )
            )
    return [*rows, *(("empty", -1, scenes.photo()) for _ in range(EMPTY))]


def scenes_of(learner: Learner, chosen: argparse.Namespace, development: bool):
    """Yield the uses, the classes `(N,)` and the features of the images of each split, or those that were kept."""
    if chosen.eth80 is None:
        raise ValueError("the objects of scenes are those of ETH-80: give --eth80")
    objects, files = (
        cache(partial(cut_outs, Path(chosen.eth80))),
        half_of(chosen.photos, development),
    )
    each = (
        ["taught"] * 8
        + ["known"] * 8
        + ["held out"] * 4
        + ["shown"] * 4
        + ["own scene"] * 4
    )

    def pixels(split: int) -> Iterator[torch.Tensor]:
        images = scene_images(Scenes(objects(), files, split))
        for start in range(0, len(images), 16):
            yield torch.stack(
                [learner._transform(image) for *_, image in images[start : start + 16]]
            )

    for split in range(chosen.splits):
        features = kept_features(
            learner,
            partial(pixels, split),
            chosen.features,
            ("scenes", development, split),
        )
        classes = (len(features) - EMPTY) // len(each)
        uses = np.array(each * classes + ["empty"] * EMPTY)
        yield (
            uses,
            np.append(np.repeat(np.arange(classes), len(each)), [-1] * EMPTY),
            features,
        )


def taught_clips(learner: Learner, scenes, classes: Sequence[int]) -> Classifier:
    """Return what is learned from a clip of each of some classes."""
    uses, labels, features = scenes
    names = [f"class{label}" for label in range(labels.max() + 1)]
    return taught(
        learner._classifier,
        names,
        (
            (label, features[(uses == "taught") & (labels == label)])
            for label in classes
        ),
    )


def familiarities(
    learner: Learner, scenes, classes: Sequence[int]
) -> dict[str, torch.Tensor]:
    """Teach a clip of each of some classes; return the familiarity of the images of each of `SCENES`."""
    uses, labels, features = scenes
    mine, classifier = np.isin(labels, classes), taught_clips(learner, scenes, classes)

    def asked(chosen: np.ndarray) -> torch.Tensor:
        return classifier.confidence.familiarity(classifier.evidence(features[chosen]))

    found = {
        use: asked((uses == use) & mine) for use in ("known", "held out", "own scene")
    }
    found["empty"] = asked(uses == "empty")
    if not mine[labels >= 0].all():
        found["never taught"] = asked(
            np.isin(uses, ("known", "held out")) & ~mine & (labels >= 0)
        )
    if learner.method in ("rda", "slda"):
        classifier.learn_nothing(features[(uses == "shown") & mine])
        found["own scene, shown"] = asked((uses == "own scene") & mine)
        found["known, shown"] = asked((uses == "known") & mine)
    return found


def scene_rows(
    learners: dict[str, Learner], chosen: argparse.Namespace
) -> list[list[object]]:
    """Return header and a row for each method, split and use: shares of images called known, and AUROC."""
    rows: list[list[object]] = [
        ["backbone", "method", "split", "asked", "called known", "AUROC"]
    ]
    for method, learner in learners.items():
        for split, scenes in enumerate(scenes_of(learner, chosen, chosen.development)):
            pairs = itertools.combinations(range(scenes[1].max() + 1), 2)
            every = [familiarities(learner, scenes, pair) for pair in pairs]
            for use in (*SCENES, "known, shown"):
                some = [one for one in every if use in one]
                known = (
                    np.mean([float((one[use] >= 0).double().mean()) for one in some])
                    if some
                    else float("nan")
                )
                area = (
                    np.mean([auroc(one["known"], one[use]) for one in some])
                    if some
                    else float("nan")
                )
                rows.append(
                    [chosen.backbone, method, split, use, f"{known:.5f}", f"{area:.5f}"]
                )
                print(*rows[-1], file=sys.stderr)
    return rows


def thresholds(learner: Learner, chosen: argparse.Namespace) -> None:
    """Print the usual threshold of a backbone, a sum of distance and cosine: by number of classes, and their mean."""
    found: dict[int, list[torch.Tensor]] = {count: [] for count in (1, 2, 4, 8)}
    strange: dict[int, list[torch.Tensor]] = {count: [] for count in found}
    for uses, labels, features in scenes_of(learner, chosen, True):
        for places in (
            range(start, start + count)
            for count in found
            for start in range(0, 8, count)
        ):
            classifier = taught_clips(learner, (uses, labels, features), places)
            for asked, to in (
                ((uses == "known") & np.isin(labels, places), found),
                (uses == "empty", strange),
            ):
                to[len(places)].append(
                    classifier.evidence(features[asked]).typicality[:, :2].sum(1)
                )
    usual = []
    for count, sums in found.items():
        usual.append(float(torch.cat(sums).quantile(REJECTED)))
        accepted = float((torch.cat(strange[count]) >= usual[-1]).double().mean())
        print(
            f"{count} classes: {usual[-1]:.3f}, accepts {accepted:.3f} of the empty photos"
        )
    print(f"{chosen.backbone}: {np.mean(usual):.3f}")


def values_of(
    runs: Sequence[Run], stream: str, method: str, measure: str
) -> list[float]:
    """Return the values of a measure: of accuracy and calibration from runs with all classes, else from open runs."""
    closed = measure in ("accuracy", "ece", "ece_usual")
    some = [run for run in runs if (run.stream, run.method) == (stream, method)]
    chosen = [run.measured for run in some if closed == (not run.left_out)]
    return [getattr(one, measure) for one in chosen]


def text_of(values: Sequence[float]) -> str:
    """Format mean and 95 % interval."""
    mean, half = interval(values)
    return f"{mean:.3f}" if np.isnan(half) else f"{mean:.3f} ± {half:.3f}"


def summary(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return header and lines of the table of streams and methods."""
    lines = []
    for place in dict.fromkeys((run.stream, run.method) for run in runs):
        lines.append(
            [
                ", ".join(place),
                *(text_of(values_of(runs, *place, measure)) for measure in MEASURES),
            ]
        )
    header = [
        "accuracy",
        "ECE",
        "ECE, usual temperature",
        "known rejected",
        "unknown rejected",
        "AUROC",
    ]
    return ["stream, method", *header], lines


def picture(runs: Sequence[Run]) -> Figure:
    """Plot a panel for each measure with a bar for each stream and method."""
    titles = {
        "ece": "expected calibration error",
        "known_rejected": "known images rejected",
        "auroc": "AUROC, unknown",
    }
    panels: dict[str, dict[str, dict[str, list[float]]]] = {
        title: {} for title in titles.values()
    }
    for stream, method in dict.fromkeys((run.stream, run.method) for run in runs):
        for measure, title in titles.items():
            panels[title].setdefault(method, {})[stream] = values_of(
                runs, stream, method, measure
            )
    return bars(panels, "calibration and unknown classes")


def run_rows(runs: Sequence[Run]) -> list[list[object]]:
    """Return header and a row for each run."""
    rows: list[list[object]] = [["stream", "method", "run", "left_out", *MEASURES]]
    for run in runs:
        values = [getattr(run.measured, name) for name in MEASURES]
        shown = ["" if value is None else f"{value:.5f}" for value in values]
        rows.append([run.stream, run.method, run.run, " ".join(run.left_out), *shown])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("--eth80", metavar="DIR", help="folder of the images of ETH-80")
    parser.add_argument(
        "--sign-digits",
        metavar="DIR",
        help="folder of sign digits: digit/people/photos",
    )
    parser.add_argument(
        "--cifar100",
        metavar="DIR",
        help="folder of CIFAR-100 as images, with train/class/",
    )
    parser.add_argument(
        "--tiny-imagenet",
        metavar="DIR",
        help="folder of Tiny-ImageNet, with train/class/",
    )
    parser.add_argument(
        "--photos",
        metavar="DIR",
        nargs="+",
        default=[],
        help="folders of photos without objects",
    )
    parser.add_argument(
        "--development",
        action="store_true",
        help="the half of these photos for choosing settings",
    )
    parser.add_argument(
        "--thresholds",
        action="store_true",
        help="measure the usual threshold on --photos",
    )
    parser.add_argument(
        "--methods", nargs="+", default=["rda"], choices=METHODS, help="closed forms"
    )
    parser.add_argument(
        "--runs", type=int, default=10, help="runs of ETH-80 and sign digits"
    )
    parser.add_argument("--splits", type=int, default=5, help="of the scenes")
    parser.add_argument(
        "--development-runs",
        type=int,
        default=3,
        help="runs of CIFAR-100 and Tiny-ImageNet",
    )
    parser.add_argument(
        "--output", default="runs/open_set", help="folder of tables and picture"
    )
    add_network_options(parser)
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.runs = 1
    streams = (
        []
        if chosen.thresholds or (chosen.photos and not chosen.runs)
        else streams_of(chosen)
    )
    learners = {method: learner_of(chosen, method) for method in chosen.methods}
    if chosen.thresholds:
        return thresholds(learners[chosen.methods[0]], chosen)
    output = Path(chosen.output)
    if chosen.photos:
        rows = scene_rows(learners, chosen)
        write_csv(output / "open_set_scenes.csv", rows)
        print(f"written to {output}: open_set_scenes.csv")
        if not chosen.runs:
            return
    runs = [run for stream in streams for run in runs_of(stream, learners, chosen)]
    header, lines = summary(runs)
    write_csv(output / "open_set.csv", [header, *lines])
    write_csv(output / "open_set_runs.csv", run_rows(runs))
    save(picture(runs), output, "open_set")
    print(f"\nMean and 95 % interval over runs\n{table(header, lines)}")
    print(
        f"\nwritten to {output}: open_set.csv, open_set_runs.csv, open_set.png, open_set.svg"
    )


if __name__ == "__main__":
    run_script(main)
