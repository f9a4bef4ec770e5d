"""The runs behind a table as a CSV file, which grows run by run and resumes elsewhere.

A line has all that the tables read of a run, so that a table can be made, and its
missing runs be done, where the run folders are not.
"""

import contextlib
import csv
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from support.runs import FinishedRun, same_settings, settings_hash

from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.system.folder_lock import FolderInUseError, locked_file

COLUMNS = (
    "row",
    "benchmark",
    "protocol",
    "run",
    "final_accuracy",
    "seconds",
    "learning_rate",
    "frame_table_sha256",
    "test_images_sha256",
    "settings_sha256",
    "commit",
    "cpu",
    "accuracy_after",
    "final_accuracy_per_experience",
    "accuracy_of_batches",
    "settings",
)
PATIENCE = 60.0  # seconds in which another process writes its line
NOT_TESTED = "none"  # in accuracy_after


@dataclass(frozen=True)
class RecordedRun:
    """A run of which only its line is here; the part of `FinishedRun` that tables read.

    Attributes:
        row: name of the table's row.
        benchmark: name of the stream.
        protocol: order of the stream.
        number: number of the run, which is its seed.
        final: accuracy over all classes at the end, in percent.
        seconds: time of the run; None if it was not recorded.
        learning_rate: of training, given or tuned on the first experience; None if it
            was not recorded, or nothing is trained by it.
        split: hash of the table of frames.
        test_images: hash of the rows and labels of the test images.
        commit: commit of the checkout that made the run.
        cpu: CPU that made the run.
        accuracy_after: accuracy over all seen classes after each experience.
        per_experience: accuracy at the end on the images of each experience.
        batches: accuracy on each fixed batch of test images; None if not recorded.
        settings: as `settings_text` lists them.
    """

    row: str
    benchmark: str
    protocol: str
    number: int
    final: float
    seconds: float | None
    learning_rate: float | None
    split: str
    test_images: str
    commit: str
    cpu: str
    accuracy_after: tuple[float | None, ...]
    per_experience: tuple[float, ...]
    batches: np.ndarray | None = field(compare=False)
    settings: str

    @property
    def joint(self) -> bool:
        """Whether the run trained on all classes at once, so it has no first task."""
        return len(self.accuracy_after) == 1 and len(self.per_experience) > 1

    @classmethod
    def of(
        cls, row: str, benchmark: str, protocol: str, run: "FinishedRun | RecordedRun"
    ) -> "RecordedRun":
        """Make the line of a run in the file of recorded runs; accuracy is rounded."""
        return cls(
            row=row,
            benchmark=benchmark,
            protocol=protocol,
            number=run.number,
            final=round(run.final, 4),
            seconds=None if run.seconds is None else round(run.seconds, 1),
            learning_rate=run.learning_rate,
            split=run.split,
            test_images=run.test_images,
            commit=run.commit,
            cpu=run.cpu,
            accuracy_after=tuple(run.accuracy_after),
            per_experience=tuple(run.per_experience),
            batches=run.batches,
            settings=run.settings,
        )

    @classmethod
    def of_line(cls, line: dict[str, str]) -> "RecordedRun":
        """Read a line of the file; ValueError if its settings are not those hashed."""
        settings = line["settings"]
        if line["settings_sha256"] != settings_hash(settings):
            raise ValueError(
                f"run {line['run']} of {line['row']!r} has settings that do not agree "
                "with their hash; restore the line, or remove it and run it again"
            )
        batches = _numbers(line["accuracy_of_batches"])
        return cls(
            row=line["row"],
            benchmark=line["benchmark"],
            protocol=line["protocol"],
            number=int(line["run"]),
            final=float(line["final_accuracy"]),
            seconds=_number_or_none(line["seconds"]),
            learning_rate=_number_or_none(line["learning_rate"]),
            split=line["frame_table_sha256"],
            test_images=line["test_images_sha256"],
            commit=line["commit"],
            cpu=line["cpu"],
            accuracy_after=_numbers(line["accuracy_after"]),
            per_experience=_numbers(line["final_accuracy_per_experience"]),
            batches=np.array(batches) if batches else None,
            settings=settings,
        )

    @property
    def line(self) -> list[object]:
        """Values of `COLUMNS`."""
        values = {
            "row": self.row,
            "benchmark": self.benchmark,
            "protocol": self.protocol,
            "run": self.number,
            "final_accuracy": self.final,
            "seconds": self.seconds,
            "learning_rate": self.learning_rate,
            "frame_table_sha256": self.split,
            "test_images_sha256": self.test_images,
            "settings_sha256": settings_hash(self.settings),
            "commit": self.commit,
            "cpu": self.cpu,
            "accuracy_after": _text(self.accuracy_after),
            "final_accuracy_per_experience": _text(self.per_experience),
            "accuracy_of_batches": _text(() if self.batches is None else self.batches),
            "settings": self.settings,
        }
        return [values[column] for column in COLUMNS]


def _text(numbers: Iterable[float | None]) -> str:
    """Numbers separated by spaces."""
    words = []
    for number in numbers:
        words.append(NOT_TESTED if number is None else f"{number:.6g}")
    return " ".join(words)


