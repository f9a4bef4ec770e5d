"""Text tables of results."""

import os
import shlex
import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks_toybox_ilab.tables.text import listed, printable
from crumb_avalanche.methods.registry import is_own
from crumb_avalanche.system.words import counted

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


BUDGET_TOLERANCE = 0.01  # share of a budget above which its excess is reported


def cell(value: object, width: int = 60) -> str:
    """Format a setting for a cell of a text table, in at most ``width`` characters.

    A long path is shown by its last name, any other long text by its beginning.

    Args:
        value: of the setting: text, number, list or ``None``.
        width: most characters.
    """
    if isinstance(value, list):
        text = ", ".join(map(str, value))
    elif value is None:
        text = "none"
    else:
        text = str(value)
    if len(text) > width:
        text = os.path.basename(text.rstrip("/"))
    if len(text) > width:
        text = text[: width - 3] + "..."
    return text


def mean_text(values: Sequence[float], form: str = ".1f", between: str = "+-") -> str:
    """Format mean and standard deviation (n - 1), such as ``76.2 +- 6.0``.

    A single value stands alone; no value is ``""``.

    Args:
        values: such as accuracies of runs.
        form: format of a number.
        between: what stands between mean and standard deviation.
    """
    if not values:
        return ""
    mean = f"{statistics.fmean(values):{form}}"
    if len(values) == 1:
        return mean
    return f"{mean} {between} {statistics.stdev(values):{form.lstrip('+')}}"


def format_table(header: list[str], rows: list[list[str]]) -> str:
    """Format a text table: the first column to the left, the others to the right.

    A cell is one line, whatever it holds.

    Args:
        header: name of each column.
        rows: the cells of each row.
    """
    lines = []
    for row in (header, *rows):
        lines.append([printable(text) for text in row])
    widths = [0] * len(header)
    for line in lines:
        for column, text in enumerate(line):
            widths[column] = max(widths[column], len(text))
    rule = ["-" * width for width in widths]
    lines.insert(1, rule)
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(texts: Sequence[str], widths: Sequence[int]) -> str:
    """Return a line of a text table, its first cell to the left, others to the right.

    ``widths`` are those of the columns, in characters.
    """
    cells = [text.rjust(width) for text, width in zip(texts, widths)]
    cells[0] = texts[0].ljust(widths[0])
    return "  ".join(cells)


def number(value: float | None, form: str = ".1f") -> str:
    """Format a number for a cell; ``None`` as ``""``."""
    return "" if value is None else f"{value:{form}}"


def matrix_table(
    matrix: list[list[float]], accuracy_after: list[float | None], joint: bool = False
) -> str:
    """Format the accuracy matrix, in percent.

    Args:
        matrix: a row after each experience, with the accuracies on the experiences so
            far.
        accuracy_after: over all seen classes after each experience, the last column;
            ``None`` where it was not tested.
        joint: whether all experiences were learned at once, so that there is one row.
    """
    n_experiences = len(matrix[-1])
    columns = [f"exp {experience}" for experience in range(1, n_experiences + 1)]
    rows = []
    for experience, accuracies in enumerate(matrix, 1):
        cells = [f"{accuracy:.1f}" for accuracy in accuracies]
        empty_cells = [""] * (n_experiences - len(accuracies))
        overall = number(accuracy_after[experience - 1], ".2f")
        name = "joint" if joint else f"exp {experience}"
        rows.append([name, *cells, *empty_cells, overall])
    title = "\naccuracy on the test frames of each experience's classes, percent\n"
    return title + format_table(["after", *columns, "all seen"], rows)


def ledger_table(ledger: dict[str, float]) -> str:
    """Format bytes and seconds of a run's ledger, with the share of each step.

    Args:
        ledger: what the run stored (bytes) and took (seconds), by name.
    """
    rows = [["memories stored", f"{int(ledger['buffer_items']):,}"]]
    for name, label in LEDGER_BYTES.items():
        rows.append([label, f"{int(ledger[name]):,} B"])
    variance_share = ledger.get("codes_keep")
    if variance_share is not None:
        rows.append(["codes keep", f"{100 * variance_share:.0f} % of the map"])
    derived = ledger.get("derived_bytes")
    if derived:
        rows.append(["derived from the memory", f"{int(derived):,} B"])
    total = max(ledger["train_seconds"], 1e-9)  # never 0, which shares divide by
    for name, label in LEDGER_SECONDS.items():
        seconds = ledger[name]
        share = 100 * seconds / total
        rows.append([f"time: {label}", f"{seconds:.1f} s ({share:.0f} %)"])
    rows.append(["training", f"{total:.1f} s"])
    rows.append(["images/s", f"{ledger['images_per_second']:.1f}"])
    return "\nledger\n" + format_table(["", ""], rows)


