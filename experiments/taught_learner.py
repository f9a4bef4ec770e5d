"""Compare a learner that is taught in lessons, or merged from two, with a run of the recommended preset.

    python experiments/taught_learner.py --benchmark eth80 --dataset-root ETH80 --weights FILE --feature-cache CACHE

In each run the training objects of the split are folders class/object, and the held-out ones are photos:
  run       `crumb run --preset recommended` on the split
  taught    `Learner("recommended", looks=(1.0,))`, taught half of the classes in one lesson and the others in a second
  merged    two learners, each taught half of the objects of every class, merged into one
Differences are to `run` for `taught`, and to `taught` for `merged`. Writes `taught_learner.csv` to --output after each
run; the same command resumes, and with --table-only makes the table of what is there.
"""

import csv
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from support.common_options import common_options, parser_for, run_script
from support.runs import finished_runs
from support.statistics import paired
from support.sweep import exit_code, grid
from support.tables import each_text, interval_text

from benchmarks_toybox_ilab.catalog import get_benchmark
from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.models.map_store import FeatureMemo
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import mean_text, table

ROWS = {"taught": "run", "merged": "taught"}  # row: what it is compared with
HEADER = ["row", "accuracy", "difference", "95 % interval", "of the runs"]


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
        known = objects.setdefault(frames[row].class_name, [])
        if frames[row].object_name not in known:
            known.append(frames[row].object_name)
        parts[known.index(frames[row].object_name) % 2].append(row)
    return parts


def accuracies(frames: FrameTable, memo: FeatureMemo, network: tuple, folder: Path) -> dict[str, float]:
    """Return the accuracy in percent of each learner on the held-out photos of a split.

    F runs once for each image in all runs, whose maps the memo keeps.
    """
    train = frames.rows("train").tolist()
    first = set(frames.classes[: len(frames.classes) // 2])
    by_class = [[row for row in train if (frames[row].class_name in first) == known] for known in (True, False)]
    taught, merged, apart = (Learner("recommended", *network, looks=(1.0,)) for _ in range(3))
    for learner in (taught, merged, apart):
        learner.network.model.feature_memo = memo
    for number, rows in enumerate(by_class):
        taught.teach(tree(frames, rows, folder / f"classes{number}"))
    for learner, rows, name in zip((merged, apart), halves(frames, train), ("objects0", "objects1")):
        learner.teach(tree(frames, rows, folder / name))
    merged.merge(apart)
    asked = tree(frames, frames.rows("test").tolist(), folder / "test")
    found = {}
    for name, learner in {"taught": taught, "merged": merged}.items():
        right = [answer.label == answer.truth for answer in learner.predict_all(asked)]
        found[name] = 100 * sum(right) / len(right)
    return found


def lines_of(found: dict[str, dict[int, float]], splits: dict[int, str]) -> list[list[str]]:
    """Return a line of text for each row."""
    lines = []
    for name, values in found.items():
        line = [name, mean_text(list(values.values())), "", "", ""]
        compared = paired(found[ROWS[name]], values, splits) if name in ROWS else None
        if compared is not None:
            line[2:] = [f"{compared.mean:+.2f} to {ROWS[name]}", interval_text(compared), each_text(compared)]
        lines.append(line)
    return lines


def main() -> int:
    options = common_options(parser_for(__doc__, "runs/taught_learner").parse_args())
    changes = {"run": {"preset": "recommended", **({"relu_logits": False, "head_kernel": 1} if options.quick else {})}}
    failed = options.do(grid(options.settings(options.benchmark), options.output, options.runs, changes))
    if failed:
        return exit_code(failed)
    runs = finished_runs(options.output / "run", options.runs)
    splits = {run.number: run.split for run in runs}
    path, found = options.output / "taught_learner.csv", {"run": {run.number: run.final for run in runs}}
    if path.exists():  # of an earlier call
        with open(path, newline="") as file:
            for line in csv.DictReader(file):
                found.setdefault(line["row"], {}).setdefault(int(line["run"]), float(line["accuracy"]))
    torch.set_num_threads(1)
    plan = RunPlan.of(options.settings(options.benchmark))
    network = plan.backbone, None if plan.weights == "none" else plan.weights, plan.image_size
    memo: FeatureMemo | None = None
    for number in [] if options.table_only else options.runs:
        if number in found.get("taught", {}):
            continue
        frames = get_benchmark(options.benchmark).table(options.roots[options.benchmark], number)
        memo = memo or FeatureMemo(len(frames))
        with tempfile.TemporaryDirectory() as folder:
            here = accuracies(frames, memo, network, Path(folder))
        print(f"run {number}: " + ", ".join(f"{name} {value:.2f}" for name, value in here.items()), flush=True)
        for name, value in here.items():
            found.setdefault(name, {})[number] = value
        lines = [
            [name, run, f"{value:.4f}", splits[run]] for name, some in found.items() for run, value in some.items()
        ]
        write_csv(path, [["row", "run", "accuracy", "frame_table_sha256"], *lines])
    print("\n" + table(HEADER, lines_of(found, splits)))
    print(f"\nwritten: {path}")
    return 0


if __name__ == "__main__":
    run_script(main)
