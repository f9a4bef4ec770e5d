r"""Does a learner know the object, or the scene behind it?

    python experiments/scenes.py --eth80 ETH80 --photos PHOTOS [PHOTOS ...] \
        --backbones efficientnet_lite0=package

Objects of ETH-80 are cut out and pasted on photos. In each split two objects of each
class are held out; the others are taught in one lesson each, eight views at 0.4 to 0.9
of the image's height, in one of four streams:

  own        each object on a photo of its own
  table      all objects on one photo
  three      each object on three photos
  plain      none on a photo: images of ETH-80 as they are, which the objects fill

Asked is photo by photo: taught objects on the photo of their own (`same`) and on that
of an object of another class (`other`); held-out objects on new photos (`new`), at 0.9,
0.45 and 0.3 of the image's height (`size 1`, `size 0.5`, `size 0.33`), at 0.45 of the
light (`dark`), in warm light (`warm`); and new photos without an object (`empty`),
where the share is that of photos called known. After `plain`, taught and held-out
objects are asked as they are, too (`same`, `new`). A learner is not taught by `crumb`
and `remind`: they learn the same images by `crumb run --preset tuned`, and see the part
of an image that the learner looks at. Names of files divide the photos into two halves:
one for reporting, and with --development the one that settings are chosen on. Writes
`scenes.csv` (each split) and `scenes.md` (means with intervals over the splits) to
--output; the same command resumes.
"""

import argparse
import csv
import io
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from support.common_options import QUICK_FOLDER, run_script
from support.scenes import (
    Objects,
    Scenes,
    cut_outs,
    half_of,
    write_made_objects,
    write_made_photos,
)

from benchmarks_toybox_ilab.tables.atomic_file import write_text
from crumb_avalanche.images.boxes import cut_out
from crumb_avalanche.images.looks import middle
from crumb_avalanche.learner.learner import LOOKS, Learner
from crumb_avalanche.report.paired import interval
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run import main as run
from crumb_avalanche.runs.run_folder import write_csv, write_json
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.tables import LEARNER, format_table

STREAMS = ("own", "table", "three", "plain")
WAYS = (
    "same",
    "other",
    "new",
    "size 1",
    "size 0.5",
    "size 0.33",
    "dark",
    "warm",
    "empty",
)
CASE = ["backbone", "method", "looks", "stream", "split"]
HEADER = [*CASE, "asked", "images", "right", "known"]
TABLE = "scenes.csv"
MADE_WITH = "made_with.json"  # beside the table: options that all of its counts share
START_OVER = "give another --output, or remove its files to start over"
AT_A_TIME = 64  # images that are asked together
# Methods that `crumb run` learns by, and a learner is not taught by.
IN_A_RUN = ("crumb", "remind")
QUICK_SIDE = 32  # pixels of the network's images with --quick


@dataclass(frozen=True)
class Case:
    """What is measured at a time.

    Attributes:
        backbone: network of the learner.
        method: of the learner.
        looks: shares of the image, separated by commas; after ``box:``, of the box.
        stream: one of `STREAMS`.
        split: number of the split.
    """

    backbone: str
    method: str
    looks: str
    stream: str
    split: int

    @property
    def is_boxed(self) -> bool:
        """Whether the learner is given the box of the object."""
        return self.looks.startswith("box:")

    @property
    def shares(self) -> tuple[float, ...]:
        """Shares of the image, or of the box, that are looked at."""
        texts = self.looks.removeprefix("box:").split(",")
        return tuple(map(float, texts))

    @property
    def cells(self) -> tuple[str, ...]:
        """Values of `CASE`."""
        return self.backbone, self.method, self.looks, self.stream, str(self.split)


@dataclass
class Count:
    """Images that were asked in a way.

    Attributes:
        images: number of images.
        right: images whose class came.
        known: images that were called known.
    """

    images: int = 0
    right: int = 0
    known: int = 0

    @property
    def cells(self) -> list[str]:
        """The numbers as text."""
        return [str(self.images), str(self.right), str(self.known)]


def learned_in_a_run(
    scenes: Scenes, stream: str, share: float, folder: Path, **settings
) -> Learner:
    """Learn the middle of a stream's images as `crumb run` learns clips of objects.

    Args:
        scenes: images of the split.
        stream: one of `STREAMS`.
        share: of the image that is learned.
        folder: for clips and run.
        settings: of the run.

    Returns:
        What answers.
    """
    # A run tests on the first two objects of each class, which are not learned.
    lessons = []
    for name, views in scenes.held_out:
        lessons.append((name, [views[0].whole]))
    lessons += scenes.lessons(stream)
    for number, (name, images) in enumerate(lessons):
        clip = folder / "clips" / name / str(number)
        clip.mkdir(parents=True)
        for frame, image in enumerate(images):
            middle(image, share).save(clip / f"{frame}.png")
    run_settings = RunSettings(
        benchmark="clip_folder",
        dataset_root=str(folder / "clips"),
        output=str(folder / "run"),
        preset="tuned",
        **settings,
    )
    run(RunPlan.of(run_settings))
    return Learner.load(folder / "run" / LEARNER)


