"""Marks of pages: below each stands the table or the figure that is made for it.

So a page has its tables and figures on a Git host too. The site draws the figures again, in the colours of the page.
"""

import re
from pathlib import Path

from site_parts import figures, links
from site_parts.csv_tables import DOCS, ROOT
from site_parts.result_tables import TABLES

# What is made, its arguments, and the lines of the table or of the picture.
MARK = re.compile(r"^<!-- build: (\w+)((?: \w+)*) -->\n((?:[|!].*\n)*)", re.MULTILINE)
PICTURES = DOCS / "figures"


def pages() -> list[Path]:
    """Return the Markdown files of the repository that the site shows."""
    outside = [ROOT / path for path in links.PAGES]
    return [path for path in outside if path.exists()] + sorted(DOCS.glob("*.md"))


def written(text: str) -> str:
    """Return a page as it stands in the repository, with the present tables and captions below its marks."""

    def replace(mark: re.Match) -> str:
        lines = lines_below(mark[1], mark[2].split())
        return f"<!-- build: {mark[1]}{mark[2]} -->\n{lines}"

    return MARK.sub(replace, text)


def lines_below(kind: str, arguments: list[str]) -> str:
    """Return what stands below the mark ``<!-- build: KIND ARGUMENT ... -->``."""
    if kind != "figure":
        return TABLES[kind](*arguments)
    (name,) = arguments
    return f"![Figure {name}](figures/{name}.svg)<br>{figures.caption(name)}\n"


def shown(text: str) -> str:
    """Return a page as the site shows it: without its marks, and with figures in the colours of the page."""

    def replace(mark: re.Match) -> str:
        if mark[1] == "figure":
            return figures.figure(*mark[2].split())
        return f"\n{mark[3]}"

    return MARK.sub(replace, text)