def _numbers(text: str) -> tuple:
    """Read what `_text` wrote."""
    return tuple(None if word == NOT_TESTED else float(word) for word in text.split())


def _number_or_none(text: str) -> float | None:
    """Read a number; None of an empty text."""
    return float(text) if text else None


Key = tuple[str, str, str, int]  # row, benchmark, protocol, number of the run


class RecordedRuns:
    """The recorded runs of a table, by row, benchmark, protocol and number.

    Args:
        path: the CSV file; it need not exist yet.

    Raises:
        ValueError: a line is damaged, or the file has other columns.
    """

    def __init__(self, path: Path):
        self.path = path
        self.runs: dict[Key, RecordedRun] = {}
        self.read()

    def get(self, benchmark: str, number: int, settings: str) -> RecordedRun | None:
        """Look up a run by what decides its result; None if it is not recorded.

        Args:
            benchmark: name of the stream.
            number: number of the run.
            settings: as `settings_text` lists them.
        """
        for run in self.runs.values():
            if (run.benchmark, run.number) != (benchmark, number):
                continue
            if same_settings(run.settings, settings):
                return run
        return None

    def check_replaceable(self, key: Key, settings: str) -> None:
        """Raise unless the run of a key may be written.

        Args:
            key: what identifies the run within its table.
            settings: as `settings_text` lists them.

        Raises:
            ValueError: another run is recorded under the same key.
        """
        recorded = self.runs.get(key)
        if recorded is None or same_settings(recorded.settings, settings):
            return
        row, benchmark, protocol, number = key
        raise ValueError(
            f"{self.path} has run {number} of {row!r} ({benchmark}, {protocol}) with "
            f"the settings {recorded.settings}, and this run has {settings}; a line is "
            "not replaced by one of other settings: give another --recorded file, or "
            "remove the line"
        )

    def check_frames(self, run: RecordedRun) -> None:
        """Raise unless a run learned and was tested on the frames of its partners.

        Partners are the recorded runs of the same number, in any row: a table compares
        them pair by pair.

        Raises:
            ValueError: a partner has other frames, as one of another data set has.
        """
        for partner in self.runs.values():
            if _stream_of(partner) != _stream_of(run):
                continue
            if (partner.split, partner.test_images) != (run.split, run.test_images):
                raise ValueError(
                    f"run {run.number} of {run.row!r} ({run.benchmark}, {run.protocol}) "
                    f"has other frames than the one of {partner.row!r} in {self.path}; "
                    "a table compares runs of the same frames: give the --dataset-root "
                    "of the recorded runs, or another --recorded file"
                )

    def add(self, run: RecordedRun) -> None:
        """Add a run, or replace the same run, and write the file.

        The file is locked and read again, so that lines of other processes stay.

        Raises:
            ValueError: a run of other settings is recorded for its row and number, or
                runs of other frames are recorded for its number.
            FolderInUseError: another process keeps the file locked.
        """
        with _locked_for_long(self.path):
            self.read()
            self.check_replaceable(key_of(run), run.settings)
            self.check_frames(run)
            self.runs[key_of(run)] = run
            write_recorded(self.path, list(self.runs.values()))

    def read(self) -> None:
        """Read the runs that are in the file now."""
        self.runs = {}
        if self.path.exists():
            for run in read_recorded(self.path):
                self.runs[key_of(run)] = run


@contextlib.contextmanager
def _locked_for_long(path: Path) -> Iterator[None]:
    """Hold the lock of a file, for which other processes are waited for."""
    deadline = time.monotonic() + PATIENCE
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(locked_file(path))
                break
            except FolderInUseError:
                if time.monotonic() > deadline:
                    raise
        yield


def key_of(run: RecordedRun) -> Key:
    """What identifies a run within its table."""
    return run.row, run.benchmark, run.protocol, run.number


def _stream_of(run: RecordedRun) -> tuple[str, str, int]:
    """What decides the frames of a run: benchmark, protocol and number."""
    return run.benchmark, run.protocol, run.number


def read_recorded(path: Path) -> list[RecordedRun]:
    """Read a file of recorded runs.

    Raises:
        ValueError: the file has other columns, or a line is damaged.
    """
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ValueError(
                f"{path} has the columns {', '.join(reader.fieldnames or ())}; recorded "
                f"runs have {', '.join(COLUMNS)}: record the table again"
            )
        return [_run_of_line(line, path, reader.line_num) for line in reader]


def _run_of_line(line: dict[str, str], path: Path, number: int) -> RecordedRun:
    """Read a line of a file, whose number is for the error."""
    if None in line or None in line.values():
        raise ValueError(
            f"line {number} of {path} does not have {len(COLUMNS)} values, as one that "
            "was cut off; restore the line, or remove it and run it again"
        )
    try:
        return RecordedRun.of_line(line)
    except ValueError as error:
        raise ValueError(f"line {number} of {path} is damaged: {error}") from error


def write_recorded(path: Path, runs: Sequence[RecordedRun]) -> None:
    """Write runs as CSV, atomically."""
    write_csv(path, [COLUMNS, *(run.line for run in runs)])
