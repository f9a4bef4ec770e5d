"""Reads finished runs from their folders, and groups those that differ in their seed only."""

import csv
import io
import json
import os
import re
import statistics
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, combinations
from pathlib import Path

from crumb_avalanche.report.pictures import Curve
from crumb_avalanche.runs.run_folder import (
    PERCENT,
    RESULT,
    DamagedRunError,
    read_result,
    read_settings,
)
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS
from crumb_avalanche.runs.tables import LEDGER_BYTES, LEDGER_SECONDS, cell
from crumb_avalanche.system.schema import check, each, real, record, whole

# Settings in which the runs of a group may differ: paths, display and the seed.
NOT_COMPARED = {"run", "runs", *NON_RESULT_SETTINGS}
IDENTITY = ["strategy", "benchmark", "protocol", "preset"]  # in every config.yaml
IDENTITY += [
    "pretrained",
    "budget_images",
    "budget_bytes",
    "mem_size",
]  # and first in labels
# protocol of a learner of all classes at once, an upper bound for every protocol
JOINT = "joint"
LEDGER_READ = record(
    further=True,
    **dict.fromkeys(("buffer_items", *LEDGER_BYTES, "derived_bytes?"), whole()),
    **dict.fromkeys(
        ("train_seconds", "images_per_second", *LEDGER_SECONDS), real(-1, 1e12)
    ),  # the rest may be -1e-9
)
CONFIG, ERROR = (
    "config.yaml",
    "error.txt",
)  # of a run that was started, by crumb run or in a sweep


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
        """Whether all classes were learned at once: one row of accuracies on the classes of several experiences."""
        return len(self.matrix) == 1 and len(self.matrix[0]) > 1

    @property
    def classes_seen(self) -> list[int] | None:
        """Number of classes seen after each experience, if the run lists its classes."""
        if self.joint:
            return (
                [len(self.result["classes_order"])]
                if self.result.get("classes_order")
                else None
            )
        return list(accumulate(self.result.get("classes_per_experience", ()))) or None

    @property
    def compared(self) -> dict:
        """Settings that are equal in all runs of a group."""
        out = {
            name: value
            for name, value in self.settings.items()
            if name not in NOT_COMPARED
        }
        if out["benchmark"] == "clip_folder":  # the folder is the benchmark
            out["dataset_root"] = self.settings.get("dataset_root")
        if self.joint:
            out["protocol"] = JOINT
        return out | {
            "experiences": len(self.matrix),
            "classes": sorted(self.result.get("classes_order") or ()),
        }

    @property
    def identity(self) -> str:
        """Key that is equal for the runs of a group: the compared settings, and the content of the files they name."""
        out, content = self.compared, self.result.get("provenance", {})
        if (
            "dataset_root" in out and "dataset_root" in content
        ):  # its hash covers names and sizes of images only
            content = {
                **content,
                "dataset_root": [out["dataset_root"], content["dataset_root"]],
            }
        return json.dumps(out | content, sort_keys=True, default=str)


@dataclass
class Group:
    """Runs that differ in their seed only."""

    label: str
    settings: dict
    runs: list[Run]

    @property
    def stream(self) -> tuple:
        """Benchmark, protocol and folder of clips, which must be equal for accuracies to compare."""
        return tuple(
            self.settings.get(name)
            for name in ("benchmark", "protocol", "dataset_root")
        )

    @property
    def curve(self) -> Curve:
        """Accuracies of the runs, to be drawn."""
        accuracies = [run.result["accuracy_after"] for run in self.runs]
        return Curve.of(
            self.label, accuracies, self.runs[0].joint, self.runs[0].classes_seen
        )

    def average(self, entry: str) -> float:
        """Mean over runs of an entry of the ledger."""
        return statistics.fmean(run.ledger[entry] for run in self.runs)


def find_runs(folders: list[str]) -> tuple[list[Path], list[Path], list[str]]:
    """Find folders of finished and of unfinished runs, and messages about given folders without a finished one."""
    finished, unfinished, problems = {}, {}, []
    for given in map(Path, dict.fromkeys(folders)):
        if not given.is_dir():
            state = "is a file" if given.exists() else "does not exist"
            problems.append(
                f"{given} {state}; crumb report takes folders, each the --output of crumb run"
            )
            continue
        found, started = [], []
        for path, below, files in os.walk(given):
            below.sort(
                key=lambda name: [
                    int(part) if part.isdigit() else part
                    for part in re.split(r"(\d+)", name)
                ]
            )
            if RESULT in files:
                found.append(Path(path))
                below.clear()
            elif CONFIG in files or ERROR in files:
                started.append(Path(path))
        started = [
            folder
            for folder in started
            if not any(run.is_relative_to(folder) for run in found)
        ]
        for known, new in ((finished, found), (unfinished, started)):
            for folder in new:
                known.setdefault(folder.resolve(), folder)
        if not found:
            problems.append(_nothing_finished(given, started))
    return list(finished.values()), list(unfinished.values()), problems


