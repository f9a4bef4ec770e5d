"""Tables of a report as CSV and LaTeX."""

import re
from pathlib import Path

from crumb_avalanche.report.table import Table
from crumb_avalanche.runs.run_folder import write_csv, write_text

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


def tex_escaped(text: str) -> str:
    """Escape a text for LaTeX, on one line."""
    return "".join(TEX.get(sign, sign) for sign in re.sub(r"[\s\x00-\x1f\x7f]+", " ", text))


def tex_text(table: Table) -> str:
    """Return a ``tabular`` that needs no package, the first column left-aligned and the others right-aligned."""
    lines = [[column.head for column in table.columns], *([cell.text for cell in row] for row in table.rows)]
    head, *body = [" & ".join(map(tex_escaped, line)) + r" \\" for line in lines]
    columns = "l" + "r" * (len(table.columns) - 1)
    begin, end = rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
    return "\n".join([begin, r"\hline", head, r"\hline", *body, r"\hline", end]) + "\n"


def write_table(path: Path, table: Table) -> None:
    """Write a table as CSV with the columns' names for programs and values in full, or as LaTeX; atomically."""
    if path.suffix == ".csv":
        write_csv(
            path, [[column.name for column in table.columns], *([cell.plain for cell in row] for row in table.rows)]
        )
    else:
        write_text(path, tex_text(table))
