"""Finished runs, read from their folders, and groups that differ in their seed only."""

import csv
import io
import json
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.tables.frame import natural_key
from crumb_avalanche.report.pictures import Curve
from crumb_avalanche.runs.run_folder import (
    CONFIG,
    PERCENT,
    RESULT,
    DamagedRunError,
    read_result,
    read_settings,
)
from crumb_avalanche.runs.settings import CLIPS, NON_RESULT_SETTINGS
from crumb_avalanche.runs.tables import (
    LEDGER_BYTES,
    LEDGER_SECONDS,
    budget_text,
    cell,
    left_out_text,
)
from crumb_avalanche.system.value_types import check, each, real, record, whole

# Settings in which the runs of a group may differ: paths, display and the seed.
NOT_COMPARED = {"run", "runs", *NON_RESULT_SETTINGS}
NAMES = ("strategy", "benchmark", "protocol", "preset")  # in every config.yaml
# Settings that come first in labels and tables.
IDENTITY = (*NAMES, "pretrained", "budget_images", "budget_bytes", "mem_size")
# protocol of a learner of all classes at once, an upper bound for every protocol
JOINT = "joint"
ERROR = "error.txt"  # of a run that failed in a sweep
LABEL_WIDTH = 24  # characters of a setting in a label
LEDGER_COUNTS = ("buffer_items", *LEDGER_BYTES, "derived_bytes?")
LEDGER_TIMES = ("train_seconds", "images_per_second", *LEDGER_SECONDS)
LEDGER_SCHEMA = record(
    further=True,
    **dict.fromkeys(LEDGER_COUNTS, whole()),
    **dict.fromkeys(LEDGER_TIMES, real(-1, 1e12)),  # the rest may be -1e-9
)


@dataclass(frozen=True)
class Stream:
    """What must be equal for accuracies to compare.

    Attributes:
        benchmark: its name.
        protocol: of the stream, or ``JOINT``.
        clips: folder of own clips, else ``None``.
    """

    benchmark: str
    protocol: str
    clips: str | None

    @property
    def name(self) -> str:
        """Benchmark and protocol, for headings."""
        return f"{cell(self.benchmark)}, {cell(self.protocol)}"

    def has_images_of(self, other: "Stream") -> bool:
        """Whether two streams differ in their protocol at most."""
        return (self.benchmark, self.clips) == (other.benchmark, other.clips)


@dataclass
class Run:
    """A finished run, as read from its folder.

    Attributes:
        folder: the folder of the run.
        settings: of ``config.yaml``, those of the method as ``method.NAME``.
        result: of ``result.json``.
        ledger: after the last experience.
        matrix: accuracies in percent, a row after each experience; a row is empty where
            it was not tested.
    """

    folder: Path
    settings: dict[str, Any]
    result: dict[str, Any]
    ledger: dict[str, float]
    matrix: list[list[float]]

    @property
    def joint(self) -> bool:
        """Whether all classes were learned at once.

        Then there is one row of accuracies on the classes of several experiences.
        """
        return len(self.matrix) == 1 and len(self.matrix[0]) > 1

    @property
    def experiences(self) -> int:
        """Number of experiences of the stream."""
        return len(self.matrix[-1]) if self.joint else len(self.matrix)

    @property
    def classes_seen(self) -> list[int] | None:
        """Number of classes seen after each experience, if the run lists them."""
        if self.joint:
            classes = self.result.get("classes_order")
            return [len(classes)] if classes else None
        new_classes = self.result.get("classes_per_experience", ())
        return list(accumulate(new_classes)) or None

    @property
    def compared(self) -> dict[str, Any]:
        """Settings that are equal in all runs of a group."""
        compared = dict(self.settings)
        for name in NOT_COMPARED:
            compared.pop(name, None)
        if compared["benchmark"] == CLIPS:  # the folder is the benchmark
            compared["dataset_root"] = self.settings.get("dataset_root")
        if self.joint:
            compared["protocol"] = JOINT
        compared["experiences"] = len(self.matrix)
        compared["classes"] = sorted(self.result.get("classes_order") or ())
        return compared

    @property
    def identity(self) -> str:
        """Text that is equal for the runs of a group, which differ in their seed only.

        It holds the compared settings, and hashes of the content of the files that they
        name.
        """
        compared = self.compared
        content_hashes = dict(self.result.get("provenance", {}))
        # A hash takes the place of the path of its file. That of a folder of images
        # covers their names and sizes only, so its path is compared, too.
        if "dataset_root" in compared and "dataset_root" in content_hashes:
            path_and_hash = [compared["dataset_root"], content_hashes["dataset_root"]]
            content_hashes["dataset_root"] = path_and_hash
        return json.dumps(compared | content_hashes, sort_keys=True, default=str)

    @property
    def forgetting(self) -> float | None:
        """Points lost since the best test of an experience, mean over experiences.

        The last experience has nothing to lose and does not count. ``None`` for a
        joint learner, a single experience, or an experience that was not tested before
        the end.
        """
        # A row of the matrix has the accuracies on each experience, after one of them.
        *earlier_rows, final_row = self.matrix
        losses = []
        for experience, final in enumerate(final_row[: len(earlier_rows)]):
            # Rows before the experience, and those without a test, are too short.
            tests = [row[experience] for row in earlier_rows if len(row) > experience]
            if not tests:
                return None
            losses.append(max(tests) - final)
        return statistics.fmean(losses) if losses else None

    def accuracy_after(self, n_experiences: int) -> list[float | None]:
        """Return the accuracy after each of so many experiences, in percent.

        It is ``None`` where the run has none. A joint learner has one accuracy, which
        compares with the end of a stream.
        """
        accuracies: list[float | None] = []
        if self.joint:
            accuracies += [None] * (self.experiences - 1)
        accuracies += self.result["accuracy_after"]
        return accuracies + [None] * (n_experiences - len(accuracies))


