"""Rows of the tables, from `rows/NAME.yaml`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

ROWS = Path(__file__).parents[1] / "rows"


def rows_of(name: str) -> dict:
    """Read the rows of a table: `rows/NAME.yaml`."""
    return yaml.safe_load((ROWS / f"{name}.yaml").read_text())


def folder_name(row: str) -> str:
    """Name of the folder of a row."""
    return "".join(letter if letter.isalnum() else "_" for letter in row)


def chosen_rows(rows: Mapping[str, object], names: Sequence[str] | None) -> list[str]:
    """Choose rows of a table by name, in its order; all without names.

    The first row is always chosen, since the others are compared with it.

    Raises:
        ValueError: there is no row of a name.
    """
    if not names:
        return list(rows)
    unknown = [name for name in names if name not in rows]
    if unknown:
        raise ValueError(
            f"there is no row {unknown[0]!r}; the rows are {', '.join(rows)}"
        )
    first = next(iter(rows))
    return [name for name in rows if name in names or name == first]