def teach(learner: Learner, scenes: Scenes, stream: str, boxed: bool) -> None:
    """Teach a stream, with the box of each object or without."""
    for name, images in scenes.lessons(stream):
        boxes = None
        if boxed:
            boxes = [image.info["box"] for image in images]
        learner.teach(images, name, box=boxes)


def measure(
    learner: Learner,
    scenes: Scenes,
    stream: str,
    boxed: bool = False,
    share: float = 1.0,
) -> dict[str, Count]:
    """Teach a stream, if nothing was learned yet, and ask about the middle of images.

    Args:
        learner: that is asked.
        scenes: images of the split.
        stream: one of `STREAMS`.
        boxed: whether the box of the object is given; an empty scene has none.
        share: of the image that is asked.

    Returns:
        What was counted for each way of asking.
    """
    if not learner.classes:
        teach(learner, scenes, stream, boxed)
    questions = []
    for question in scenes.asked(stream):
        image = middle(question.image, share)
        if boxed and not question.name:
            continue
        if boxed:
            image = cut_out(image, image.info["box"])
        questions.append(question._replace(image=image))
    counts: dict[str, Count] = defaultdict(Count)
    for start in range(0, len(questions), AT_A_TIME):
        batch = questions[start : start + AT_A_TIME]
        answer = learner.predict([question.image for question in batch])
        answers = answer.frames or [answer]  # one image alone has no frames
        for question, reply in zip(batch, answers, strict=True):
            count = counts[question.way]
            count.images += 1
            count.right += reply.label == question.name
            count.known += reply.known is not False
    return counts


Row = dict[str, str]  # a line of the CSV file


def percent_text(rows: Sequence[Row], way: str) -> str:
    """Format the share of right answers over splits; for `empty`, of those known."""
    counted = "known" if way == "empty" else "right"
    percents = []
    for row in rows:
        if row["asked"] == way:
            percents.append(100 * int(row[counted]) / int(row["images"]))
    if not percents:
        return ""
    mean = f"{np.mean(percents):.1f}"
    if len(percents) == 1:
        return mean
    return f"{mean} ± {interval(percents)[1]:.1f}"


def summary(rows: Sequence[Row]) -> str:
    """The table of the splits in Markdown: percent of right answers.

    The last column has the percent of the empty photos that were called known.
    """
    by_case: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    names = CASE[:-1]
    case_of = itemgetter(*names)
    for row in rows:
        by_case[case_of(row)].append(row)
    lines = []
    for case, case_rows in by_case.items():
        splits = {row["split"] for row in case_rows}
        line = [*case, str(len(splits))]
        for way in WAYS:
            line.append(percent_text(case_rows, way))
        lines.append(line)
    return format_table([*names, "splits", *WAYS[:-1], "empty called known"], lines)


def learner_of(
    case: Case, scenes: Scenes, folder: Path, options: argparse.Namespace
) -> Learner:
    """Make the learner of a case.

    Args:
        case: method, backbone and looks.
        scenes: of the split.
        folder: of the run, for methods that learn in a run.
        options: the command line's.

    Returns:
        A learner without classes, or one that has learned the scenes in a run.
    """
    weights = options.weights_of[case.backbone]
    if case.method in IN_A_RUN:
        return learned_in_a_run(
            scenes,
            case.stream,
            case.shares[0],
            folder,
            strategy=case.method,
            backbone=case.backbone,
            weights=weights,
            threads=options.threads,
        )
    if weights == "none":
        weights = None
    image_size = None
    if options.quick:
        image_size = QUICK_SIDE
    learner = Learner(
        case.method, case.backbone, weights, image_size, looks=case.shares
    )
    learner.use_runtime(options.runtime)
    return learner


def rows_of(
    case: Case, objects: Objects, photos: Sequence[Path], options: argparse.Namespace
) -> list[Row]:
    """Teach the learner of a case, and count its right answers.

    Args:
        case: split, stream, method and looks.
        objects: cut out of ETH-80.
        photos: files of the backgrounds.
        options: the command line's.

    Returns:
        Values of `HEADER` for each way of asking that the stream has.
    """
    scenes = Scenes(objects, photos, case.split)
    # The looks of a learner are its own; what a run made sees a part of the image.
    share = case.shares[0] if case.method in IN_A_RUN else 1.0
    with TemporaryDirectory() as folder:
        learner = learner_of(case, scenes, Path(folder), options)
        counts = measure(learner, scenes, case.stream, case.is_boxed, share)
    rows = []
    for way in WAYS:
        if way in counts:
            cells = [*case.cells, way, *counts[way].cells]
            rows.append(dict(zip(HEADER, cells)))
    return rows


