"""``crumb report``: finished runs as tables and pictures, from what lies in their folders."""

import csv
import io
import json
import math
import os
import re
import statistics
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import yaml

from crumb_avalanche.cli.pictures import Curve, comparison_picture, run_picture, save
from crumb_avalanche.cli.presets import DEFAULTS, PRESETS
from crumb_avalanche.cli.run_folder import RESULT, write_text
from crumb_avalanche.cli.settings import NO_PART_OF_THE_RESULT, ReportSettings, RunSettings, as_dict
from crumb_avalanche.cli.tables import LEDGER_BYTES, LEDGER_SECONDS, ledger_table, matrix_table, table

# Where things lie, how they are shown and which repetition it is do not tell groups of runs apart.
NOT_COMPARED = {"run", "runs", *NO_PART_OF_THE_RESULT}
IDENTITY = ["strategy", "benchmark", "protocol", "preset"]  # what every config.yaml must tell
IDENTITY += ["pretrained", "budget_images", "budget_bytes", "mem_size"]  # and what else comes first in labels
MAIN_SETTINGS = [*IDENTITY, "run", "weights", "backbone", "first_epochs", "epochs", "batch_size", "learning_rate"]
LEDGER_ENTRIES = ["buffer_items", "train_seconds", "images_per_second", *LEDGER_BYTES, *LEDGER_SECONDS]


class DamagedRunError(ValueError):
    """A file of a finished run cannot be read."""


@dataclass
class Run:
    """A finished run, as read from its folder."""

    folder: Path
    settings: dict
    result: dict
    ledger: dict
    matrix: list[list[float]]

    @property
    def joint(self) -> bool:
        """Whether all classes were learned at once: every experience's classes are tested after the only one."""
        return len(self.matrix) == 1 and len(self.matrix[0]) > 1

    @property
    def classes_seen(self) -> list[int] | None:
        """Number of classes seen after each experience, if the run tells its classes."""
        classes, width = len(self.result.get("classes_order") or ()), len(self.matrix[-1])
        if not classes or self.joint:
            return [classes] if classes else None
        size = self.settings.get("classes_per_experience") or math.ceil(classes / width)
        return [min(classes, size * (i + 1)) for i in range(width)]

    @property
    def compared(self) -> dict:
        """Settings in which runs of one group agree."""
        out = {name: value for name, value in self.settings.items() if name not in NOT_COMPARED}
        if out["benchmark"] == "clip_folder":  # the folder is the benchmark
            out["dataset_root"] = self.settings.get("dataset_root")
        return out | {"experiences": len(self.matrix), "classes": sorted(self.result.get("classes_order") or ())}


@dataclass
class Group:
    """Runs that differ in their seed only."""

    label: str
    settings: dict
    runs: list[Run]

    @property
    def curve(self) -> Curve:
        accuracies = [run.result["accuracy_after"] for run in self.runs]
        return Curve.of(self.label, accuracies, self.runs[0].joint, self.runs[0].classes_seen)


def main(settings: ReportSettings) -> None:
    """Print tables of the runs in some folders and write pictures.

    Raises:
        ValueError: no finished run, or some that cannot be read; in the latter case after reporting all others.
    """
    finished, unfinished, problems = find_runs(settings.folders)
    runs = []
    for folder in finished:
        try:
            runs.append(read_run(folder))
        except DamagedRunError as error:
            problems.append(str(error))
    if not runs:
        raise ValueError("\n".join(problems) or "no folder was given; write crumb report FOLDER [FOLDER ...]")
    first = Path(settings.folders[0])
    beside = runs[0].folder if len(runs) == 1 else first if len(settings.folders) == 1 else first.parent
    output = Path(settings.output or beside)
    try:
        output.mkdir(parents=True, exist_ok=True)
        written = report_run(runs[0], output) if len(runs) == 1 else report_comparison(groups_of(runs), output)
    except OSError as error:
        raise ValueError(f"{output} cannot be written to ({error}); name another folder with --output") from error
    print("\nwritten: " + ", ".join(map(str, written)))
    if unfinished:
        print(f"unfinished and left out, without {RESULT}: " + ", ".join(map(str, unfinished)))
    if problems:
        raise ValueError("not everything could be reported; the rest is written.\n" + "\n".join(problems))


