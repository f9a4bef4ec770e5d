"""A report's tables as files for programs (CSV) and papers (LaTeX)."""

import csv
import io
import re
from pathlib import Path

from crumb_avalanche.report.summary import Table
from crumb_avalanche.runs.run_folder import write_text

TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"{\char34}",
    "±": r"$\pm$",
    # After the end of a row, LaTeX would take these two as arguments of it.
    "[": "{[}",
    "*": "{*}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
}


def csv_text(table: Table) -> str:
    """The table with the columns' names for programs, values in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    writer.writerows([cell.plain for cell in row] for row in table.rows)
    return text.getvalue()


def tex_escaped(text: str) -> str:
    """Text that LaTeX sets as it stands, on one line."""
    return "".join(TEX.get(sign, sign) for sign in re.sub(r"[\s\x00-\x1f\x7f]+", " ", text))


def tex_text(table: Table) -> str:
    """The table as a ``tabular`` that needs no package: first column left, the others right."""
    lines = [[column.head for column in table.columns], *([cell.text for cell in row] for row in table.rows)]
    head, *body = [" & ".join(map(tex_escaped, line)) + r" \\" for line in lines]
    columns = "l" + "r" * (len(table.columns) - 1)
    begin, end = rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
    return "\n".join([begin, r"\hline", head, r"\hline", *body, r"\hline", end]) + "\n"


def write_csv(path: Path, table: Table) -> None:
    """Write a table as CSV, whole or not at all."""
    write_text(path, csv_text(table))


def write_tex(path: Path, table: Table) -> None:
    """Write a table as LaTeX, whole or not at all."""
    write_text(path, tex_text(table))
