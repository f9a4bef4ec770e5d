r"""What a learner states of its answers, and how often that holds.

    python experiments/named_unknown.py --eth80 ETH80 --backbone efficientnet_lite0 \
        --weights package --features FOLDER

A learner is taught one, two and five objects of each class. *All classes* of a stream
are taught, and asked are held-out objects: how many answers are right, their mean
confidence and its calibration error, and of the wrong answers their confidence and how
many are called known. *Look-alikes*: of each group of classes that look alike one is
taught, drawn by the seed, and the others are asked, too; of streams without groups,
other classes: how many of both are called known, AUROC of the confidence, and the mean
confidence of those never taught. *One class* is taught, and another one is asked, too.

ETH-80 (every fifth view) and the odd classes of --grocery (a folder with `teach` and
`ask`) are reported; its even classes, --cifar100 and --tiny-imagenet are for
development. Photos have no objects: a group of four counts as one. Writes
`named_unknown.csv` (each seed) and `named_unknown_means.csv` to --output, and what a
stricter or milder learner calls known, and says of it, as `named_unknown_curve.csv` and
`.png`.
"""

import argparse
import copy
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from open_set import photo_table
from support.common_options import QUICK_BENCHMARK, run_script
from support.open_set import (
    add_network_options,
    auroc,
    features_of,
    learner_of,
    output_of,
    right,
    teach_copy,
)
from support.pictures import curves

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.datasets.clip_folder import ClipFolderFrames
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.calibration_error import expected_calibration_error
from crumb_avalanche.learner.classifier import Classifier
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.rates import Rates
from crumb_avalanche.report.pictures import save
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import format_table, number
from crumb_avalanche.system.words import counted

# Confidences of a name, on the curve.
STRICT = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99)
OBJECTS = (1, 2, 5)  # of a class that are taught
HELD_OUT = 4  # objects of each class that are asked
MOST_ASKED = 400  # images of each side
EVERY = 5  # view of an object of ETH-80 is used: neighbours are alike
PHOTOS_OF_OBJECT = 4  # where a stream has no objects
# Classes that look alike, by stream: one of each group is taught.
LOOK_ALIKES = {
    "eth80": (
        ("apple", "pear", "tomato"),
        ("cow", "dog", "horse"),
        ("car",),
        ("cup",),
    ),
    "grocery, development": (
        (
            "Alpro_Fresh_Soy_Milk",
            "Arla_Ecological_Medium_Fat_Milk",
            "Arla_Lactose_Medium_Fat_Milk",
            "Oatly_Oat_Milk",
        ),
        (
            "Arla_Natural_Mild_Low_Fat_Yoghurt",
            "Arla_Sour_Cream",
            "Yoggi_Strawberry_Yoghurt",
        ),
        ("Bravo_Orange_Juice", "God_Morgon_Orange_Juice", "Tropicana_Juice_Smooth"),
        ("Orange_Bell_Pepper", "Red_Bell_Pepper"),
        ("Golden_Delicious", "Peach", "Satsumas"),
        ("Cabbage", "Honeydew_Melon"),
    ),
    "grocery, reported": (
        (
            "Alpro_Shelf_Soy_Milk",
            "Arla_Medium_Fat_Milk",
            "Arla_Sour_Milk",
            "Garant_Ecological_Medium_Fat_Milk",
        ),
        (
            "Arla_Ecological_Sour_Cream",
            "Arla_Natural_Yoghurt",
            "Yoggi_Vanilla_Yoghurt",
        ),
        ("God_Morgon_Red_Grapefruit_Juice", "Tropicana_Golden_Grapefruit"),
        ("Beef_Tomato", "Orange", "Royal_Gala"),
        ("Cantaloupe", "Watermelon"),
    ),
}
CLASSES = (4, 6, 8, 10)  # taught of streams of many classes, by seed in turn


