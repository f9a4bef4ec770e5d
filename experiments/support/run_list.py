"""List of the runs behind a table or figure, with seed, settings and hash of the frame table of each."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml
from support.finished_runs import FinishedRun

from crumb_avalanche.runs.plan import DEFAULTS, usual_settings
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, flat

COLUMNS = ("row", "benchmark", "protocol", "run", "final_accuracy", "seconds", "frame_table_sha256", "settings")
SHOWN_APART = {"benchmark", "protocol", "run", "runs"}
FILES = {"weights", "pretrained"}  # by name without folder


class Listed(NamedTuple):
    """The finished runs of a row of a table or figure."""

    row: str
    benchmark: str
    protocol: str
    runs: Sequence[FinishedRun]


def settings_text(run: FinishedRun) -> str:
    """Format the settings of a run that differ from the defaults of `crumb run` as ``name=value``, separated by spaces.

    Names of files of weights are followed by ``@`` and the first 8 hexadecimal digits of the SHA-256.
    """
    path = run.folder / "config.yaml"
    if not path.exists():
        return ""
    contents = run.result.get("provenance", {})
    settings = flat(yaml.safe_load(path.read_text()))
    usual = usual_settings(settings["benchmark"], settings.get("preset") or "paper", settings["strategy"])
    parts = []
    for name, value in settings.items():
        usual_value = value is None or (value == usual.get(name) and name not in DEFAULTS)
        if usual_value or name in NON_RESULT_SETTINGS | SHOWN_APART:
            continue
        if name in FILES and value is not None:
            text = str(contents.get(name, ""))
            value = Path(value).name + (f"@{text[7:15]}" if text.startswith("sha256:") else "")
        parts.append(f"{name}={value}")
    return " ".join(parts)


def write_run_list(path: Path, rows: Iterable[Listed]) -> Path:
    """Write the runs as CSV, row by row; runs that rows share are repeated."""
    csv_rows = [COLUMNS]
    for row, benchmark, protocol, runs in rows:
        for run in runs:
            seconds, frame_table = (run.result.get(name) for name in ("seconds", "frame_table_sha256"))
            line = [row, benchmark, protocol, run.number, round(run.final, 4)]
            line += [None if seconds is None else round(seconds, 1), frame_table]
            csv_rows.append([*line, settings_text(run)])
    write_csv(path, csv_rows)
    return path
