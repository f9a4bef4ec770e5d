"""Pages of the notebooks, made from their jupytext sources (the percent format)."""

import re

from site_parts.csv_tables import DOCS

NAMES = ("compare_strategies", "teach_from_clips", "repeat_a_table")  # in the order of the site
CELL = re.compile(r"^# %%( \[markdown\])?\n", re.MULTILINE)


def cells(name: str) -> list[tuple[str, str]]:
    """Return kind (``markdown`` or ``code``) and text of each cell of a notebook."""
    text = (DOCS / "notebooks" / f"{name}.py").read_text(encoding="utf-8")
    _, *parts = CELL.split(text)
    found = []
    for mark, part in zip(parts[::2], parts[1::2]):
        if mark:
            found.append(("markdown", re.sub(r"^# ?", "", part.strip(), flags=re.MULTILINE)))
        else:
            found.append(("code", part.strip()))
    return found


def page(name: str) -> str:
    """Return the page of a notebook."""
    parts = [f"```python\n{text}\n```" if kind == "code" else text for kind, text in cells(name)]
    note = f"As a notebook: `jupytext --to ipynb docs/notebooks/{name}.py`. A test runs it."
    return "\n\n".join([parts[0], note, *parts[1:], ""])


def pages() -> dict[str, str]:
    """Return the text of each page, by its path in the site."""
    return {f"notebooks/{name}.md": page(name) for name in NAMES}
