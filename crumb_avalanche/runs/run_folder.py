"""Files of a run folder, written atomically."""

import hashlib
import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from benchmarks_toybox_ilab.tables.csv import csv_text
from crumb_avalanche.system.atomic_file import atomic_write

RESULT = "result.json"
SUMMARY = "summary.json"  # of several runs
RESUME = "resume"  # subfolder of checkpoints
INTERRUPTED = "interrupted"
LEFT_OUT = "left_out.json"  # frames that an unfinished run leaves out
MISTAKES = "mistakes.html"
RECORDS = ("config.yaml", "metrics.csv", "accuracy_matrix.csv", "ledger.json", "predictions.npz")
_FILES, _RESULT_SHA256 = "files", "result_sha256"  # entries of a result
DIGESTS = (_FILES, _RESULT_SHA256)
PLAN = "# sha256 of the plan: "  # begins a config.yaml
MARKS = {"config.yaml": PLAN, RESULT: f'"{_RESULT_SHA256}"'}  # texts by which a run's files are known


class FinishedRunError(ValueError):
    """The output folder already holds a finished run."""


class DamagedRunError(ValueError):
    """A file of a finished run cannot be read, or was changed."""


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def write_json(path: Path, value) -> None:
    """Write JSON atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_csv(path: Path, rows: Iterable[Iterable]) -> None:
    """Write rows as CSV atomically; texts that spreadsheets would take for formulas begin with an apostrophe."""
    write_text(path, csv_text(rows))


def write_matrix(path: Path, matrix: list[list[float]]) -> None:
    """Write the accuracy matrix: rows after each experience, columns for its classes, empty if unseen."""
    width = len(matrix[-1])
    lines = [["after", *[f"experience_{j}" for j in range(width)]]]
    lines += [[i, *[f"{value:.4f}" for value in row], *[""] * (width - len(row))] for i, row in enumerate(matrix)]
    write_csv(path, lines)


def with_digests(folder: Path, result: dict) -> dict:
    """Return a result with the SHA-256 of the other files of the run and of itself.

    The learner file is not among them: it has checksums of its own, and may be taught on.
    """
    result = {**result, _FILES: {name: _sha256(folder / name) for name in RECORDS if (folder / name).is_file()}}
    return {**result, _RESULT_SHA256: _result_sha256(result)}


def check_digests(folder: Path, result: dict) -> None:
    """Compare a finished run with the digests in its result; runs of older versions have none.

    Raises:
        DamagedRunError: a file was changed since the run; says which.
    """
    if DIGESTS[0] not in result and DIGESTS[1] not in result:
        return
    files = result.get(_FILES)
    changed = [RESULT] if result.get(_RESULT_SHA256) != _result_sha256(result) or not isinstance(files, dict) else []
    if not changed:  # else the other digests cannot be relied on
        there = [name for name in RECORDS if (folder / name).is_file()]
        changed = [name for name in there if files.get(name) != _sha256(folder / name)]
    if changed:
        raise DamagedRunError(
            f"{folder / changed[0]} is not what the run wrote: its SHA-256 is not the one in {RESULT}, so one of them "
            f"was damaged or changed later; restore it, repeat the run with --overwrite true, or move {folder} "
            "elsewhere"
        )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _result_sha256(result: dict) -> str:
    """SHA-256 of all entries but itself, in any order."""
    rest = {name: value for name, value in result.items() if name != _RESULT_SHA256}
    return hashlib.sha256(json.dumps(json.loads(json.dumps(rest)), sort_keys=True).encode()).hexdigest()


def claim(folder: Path, overwrite: bool) -> None:
    """Create a folder for a run.

    Raises:
        ValueError: the folder holds files of a run's names that no run wrote.
        FinishedRunError: the folder holds a finished run and ``overwrite`` is false.
    """
    refuse_others(folder, (*RECORDS, RESULT, MISTAKES), MARKS)
    if (folder / RESULT).exists() and not overwrite:
        tidy_up(folder)
        raise FinishedRunError(
            f"{folder} already holds a finished run; choose another --output, or start over with --overwrite true"
        )
    folder.mkdir(parents=True, exist_ok=True)


def refuse_others(folder: Path, names: Iterable[str], marks: dict[str, str]) -> None:
    """Raise ValueError if a folder has one of these files, and none of the ``marks``, text by name of a file."""
    there = [folder / name for name in names if (folder / name).exists()]
    if there and not any(text in _text(folder / name) for name, text in marks.items()):
        raise ValueError(f"{there[0]} exists and is of another program, so it stays as it is: choose another --output")


def _text(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def tidy_up(folder: Path) -> None:
    """Remove the checkpoints and interrupted state of a finished run, such as one killed after writing its result."""
    for name in (RESUME, INTERRUPTED):
        shutil.rmtree(folder / name, ignore_errors=True)
    with suppress(OSError):  # as above: the result is written, and all else can be left
        (folder / LEFT_OUT).unlink()


def metrics_csv(path: Path, evaluator) -> None:
    """Write all metrics of Avalanche's evaluator atomically, one line per metric and step."""
    metrics = evaluator.get_all_metrics().items()
    rows = ([name, step, value] for name, series in metrics for step, value in zip(*series))
    write_csv(path, [["metric", "step", "value"], *rows])
