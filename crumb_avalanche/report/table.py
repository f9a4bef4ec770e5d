"""A table of text cells, as a page, CSV and LaTeX show it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from crumb_avalanche.runs.run_folder import write_csv, write_text
from crumb_avalanche.runs.tables import cell, mean_text

NUMBER = re.compile(r"([+-]?\d+(\.\d+)?(e[+-]?\d+)?( ± \d+(\.\d+)?)?)?", re.IGNORECASE)
TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\char34}",
    "±": r"$\pm$",
    # LaTeX reads these as arguments of the line break before them.
    "[": "{[}",
    "*": "{*}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
}


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


@dataclass
class Table:
    """Rows of cells, as many as there are columns.

    Attributes:
        columns: of each column its name for programs, and its heading.
        rows: cells of each row.
    """

    columns: dict[str, str]
    rows: list[list[Cell]]

    @classmethod
    def of(cls, columns: dict[str, str], rows: Sequence[Mapping[str, Cell]]) -> "Table":
        """Make a table of cells by column; a column that no row has is left out, a cell that a row lacks is empty."""
        used = {name: head for name, head in columns.items() if any(name in row for row in rows)}
        return cls(used, [[row.get(name, EMPTY) for name in used] for row in rows])

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers only, empty cells aside."""
        return [all(NUMBER.fullmatch(row[i].plain) for row in self.rows) for i in range(len(self.columns))]

    @property
    def tex(self) -> str:
        """A ``tabular`` that needs no package, the first column left-aligned and the others right-aligned."""
        lines = [list(self.columns.values()), *([cell.text for cell in row] for row in self.rows)]
        head, *body = [" & ".join(map(tex_escaped, line)) + r" \\" for line in lines]
        begin = rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}"
        return "\n".join([begin, r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}"]) + "\n"

    def write(self, path: Path) -> None:
        """Write it as LaTeX, or as CSV with the names of columns and the values for programs; atomically."""
        if path.suffix == ".tex":
            return write_text(path, self.tex)
        write_csv(path, [self.columns, *([cell.plain for cell in row] for row in self.rows)])


def tex_escaped(text: str) -> str:
    """Escape a text for LaTeX, on one line."""
    return "".join(TEX.get(sign, sign) for sign in re.sub(r"[\s\x00-\x1f\x7f]+", " ", text))


def count(value: float) -> Cell:
    """A whole number with thousands separators."""
    return Cell(f"{value:,.0f}", f"{value:.0f}")


def percent(values: Sequence[float]) -> Cell:
    """Mean ± standard deviation (n - 1) of accuracies in percent; a single value alone."""
    return Cell(mean_text(values, ".2f", "±"))


def seconds(value: float) -> Cell:
    """Seconds or images per second, to a tenth."""
    return Cell(f"{value:.1f}")


def setting(value: object) -> Cell:
    """A setting, shortened if it is long."""
    text, full = cell(value), cell(value, 100_000)
    return Cell(text, None if text == full else full)


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