@dataclass(frozen=True)
class Objects:
    """The images of a stream as features, by class and object.

    Attributes:
        name: of the stream.
        features: of all images, `(N, ...)`.
        rows: rows of each object, by the name of its class.
    """

    name: str
    features: torch.Tensor
    rows: dict[str, list[np.ndarray]]

    @classmethod
    def of_eth80(cls, learner: Learner, chosen: argparse.Namespace) -> "Objects":
        """The objects of ETH-80, or with --quick rendered shapes."""
        benchmark = "eth80"
        if chosen.quick:
            benchmark = QUICK_BENCHMARK
        frames = get_benchmark(benchmark).table(chosen.eth80, 0)
        dropped_rows = [row for row in range(len(frames)) if row % EVERY]
        frames = frames.without(dropped_rows)
        features = features_of(learner, frames, chosen.features)
        return cls(benchmark, features, rows_of_objects(frames))

    @classmethod
    def of_photos(
        cls,
        name: str,
        learner: Learner,
        tables: list[FrameTable],
        features: Path | None,
    ) -> "Objects":
        """Photos of tables with the same classes; groups of them count as objects.

        Args:
            name: of the stream.
            learner: whose features.
            tables: of photos.
            features: folder that stores features; None stores none.
        """
        features_of_tables = []
        class_names: list[str] = []  # of all photos
        for frames in tables:
            features_of_tables.append(features_of(learner, frames, features))
            class_names += frames.class_name
        names = np.array(class_names)
        draws = np.random.default_rng(0)
        rows = {}
        for class_name in np.unique(names):
            photos_of_class = draws.permutation(np.flatnonzero(names == class_name))
            n_groups = max(1, len(photos_of_class) // PHOTOS_OF_OBJECT)
            rows[str(class_name)] = np.array_split(photos_of_class, n_groups)
        return cls(name, torch.cat(features_of_tables), rows)

    def every_second(self, first: int, name: str) -> "Objects":
        """Every second class, from the first or the second on, by another name."""
        names = sorted(self.rows)[first::2]
        return Objects(name, self.features, {key: self.rows[key] for key in names})


def rows_of_objects(frames: FrameTable) -> dict[str, list[np.ndarray]]:
    """Group the rows of a table by object; return them by the name of their class."""
    objects_of_class: dict[str, dict[str, list[int]]] = {}
    for row, frame in enumerate(frames):
        objects = objects_of_class.setdefault(frame.class_name, {})
        objects.setdefault(frame.object_name, []).append(row)
    rows = {}
    for class_name, objects in objects_of_class.items():
        rows[class_name] = list(map(np.array, objects.values()))
    return rows


def streams_of(learner: Learner, chosen: argparse.Namespace) -> Iterator[Objects]:
    """Yield the streams of the command line.

    Raises:
        ValueError: it names no data.
    """
    roots = (chosen.eth80, chosen.grocery, chosen.cifar100, chosen.tiny_imagenet)
    if not any(roots) and not chosen.quick:
        raise ValueError(
            "there is no data: give --eth80, --grocery, --cifar100 or --tiny-imagenet, "
            "or --quick"
        )
    if chosen.eth80 or chosen.quick:
        yield Objects.of_eth80(learner, chosen)
    of_photos = partial(Objects.of_photos, learner=learner, features=chosen.features)
    if chosen.grocery:
        tables = [ClipFolderFrames(chosen.grocery / use) for use in ("teach", "ask")]
        groceries = of_photos("grocery", tables=tables)
        yield groceries.every_second(0, "grocery, development")
        yield groceries.every_second(1, "grocery, reported")
    for name in ("cifar100", "tiny_imagenet"):
        root = getattr(chosen, name)
        if root:
            yield of_photos(name, tables=[photo_table(root / "train")])


@dataclass(frozen=True)
class Trial:
    """What is taught and asked.

    Attributes:
        lessons: class and rows of each object taught, in order.
        held_out: class and row of each image of another object of these classes.
        never_taught: rows of images of other classes; may be empty.
    """

    lessons: list[tuple[str, np.ndarray]]
    held_out: list[tuple[str, int]]
    never_taught: np.ndarray

    @classmethod
    def draw(
        cls,
        stream: Objects,
        objects: int,
        look_alikes: bool,
        seed: int,
        count: int | None = None,
    ) -> "Trial":
        """Draw a trial.

        Args:
            stream: objects of all classes.
            objects: number of objects of each class that are taught.
            look_alikes: whether other classes are asked, too.
            seed: of what is drawn.
            count: number of classes that are taught, at most half of those of a stream;
                default one of each group, or by the seed.
        """
        draws = np.random.default_rng(100 * objects + seed)
        if count is None:
            names, untaught = _classes(stream, look_alikes, seed, draws)
        else:
            names, untaught = _some_classes(stream, look_alikes, count, draws)
        lessons = []
        held_out = []
        for name in names:
            order = draws.permutation(len(stream.rows[name]))
            for index in order[:objects]:
                lessons.append((name, stream.rows[name][index]))
            for index in order[objects : objects + HELD_OUT]:
                held_out += [(name, int(row)) for row in stream.rows[name][index]]
        never_taught: list[int] = []
        for name in untaught:
            for index in draws.permutation(len(stream.rows[name]))[:HELD_OUT]:
                never_taught += stream.rows[name][index].tolist()
        return cls(
            lessons=[lessons[index] for index in draws.permutation(len(lessons))],
            held_out=_drawn(held_out, draws),
            never_taught=np.array(_drawn(never_taught, draws), dtype=int),
        )

    def with_images(self, images: Sequence[int]) -> "Trial":
        """Return the trial with the first images of its lessons alone.

        Args:
            images: most images of the lessons, in turn.
        """
        counts = itertools.cycle(images)
        lessons = [
            (name, rows[:count])
            for (name, rows), count in zip(self.lessons, counts, strict=False)
        ]
        return replace(self, lessons=lessons)

    def taught_to(self, empty: Classifier, stream: Objects) -> Classifier:
        """Teach a copy of a classifier without classes."""
        names = sorted({name for name, _ in self.lessons})
        lessons = (
            (names.index(name), stream.features[rows]) for name, rows in self.lessons
        )
        return teach_copy(empty, names, lessons)


def _classes(
    stream: Objects, look_alikes: bool, seed: int, draws: np.random.Generator
) -> tuple[list[str], list[str]]:
    """The classes that are taught, and those that are not but asked."""
    names = sorted(stream.rows)
    groups = LOOK_ALIKES.get(stream.name)
    if groups is not None and look_alikes:
        drawn = [str(draws.choice(group)) for group in groups]
        alike = sorted(itertools.chain.from_iterable(groups))
        return drawn, [name for name in alike if name not in drawn]
    if stream.name == "eth80":
        return names, []
    return _some_classes(stream, look_alikes, CLASSES[seed % len(CLASSES)], draws)


def _some_classes(
    stream: Objects, look_alikes: bool, count: int, draws: np.random.Generator
) -> tuple[list[str], list[str]]:
    """So many classes, at most half, and as many others if they are asked."""
    names = sorted(stream.rows)
    count = min(count, len(names) // 2)
    order = draws.permutation(names).tolist()
    untaught: list[str] = []
    if look_alikes:
        untaught = order[count : 2 * count]
    return order[:count], untaught


def _drawn(values: list, draws: np.random.Generator) -> list:
    """At most `MOST_ASKED` of some values, drawn at random."""
    order = draws.permutation(len(values))[:MOST_ASKED]
    return [values[index] for index in order]


class CurvePoint(NamedTuple):
    """What a learner that is more or less strict calls known, and what it says.

    Attributes:
        known: share of the held-out images that is called known.
        strange_known: share of the images never taught that is called known.
        said_refused, said_named, said_alike: the learner's own rates; see `Rates`.
    """

    known: float
    strange_known: float
    said_refused: float
    said_named: float
    said_alike: float


@dataclass(frozen=True)
class Measures:
    """What a trial measures; shares from 0 to 1, NaN where nothing was asked.

    Attributes:
        right: share of answers to held-out images with the right name.
        confidence: their mean confidence.
        ece: their expected calibration error.
        wrong_confidence: mean confidence of those that are wrong.
        wrong_known: share of those that are wrong which is called known.
        known: share of the held-out images that is called known.
        strange_known: share of the images never taught that is called known.
        strange_confidence: their mean confidence.
        auroc: of the confidence, for held-out images against those never taught.
        said_refused, said_named, said_alike: the learner's own rates; see `Rates`.
        alike_held: 1 where no more than `said_alike` of the images never taught are
            called known, else 0.
        curve: a point for each of `STRICT`.
    """

    right: float
    confidence: float
    ece: float
    wrong_confidence: float
    wrong_known: float
    known: float
    strange_known: float
    strange_confidence: float
    auroc: float
    said_refused: float
    said_named: float
    said_alike: float
    alike_held: float
    curve: list[CurvePoint] = field(default_factory=list)

    @property
    def values(self) -> list[float]:
        """The measures without the curve."""
        return list(astuple(self)[:-1])


def measured(trial: Trial, stream: Objects, empty: Classifier) -> Measures:
    """Teach the lessons of a trial, and ask about its images.

    Args:
        trial: of the stream.
        stream: features of all images.
        empty: a classifier without classes.
    """
    classifier = trial.taught_to(empty, stream)
    probabilities_of = classifier.confidence.probabilities
    true_names, rows_held_out = zip(*trial.held_out)
    held_out = classifier.evidence(stream.features[list(rows_held_out)])
    correct = torch.from_numpy(right(classifier, held_out, true_names))
    confidence = probabilities_of(held_out).amax(1)
    known = (confidence >= classifier.strict).double()
    rates = rates_of(classifier)
    strange_known = torch.zeros(0)
    strange_confidence = torch.zeros(0)
    area = float("nan")
    alike_held = float("nan")
    if len(trial.never_taught):
        strange = classifier.evidence(stream.features[trial.never_taught])
        strange_confidence = probabilities_of(strange).amax(1)
        strange_known = (strange_confidence >= classifier.strict).double()
        area = auroc(confidence, strange_confidence)
        if classifier.rates is not None:
            alike_held = float(strange_known.mean() <= rates.named_alike)
    return Measures(
        right=float(correct.double().mean()),
        confidence=float(confidence.mean()),
        ece=expected_calibration_error(confidence, correct),
        wrong_confidence=float(confidence[~correct].mean()),
        wrong_known=float(known[~correct].mean()),
        known=float(known.mean()),
        strange_known=float(strange_known.mean()),
        strange_confidence=float(strange_confidence.mean()),
        auroc=area,
        said_refused=rates.refused,
        said_named=rates.named,
        said_alike=rates.named_alike,
        alike_held=alike_held,
        curve=[
            curve_point(classifier, strict, confidence, strange_confidence)
            for strict in STRICT
        ],
    )


def rates_of(classifier: Classifier) -> Rates:
    """The rates of errors that a classifier states; NaN where it states none."""
    return classifier.rates or Rates(*[float("nan")] * len(Rates._fields))


def curve_point(
    classifier: Classifier,
    strict: float,
    confidence: torch.Tensor,
    strange_confidence: torch.Tensor,
) -> CurvePoint:
    """What a classifier would call known, and say, if it were so strict.

    Args:
        classifier: it is not changed.
        strict: least confidence of a name.
        confidence: of the held-out images.
        strange_confidence: of the images never taught.
    """
    stricter = copy.copy(classifier)
    stricter.strict = strict
    rates = rates_of(stricter)
    return CurvePoint(
        known=share_above(confidence, strict),
        strange_known=share_above(strange_confidence, strict),
        said_refused=rates.refused,
        said_named=rates.named,
        said_alike=rates.named_alike,
    )


def share_above(confidence: torch.Tensor, strict: float) -> float:
    """Share of images that are at least as sure; NaN without images."""
    return float((confidence >= strict).double().mean())


# Whether other classes are asked, too, and number of classes taught; see `Trial.draw`.
ASKED = {
    "all classes": (False, None),
    "look-alikes": (True, None),
    "one class": (True, 1),
}
HEADER = ["stream", "objects", "asked", "seed"]


def rows_of(
    stream: Objects, empty: Classifier, chosen: argparse.Namespace
) -> Iterator[tuple[list, Measures]]:
    """Yield what each row of a stream is of, see `HEADER`, and what it measures."""
    rows = itertools.product(
        chosen.objects, chosen.images, ASKED.items(), range(chosen.seeds)
    )
    for objects, images, (asked, (others_asked, count)), seed in rows:
        trial = Trial.draw(stream, objects, others_asked, seed, count)
        key = [stream.name, objects, asked, seed]
        if images:
            trial = trial.with_images([images])
            key[2] = f"{asked}, {counted(images, 'image')}"
        measures = measured(trial, stream, empty)
        print(*key, measures, file=sys.stderr)
        yield key, measures


def means_of(rows: list[tuple[list, Measures]]) -> list[list[str]]:
    """Make a line of means over seeds for each stream, objects and what is asked.

    Args:
        rows: what `rows_of` yields.

    Returns:
        Values of `HEADER` but for the seed, and the mean of each measure; empty where
        nothing was asked.
    """
    groups: dict[tuple, list[list[float]]] = {}
    for key, measures in rows:
        groups.setdefault(tuple(key[:3]), []).append(measures.values)
    lines = []
    for key, values_of_seeds in groups.items():
        line = list(map(str, key))
        for values in np.array(values_of_seeds).T:
            line.append(number(_mean_of_numbers(values), ".3f"))
        lines.append(line)
    return lines


def _mean_of_numbers(values: np.ndarray) -> float | None:
    """Mean of those values that are not NaN; None if all are."""
    numbers = values[~np.isnan(values)]
    if not len(numbers):
        return None
    return float(np.mean(numbers))


def points_of(
    rows: list[tuple[list, Measures]],
) -> dict[tuple[str, int], dict[float, list[CurvePoint]]]:
    """The curves of all trials with look-alikes, by stream, objects and `STRICT`."""
    curves_of: dict[tuple[str, int], dict[float, list[CurvePoint]]] = {}
    for (stream, objects, asked, _), measures in rows:
        if asked != "look-alikes":
            continue
        points = curves_of.setdefault((stream, objects), {})
        for strict, point in zip(STRICT, measures.curve, strict=True):
            points.setdefault(strict, []).append(point)
    return curves_of


def curve_rows(rows: list[tuple[list, Measures]]) -> list[list[str]]:
    """Header and a row for each stream, number of objects and `STRICT`, of means."""
    lines = [["stream", "objects", "strict", *CurvePoint._fields, "trials"]]
    for (stream, objects), points in points_of(rows).items():
        for strict, values in points.items():
            figures = [f"{mean:.3f}" for mean in np.mean(values, 0)]
            lines.append(
                [stream, str(objects), f"{strict:g}", *figures, str(len(values))]
            )
    return lines


def picture(rows: list[tuple[list, Measures]]) -> Figure:
    """Plot what is called known by how strict a learner is, a panel for each stream."""
    panels: dict[str, dict[str, dict[float, list[float]]]] = {}
    for (stream, objects), points in points_of(rows).items():
        lines = panels.setdefault(stream, {})
        for index, name in enumerate(("taught", "look-alikes")):
            percents: dict[float, list[float]] = {}
            for strict, shares in points.items():
                percents[100 * strict] = [100 * share[index] for share in shares]
            lines[f"{name}, {counted(objects, 'object')}"] = percents
    return curves(
        panels,
        "What is called known",
        xlabel="least confidence of a name, %",
        ylabel="images called known, %",
        ylim=(0, 100),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], allow_abbrev=False
    )
    add = parser.add_argument
    add("--eth80", metavar="DIR", help="folder of the images of ETH-80")
    add("--grocery", type=Path, metavar="DIR", help="folder with teach/ and ask/")
    add("--cifar100", type=Path, metavar="DIR", help="folder with train/class/")
    add("--tiny-imagenet", type=Path, metavar="DIR", help="folder with train/class/")
    add("--method", default="rda", help="closed form of the learner")
    add(
        "--objects",
        type=int,
        nargs="+",
        default=OBJECTS,
        help="of each class that are taught",
    )
    add(
        "--images",
        type=int,
        nargs="+",
        default=[0],
        help="most images of an object that are taught; default all",
    )
    add("--seeds", type=int, default=8, help="trials of each row")
    add("--output", default="runs/named_unknown", help="folder of the tables")
    add_network_options(parser)
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.seeds = 1
        chosen.objects = [1]
    learner = learner_of(chosen, chosen.method)
    rows = []
    for stream in streams_of(learner, chosen):
        rows += rows_of(stream, learner._classifier, chosen)
    names = [column.name for column in fields(Measures)][:-1]
    cells = []
    for key, measures in rows:
        values = [f"{value:.5f}" for value in measures.values]
        cells.append([*key, *values])
    output = output_of(chosen)
    write_csv(output / "named_unknown.csv", [[*HEADER, *names], *cells])
    header = [*HEADER[:3], *names]
    lines = means_of(rows)
    write_csv(output / "named_unknown_means.csv", [header, *lines])
    if points_of(rows):  # none of parts of objects
        write_csv(output / "named_unknown_curve.csv", curve_rows(rows))
        save(picture(rows), output, "named_unknown_curve")
    print(format_table(header, lines))


if __name__ == "__main__":
    run_script(main)