def cases_of(options: argparse.Namespace) -> list[Case]:
    """All cases of a command line, split by split."""
    cases = []
    for split in range(options.splits):
        learners = product(
            options.weights_of, options.methods, options.looks, options.streams
        )
        for backbone, method, looks, stream in learners:
            cases.append(Case(backbone, method, looks, stream, split))
    return cases


def read_rows(path: Path) -> list[Row]:
    """Read what was measured before; nothing if there is no file."""
    if not path.exists():
        return []
    return list(csv.DictReader(io.StringIO(path.read_text())))


def made_with(options: argparse.Namespace) -> dict[str, object]:
    """The options that all cases of an output share, and that change their counts."""
    made = {
        "eth80": absolute(options.eth80),
        "photos": [absolute(folder) for folder in options.photos],
        "development": options.development,
        "runtime": options.runtime,
        "quick": options.quick,
    }
    for backbone, weights in options.weights_of.items():
        made[f"weights of {backbone}"] = weights
    return made


def absolute(folder: Path | None) -> str:
    """The absolute path of a folder; empty without one."""
    return "" if folder is None else str(Path(folder).absolute())


def recorded_made_with(output: Path) -> dict[str, object]:
    """Read the options that the counts of an output were made with, if it has any.

    Raises:
        ValueError: it has counts, and it is not known how they were made.
    """
    path = output / MADE_WITH
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    if (output / TABLE).exists():
        raise ValueError(f"{output} has counts and no {MADE_WITH}; {START_OVER}")
    return {}


def check_made_with(options: argparse.Namespace) -> None:
    """Write the options of the cases beside their counts.

    Raises:
        ValueError: there are counts that were made with others.
    """
    recorded = recorded_made_with(options.output)
    made = made_with(options)
    for name, value in made.items():
        if name in recorded and recorded[name] != value:
            raise ValueError(
                f"{options.output} has counts made with {name} {recorded[name]}, and "
                f"this command has {value}; {START_OVER}"
            )
    write_json(options.output / MADE_WITH, {**recorded, **made})


def make_quick(options: argparse.Namespace) -> None:
    """Set the options to made objects and photos, and a tiny untrained network."""
    options.output = options.output / QUICK_FOLDER
    options.eth80 = options.output / "objects"
    options.photos = [options.output / "photos"]
    options.weights_of = {"small_cnn": "none"}
    options.methods = ["slda"]
    options.streams = ["own", "plain"]
    options.splits = 1
    options.runtime = "torch"
    write_made_objects(options.eth80)
    write_made_photos(options.photos[0], count=800)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--eth80", type=Path, help="folder of ETH-80: a folder of views for each object"
    )
    add("--photos", type=Path, nargs="*", default=[], help="folders of photos")
    add(
        "--backbones",
        nargs="*",
        default=["efficientnet_lite0=package"],
        metavar="NAME=WEIGHTS",
        help="of Learner",
    )
    add(
        "--methods",
        nargs="*",
        default=["recommended"],
        help="of Learner, or crumb and remind",
    )
    add(
        "--looks",
        nargs="*",
        default=[",".join(map(str, LOOKS))],
        help="such as 0.85,0.5, or box:0.85,0.5 with a box",
    )
    add("--streams", nargs="*", default=list(STREAMS), choices=STREAMS)
    add("--splits", type=int, default=10)
    add("--runtime", default="onnxruntime")
    add("--threads", type=int, default=1)
    add(
        "--development",
        action="store_true",
        help="the half of the photos for choosing settings",
    )
    add("--output", type=Path, default=Path("runs/scenes"))
    add("--table-only", action="store_true")
    add("--quick", action="store_true", help="made objects, a tiny network, one split")
    options = parser.parse_args()
    options.weights_of = dict(text.split("=", 1) for text in options.backbones)
    if options.quick:
        make_quick(options)
    torch.set_num_threads(options.threads)
    path = options.output / TABLE
    rows = read_rows(path)
    finished = set(map(itemgetter(*CASE), rows))
    todo = [case for case in cases_of(options) if case.cells not in finished]
    if todo and not options.table_only:
        check_made_with(options)
        objects = cut_outs(options.eth80)
        photos = half_of(options.photos, options.development)
        for case in todo:
            rows += rows_of(case, objects, photos, options)
            lines = map(itemgetter(*HEADER), rows)
            write_csv(path, [HEADER, *lines])
    text = summary(rows)
    if rows:
        write_text(options.output / "scenes.md", text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(run_script(main))