def budget_text(ledger: dict[str, float], result: dict[str, Any]) -> str:
    """Say by how much a run keeps more than its budget, and why.

    Args:
        ledger: bytes that the run keeps, by name.
        result: of the run, as ``result.json`` holds it.

    Returns:
        A sentence; ``""`` if it is at most 1 % more, or no budget decided.
    """
    budget = result.get("budget_bytes")
    memory = ledger["memory_bytes"]
    if budget is None or memory <= (1 + BUDGET_TOLERANCE) * budget:
        return ""
    excess = int(memory - budget)
    percent = 100 * excess / max(budget, 1)
    reasons = "; ".join(_reasons_above_budget(ledger, result))
    return (
        f"memory in all is {excess:,} B ({percent:,.0f} %) above the budget of "
        f"{budget:,} B: {reasons}"
    )


def print_budget(ledger: dict[str, float], result: dict[str, Any]) -> None:
    """Print that a run keeps more than its budget, if it does; see ``budget_text``."""
    text = budget_text(ledger, result)
    if text:
        print(text)


def left_out_text(result: dict[str, Any]) -> str:
    """Say how many images of a run could not be read, and of which class none is left.

    Args:
        result: of the run, as ``result.json`` holds it.

    Returns:
        A sentence; ``""`` if all could be read.
    """
    n_videos = result.get("bad_videos_skipped", 0)
    n_images = len(result["bad_frames"]) - n_videos
    parts = []
    if n_images:
        n_read = sum(result.get("images", {}).values())
        parts.append(f"{n_images:,} of {counted(n_images + n_read, 'image')}")
    if n_videos:
        parts.append(counted(n_videos, "video"))
    if not parts:
        return ""
    verb = "was" if n_images + n_videos == 1 else "were"
    text = f"{' and '.join(parts)} could not be read and {verb} left out"
    emptied_classes = result.get("emptied_classes", [])
    if emptied_classes:
        text += f"; of {listed(emptied_classes, 10)} no training image is left"
    return text


def print_left_out(result: dict[str, Any]) -> None:
    """Print how many images could not be read, if any; see ``left_out_text``."""
    text = left_out_text(result)
    if text:
        print(text)


def _reasons_above_budget(
    ledger: dict[str, float], result: dict[str, Any]
) -> Iterator[str]:
    """Yield what the budget of a run does not limit or charge, of what it keeps.

    Args:
        ledger: bytes that the run keeps, by name.
        result: of the run, with the family of its settings and its number of memories.
    """
    if not result.get("mem_size"):  # the budget buys no memories
        if ledger["buffer_items"]:
            yield "it trains on all images at once, which no budget limits"
        else:
            yield (
                "a budget limits statistics only where it is given (--budget-images, "
                "--budget-bytes) and in --family fair"
            )
        return
    if ledger["codebook_bytes"] and result.get("family") != "fair":
        yield (
            "as in the paper, it charges a codebook one byte a value instead of four, "
            "and the number of memories is rounded up (--family fair charges all four)"
        )
    if ledger["statistics_bytes"]:
        statistics_bytes = int(ledger["statistics_bytes"])
        yield f"the memories have statistics of {statistics_bytes:,} B beside them"
    yield f"it does not charge labels ({int(ledger['label_bytes']):,} B)"


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """Format the rows of a Markdown table, of which header and rule are the first."""
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


# As LEARNER of methods.run_header, which imports Pillow, and as CLOSED_FORMS of
# learner.header, which runs do not know. A test holds them equal.
LEARNER = "learner.safetensors"
TEACHABLE = ("rda", "slda", "ncm", "ranpac")


def usage_of(folder: Path, strategy: str) -> list[str]:
    """Return the commands that ask the learner of a run and, if they can, teach it.

    A method of a user's is known to a script that imports the file which registers it,
    and not to ``crumb``.
    """
    file = folder / LEARNER
    if not file.exists():
        return []
    arguments = f"predict {shlex.quote(str(folder))} photo.jpg"
    if is_own(strategy):
        return [
            f"ask it: python FILE.py {arguments}, where FILE.py registers {strategy}, "
            "or imports the file that does, and calls crumb_avalanche.cli.main"
        ]
    lines = [f"ask it: crumb {arguments}"]
    if strategy in TEACHABLE:
        lines.append(
            f"teach a copy: cp {shlex.quote(str(file))} mine.safetensors, then crumb "
            "teach mine.safetensors FOLDER "
            "--label NAME, or crumb serve mine.safetensors"
        )
    return lines
