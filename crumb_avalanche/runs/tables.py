"""Text tables of results."""

import os
import shlex
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks_toybox_ilab.tables.text import printable

# Entry of the ledger -> label.
LEDGER_BYTES = {
    "buffer_bytes": "room for memories",  # free room included
    "label_bytes": "their labels",
    "codebook_bytes": "codebook (float32)",
    "statistics_bytes": "class statistics",
    "memory_bytes": "memory in all",
    "plastic_bytes": "plastic layers",
    "frozen_bytes": "frozen layers",
    "optimizer_bytes": "optimiser state",
    "peak_rss_bytes": "peak memory of the process",
}
LEDGER_SECONDS = {
    "seconds_features": "F",
    "seconds_search": "search",
    "seconds_plastic": "plastic layers",
    "seconds_replay": "replay",
    "seconds_other": "loading and the rest",
}


def cell(value, width: int = 60) -> str:
    """Format a setting for a table: the last name of a long path, the beginning of any other long text."""
    text = (
        ", ".join(map(str, value))
        if isinstance(value, list)
        else "none"
        if value is None
        else str(value)
    )
    text = os.path.basename(text.rstrip("/")) if len(text) > width else text
    return text if len(text) <= width else text[: width - 3] + "..."


def mean_text(values: Sequence[float], form: str = ".1f", between: str = "+-") -> str:
    """Format mean and standard deviation (n - 1), such as ``76.2 +- 6.0``; a single value alone, none as ``""``."""
    if not values:
        return ""
    spread = (
        f" {between} {statistics.stdev(values):{form.lstrip('+')}}"
        if len(values) > 1
        else ""
    )
    return f"{statistics.fmean(values):{form}}{spread}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Align columns, the first to the left and the others to the right; a cell is one line, whatever it holds."""
    header, *rows = ([printable(cell) for cell in line] for line in (header, *rows))
    widths = [
        max(len(line[column]) for line in [header, *rows])
        for column in range(len(header))
    ]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        )
        for line in lines
    )


def number(value: float | None, form: str = ".1f") -> str:
    """Format a number; ``None`` as ``""``."""
    return "" if value is None else f"{value:{form}}"


def matrix_table(
    matrix: list[list[float]], accuracy_after: list[float | None], joint: bool = False
) -> str:
    """Format the accuracy matrix, in percent, with the accuracy over all seen classes as the last column."""
    width = len(matrix[-1])
    header = ["after", *[f"exp {column + 1}" for column in range(width)], "all seen"]
    rows = []
    for place, (row, overall) in enumerate(zip(matrix, accuracy_after)):
        cells = [f"{value:.1f}" for value in row] + [""] * (width - len(row))
        rows.append(
            ["joint" if joint else f"exp {place + 1}", *cells, number(overall, ".2f")]
        )
    return (
        "\naccuracy on the test frames of each experience's classes, percent\n"
        + table(header, rows)
    )


def ledger_table(ledger: dict[str, float]) -> str:
    """Format bytes and seconds of a run."""
    rows = [[label, f"{int(ledger[name]):,} B"] for name, label in LEDGER_BYTES.items()]
    rows.insert(0, ["memories stored", f"{int(ledger['buffer_items']):,}"])
    if derived := ledger.get("derived_bytes"):
        rows.append(["derived from the memory", f"{int(derived):,} B"])
    total = max(ledger["train_seconds"], 1e-9)
    rows += [
        [f"time: {label}", f"{ledger[name]:.1f} s ({100 * ledger[name] / total:.0f} %)"]
        for name, label in LEDGER_SECONDS.items()
    ]
    rows += [
        ["training", f"{total:.1f} s"],
        ["images/s", f"{ledger['images_per_second']:.1f}"],
    ]
    return "\nledger\n" + table(["", ""], rows)


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """Format rows of a Markdown table; the caller includes the header and its rule."""
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


# As in methods.run_file and learner.classifier, which import torch.
LEARNER = "learner.safetensors"
TEACHABLE = ("rda", "slda", "ncm", "ranpac")


def usage_of(folder: Path, strategy: str) -> list[str]:
    """Return the commands that ask the learner of a finished run and, if it can be taught on, teach it."""
    file = folder / LEARNER
    if not file.exists():
        return []
    lines = [f"ask it: crumb predict {shlex.quote(str(folder))} photo.jpg"]
    if strategy in TEACHABLE:
        lines.append(
            f"teach a copy: cp {shlex.quote(str(file))} mine.safetensors, then crumb teach mine.safetensors FOLDER "
            "--label NAME, or crumb serve mine.safetensors"
        )
    return lines
