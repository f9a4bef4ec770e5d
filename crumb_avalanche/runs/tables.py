"""Results as text tables."""

import os
import re
import statistics
from collections.abc import Iterable, Sequence

# entry -> (label, unit); seconds that are parts of the training are listed apart
LEDGER_BYTES = {
    "buffer_bytes": "room for memories",  # all of it, taken or not
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


# Characters that HTML and XML do not allow, even escaped: control characters, surrogates, noncharacters.
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def printable(text: str) -> str:
    """Text in which the replacement character stands for those that no page or picture can hold."""
    return FORBIDDEN.sub("\ufffd", text)


def cell(value, width: int = 60) -> str:
    """A setting in a table: the file name of a long path, the head of any other long text."""
    text = ", ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)
    text = os.path.basename(text.rstrip("/")) if len(text) > width else text
    return text if len(text) <= width else text[: width - 3] + "..."


def mean_text(values: Sequence[float], form: str = ".1f", between: str = "+-") -> str:
    """Mean and standard deviation (n - 1) of some numbers, such as ``76.2 +- 6.0``; of one itself, of none nothing.

    Args:
        values: of the runs.
        form: of the mean; the deviation is written alike, but without a sign.
        between: what stands between the two.
    """
    if not values:
        return ""
    spread = f" {between} {statistics.stdev(values):{form.lstrip('+')}}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{form}}{spread}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns as wide as their longest cell; the first left-aligned, the others right-aligned."""
    widths = [max(len(line[column]) for line in [header, *rows]) for column in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths))
        )
        for line in lines
    )


def number(value: float | None, form: str = ".1f") -> str:
    """A number as text; nothing for None."""
    return "" if value is None else f"{value:{form}}"


def matrix_table(matrix: list[list[float]], accuracy_after: list[float | None], joint: bool = False) -> str:
    """The accuracy matrix with the accuracy over all seen classes in the last column, in percent."""
    width = len(matrix[-1])
    header = ["after", *[f"exp {column + 1}" for column in range(width)], "all seen"]
    rows = []
    for place, (row, overall) in enumerate(zip(matrix, accuracy_after)):
        cells = [f"{value:.1f}" for value in row] + [""] * (width - len(row))
        rows.append(["joint" if joint else f"exp {place + 1}", *cells, number(overall, ".2f")])
    return "\naccuracy on the test frames of each experience's classes, percent\n" + table(header, rows)


def ledger_table(ledger: dict[str, float]) -> str:
    """Bytes and seconds of a run."""
    rows = [[label, f"{int(ledger[name]):,} B"] for name, label in LEDGER_BYTES.items()]
    rows.insert(0, ["memories stored", f"{int(ledger['buffer_items']):,}"])
    total = max(ledger["train_seconds"], 1e-9)
    rows += [
        [f"time: {label}", f"{ledger[name]:.1f} s ({100 * ledger[name] / total:.0f} %)"]
        for name, label in LEDGER_SECONDS.items()
    ]
    rows += [["training", f"{total:.1f} s"], ["images/s", f"{ledger['images_per_second']:.1f}"]]
    return "\nledger\n" + table(["", ""], rows)


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """Rows of a Markdown table, the header and its rule among them."""
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)
