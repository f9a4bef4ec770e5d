"""Reading recorded runs from CSV files, and Markdown tables of them."""

import csv
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS, RUNS = ROOT / "docs", ROOT / "experiments" / "results"
RECORDED = DOCS / "results"


def read(path: Path) -> list[dict[str, str]]:
    """Read a CSV file with a header."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def rows_of(name: str) -> list[list[str]]:
    """Read a CSV file of ``docs/results`` with its header."""
    with open(RECORDED / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def grouped(lines: Iterable[dict[str, str]], *names: str) -> dict[tuple[str, ...], list[dict[str, str]]]:
    """Group lines by the values of columns, in order of arrival."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for line in lines:
        groups.setdefault(tuple(line[name] for name in names), []).append(line)
    return groups


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Format a Markdown table, the first columns to the left and the others to the right."""
    rule = [*[":--"] * left, *["--:"] * (len(header) - left)]
    return "".join("| " + " | ".join(row) + " |\n" for row in [header, rule, *rows])


def mean_text(values: Sequence[float]) -> str:
    """Format mean and standard deviation (n - 1); a single value alone, none as empty text."""
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def floats(lines: Iterable[dict[str, str]], name: str) -> list[float]:
    """Return a column as numbers."""
    return [float(line[name]) for line in lines]