def find_runs(folders: list[str]) -> tuple[list[Path], list[Path], list[str]]:
    """Look for runs in folders and all that is below them.

    Returns:
        Folders of finished runs, folders of unfinished ones, and what is wrong with the folders given, in words.
    """
    finished, unfinished, problems = {}, {}, []
    for given in map(Path, dict.fromkeys(folders)):
        if not given.is_dir():
            state = "is a file" if given.exists() else "does not exist"
            problems.append(f"{given} {state}; crumb report takes folders, each the --output of crumb run")
            continue
        found, started = [], []
        for path, below, files in os.walk(given):
            below.sort(key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])
            if RESULT in files:
                found.append(Path(path))
                below.clear()
            elif "config.yaml" in files or "interrupted" in below:
                started.append(Path(path))
        started = [folder for folder in started if not any(run.is_relative_to(folder) for run in found)]
        for known, new in ((finished, found), (unfinished, started)):
            for folder in new:
                known.setdefault(folder.resolve(), folder)
        if not found:
            problems.append(nothing_finished(given, started))
    return list(finished.values()), list(unfinished.values()), problems


def nothing_finished(given: Path, started: list[Path]) -> str:
    """Why there is nothing to report, in words."""
    text = f"{given} holds no finished run: there is no {RESULT}, which a run writes last, in it or below it. "
    if not started:
        return text + "Nor is there a config.yaml or interrupted/ of a run cut off; give the --output of crumb run."
    stopped = [str(folder / "interrupted") for folder in started if (folder / "interrupted").is_dir()]
    kept = f"What an interrupted run had learned, and why it stopped, is kept in {', '.join(stopped)}. "
    gone = "An interrupted run keeps interrupted/; there is none, so it may still be going, or was killed. "
    text += f"Begun but not finished: {', '.join(map(str, started))}. {kept if stopped else gone}"
    return text + f"To start again: crumb run --config {started[0] / 'config.yaml'}"


def read_run(folder: Path) -> Run:
    """Read a finished run.

    Raises:
        DamagedRunError: a file is missing, cannot be parsed or lacks what every run writes.
    """
    result = _read(folder / RESULT, _result)
    settings = _read(folder / "config.yaml", lambda text: _mapping(yaml.safe_load(text), IDENTITY[:4]))
    ledger = _read(folder / "ledger.json", lambda text: _mapping(json.loads(text), LEDGER_ENTRIES, int | float))
    return Run(folder, settings, result, ledger, _read(folder / "accuracy_matrix.csv", lambda t: _matrix(t, result)))


def _read(path: Path, parse):
    try:
        return parse(path.read_text())
    except (OSError, ValueError, TypeError, yaml.YAMLError, csv.Error) as error:
        reason = "it is missing" if isinstance(error, FileNotFoundError) else " ".join(str(error).split())
        cure = f"restore it, repeat the run with --overwrite true, or move {path.parent} elsewhere"
        text = f"{path} cannot be used: {reason}. A finished run leaves it whole, so it was changed or lost since"
        raise DamagedRunError(f"{text}; {cure}") from error


def _mapping(value, keys: list[str], kind=object) -> dict:
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}, not names and values")
    if wrong := [key for key in keys if key not in value or not isinstance(value[key], kind)]:
        raise ValueError(f"it has no usable {', '.join(wrong)}")
    return value


def _result(text: str) -> dict:
    result = _mapping(json.loads(text), ["final_accuracy", "accuracy_after", "run"])
    for value in [*result["accuracy_after"], result["final_accuracy"]]:
        _percent(value)
    return result


def _matrix(text: str, result: dict) -> list[list[float]]:
    rows = [",".join(row[1:]).rstrip(",").split(",") for row in csv.reader(io.StringIO(text)) if row][1:]
    matrix, count = [[_percent(float(cell)) for cell in row] for row in rows], len(result["accuracy_after"])
    if not matrix or len(matrix) != count or max(map(len, matrix)) != len(matrix[-1]):
        raise ValueError(f"it has {len(matrix)} rows, but {RESULT} tells of {count} experiences, which take one each")
    return matrix


def _percent(value: float) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 100:
        raise ValueError(f"{value!r} is no accuracy in percent, 0 to 100")
    return value


def report_run(run: Run, output: Path) -> list[Path]:
    """Print one run and draw it; returns the pictures."""
    settings, accuracy_after = run.settings, run.result["accuracy_after"]
    usual = as_dict(RunSettings()) | DEFAULTS | PRESETS.get(settings["preset"], {})
    special = [name for name in settings if name not in NOT_COMPARED and settings[name] != usual.get(name)]
    names = [name for name in dict.fromkeys(MAIN_SETTINGS + special) if settings.get(name) is not None]
    print(f"{run.folder}\n" + table(["setting", "value"], [[name, cell(settings[name])] for name in names]))
    print(matrix_table(run.matrix, accuracy_after, run.joint))
    if run.classes_seen and not run.joint:
        rows = [
            [f"exp {i + 1}", cell(run.result["classes_order"][old:new]), str(new), f"{acc:.2f}", f"{100 / new:.2f}"]
            for i, ((old, new), acc) in enumerate(zip(pairwise([0, *run.classes_seen]), accuracy_after))
        ]
        print("\naccuracy over all classes seen, percent")
        print(table(["after", "new classes", "classes seen", "accuracy", "chance"], rows))
    print(ledger_table(run.ledger))
    title = f"{settings['strategy']} on {settings['benchmark']}, {settings['protocol']}, run {run.result['run']}: "
    title += f"final accuracy {run.result['final_accuracy']:.2f} %"
    return save(run_picture(title, run.matrix, accuracy_after, run.classes_seen, run.ledger, run.joint), output)


