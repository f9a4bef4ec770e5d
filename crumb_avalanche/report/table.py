"""Tables of text cells, as CSV, LaTeX and HTML show them."""

import re
from dataclasses import dataclass
from typing import NamedTuple

NUMBER = re.compile(r"([+-]?\d+(\.\d+)?(e[+-]?\d+)?( ± \d+(\.\d+)?)?)?", re.IGNORECASE)


class Cell(NamedTuple):
    """Text of a table cell, and the value that a program reads or sorts by if it differs."""

    text: str
    value: str | None = None

    @property
    def plain(self) -> str:
        """The value for programs: without thousands separators, not shortened."""
        return self.text if self.value is None else self.value

    @property
    def is_long(self) -> bool:
        """Whether the text is set in several lines."""
        return len(self.text) > 60


EMPTY = Cell("")


class Column(NamedTuple):
    """Name of a column for programs, and its heading."""

    name: str
    head: str


@dataclass
class Table:
    """Rows of cells, as many as there are columns."""

    columns: list[Column]
    rows: list[list[Cell]]

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers only, empty cells aside."""
        return [all(NUMBER.fullmatch(row[i].plain) for row in self.rows) for i in range(len(self.columns))]


class Matrix(NamedTuple):
    """A matrix as text.

    Attributes:
        heads: of the columns, the one of the row names included.
        rows: of each row its name, and its cells with a CSS percentage, empty where there is nothing to colour.
        small: set in small type.
    """

    heads: list[str]
    rows: list[tuple[str, list[tuple[Cell, str]]]]
    small: bool


def count(value: float) -> Cell:
    """A whole number with thousands separators."""
    return Cell(f"{value:,.0f}", f"{value:.0f}")
