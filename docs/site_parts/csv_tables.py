"""Reading recorded runs from CSV files, and Markdown tables of them."""

import csv
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import yaml

from crumb_avalanche.report.paired import Paired, paired
from crumb_avalanche.report.paired import unit_means as means_of_units
from crumb_avalanche.runs.tables import mean_text

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RUNS = ROOT / "experiments" / "results"
RECORDED = DOCS / "results"
LABELS = yaml.safe_load(
    (Path(__file__).parent / "labels.yaml").read_text(encoding="utf-8")
)
DATA_SETS = LABELS["streams"]
if str(ROOT / "experiments") not in sys.path:
    sys.path.append(str(ROOT / "experiments"))

Line = dict[str, str]
Lines = list[Line]
mean_text = partial(mean_text, between="±")


def read(path: Path) -> Lines:
    """Read a CSV file with a header."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def rows_of(name: str) -> list[list[str]]:
    """Read a CSV file of ``docs/results`` with its header."""
    with open(RECORDED / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def marked(stream: str, learner: str = "recommended") -> str:
    """Name a data set, with "(development)" if settings of a learner were chosen on it."""
    name = DATA_SETS[stream]
    kinds = {}
    for line in read(RECORDED / "test_or_development.csv"):
        kind, _, _ = line[learner].partition(":")
        kinds[DATA_SETS.get(line["data"])] = kind
    if kinds[name].startswith("development"):
        return f"{name} ({kinds[name]})"
    return name


def grouped(lines: Iterable[Line], *names: str) -> dict[tuple[str, ...], Lines]:
    """Group lines by the values of columns, in order of arrival."""
    groups: dict[tuple[str, ...], Lines] = {}
    for line in lines:
        key = tuple(line[name] for name in names)
        groups.setdefault(key, []).append(line)
    return groups


def markdown(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1
) -> str:
    """Format a Markdown table, the first columns to the left and the others to the right."""
    rule = [":--"] * left + ["--:"] * (len(header) - left)
    return "".join("| " + " | ".join(row) + " |\n" for row in [header, rule, *rows])


def floats(lines: Iterable[Line], name: str) -> list[float]:
    """Return a column as numbers."""
    return [float(line[name]) for line in lines]


def unit_means(lines: Lines, value: str, split: Callable[[Line], str]) -> list[float]:
    """Return the mean of a column over the runs of each split.

    Where all runs have one split, each run is a unit.

    Args:
        lines: of the runs.
        value: name of the column.
        split: returns what runs of one split share.
    """
    return means_of_units(floats(lines, value), [split(line) for line in lines])


def mean_of(lines: Sequence[Line], name: str = "accuracy") -> str:
    """Format mean and standard deviation of a column; of a single run with its number."""
    mean = mean_text(floats(lines, name))
    if len(lines) == 1:
        return f"{mean} (run {lines[0]['run']})"
    return mean


def compared(lines: Lines, reference: Mapping[str, float]) -> Paired:
    """Compare the accuracies of a row's runs with those of a reference by run."""
    accuracies = {line["run"]: float(line["accuracy"]) for line in lines}
    frame_tables = {line["run"]: line["frame_table"] for line in lines}
    comparison = paired(reference, accuracies, frame_tables)
    assert comparison is not None
    return comparison


def protocol_text(name: str) -> str:
    """Format a protocol's name."""
    return name.replace("_", "-").replace("iid", "i.i.d.")
