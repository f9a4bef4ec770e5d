"""The paper's numbers, read from `paper_values.csv`, the only place that has them.

Rows of table `s5` are buffer sizes: budgets from the supplement, counts `n_x` from the published scripts (REMIND's from
the supplement).
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PAPER_VALUES = Path(__file__).parent / "paper_values.csv"
FINAL = "final_top1_percent"
COLUMNS = ("table", "dataset", "protocol", "method_or_row", "quantity", "value", "differs_from_ours_p01")
DIFFERS = {"yes": True, "no": False, "": None}


@dataclass(frozen=True)
class PaperValue:
    """A number of the paper.

    Attributes:
        value: number as printed.
        differs: whether it differs from "Ours" at p < 0.01 in the paper; None where the paper has no test.
    """

    value: float
    differs: bool | None = None


class PaperNumbers(Mapping):
    """Map `(table, dataset, protocol, row, quantity)` to a `PaperValue`; `protocol` may be empty.

    Raises:
        ValueError: a malformed line, or a second line for the same cell.
    """

    def __init__(self, lines: Iterable[dict[str, str]]):
        self._values: dict[tuple[str, ...], PaperValue] = {}
        for number, line in enumerate(lines, start=2):
            if tuple(line) != COLUMNS or None in line.values():
                raise ValueError(f"line {number} has not the columns {', '.join(COLUMNS)} and no others")
            key = tuple(line[name] for name in COLUMNS[:5])
            if key in self._values:
                raise ValueError(f"line {number} gives {' '.join(key)} again; each cell stands once")
            try:
                self._values[key] = PaperValue(float(line["value"]), DIFFERS[line["differs_from_ours_p01"]])
            except (ValueError, KeyError) as error:
                raise ValueError(f"line {number}: {error} is no value, or neither yes, no nor empty") from error

    def __getitem__(self, key: tuple[str, ...]) -> PaperValue:
        return self._values[key]

    def __iter__(self):
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def find(self, table: str, dataset: str, protocol: str, row: str, quantity: str = FINAL) -> PaperValue | None:
        """Look up a value; None where the paper has none."""
        return self._values.get((table, dataset, protocol, row, quantity))


def read_paper_numbers(path: Path = PAPER_VALUES) -> PaperNumbers:
    """Read a file in the form of `paper_values.csv`.

    Raises:
        ValueError: a malformed line.
    """
    with open(path, newline="") as file:
        try:
            return PaperNumbers(csv.DictReader(file))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
