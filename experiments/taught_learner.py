"""Compare a learner that is taught in lessons, or merged from two, with a run of the recommended preset.

    python experiments/taught_learner.py --benchmark eth80 --dataset-root ETH80 --weights FILE --feature-cache CACHE

In each run the training objects of the split are folders class/object, and the held-out ones are photos:
  run       `crumb run --preset recommended` on the split
  taught    `Learner("recommended")`, taught half of the classes in one lesson and the others in a second one
  one pass  the same objects in a single lesson
  merged    two learners, each taught half of the objects of every class, merged into one
Differences are to `run` for `taught`, and to `one pass` for `merged`. Writes `taught_learner.csv` to --output.
"""

import csv
import io
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from support.common_options import CommonOptions, common_options, parser_for, run_script
from support.finished_runs import finished_runs
from support.open_set import interval
from support.sweep import exit_code, grid

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run_folder import write_text
from crumb_avalanche.runs.tables import table

ROWS = {"taught": "run", "merged": "one pass"}  # row: what it is compared with
HEADER = ["row", "accuracy", "difference", "of the runs", "95 % interval"]


def tree(frames: FrameTable, rows: Iterable[int], folder: Path) -> Path:
    """Make a folder class/object/photo of rows, and return it."""
    for row in rows:
        frame = frames[row]
        place = folder / frame.class_name / frame.object_name
        place.mkdir(parents=True, exist_ok=True)
        if frames.reader is None:
            (place / f"{row}{Path(frame.path).suffix}").symlink_to((frames.root or Path()).resolve() / frame.path)
        else:  # rendered images have no file
            frames.read(row).save(place / f"{row}.png")
    return folder


def halves(frames: FrameTable, rows: Iterable[int]) -> tuple[list[int], list[int]]:
    """Split rows into two halves of the objects of each class."""
    objects: dict[str, list[str]] = {}
    parts: tuple[list[int], list[int]] = [], []
    for row in rows:
        frame = frames[row]
        known = objects.setdefault(frame.class_name, [])
        if frame.object_name not in known:
            known.append(frame.object_name)
        parts[known.index(frame.object_name) % 2].append(row)
    return parts


def accuracies(frames: FrameTable, new_learner: Callable[[], Learner], folder: Path) -> dict[str, float]:
    """Return the accuracy in percent of each learner on the held-out photos of a split."""
    train = frames.rows("train").tolist()
    first = set(frames.classes[: len(frames.classes) // 2])
    by_class = [[row for row in train if (frames[row].class_name in first) == known] for known in (True, False)]
    by_object = halves(frames, train)
    taught, whole, merged, apart = (new_learner() for _ in range(4))
    for number, rows in enumerate(by_class):
        taught.teach(tree(frames, rows, folder / f"classes{number}"))
    whole.teach(tree(frames, train, folder / "train"))
    for learner, rows, name in zip((merged, apart), by_object, ("objects0", "objects1")):
        learner.teach(tree(frames, rows, folder / name))
    merged.merge(apart)
    asked = tree(frames, frames.rows("test").tolist(), folder / "test")
    return {
        name: accuracy(learner, asked)
        for name, learner in {"taught": taught, "one pass": whole, "merged": merged}.items()
    }


def accuracy(learner: Learner, asked: Path) -> float:
    """Return the share of photos in class folders that are answered rightly, in percent."""
    right = [answer.label == answer.truth for answer in learner.predict_all(asked)]
    return 100 * sum(right) / len(right)


def lines_of(found: dict[str, list[float]]) -> list[list[str]]:
    """Return a line of text for each row."""
    lines = []
    for name, values in found.items():
        line = [name, f"{statistics.fmean(values):.2f}", "", "", ""]
        if name in ROWS:
            differences = [own - other for own, other in zip(values, found[ROWS[name]], strict=True)]
            mean, width = interval(differences)
            each = " ".join(f"{one:+.1f}" for one in differences)
            line[2:] = [f"{mean:+.2f} to {ROWS[name]}", each, f"{mean - width:+.2f} to {mean + width:+.2f}"]
        lines.append(line)
    return lines


def csv_text(numbers: Sequence[int], found: dict[str, list[float]]) -> str:
    """Return the accuracy of each run and row as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "run", "accuracy"])
    for name, values in found.items():
        writer.writerows([name, number, f"{value:.4f}"] for number, value in zip(numbers, values, strict=True))
    return text.getvalue()


def measured(options: CommonOptions) -> dict[str, list[float]]:
    """Return the accuracy of each row in each run; the runs of the preset must be finished."""
    found: dict[str, list[float]] = {"run": [run.final for run in finished_runs(options.output / "run", options.runs)]}
    plan = RunPlan.of(options.settings(options.benchmark))
    network = plan.backbone, None if plan.weights == "none" else plan.weights, plan.image_size
    for number in options.runs:
        frames = get_benchmark(options.benchmark).table(options.roots[options.benchmark], number)
        with tempfile.TemporaryDirectory() as folder:
            here = accuracies(frames, lambda: Learner("recommended", *network), Path(folder))
        print(f"run {number}: " + ", ".join(f"{name} {value:.2f}" for name, value in here.items()), flush=True)
        for name, value in here.items():
            found.setdefault(name, []).append(value)
    return found


def main() -> int:
    options = common_options(parser_for(__doc__, "runs/taught_learner").parse_args())
    changes = {"run": {"preset": "recommended", **({"relu_logits": False, "head_kernel": 1} if options.quick else {})}}
    failed = options.do(grid(options.settings(options.benchmark), options.output, options.runs, changes))
    if failed:
        return exit_code(failed)
    torch.set_num_threads(1)
    found = measured(options)
    print("\n" + table(HEADER, lines_of(found)))
    write_text(options.output / "taught_learner.csv", csv_text(options.runs, found))
    print(f"\nwritten: {options.output / 'taught_learner.csv'}")
    return 0


if __name__ == "__main__":
    run_script(main)
