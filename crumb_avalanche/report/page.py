"""What HTML pages are made of: tables, which CSV shows too, and a layout.

Pages make no request.
"""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from benchmarks_toybox_ilab.tables.csv import csv_text
from benchmarks_toybox_ilab.tables.text import printable
from crumb_avalanche.runs.tables import cell, format_table, mean_text
from crumb_avalanche.system.named_values import attributes, field_names

NUMBER = re.compile(r"([+-]?\d+(\.\d+)?(e[+-]?\d+)?( ± \d+(\.\d+)?)?)?", re.IGNORECASE)
LONG = 60  # characters of a cell; a longer text is set in several lines
MARK = '<meta name="generator" content="crumb-avalanche">'  # in every page


class Cell(NamedTuple):
    """Text of a table cell, and the value that programs read if it differs."""

    text: str
    value: str | None = None

    @property
    def plain(self) -> str:
        """The value for programs: without thousands separators, not shortened."""
        return self.text if self.value is None else self.value

    @property
    def is_long(self) -> bool:
        """Whether the text is set in several lines."""
        return len(self.text) > LONG


EMPTY = Cell("")


@dataclass
class Table:
    """Rows of cells, as many as there are columns.

    Attributes:
        columns: of each column its name for programs, and its heading.
        rows: from top to bottom.
    """

    columns: dict[str, str]
    rows: list[list[Cell]]

    @classmethod
    def of(cls, columns: dict[str, str], rows: Sequence[Mapping[str, Cell]]) -> "Table":
        """Make a table of cells by column.

        A column that no row has is left out, a cell that a row lacks is empty.
        """
        names_in_rows = set().union(*rows)
        used = {name: head for name, head in columns.items() if name in names_in_rows}
        cells = []
        for row in rows:
            cells.append([row.get(name, EMPTY) for name in used])
        return cls(used, cells)

    @property
    def numeric(self) -> list[bool]:
        """Whether each column holds numbers only, empty cells aside."""
        numeric = [True] * len(self.columns)
        for row in self.rows:
            for column, table_cell in enumerate(row):
                if not NUMBER.fullmatch(table_cell.plain):
                    numeric[column] = False
        return numeric

    @property
    def lines(self) -> str:
        """The table as aligned columns for a terminal, in ASCII where the cells are."""
        rows = []
        for row in self.rows:
            rows.append([table_cell.text.replace("±", "+-") for table_cell in row])
        return format_table(list(self.columns.values()), rows)

    @property
    def csv(self) -> str:
        """The table as CSV, with the names of columns and the values for programs."""
        rows = [list(self.columns)]
        for row in self.rows:
            rows.append([table_cell.plain for table_cell in row])
        return csv_text(rows)


def count_cell(value: float) -> Cell:
    """Return the cell of a whole number, with thousands separators."""
    return Cell(f"{value:,.0f}", f"{value:.0f}")


def accuracy_cell(accuracies: Sequence[float]) -> Cell:
    """Return the cell of accuracies in percent: mean ± standard deviation (n - 1).

    A single accuracy stands alone.
    """
    return Cell(mean_text(accuracies, ".2f", "±"))


def seconds_cell(value: float) -> Cell:
    """Return the cell of seconds or of images per second, to a tenth."""
    return Cell(f"{value:.1f}")


def setting_cell(value: object) -> Cell:
    """Return the cell of a setting, shortened if it is long."""
    text = cell(value)
    full_text = cell(value, 100_000)
    return Cell(text, None if text == full_text else full_text)


@dataclass(frozen=True)
class MatrixCell:
    """A cell of a matrix.

    Attributes:
        cell: its text, and a tooltip as its value.
        share: how dark it is, as a CSS percentage; empty for a plain cell.
    """

    cell: Cell = EMPTY
    share: str = ""


@dataclass(frozen=True)
class MatrixRow:
    """A row of a matrix with its name."""

    name: str
    cells: list[MatrixCell]


@dataclass(frozen=True)
class Matrix:
    """A matrix as text.

    Attributes:
        heads: of the columns, that of the row names included.
        rows: from top to bottom.
        small: whether it is set in small type.
    """

    heads: list[str]
    rows: list[MatrixRow]
    small: bool


@cache
def environment() -> Environment:
    """Return Jinja's environment with the templates of all pages, made once.

    Everything is escaped that is not ``Markup``, and characters that are not seen are
    shown as escapes.

    ``page.html`` also finds the style, the script and its SHA-256: the page's content
    security policy lets only this script run.
    """
    loader = PackageLoader("crumb_avalanche.report")
    templates = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_visible,
    )
    style, _, _ = loader.get_source(templates, "page.css")
    script, _, _ = loader.get_source(templates, "page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    templates.globals["style"] = Markup(style)
    templates.globals["script"] = Markup(script)
    templates.globals["script_hash"] = f"sha256-{digest}"
    return templates


def _visible(value: Any) -> Any:
    """Return a text of a page with escapes for characters that are not seen.

    Markup is returned as it is.
    """
    is_markup = hasattr(value, "__html__")
    return value if is_markup else printable(value)


def is_page(path: Path) -> bool:
    """Whether a file is a page that ``render`` made."""
    with open(path, "rb") as file:
        return MARK.encode() in file.read(1000)


def render(template: str, page: Any) -> str:
    """Render a template with the attributes of a dataclass.

    The page is ASCII, which reads the same in every encoding.

    Args:
        template: name of the file, such as ``report.html``.
        page: the dataclass of what this page shows.
    """
    shown_values = attributes(page, field_names(page))
    html = environment().get_template(template).render(shown_values)
    return html.encode("ascii", "xmlcharrefreplace").decode("ascii")
