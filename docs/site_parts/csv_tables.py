"""Reading recorded runs from CSV files, and Markdown tables of them."""

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import yaml

from crumb_avalanche.runs.tables import mean_text

ROOT = Path(__file__).parents[2]
DOCS, RUNS = ROOT / "docs", ROOT / "experiments" / "results"
RECORDED = DOCS / "results"
LABELS = yaml.safe_load(
    (Path(__file__).parent / "labels.yaml").read_text(encoding="utf-8")
)
DATA_SETS = LABELS["streams"]
if str(ROOT / "experiments") not in sys.path:
    sys.path.append(str(ROOT / "experiments"))

from support.statistics import Paired, paired  # noqa: E402

Lines = list[dict[str, str]]
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
    name, lines = DATA_SETS[stream], read(RECORDED / "test_or_development.csv")
    kind = {
        DATA_SETS.get(line["data"]): line[learner].partition(":")[0] for line in lines
    }[name]
    return f"{name} ({kind})" if kind.startswith("development") else name


def grouped(
    lines: Iterable[dict[str, str]], *names: str
) -> dict[tuple[str, ...], Lines]:
    """Group lines by the values of columns, in order of arrival."""
    groups: dict[tuple[str, ...], Lines] = {}
    for line in lines:
        groups.setdefault(tuple(line[name] for name in names), []).append(line)
    return groups


def markdown(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1
) -> str:
    """Format a Markdown table, the first columns to the left and the others to the right."""
    rule = [*[":--"] * left, *["--:"] * (len(header) - left)]
    return "".join("| " + " | ".join(row) + " |\n" for row in [header, rule, *rows])


def floats(lines: Iterable[dict[str, str]], name: str) -> list[float]:
    """Return a column as numbers."""
    return [float(line[name]) for line in lines]


def mean_of(lines: Sequence[dict[str, str]], name: str = "accuracy") -> str:
    """Format mean and standard deviation of a column; of a single run with its number."""
    return mean_text(floats(lines, name)) + (
        f" (run {lines[0]['run']})" if len(lines) == 1 else ""
    )


def compared(lines: Lines, reference: Mapping[str, float]) -> Paired:
    """Compare the accuracies of a row's runs with those of a reference by run."""
    accuracies = {line["run"]: float(line["accuracy"]) for line in lines}
    found = paired(
        reference, accuracies, {line["run"]: line["frame_table"] for line in lines}
    )
    assert found is not None
    return found


def protocol_text(name: str) -> str:
    """Format a protocol's name."""
    return name.replace("_", "-").replace("iid", "i.i.d.")