@dataclass
class Group:
    """Runs that differ in their seed only.

    Attributes:
        label: of the group in tables and pictures.
        settings: that all runs of the group have; see ``Run.compared``.
        runs: of the group.
    """

    label: str
    settings: dict[str, Any]
    runs: list[Run]

    @property
    def stream(self) -> Stream:
        """The stream that was learned; a joint learner's has the protocol ``JOINT``."""
        return Stream(
            self.settings["benchmark"],
            self.settings["protocol"],
            self.settings.get("dataset_root"),
        )

    @property
    def curve(self) -> Curve:
        """Accuracies of the runs, to be drawn."""
        first = self.runs[0]
        accuracies = [run.result["accuracy_after"] for run in self.runs]
        return Curve.of(self.label, accuracies, first.joint, first.classes_seen)

    @property
    def numbers(self) -> list[int]:
        """Number of each run, which is its seed."""
        return [run.result["run"] for run in self.runs]

    def average(self, entry: str) -> float:
        """Mean over runs of an entry of the ledger."""
        return statistics.fmean(run.ledger[entry] for run in self.runs)

    def label_part(self, name: str) -> str:
        """Return what a setting adds to the label of the group."""
        return f", {name}={cell(self.settings.get(name), LABEL_WIDTH)}"


@dataclass
class FoundRuns:
    """Folders of runs below those that were given.

    Attributes:
        finished, unfinished: folders of runs, each once.
        problems: messages about given folders without a finished run.
    """

    finished: list[Path] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def find_runs(folders: Sequence[str]) -> FoundRuns:
    """Find the folders of runs in and below the given folders.

    Returns:
        Finished and unfinished ones, each once, as the path that was named first; and
        problems, a line for each folder that holds no finished run.
    """
    # By the folder that a path leads to, links resolved.
    finished: dict[Path, Path] = {}
    unfinished: dict[Path, Path] = {}
    problems: list[str] = []
    for folder in map(Path, dict.fromkeys(folders)):
        if not folder.is_dir():
            reason = "is a file" if folder.exists() else "does not exist"
            problems.append(
                f"{folder} {reason}; crumb report takes folders, each the --output of "
                "crumb run"
            )
            continue
        runs_below = _runs_below(folder)
        for path in runs_below.finished:
            finished.setdefault(path.resolve(), path)
        for path in runs_below.unfinished:
            unfinished.setdefault(path.resolve(), path)
        if not runs_below.finished:
            problems.append(_unfinished_message(folder, runs_below.unfinished))
    return FoundRuns(
        finished=list(finished.values()),
        unfinished=list(unfinished.values()),
        problems=problems,
    )


def _runs_below(top: Path) -> FoundRuns:
    """Find the runs in and below a folder, ``run2`` before ``run10``.

    A finished one has a ``RESULT``, which is written last; one with settings or an
    error alone is unfinished. What lies below a finished one is not looked at.

    Args:
        top: the folder.
    """
    finished: list[Path] = []
    started: list[Path] = []
    for path, folders, files in os.walk(top):
        folders.sort(key=natural_key)
        if RESULT in files:
            finished.append(Path(path))
            folders.clear()  # which os.walk then does not enter
        elif CONFIG in files or ERROR in files:
            started.append(Path(path))
    # A folder of several runs is no unfinished run itself.
    unfinished = []
    for folder in started:
        if not any(run.is_relative_to(folder) for run in finished):
            unfinished.append(folder)
    return FoundRuns(finished, unfinished)