def _nothing_finished(given: Path, started: list[Path]) -> str:
    text = f"{given} holds no finished run: there is no {RESULT}, which a run writes last, in it or below it. "
    if not started:
        return (
            text
            + "Nor is there a config.yaml of an unfinished run; give the --output of crumb run."
        )
    text += f"Started but not finished: {', '.join(map(str, started))}. "
    if failed := [
        str(folder / ERROR) for folder in started if (folder / ERROR).is_file()
    ]:
        text += f"The error that ended a run of a sweep is in {', '.join(failed)}. "
    configs = [folder / CONFIG for folder in started if (folder / CONFIG).is_file()]
    return text + (
        f"To go on: crumb run --config {configs[0]}"
        if configs
        else "Give the same command again."
    )


def read_run(folder: Path) -> Run:
    """Read a finished run; ``DamagedRunError`` if a file is missing, or not what the run wrote."""
    result = read_result(folder)
    ledger, matrix = (
        (folder / name).read_text(encoding="utf-8")
        for name in ("ledger.json", "accuracy_matrix.csv")
    )
    try:
        _, *rows = csv.reader(io.StringIO(matrix))
        cells = [
            [float(cell) for cell in row[1:] if cell] for row in rows
        ]  # none where it was not tested
        check(each(each(PERCENT)), cells, "matrix")
        numbers = [len(row) or place for place, row in enumerate(cells, 1)]
        last = [round(value, 4) for value in result["final_accuracy_per_experience"]]
        if (
            len(cells) != len(result["accuracy_after"])
            or cells[-1] != last
            or numbers[:-1] != [*range(1, len(cells))]
        ):
            raise ValueError("the matrix is not of the accuracies in the result")
        check(LEDGER_READ, costs := json.loads(ledger), "ledger")
        return Run(folder, read_settings(folder), result, costs, cells)
    except (RecursionError, ValueError, csv.Error) as error:
        raise DamagedRunError(
            f"{folder} holds settings, a ledger or a matrix that no run writes ({error}); repeat the run, or remove it"
        ) from error


def groups_of(runs: list[Run]) -> list[Group]:
    """Group runs that differ in their seed only, in the order they were found, with distinct labels."""
    by_settings: dict[str, list[Run]] = {}
    for run in runs:
        by_settings.setdefault(run.identity, []).append(run)
    groups = [
        Group(same[0].settings["strategy"], same[0].compared, same)
        for same in by_settings.values()
    ]
    for group, streams in zip(groups, streams_of(groups)):
        if (
            len(streams) == 1
        ):  # a joint learner beside runs of one protocol is shown under that protocol
            group.settings["protocol"] = streams[0][1]
    varying = differences(groups)
    for name in [
        name
        for name in dict.fromkeys([*IDENTITY[1:], *varying])
        if name in varying and name != "strategy"
    ]:
        for label in {group.label for group in groups}:
            alike = [group for group in groups if group.label == label]
            # Always in labels: accuracies on different streams do not compare.
            if (
                name in ("benchmark", "protocol")
                or len({cell(group.settings.get(name), 24) for group in alike}) > 1
            ):
                for group in alike:
                    group.label += f", {name}={cell(group.settings.get(name), 24)}"
    for number, group in enumerate(groups):
        group.label += f" ({number + 1})" * any(
            other.label == group.label for other in groups[:number]
        )
    return groups


def streams_of(groups: list[Group]) -> list[list[tuple]]:
    """Return the streams under which each group is shown; a joint learner is under every stream of its images."""
    learned = list(
        dict.fromkeys(group.stream for group in groups if group.stream[1] != JOINT)
    )
    found = []
    for group in groups:
        same = [stream for stream in learned if stream[::2] == group.stream[::2]]
        found.append(same if same and group.stream[1] == JOINT else [group.stream])
    return found


def differences(groups: list[Group]) -> list[str]:
    """Names of the settings that differ between groups."""
    names = dict.fromkeys(name for group in groups for name in group.settings)
    return [name for name in names if _differs(name, groups)]


def _differs(name: str, groups: list[Group]) -> bool:
    if name.startswith("method."):  # compared between runs of one method
        return any(
            one.settings["strategy"] == other.settings["strategy"]
            and one.settings[name] != other.settings[name]
            for one, other in combinations(
                [group for group in groups if name in group.settings], 2
            )
        )
    return any(
        group.settings.get(name) != groups[0].settings.get(name) for group in groups
    )


def notes_on(groups: list[Group]) -> list[str]:
    """Return notes on what weakens a comparison of the groups."""
    notes = []
    for group, other in combinations(groups, 2):
        if group.settings == other.settings:
            names = f"{group.label} and {other.label}"
            notes.append(f"{names}: the files that they name differ in content")
    for group in groups:
        for number, count in Counter(run.result["run"] for run in group.runs).items():
            same = [run for run in group.runs if run.result["run"] == number]
            tables = {run.result.get("frame_table_sha256") for run in same}
            why = (
                "on different images"
                if len(tables) > 1
                else "which are not independent"
            )
            where = ", ".join(str(run.folder) for run in same)
            notes += [
                f"{group.label}: run {number} occurs {count} times, {why}: {where}"
            ] * (count > 1)
    if (
        len({frozenset(run.result["run"] for run in group.runs) for group in groups})
        > 1
    ):
        notes.append(
            "groups have different run numbers, so their orders of classes differ"
        )
    return notes
