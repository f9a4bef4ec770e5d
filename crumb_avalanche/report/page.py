"""What HTML pages are made of: tables, which CSV shows too, and a layout. Pages make no request."""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import cell, mean_text
from crumb_avalanche.runs.tables import table as text_table

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


@dataclass
class Table:
    """Rows of cells, as many as there are columns."""

    columns: dict[str, str]  # of each its name for programs, and its heading
    rows: list[list[Cell]]

    @classmethod
    def of(cls, columns: dict[str, str], rows: Sequence[Mapping[str, Cell]]) -> "Table":
        """Make a table of cells by column; a column that no row has is left out, a cell that a row lacks is empty."""
        used = {
            name: head
            for name, head in columns.items()
            if any(name in row for row in rows)
        }
        return cls(used, [[row.get(name, EMPTY) for name in used] for row in rows])

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers only, empty cells aside."""
        return [
            all(NUMBER.fullmatch(row[i].plain) for row in self.rows)
            for i in range(len(self.columns))
        ]

    @property
    def lines(self) -> str:
        """Aligned columns for a terminal, in ASCII where the cells are."""
        rows = [[cell.text.replace("±", "+-") for cell in row] for row in self.rows]
        return text_table(list(self.columns.values()), rows)

    def write(self, path: Path) -> None:
        """Write it as CSV with the names of columns and the values for programs, atomically."""
        write_csv(
            path, [self.columns, *([cell.plain for cell in row] for row in self.rows)]
        )


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
    """A matrix as text."""

    heads: list[str]  # the one of the row names included
    rows: list[
        tuple[str, list[tuple[Cell, str]]]
    ]  # of each its name, and its cells with a CSS percentage or none
    small: bool  # set in small type


MARK = '<meta name="generator" content="crumb-avalanche">'  # in every page


@cache
def environment() -> Environment:
    """The templates, with everything escaped that is not ``Markup`` and characters that are not seen as escapes.

    ``page.html`` also finds the style, the script and its hash: its policy lets only
    this script run.
    """
    templates = Environment(
        loader=PackageLoader("crumb_avalanche.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: (
            value if hasattr(value, "__html__") else printable(value)
        ),
    )
    style, script = (
        Markup(templates.loader.get_source(templates, f"page.{kind}")[0])
        for kind in ("css", "js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    templates.globals.update(style=style, script=script, script_hash=f"sha256-{digest}")
    return templates


def is_page(path: Path) -> bool:
    """Whether a file is a page that ``render`` made."""
    with open(path, "rb") as file:
        return MARK.encode() in file.read(1000)


def render(template: str, **values: object) -> str:
    """Render a template of a page in ASCII, which reads the same in every encoding."""
    page = environment().get_template(template).render(**values)
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")
