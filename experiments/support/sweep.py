"""The settings of the runs of a table, and the exit code of a script."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from crumb_avalanche.runs.settings import RunSettings


def cell_settings(
    base: RunSettings, folder: Path, number: int, changes: dict
) -> RunSettings:
    """Settings of run `number` in `folder/runN`, with changes of the shared settings."""
    output = str(folder / f"run{number}")
    return replace(base, **changes, run=number, output=output)


def grid(
    base: RunSettings, output: Path, runs: Sequence[int], rows: dict[str, dict]
) -> list[RunSettings]:
    """Make the settings of all runs of a table, each in ``output/ROW/runN``.

    Args:
        base: settings that all rows share.
        output: folder of the table.
        runs: numbers of the runs of each row.
        rows: changes of the settings by the name of the row.
    """
    settings = []
    for number in runs:
        for name, changes in rows.items():
            settings.append(cell_settings(base, output / name, number, changes))
    return settings


def exit_code(failed: dict[Path, str]) -> int:
    """Print a line on standard error for each failed run; return 1 if there is one, else 0."""
    for folder, error in failed.items():
        print(f"failed: {folder}: {error}", file=sys.stderr)
    return 1 if failed else 0
