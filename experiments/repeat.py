"""Repeat recorded runs of a table, and say which digits come back.

    python experiments/repeat.py table1 --dataset-root ETH80 --weights FILE --runs 0,5
    python experiments/repeat.py table1 --rows Ours REMIND --runs 0 --table-only

TABLE is a file below `results/` without its ending `_runs.csv`, such as `table1` or
`unfinished/table1`, or the path of such a file. Each run is done again with the
settings in its line. On the CPU that recorded it, all digits should come back. On
another one, other roundings add up: a closed form moves by at most half a point, a
trained network may move by as much as it does between seeds, so that a single run is
only asked to stay within 10 points (joint training 3). Writes `repeat.csv` and
`repeat.md`, and a folder for each run, below one of its table, to --output.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from support.common_options import add_engine_options, engine_options, run_script
from support.recorded_runs import RecordedRun, read_recorded
from support.rows import folder_name
from support.runs import FILES, FinishedRun, finished_runs
from support.sweep import exit_code
from support.tables import write_table

from crumb_avalanche.methods.registry import get_strategy
from crumb_avalanche.runs.cells import sweep, tidy_if_finished
from crumb_avalanche.runs.engine_settings import EngineSettings
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.system.named_values import field_names

RESULTS = Path(__file__).parent / "results"
# Accuracy in points that another CPU may change.
TOLERANCES = {"closed form": 0.5, "joint training": 3.0, "training": 10.0}
WORDS = {"True": True, "False": False, "None": None}  # values of settings
DIGITS = 4  # decimals of a recorded accuracy
HEADER = [
    "row",
    "run",
    "recorded",
    "repeated",
    "digits that came back",
    "verdict",
    "recorded on",
    "repeated on",
]


@dataclass(frozen=True)
class Repeated:
    """A recorded run beside the run that repeats it.

    Attributes:
        recorded: the line of the file.
        run: the same run, done again; None if it failed or was not done.
        kind: key of `TOLERANCES`.
    """

    recorded: RecordedRun
    run: FinishedRun | None
    kind: str

    @property
    def digits(self) -> str:
        """Digits that the two accuracies share, such as ``72.4``; ``all`` if equal."""
        if self.run is None:
            return ""
        recorded = f"{self.recorded.final:.{DIGITS}f}"
        repeated = f"{self.run.final:.{DIGITS}f}"
        if recorded == repeated:
            return "all"
        length = 0
        while recorded[length] == repeated[length]:
            length += 1
        return recorded[:length] or "none"

    @property
    def verdict(self) -> str:
        """Whether the repetition agrees with the record."""
        if self.run is None:
            return "not run"
        if self.run.split != self.recorded.split:
            return "other frames"
        if self.digits == "all":
            return "equal"
        if self.run.cpu == self.recorded.cpu:
            return "differs on the same CPU"
        tolerance = TOLERANCES[self.kind]
        if abs(self.run.final - self.recorded.final) <= tolerance:
            return f"within {tolerance:g} points ({self.kind}, another CPU)"
        return f"more than {tolerance:g} points off ({self.kind}, another CPU)"

    @property
    def line(self) -> list[str]:
        """Values of `HEADER`."""
        final = ""
        machine = ""
        if self.run is not None:
            final = f"{self.run.final:.{DIGITS}f}"
            machine = f"{self.run.cpu} ({self.run.commit})"
        return [
            self.recorded.row,
            str(self.recorded.number),
            f"{self.recorded.final:.{DIGITS}f}",
            final,
            self.digits,
            self.verdict,
            f"{self.recorded.cpu} ({self.recorded.commit})",
            machine,
        ]


def kind_of(strategy: str) -> str:
    """What a method's result depends on, as a key of `TOLERANCES`."""
    entry = get_strategy(strategy)
    if entry.joint:
        return "joint training"
    return "training" if entry.gradient else "closed form"


