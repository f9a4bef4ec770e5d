"""Files of a run folder, written atomically."""

import csv
import io
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from crumb_avalanche.system.atomic_file import atomic_write

RESULT = "result.json"
RESUME = "resume"  # subfolder of checkpoints
INTERRUPTED = "interrupted"
MISTAKES = "mistakes.html"


class FinishedRunError(ValueError):
    """The output folder already holds a finished run."""


class DamagedRunError(ValueError):
    """A file of a finished run cannot be read."""


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def write_json(path: Path, value) -> None:
    """Write JSON atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_csv(path: Path, rows: Iterable[Sequence]) -> None:
    """Write rows as CSV atomically."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())


def write_matrix(path: Path, matrix: list[list[float]]) -> None:
    """Write the accuracy matrix: rows after each experience, columns for its classes, empty if unseen."""
    width = len(matrix[-1])
    lines = [["after", *[f"experience_{j}" for j in range(width)]]]
    lines += [[i, *[f"{value:.4f}" for value in row], *[""] * (width - len(row))] for i, row in enumerate(matrix)]
    write_csv(path, lines)


def claim(folder: Path, overwrite: bool) -> None:
    """Create a folder for a run.

    Raises:
        FinishedRunError: the folder holds a finished run and ``overwrite`` is false.
    """
    if (folder / RESULT).exists() and not overwrite:
        tidy_up(folder)
        raise FinishedRunError(
            f"{folder} already holds a finished run; choose another --output, or start over with --overwrite true"
        )
    folder.mkdir(parents=True, exist_ok=True)


def tidy_up(folder: Path) -> None:
    """Remove the checkpoints and interrupted state of a finished run, such as one killed after writing its result."""
    for name in (RESUME, INTERRUPTED):
        shutil.rmtree(folder / name, ignore_errors=True)


def metrics_csv(path: Path, evaluator) -> None:
    """Write all metrics of Avalanche's evaluator atomically, one line per metric and step."""
    with atomic_write(path) as unfinished, open(unfinished, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["metric", "step", "value"])
        for name, (steps, values) in evaluator.get_all_metrics().items():
            writer.writerows([name, step, value] for step, value in zip(steps, values))
