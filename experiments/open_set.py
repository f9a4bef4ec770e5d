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

Runs of one number share a split, so that their mean is one unit of an interval: the
28 pairs of ETH-80 are ten units.

    python experiments/open_set.py --table-of open_set_runs.csv

makes the table and the picture of such a file, and teaches nothing.

    python experiments/open_set.py --thresholds --eth80 ETH80 --photos PLACES \
        --backbone NAME --weights WEIGHTS

measures `learner.nothing.THRESHOLDS`: 1, 2, 4 and 8 classes are taught, a clip of each,
in scenes of the photos for development.
"""

import argparse
import csv
import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from support.common_options import QUICK_BENCHMARK, run_script
from support.open_set import (
    BATCH,
    METHODS,
    Measured,
    Stream,
    add_network_options,
    auroc,
    cached_features,
    confidence_margin,
    features_of,
    files_key,
    learner_of,
    output_of,
    run_stream,
    share_below_zero,
    teach_copy,
)
from support.pictures import bars
from support.scenes import SIDE, Scenes, cut_outs, half_of

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.report.paired import interval
from crumb_avalanche.report.pictures import save
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import format_table, number

DEVELOPMENT = ("cifar100", "tiny_imagenet")
# Figures of a run with the heading of their column.
MEASURES = {
    "accuracy": "accuracy",
    "ece": "ECE",
    "ece_usual": "ECE, usual temperature",
    "known_rejected": "known rejected",
    "unknown_rejected": "unknown rejected",
    "auroc": "AUROC",
}
COLUMNS = ("stream", "method", "run", "left_out", *MEASURES)  # of a file of runs
SPLIT_COLUMN = "frame_table_sha256"
# Figures of runs with all classes taught; the others are of runs that leave some out.
OF_ALL_CLASSES = ("accuracy", "ece", "ece_usual")
PLOTTED = {
    "ece": "expected calibration error",
    "known_rejected": "known images rejected",
    "auroc": "AUROC, unknown",
}
MANY_RUNS = 10  # from which on all such sets are run
TAUGHT_COUNTS = (1, 2, 4, 8)  # classes taught where the usual threshold is measured
REJECTED = 0.06  # of the taught objects by the usual threshold
MOST_SETS = 28  # of classes left out, all of which are run
# Streams of photos: classes, and training and test images of each.
PHOTO_CLASSES = 50
PHOTO_IMAGES = {"train": 80, "test": 20}


@dataclass(frozen=True)
class Run:
    """One run of a stream.

    Attributes:
        stream: name of the stream.
        method: of the learner.
        run: number of the run, which chooses what is held out.
        left_out: names of the classes not taught.
        measured: what was measured.
        split: hash of the table of frames; empty in runs recorded without it.
    """

    stream: str
    method: str
    run: int
    left_out: tuple[str, ...]
    measured: Measured
    split: str = ""


def photo_table(root: Path) -> FrameTable:
    """The table of 50 classes of a folder of class folders.

    Each class has 80 training and 20 test images.
    """
    from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames

    table = ClipFolderFrames(root)
    step = max(1, len(table.classes) // PHOTO_CLASSES)
    rows: list[int] = []
    for name in table.classes[::step][:PHOTO_CLASSES]:
        for split, count in PHOTO_IMAGES.items():
            rows += table.rows(split, name)[:count].tolist()
    frames = [table[row] for row in rows]
    return FrameTable(frames, table.root, table.reader, table.name)


def redrawn(table: FrameTable, run: int) -> FrameTable:
    """A table of photos with the same rows, of which each run holds out others.

    The last files of a class are no fair sample: names of photos may follow the terms
    that found them.
    """
    draws = np.random.default_rng(run)
    split = np.array(table.split, dtype=object)
    for name in table.classes:
        rows = np.concatenate([table.rows("train", name), table.rows("test", name)])
        split[rows] = split[draws.permutation(rows)]
    frames = [replace(table[row], split=split[row]) for row in range(len(table))]
    return FrameTable(frames, table.root, table.reader, table.name)


def streams_of(chosen: argparse.Namespace) -> list[Stream]:
    """The streams of the command line.

    Raises:
        ValueError: it names no data.
    """
    if chosen.quick:
        shapes = get_benchmark(QUICK_BENCHMARK).table(None, 0)
        return [Stream("shapes", lambda run: shapes, left_out=2)]
    streams = []
    for name in DEVELOPMENT:
        root = getattr(chosen, name)
        if root:
            table = photo_table(Path(root) / "train")
            streams.append(Stream(name, partial(redrawn, table), left_out=10))
    if chosen.eth80:
        tables = partial(get_benchmark("eth80").table, chosen.eth80)
        streams.append(Stream("eth80", tables, left_out=2))
    if chosen.sign_digits:
        tables = partial(get_benchmark("clip_folder").table, chosen.sign_digits)
        streams.append(Stream("sign_digits", tables, left_out=3))
    if not streams:
        raise ValueError(
            "there is no data: give --eth80, --sign-digits, --cifar100 or "
            "--tiny-imagenet, or --quick"
        )
    return streams


def left_out_sets(stream: Stream, classes: int, runs: int) -> list[tuple[int, ...]]:
    """The classes that the open runs leave out.

    All combinations if there are at most `MOST_SETS`, and `MANY_RUNS` runs; else one is
    drawn for each run.

    Args:
        stream: says how many classes are left out.
        classes: number of its classes.
        runs: number of runs.
    """
    combinations = itertools.combinations(range(classes), stream.left_out)
    first_sets = list(itertools.islice(combinations, MOST_SETS + 1))
    if len(first_sets) <= MOST_SETS and runs >= MANY_RUNS:
        return first_sets
    sets = []
    for run in range(runs):
        drawn = np.random.default_rng(run).permutation(classes)[: stream.left_out]
        sets.append(tuple(sorted(drawn.tolist())))
    return sets


def runs_of(
    stream: Stream, learners: dict[str, Learner], chosen: argparse.Namespace
) -> Iterator[Run]:
    """Yield the runs of a stream: with all classes taught, and with some left out."""
    count = chosen.development_runs if stream.name in DEVELOPMENT else chosen.runs
    table = stream.tables(0)
    sets = left_out_sets(stream, len(table.classes), count)
    plans: list[tuple[int, tuple[int, ...]]] = []
    for run in range(count):
        plans.append((run, ()))
    for index, labels in enumerate(sets):
        plans.append((index % max(count, 1), labels))
    for method, learner in learners.items():
        # Every run of a stream has the same rows, split in another way.
        features = features_of(learner, table, chosen.features)
        for run, unknown in plans:
            frames = stream.tables(run)
            measured = run_stream(learner._classifier, frames, features, unknown, run)
            names = tuple(frames.classes[label] for label in unknown)
            without = f"without {', '.join(names) or 'none'}"
            position = f"{stream.name} {method} run {run} {without}"
            print(f"{position}: {measured}", file=sys.stderr)
            split = frames.content_hash()
            yield Run(stream.name, method, run, names, measured, split)


SCENES = ("known", "held out", "never taught", "empty", "own scene", "own scene, shown")
# Number of images of each use of a class, in the order of the images.
IMAGES_OF_CLASS = {"taught": 8, "known": 8, "held out": 4, "shown": 4, "own scene": 4}
EMPTY = 40  # photos without an object that are asked


def scene_images(scenes: Scenes) -> list[Image.Image]:
    """The images of a split, class by class in the order of `IMAGES_OF_CLASS`.

    One object of each class is taught. Photos without an object come last.
    """
    first_of_class: dict[str, int] = {}
    for index, target in enumerate(scenes.taught):
        first_of_class.setdefault(target.name, index)
    images: list[Image.Image] = []
    for name, index in first_of_class.items():
        indices_of_others = list(first_of_class.values())
        indices_of_others.remove(index)
        images += _images_of_class(scenes, name, index, indices_of_others)
    for _ in range(EMPTY):
        images.append(scenes.photo())
    return images


def _images_of_class(
    scenes: Scenes, name: str, index: int, others: Sequence[int]
) -> list[Image.Image]:
    """The images of a class, as many as `IMAGES_OF_CLASS` has, in its order.

    Half of the views that are asked as known are on new photos, the others on photos
    of taught objects of other classes.

    Args:
        scenes: of the split.
        name: of the class.
        index: of its object that is taught.
        others: indices of the objects of other classes that are taught.
    """
    views = scenes.taught[index].views
    photo = scenes.taught[index].photos[0]
    views_of_held_out = next(views for label, views in scenes.held_out if label == name)
    images = []
    for view in views[:8]:
        images.append(scenes.shown(view, photo))
    for view in views[8:12]:
        images.append(scenes.shown(view, scenes.photo()))
    for view in views[12:16]:
        target = scenes.taught[scenes.draws.choice(others)]
        images.append(scenes.shown(view, target.photos[0]))
    for view in views_of_held_out[:4]:
        images.append(scenes.shown(view, scenes.photo()))
    for _ in range(IMAGES_OF_CLASS["shown"] + IMAGES_OF_CLASS["own scene"]):
        images.append(_shifted_view(scenes, photo))
    return images


def _shifted_view(scenes: Scenes, photo: Image.Image) -> Image.Image:
    """A photo as a camera sees it that has moved."""
    size = round(scenes.draws.uniform(0.8, 1) * SIDE)
    left, top = scenes.draws.integers(0, SIDE - size + 1, 2).tolist()
    box = (left, top, left + size, top + size)
    return photo.resize((SIDE, SIDE), box=box)


@dataclass(frozen=True)
class SceneFeatures:
    """The images of a split as features.

    Attributes:
        uses: use of each image, `(N,)`; a key of `IMAGES_OF_CLASS`, or ``empty``.
        labels: number of the class of each image, `(N,)`; -1 without an object.
        features: of the images, `(N, ...)`.
    """

    uses: np.ndarray
    labels: np.ndarray
    features: torch.Tensor

    @classmethod
    def of(cls, features: torch.Tensor) -> "SceneFeatures":
        """Name the images of `scene_images`."""
        uses = list(Counter(IMAGES_OF_CLASS).elements())
        classes = (len(features) - EMPTY) // len(uses)
        labels = np.repeat(np.arange(classes), len(uses))
        return cls(
            uses=np.array(uses * classes + ["empty"] * EMPTY),
            labels=np.append(labels, [-1] * EMPTY),
            features=features,
        )

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.labels.max()) + 1

    def of_use(self, use: str) -> np.ndarray:
        """Which images have a use, `(N,)` bool."""
        return self.uses == use

    def taught(self, learner: Learner, classes: Iterable[int]) -> Classifier:
        """Teach a clip of each of some classes."""
        names = [f"class{label}" for label in range(self.classes)]
        lessons = []
        for label in classes:
            mask = self.of_use("taught") & (self.labels == label)
            lessons.append((label, self.features[mask]))
        return teach_copy(learner._classifier, names, lessons)


def scenes_of(
    learner: Learner, chosen: argparse.Namespace, development: bool
) -> Iterator[SceneFeatures]:
    """Yield the features of the images of each split, or those that were stored.

    Args:
        learner: whose features.
        chosen: the command line's options.
        development: whether photos are those for choosing settings.

    Raises:
        ValueError: the command line has no objects.
    """
    if chosen.eth80 is None:
        raise ValueError("the objects of scenes are those of ETH-80: give --eth80")
    objects = cache(partial(cut_outs, Path(chosen.eth80)))
    files = half_of(chosen.photos, development)

    def pixels(split: int) -> Iterator[torch.Tensor]:
        images = scene_images(Scenes(objects(), files, split))
        for start in range(0, len(images), BATCH):
            batch = map(learner._transform, images[start : start + BATCH])
            yield torch.stack(list(batch))

    files_of_objects = sorted(Path(chosen.eth80).glob("*/*"))
    files_of_images = files_key([*files_of_objects, *files])
    for split in range(chosen.splits):
        key = ("scenes", files_of_images, split)
        batches = partial(pixels, split)
        features = cached_features(learner, batches, chosen.features, key)
        yield SceneFeatures.of(features)


def confidence_margins(
    learner: Learner, scenes: SceneFeatures, classes: Sequence[int]
) -> dict[str, torch.Tensor]:
    """Teach a clip of each of some classes, and ask about all images.

    Returns:
        Confidence margins of the images of each of `SCENES`, and after the scene was
        shown as nothing, of ``known, shown``.
    """
    of_classes = np.isin(scenes.labels, classes)
    has_object = scenes.labels >= 0
    classifier = scenes.taught(learner, classes)

    def ask(mask: np.ndarray) -> torch.Tensor:
        evidence = classifier.evidence(scenes.features[mask])
        return confidence_margin(classifier, evidence)

    known = scenes.of_use("known")
    held_out = scenes.of_use("held out")
    own_scene = scenes.of_use("own scene")
    result = {
        "known": ask(known & of_classes),
        "held out": ask(held_out & of_classes),
        "own scene": ask(own_scene & of_classes),
        "empty": ask(scenes.of_use("empty")),
    }
    if not of_classes[has_object].all():
        result["never taught"] = ask((known | held_out) & ~of_classes & has_object)
    if learner.method in ("rda", "slda"):
        classifier.learn_nothing(scenes.features[scenes.of_use("shown") & of_classes])
        result["own scene, shown"] = ask(own_scene & of_classes)
        result["known, shown"] = ask(known & of_classes)
    return result


def scene_rows(
    learners: dict[str, Learner], chosen: argparse.Namespace
) -> list[list[object]]:
    """Header and a row for each method, split and use.

    Rows have the share of images called known, and AUROC, both means over all pairs of
    classes.
    """
    header = ["backbone", "method", "split", "asked", "called known", "AUROC"]
    rows: list[list[object]] = [list(header)]
    for method, learner in learners.items():
        for split, scenes in enumerate(scenes_of(learner, chosen, chosen.development)):
            known_shares: dict[str, list[float]] = defaultdict(list)
            areas: dict[str, list[float]] = defaultdict(list)
            for pair in itertools.combinations(range(scenes.classes), 2):
                result = confidence_margins(learner, scenes, pair)
                for use, values in result.items():
                    known_shares[use].append(1 - share_below_zero(values))
                    areas[use].append(auroc(result["known"], values))
            for use in (*SCENES, "known, shown"):
                share = f"{mean_of(known_shares[use]):.5f}"
                area = f"{mean_of(areas[use]):.5f}"
                row = [chosen.backbone, method, split, use, share, area]
                print(*row, file=sys.stderr)
                rows.append(row)
    return rows


def mean_of(values: Sequence[float]) -> float:
    """Mean of values; NaN without any."""
    return float(np.mean(values)) if values else float("nan")


def print_thresholds(learner: Learner, chosen: argparse.Namespace) -> None:
    """Measure the usual threshold of a backbone, a sum of distance and cosine.

    Images of taught classes are below it with the share `REJECTED`. A line is printed
    for each number of classes taught; the last one has the mean.
    """
    known: dict[int, list[torch.Tensor]] = defaultdict(list)
    empty: dict[int, list[torch.Tensor]] = defaultdict(list)
    for scenes in scenes_of(learner, chosen, development=True):
        for count in TAUGHT_COUNTS:
            for start in range(0, max(TAUGHT_COUNTS), count):
                classes = range(start, start + count)
                classifier = scenes.taught(learner, classes)
                of_classes = np.isin(scenes.labels, classes)
                is_known = scenes.of_use("known") & of_classes
                is_empty = scenes.of_use("empty")
                known[count].append(typicality(classifier, scenes.features[is_known]))
                empty[count].append(typicality(classifier, scenes.features[is_empty]))
    thresholds = []
    for count in TAUGHT_COUNTS:
        threshold = float(torch.cat(known[count]).quantile(REJECTED))
        accepted = (torch.cat(empty[count]) >= threshold).double().mean()
        print(
            f"{count} classes: {threshold:.3f}, accepts {accepted:.3f} of the empty "
            "photos"
        )
        thresholds.append(threshold)
    print(f"{chosen.backbone}: {np.mean(thresholds):.3f}")


def typicality(classifier: Classifier, features: torch.Tensor) -> torch.Tensor:
    """The sum of distance and cosine of images, `(N,)`."""
    return classifier.evidence(features).typicality[:, :2].sum(1)


def values_of(
    runs: Sequence[Run], stream: str, method: str, measure: str
) -> list[float]:
    """Means of a figure over the runs of each number, in the runs that it is of.

    Runs of one number share a split, and are no replicates of one another.
    """
    of_all_classes = measure in OF_ALL_CLASSES
    values_of_number: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        same_method = (run.stream, run.method) == (stream, method)
        if same_method and of_all_classes == (not run.left_out):
            values_of_number[run.run].append(getattr(run.measured, measure))
    return [mean_of(values) for values in values_of_number.values()]


def text_of(values: Sequence[float]) -> str:
    """Format mean and 95 % interval."""
    mean, half = interval(values)
    return f"{mean:.3f}" if np.isnan(half) else f"{mean:.3f} ± {half:.3f}"


def pairs_of(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The streams and methods of runs, each pair once."""
    return list(dict.fromkeys((run.stream, run.method) for run in runs))