def value_of(text: str) -> int | float | bool | str | None:
    """Read a value of a list of settings: a number, True, False, None, or a text."""
    if text in WORDS:
        return WORDS[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def method_value(strategy: str, name: str, text: str) -> object:
    """Read a value of a setting of a method, which stays a text where it is one."""
    usual = getattr(get_strategy(strategy).settings(), name, None)
    return text if isinstance(usual, str) else value_of(text)


def values_of(run: RecordedRun) -> dict[str, str]:
    """The settings of a recorded run as texts, by name."""
    texts = {}
    for word in run.settings.split(" "):
        name, _, text = word.partition("=")
        texts[name] = unquote(text)
    return texts


def settings_of(
    run: RecordedRun,
    files: Sequence[Path],
    root: str | None,
    output: Path,
    feature_cache: str | None = None,
) -> RunSettings:
    """Settings that repeat a recorded run.

    Args:
        run: the recorded run.
        files: weights and pretrained files, which are found by their name.
        root: folder of the images.
        output: folder of the run.
        feature_cache: folder for the cached F(x), if any.

    Raises:
        ValueError: a file of the run is not among those given, or `crumb run` does not
            have one of its settings any more.
    """
    values: dict[str, object] = {}
    method: dict[str, object] = {}
    texts = values_of(run)
    for name, text in texts.items():
        method_name = name.removeprefix("method.")
        if method_name != name:
            method[method_name] = method_value(texts["strategy"], method_name, text)
        elif name in FILES and "@" in text:
            file_name, _, _ = text.rpartition("@")
            values[name] = str(_file_named(file_name, files))
        else:
            values[name] = value_of(text)
    unknown = values.keys() - set(field_names(RunSettings))
    if unknown:
        raise ValueError(
            f"run {run.number} of {run.row!r} was made with {', '.join(sorted(unknown))}"
            ", which crumb run does not have any more; record its table again"
        )
    return RunSettings(
        **values,
        method=method,
        benchmark=run.benchmark,
        dataset_root=root,
        run=run.number,
        output=str(output),
        feature_cache=feature_cache,
        threads=1,
        keep_learner=False,
        checkpoint=False,
        progress=False,
    )


def _file_named(name: str, files: Sequence[Path]) -> Path:
    """Find a file by its name."""
    for path in files:
        if path.name == name:
            return path
    raise ValueError(
        f"the run started from {name}, which is not among the files given; name its "
        "path with --weights or --pretrained"
    )


def path_of(table: str) -> Path:
    """The file of recorded runs of a table, by its name or path."""
    candidates = [
        Path(table),
        RESULTS / f"{table}_runs.csv",
    ]
    for path in candidates:
        if path.is_file():
            return path
    paths = sorted(RESULTS.rglob("*_runs.csv"))
    names = [
        path.relative_to(RESULTS).as_posix().removesuffix("_runs.csv") for path in paths
    ]
    raise ValueError(f"there is no table {table!r}; recorded are {', '.join(names)}")


def table_name(path: Path) -> str:
    """Name of a table, by its file, for the folder of its runs."""
    return folder_name(path.name.removesuffix(".csv").removesuffix("_runs"))


def chosen_runs(
    path: Path, rows: Sequence[str] | None, numbers: Sequence[int]
) -> list[RecordedRun]:
    """Choose recorded runs by row and number; all rows without names.

    Raises:
        ValueError: no run is recorded under a row, or none is left.
    """
    recorded = read_recorded(path)
    names = dict.fromkeys(run.row for run in recorded)
    for row in rows or ():
        if row not in names:
            raise ValueError(
                f"{path} has no row {row!r}; its rows are {', '.join(names)}"
            )
    chosen = []
    for run in recorded:
        is_of_row = not rows or run.row in rows
        if is_of_row and run.number in numbers:
            chosen.append(run)
    if not chosen:
        raise ValueError(f"{path} has none of the runs {list(numbers)}")
    return chosen


def repeat(
    recorded: Sequence[RecordedRun],
    settings: Sequence[RunSettings],
    engine: EngineSettings | None,
    output: Path,
) -> tuple[list[Repeated], dict[Path, str]]:
    """Do recorded runs of a table again, or read what repeated them before.

    Args:
        recorded: runs of the file of a table.
        settings: settings of the repetition of each, in the same order.
        engine: what does the runs; None reads the finished ones alone.
        output: folder of all repetitions.

    Returns:
        Each recorded run with its repetition, and the folders of the failed ones with
        their errors.

    Raises:
        FinishedRunError: a folder holds a run of other settings.
    """
    failed = {}
    if engine is not None:
        failed = sweep(settings, engine, output)
    for run_settings in settings:
        tidy_if_finished(run_settings)  # raises for a result of other settings
    pairs = []
    for run, run_settings in zip(recorded, settings):
        folder_of_row = Path(run_settings.output).parent
        repetitions = finished_runs(folder_of_row, [run.number])
        repetition = repetitions[0] if repetitions else None
        kind = kind_of(run_settings.strategy or "crumb")
        pairs.append(Repeated(recorded=run, run=repetition, kind=kind))
    return pairs, failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("table", metavar="TABLE", help="such as table1, or a file")
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="default all")
    parser.add_argument("--runs", default="0", help="seeds, such as 0,5; default 0")
    parser.add_argument("--dataset-root", metavar="DIR", help="folder of the images")
    parser.add_argument(
        "--weights", nargs="+", default=[], metavar="FILE", help="weights of the runs"
    )
    parser.add_argument(
        "--pretrained", nargs="+", default=[], metavar="FILE", help="of crumb pretrain"
    )
    parser.add_argument("--feature-cache", metavar="DIR", help="folder for F(x)")
    parser.add_argument("--output", default="runs/repeat", metavar="DIR")
    parser.add_argument(
        "--table-only", action="store_true", help="compare runs repeated before"
    )
    add_engine_options(parser)
    chosen = parser.parse_args()
    engine = None if chosen.table_only else engine_options(chosen)
    numbers = RunSettings(runs=chosen.runs).run_numbers()
    path = path_of(chosen.table)
    recorded = chosen_runs(path, chosen.rows, numbers)
    files = [Path(path) for path in (*chosen.weights, *chosen.pretrained)]
    output = Path(chosen.output)
    settings = []
    table = table_name(path)
    for run in recorded:
        row = f"{run.benchmark}_{run.protocol}_{folder_name(run.row)}"
        folder = output / table / row / f"run{run.number}"
        settings.append(
            settings_of(run, files, chosen.dataset_root, folder, chosen.feature_cache)
        )
    repeated, failed = repeat(recorded, settings, engine, output)
    write_table(output, "repeat", HEADER, [pair.line for pair in repeated])
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