def groups_of(runs: list[Run]) -> list[Group]:
    """Runs that differ in their seed only, together, in the order they were found; labels tell the groups apart."""
    by_settings: dict[str, list[Run]] = {}
    for run in runs:
        by_settings.setdefault(json.dumps(run.compared, sort_keys=True, default=str), []).append(run)
    groups = [Group(same[0].settings["strategy"], same[0].compared, same) for same in by_settings.values()]
    varying = differences(groups)
    for name in [name for name in dict.fromkeys([*IDENTITY[1:], *varying]) if name in varying and name != "strategy"]:
        for label in {group.label for group in groups}:
            alike = [group for group in groups if group.label == label]
            stream = name in ("benchmark", "protocol")  # always said: accuracies on other streams do not compare
            if stream or len({cell(group.settings.get(name), 24) for group in alike}) > 1:
                for group in alike:
                    group.label += f", {name}={cell(group.settings.get(name), 24)}"
    for number, group in enumerate(groups):
        group.label += f" ({number + 1})" * any(other.label == group.label for other in groups[:number])
    return groups


def differences(groups: list[Group]) -> list[str]:
    """Names of the settings that are not the same in all groups."""
    names = dict.fromkeys(name for group in groups for name in group.settings)
    return [name for name in names if any(g.settings.get(name) != groups[0].settings.get(name) for g in groups)]


def report_comparison(groups: list[Group], output: Path) -> list[Path]:
    """Print groups of runs side by side, draw them, and write the table as CSV; returns the files."""
    varying = differences(groups)
    identity = list(dict.fromkeys([*IDENTITY, *varying]))
    header = ["label", "runs", "run_numbers", "final_accuracy_mean", "final_accuracy_std", "memory_bytes"]
    rows, lines = [], [[*header, "buffer_items", "images_per_second", *identity]]
    for group in groups:
        mean, std = group.curve.mean[-1], (group.curve.std or [""])[-1]
        ledgers = [run.ledger for run in group.runs]
        size, items, rate = (statistics.fmean(ledger[name] for ledger in ledgers) for name in lines[0][5:8])
        accuracy = f"{mean:.2f} +- {std:.2f}" if group.curve.std else f"{mean:.2f}"
        rows.append([group.label, str(len(ledgers)), accuracy, f"{size:,.0f} B", f"{items:,.0f}", f"{rate:.1f}"])
        numbers = " ".join(str(run.result["run"]) for run in group.runs)
        settings = [group.settings.get(name) for name in identity]
        lines.append([group.label, len(ledgers), numbers, mean, std, size, items, rate, *settings])
    print("final accuracy over all classes: mean +- standard deviation of runs (n - 1); the others are means")
    print(table(["", "runs", "final accuracy, %", "memory", "items", "images/s"], rows))
    print("images/s: times of different runs are comparable only when measured side by side on the same machine")
    if varying:
        print("\nsettings in which they differ")
        print(table(["", *varying], [[g.label, *(cell(g.settings.get(name)) for name in varying)] for g in groups]))
    for note in notes_on(groups):
        print(f"note: {note}")
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    write_text(output / "comparison.csv", text.getvalue())
    title = ", ".join(f"{name} {groups[0].settings[name]}" for name in IDENTITY[:4] if name not in varying)
    return [output / "comparison.csv", *save(comparison_picture(title, [group.curve for group in groups]), output)]


def notes_on(groups: list[Group]) -> list[str]:
    """What makes a comparison weaker than it looks."""
    notes = []
    for group in groups:
        for number, count in Counter(run.result["run"] for run in group.runs).items():
            same = [run for run in group.runs if run.result["run"] == number]
            tables = {run.result.get("frame_table_sha256") for run in same}
            why = "on different images" if len(tables) > 1 else "which are not independent"
            where = ", ".join(str(run.folder) for run in same)
            notes += [f"{group.label}: run {number} is there {count} times, {why}: {where}"] * (count > 1)
    if len({frozenset(run.result["run"] for run in group.runs) for group in groups}) > 1:
        notes.append("not all groups hold the same run numbers, so the orders of classes differ between them")
    return notes


def cell(value, width: int = 60) -> str:
    """A setting in a table: the file name of a long path, the head of any other long text."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)
    text = os.path.basename(text) if len(text) > width else text
    return text if len(text) <= width else text[: width - 3] + "..."