def _unfinished_message(top: Path, started: list[Path]) -> str:
    """Say that a folder holds no finished run, and what to do.

    Args:
        top: the folder.
        started: folders of the runs in or below it that were started.
    """
    text = (
        f"{top} holds no finished run: there is no {RESULT}, which a run writes last, "
        "in it or below it. "
    )
    if not started:
        return (
            f"{text}Nor is there a config.yaml of an unfinished run; give the --output "
            "of crumb run."
        )
    text += f"Started but not finished: {', '.join(map(str, started))}. "
    error_files = [folder / ERROR for folder in started]
    existing = [str(path) for path in error_files if path.is_file()]
    if existing:
        text += f"The error that ended a run of a sweep is in {', '.join(existing)}. "
    for folder in started:
        if (folder / CONFIG).is_file():
            return f"{text}To go on: crumb run --config {folder / CONFIG}"
    return f"{text}Give the same command again."


def read_run(folder: Path) -> Run:
    """Read a finished run from its folder: settings, result, ledger and matrix.

    Raises:
        DamagedRunError: a file is missing, or not what the run wrote.
    """
    result = read_result(folder)  # checks the files whose digests are in the result
    try:
        ledger_text = (folder / "ledger.json").read_text(encoding="utf-8")
        matrix_text = (folder / "accuracy_matrix.csv").read_text(encoding="utf-8")
        matrix = _read_matrix(matrix_text)
        _check_matrix(matrix, result)
        ledger = json.loads(ledger_text)
        check(LEDGER_SCHEMA, ledger, "ledger")  # names, types and ranges
        return Run(folder, read_settings(folder), result, ledger, matrix)
    except OSError as error:  # of a file whose digest is not in the result
        raise DamagedRunError(
            f"{error.filename} cannot be read ({error.strerror}); repeat the run, or "
            f"remove {folder}"
        ) from error
    # JSON that is nested too deeply raises RecursionError.
    except (RecursionError, ValueError, csv.Error) as error:
        raise DamagedRunError(
            f"{folder} holds settings, a ledger or a matrix that no run writes "
            f"({error}); repeat the run, or remove it"
        ) from error


def _read_matrix(text: str) -> list[list[float]]:
    """Read the accuracies of ``accuracy_matrix.csv``, without empty cells."""
    _, *lines = csv.reader(io.StringIO(text))
    matrix = []
    for line in lines:
        _, *cells = line  # the first is the number of the experience
        matrix.append([float(accuracy) for accuracy in cells if accuracy])
    check(each(each(PERCENT)), matrix, "matrix")
    return matrix


def _check_matrix(matrix: list[list[float]], result: dict[str, Any]) -> None:
    """Raise ValueError if an accuracy matrix is not of the accuracies in a result."""
    *earlier_rows, final_row = matrix
    final_accuracies = result["final_accuracy_per_experience"]
    fits = final_row == [round(accuracy, 4) for accuracy in final_accuracies]
    fits = fits and len(matrix) == len(result["accuracy_after"])
    # Row n has n accuracies, or none where it was not tested.
    for experience, row in enumerate(earlier_rows, 1):
        fits = fits and len(row) in (0, experience)
    if not fits:
        raise ValueError("the matrix is not of the accuracies in the result")


def groups_of(runs: Sequence[Run]) -> list[Group]:
    """Group runs that differ in their seed only.

    Groups are in the order in which they were found. Their labels, strategy and
    settings that differ, are distinct.
    """
    by_identity: dict[str, list[Run]] = {}
    for run in runs:
        by_identity.setdefault(run.identity, []).append(run)
    groups = []
    for runs_of_group in by_identity.values():
        first_run = runs_of_group[0]
        label = first_run.settings["strategy"]
        # ``compared`` are the settings by which runs are compared, without the seed.
        groups.append(Group(label, first_run.compared, runs_of_group))
    for group, streams in zip(groups, streams_of(groups)):
        # A joint learner beside runs of one protocol is shown under that protocol.
        if len(streams) == 1:
            group.settings["protocol"] = streams[0].protocol
    _label_differences(groups)
    _number_equal_labels(groups)
    return groups


def _label_differences(groups: list[Group]) -> None:
    """Add to the labels of groups the settings that tell them apart.

    Benchmark and protocol are always added where they differ between any groups;
    another setting only to groups that have the same label without it.

    Args:
        groups: of runs; their ``label`` is changed.
    """
    varying = differences(groups)  # names of the settings in which they differ
    names_in_order = [name for name in IDENTITY if name in varying]
    names_in_order += [name for name in varying if name not in IDENTITY]
    for name in names_in_order:
        if name == "strategy":  # every label begins with it
            continue
        labelled = groups
        if name not in ("benchmark", "protocol"):  # accuracies on two do not compare
            labelled = _groups_told_apart_by(name, groups)
        for group in labelled:
            group.label += group.label_part(name)


