"""The numbers of the paper's tables."""

import csv
from dataclasses import dataclass
from pathlib import Path

PAPER_VALUES = Path(__file__).parent / "paper_values.csv"
FINAL = "final_top1_percent"
DIFFERS = {"yes": True, "no": False, "": None}


@dataclass(frozen=True)
class PaperValue:
    """A number of the paper.

    Attributes:
        value: the number, in percent where it is an accuracy.
        differs: whether it differs from "Ours" at p < 0.01; None without a test.
    """

    value: float
    differs: bool | None = None


class PaperNumbers(dict):
    """The numbers of `paper_values.csv` by `(table, dataset, protocol, row, quantity)`.

    `protocol` may be empty. Rows of table `s5` are buffer sizes: budgets from the
    supplement, counts `n_x` from the published scripts (REMIND's from the supplement).
    """

    def __init__(self):
        super().__init__()
        with open(PAPER_VALUES, newline="") as file:
            reader = csv.reader(file)
            next(reader)  # the header
            for *key, value, differs in reader:
                self[tuple(key)] = PaperValue(float(value), DIFFERS[differs])

    def find(
        self, table: str, dataset: str, protocol: str, row: str, quantity: str = FINAL
    ) -> PaperValue | None:
        """Look up a value; None where the paper has none."""
        return self.get((table, dataset, protocol, row, quantity))

    def has(self, table: str, dataset: str) -> bool:
        """Whether a table of the paper has a data set."""
        return any(key[:2] == (table, dataset) for key in self)