def summary(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Header and lines of the table of streams and methods."""
    lines = []
    for stream, method in pairs_of(runs):
        line = [f"{stream}, {method}"]
        for measure in MEASURES:
            line.append(text_of(values_of(runs, stream, method, measure)))
        lines.append(line)
    return ["stream, method", *MEASURES.values()], lines


def picture(runs: Sequence[Run]) -> Figure:
    """Plot a panel for each measure with a bar for each stream and method."""
    panels: dict[str, dict[str, dict[str, list[float]]]] = {}
    for measure, title in PLOTTED.items():
        series = panels.setdefault(title, {})
        for stream, method in pairs_of(runs):
            values = values_of(runs, stream, method, measure)
            series.setdefault(method, {})[stream] = values
    return bars(panels, "calibration and unknown classes")


def run_rows(runs: Sequence[Run]) -> list[list[object]]:
    """Header and a row for each run."""
    rows: list[list[object]] = [[*COLUMNS, SPLIT_COLUMN]]
    for run in runs:
        row: list[object] = [run.stream, run.method, run.run, " ".join(run.left_out)]
        for name in MEASURES:
            row.append(number(getattr(run.measured, name), ".5f"))
        rows.append([*row, run.split])
    return rows


def read_runs(path: Path) -> list[Run]:
    """Read the runs that `run_rows` lists; older files have no hash of the frames.

    Raises:
        ValueError: the file has other columns, a line is damaged, or there is no run.
    """
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(
                f"{path} has no column {missing[0]}; runs of this script have "
                f"{', '.join(COLUMNS)}: give an open_set_runs.csv"
            )
        lines = list(reader)
    if not lines:
        raise ValueError(f"{path} has no runs; give an open_set_runs.csv with some")
    return [_run_of(line, path) for line in lines]


def _run_of(line: dict[str, str], path: Path) -> Run:
    """A run of its line in a file."""
    values = {}
    try:
        for name in MEASURES:
            values[name] = float(line[name]) if line[name] else None
        run_number = int(line["run"])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path} has a damaged line ({error}); restore it, or remove it"
        ) from error
    return Run(
        stream=line["stream"],
        method=line["method"],
        run=run_number,
        left_out=tuple(line["left_out"].split()),
        measured=Measured(**values),
        split=line.get(SPLIT_COLUMN) or "",
    )


def command_line_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], allow_abbrev=False
    )
    add = parser.add_argument
    add("--eth80", metavar="DIR", help="folder of the images of ETH-80")
    add(
        "--sign-digits",
        metavar="DIR",
        help="folder of sign digits: digit/people/photos",
    )
    add(
        "--cifar100",
        metavar="DIR",
        help="folder of CIFAR-100 as images, with train/class/",
    )
    add(
        "--tiny-imagenet",
        metavar="DIR",
        help="folder of Tiny-ImageNet, with train/class/",
    )
    add(
        "--photos",
        metavar="DIR",
        nargs="+",
        default=[],
        help="folders of photos without objects",
    )
    add(
        "--development",
        action="store_true",
        help="the half of these photos for choosing settings",
    )
    add(
        "--thresholds",
        action="store_true",
        help="measure the usual threshold on --photos",
    )
    add(
        "--table-of",
        type=Path,
        metavar="FILE",
        help="make the table and picture of such a file of runs; teach nothing",
    )
    add("--methods", nargs="+", default=["rda"], choices=METHODS, help="closed forms")
    add("--runs", type=int, default=10, help="runs of ETH-80 and sign digits")
    add("--splits", type=int, default=5, help="of the scenes")
    add(
        "--development-runs",
        type=int,
        default=3,
        help="runs of CIFAR-100 and Tiny-ImageNet",
    )
    add("--output", default="runs/open_set", help="folder of tables and picture")
    add_network_options(parser)
    return parser


def main() -> None:
    chosen = command_line_parser().parse_args()
    if chosen.table_of:
        publish(read_runs(chosen.table_of), output_of(chosen))
        return
    if chosen.quick:
        chosen.runs = 1
    only_scenes = bool(chosen.photos) and not chosen.runs
    streams = []
    if not chosen.thresholds and not only_scenes:
        streams = streams_of(chosen)
    learners = {method: learner_of(chosen, method) for method in chosen.methods}
    if chosen.thresholds:
        print_thresholds(learners[chosen.methods[0]], chosen)
        return
    output = output_of(chosen)
    if chosen.photos:
        write_csv(output / "open_set_scenes.csv", scene_rows(learners, chosen))
        print(f"written to {output}: open_set_scenes.csv")
    if only_scenes:
        return
    runs: list[Run] = []
    for stream in streams:
        runs += runs_of(stream, learners, chosen)
    publish(runs, output)


def publish(runs: Sequence[Run], output: Path) -> None:
    """Print the table of the streams; write it, its runs and its picture."""
    header, lines = summary(runs)
    write_csv(output / "open_set.csv", [header, *lines])
    write_csv(output / "open_set_runs.csv", run_rows(runs))
    save(picture(runs), output, "open_set")
    print(f"\nMean and 95 % interval over splits\n{format_table(header, lines)}")
    written = "open_set.csv, open_set_runs.csv, open_set.png, open_set.svg"
    print(f"\nwritten to {output}: {written}")


if __name__ == "__main__":
    run_script(main)