def _groups_told_apart_by(name: str, groups: Sequence[Group]) -> list[Group]:
    """Return the groups that share a label with one that has another value."""
    told_apart = []
    for group in groups:
        parts = set()  # of the groups of the same label
        for rival in groups:
            if rival.label == group.label:
                parts.add(rival.label_part(name))
        if len(parts) > 1:
            told_apart.append(group)
    return told_apart


def _number_equal_labels(groups: list[Group]) -> None:
    """Add to the label of a group its number if an earlier group has the label."""
    labels: set[str] = set()
    for number, group in enumerate(groups, 1):
        if group.label in labels:
            group.label += f" ({number})"
        labels.add(group.label)


def streams_of(groups: Sequence[Group]) -> list[list[Stream]]:
    """Return the streams under which each group of runs is shown, a list for each.

    A stream is a benchmark with a protocol. A joint learner, which has all classes at
    once, is under every stream of its images.

    Args:
        groups: of runs.
    """
    streams_learned = dict.fromkeys(
        group.stream for group in groups if group.stream.protocol != JOINT
    )
    streams_of_groups = []
    for group in groups:
        streams = [group.stream]
        if group.stream.protocol == JOINT:
            of_same_images = [
                stream
                for stream in streams_learned
                if stream.has_images_of(group.stream)
            ]
            streams = of_same_images or streams
        streams_of_groups.append(streams)
    return streams_of_groups


def differences(groups: Sequence[Group]) -> list[str]:
    """Return the names of the settings that differ between groups."""
    names = dict.fromkeys(name for group in groups for name in group.settings)
    return [name for name in names if _differ_in(name, groups)]


def _differ_in(setting: str, groups: Sequence[Group]) -> bool:
    """Whether groups of runs differ in a setting.

    Args:
        setting: its name; in a setting of a method, ``method.NAME``, only groups of the
            same method are compared.
        groups: of runs.
    """
    if not setting.startswith("method."):
        first_value = groups[0].settings.get(setting)
        return any(group.settings.get(setting) != first_value for group in groups)
    settings_of_groups = [group.settings for group in groups]
    settings_with_it = [
        settings for settings in settings_of_groups if setting in settings
    ]
    for first, second in combinations(settings_with_it, 2):
        is_same_method = first["strategy"] == second["strategy"]
        if is_same_method and first[setting] != second[setting]:
            return True
    return False


def notes_on(groups: Sequence[Group]) -> list[str]:
    """Return notes on what weakens a comparison of groups of runs, a sentence each."""
    notes = []
    for first, second in combinations(groups, 2):
        # Groups of equal settings differ in the content of the files that these name:
        # otherwise they would be one group.
        if first.settings == second.settings:
            notes.append(
                f"{first.label} and {second.label}: the files that they name differ in "
                "content"
            )
    for group in groups:
        first_run = group.runs[0]
        above_budget = budget_text(first_run.ledger, first_run.result)
        if above_budget:
            notes.append(f"{group.label}: {above_budget}")
        notes += _notes_on_repeats(group)
        notes += _notes_on_left_out(group)
    if len({frozenset(group.numbers) for group in groups}) > 1:
        notes.append(
            "groups have different run numbers, so their orders of classes differ"
        )
    return notes


def _notes_on_left_out(group: Group) -> Iterator[str]:
    """Yield a note on the images that runs of a group could not read, each once."""
    runs_by_text: dict[str, list[str]] = {}
    for run in group.runs:
        text = left_out_text(run.result)
        if text:
            runs_by_text.setdefault(text, []).append(str(run.result["run"]))
    for text, numbers in runs_by_text.items():
        yield f"{group.label}, run {', '.join(numbers)}: {text}"


def _notes_on_repeats(group: Group) -> Iterator[str]:
    """Yield a note on each run number that occurs several times in a group."""
    for number, times in Counter(group.numbers).items():
        if times == 1:
            continue
        repeats = [run for run in group.runs if run.result["run"] == number]
        tables = {run.result.get("frame_table_sha256") for run in repeats}
        if len(tables) > 1:
            reason = "on different images"
        else:
            reason = "which are not independent"
        folders = ", ".join(str(run.folder) for run in repeats)
        yield f"{group.label}: run {number} occurs {times} times, {reason}: {folders}"
