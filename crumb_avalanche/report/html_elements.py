"""HTML elements out of texts, all of them escaped here."""

import html
import re

from crumb_avalanche.report.summary import Cell, Table
from crumb_avalanche.runs.tables import printable

LONG = 60  # characters; longer texts are set in lines


def escaped(text) -> str:
    """Text that can stand in an element or between double quotes."""
    return html.escape(printable(str(text)))


def element(name: str, content: str = "", **attributes) -> str:
    """An element around content that is HTML already.

    Args:
        name: of the element.
        content: HTML.
        attributes: texts, to be escaped; ``True`` stands for none, ``None`` and ``False`` leave the attribute out. An
            underscore stands for a hyphen, and one at the end is dropped (``class_``).
    """
    text = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            key = key.rstrip("_").replace("_", "-")
            text += f" {key}" if value is True else f' {key}="{escaped(value)}"'
    return f"<{name}{text}>{content}</{name}>"


def scrolling(content: str, label: str) -> str:
    """A wide table in a box that scrolls, with the keyboard too."""
    return element("div", content, class_="scroll", tabindex="0", role="region", aria_label=label)


def table_element(table: Table, name: str, caption: str, row_groups: list[int] | None = None) -> str:
    """A table whose columns the page's script makes sortable; readable without it.

    Args:
        table: texts.
        name: its id.
        caption: what it shows, in words.
        row_groups: for each row, the number of the group of runs whose curve it belongs to.
    """
    numeric = [all(_is_number(row[i].plain) for row in table.rows) for i in range(len(table.columns))]
    kinds = ["number" if is_numeric else None for is_numeric in numeric]
    head = "".join(
        element("th", escaped(column.head), scope="col", class_=kind, data_name=column.name)
        for column, kind in zip(table.columns, kinds)
    )
    body = ""
    for number, (first, *others) in enumerate(table.rows):
        cells = element("th", escaped(first.text), scope="row", class_=_kind(first), data_value=first.value)
        cells += "".join(_cell(item, kind) for item, kind in zip(others, kinds[1:]))
        body += element("tr", cells, data_group=None if row_groups is None else row_groups[number]) + "\n"
    content = f"{element('caption', escaped(caption))}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>"
    return scrolling(element("table", content, id=name, class_="sortable"), caption)


def matrix_element(
    rows: list[list[Cell]], shares: list[list[float | None]], heads: list[str], caption: str, small: bool
) -> str:
    """A table whose cells are the darker the larger their share is.

    Args:
        rows: texts; the first of each row names it.
        shares: 0 to 1 for each other cell, ``None`` where there is nothing to colour.
        heads: of the columns, that of the row names included.
        caption: what it shows, in words.
        small: set in small type, for many columns.
    """
    head = "".join(element("th", escaped(text), scope="col") for text in heads)
    body = ""
    for (first, *others), row_shares in zip(rows, shares):
        cells = element("th", escaped(first.text), scope="row")
        for item, share in zip(others, row_shares):
            heat = None if share is None else f"--share:{share:.1%}"
            cells += element("td", escaped(item.text), style=heat, title=item.value)
        body += f"<tr>{cells}</tr>\n"
    content = f"{element('caption', escaped(caption))}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>"
    return scrolling(element("table", content, class_="matrix small" if small else "matrix"), caption)


def _cell(item: Cell, kind: str | None) -> str:
    return element("td", escaped(item.text), class_=kind or _kind(item), data_value=item.value)


def _kind(item: Cell) -> str | None:
    return "prose" if len(item.text) > LONG else None


def _is_number(text: str) -> bool:
    """Whether a column of it is set to the right."""
    return not text or bool(re.fullmatch(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?( ± \d+(\.\d+)?)?", text, re.IGNORECASE))
