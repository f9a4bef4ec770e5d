"""Tables of measurements that were recorded as they are shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from site_parts.csv_tables import (
    DATA_SETS,
    DOCS,
    LABELS,
    RECORDED,
    Line,
    Lines,
    compared,
    floats,
    grouped,
    markdown,
    marked,
    mean_of,
    mean_text,
    read,
    rows_of,
)

from crumb_avalanche.report.paired import interval


@dataclass(frozen=True)
class Column:
    """A column of the table of regularisers: an entry of ``task_incremental.csv``, and how it is shown."""

    figure: str
    mean: str
    spread: str
    form: str = ".1f"


TASK_COLUMNS = (
    Column("class_incremental", "mean", "std"),
    Column("task_incremental", "mean", "std"),
    Column("task_incremental", "minus_finetune", "minus_finetune_std", "+.1f"),
    Column("forgetting", "mean", "std"),
)


def task_incremental() -> str:
    """Return the table of the regularisers with and without task labels."""
    groups = grouped(read(DOCS / "task_incremental.csv"), "method", "figure")
    rows = []
    for method, label in LABELS["task_incremental"].items():
        cells = [label]
        for column in TASK_COLUMNS:
            line = groups[method, column.figure][-1]
            mean = f"{Decimal(line[column.mean]):{column.form}}"
            cells.append(f"{mean} ± {Decimal(line[column.spread]):.1f}")
        if method == "finetune":
            cells[3] = ""
        rows.append(cells)
    header = [
        "method",
        "class-incremental",
        "task-incremental",
        "minus fine-tuning, same run",
        "forgetting, task-incremental",
    ]
    return markdown(header, rows)


def feature_cache() -> str:
    """Return the table of seconds with and without a feature cache."""
    rows = []
    for line in read(RECORDED / "feature_cache.csv"):
        name = f"`{line['strategy']}`"
        if line["strategy"] == "all":
            name = f"all {line['runs']} runs"
        seconds = [f"{int(line[f'seconds {kind}']):,}" for kind in ("without", "with")]
        rows.append([name, *seconds, line["times as fast"], line["the same bits"]])
    header = ["strategy", "seconds without", "with", "times as fast", "the same bits"]
    return markdown(header, rows)


def recorded(name: str) -> str:
    """Return a table of ``docs/results`` as it was recorded."""
    header, *rows = rows_of(name)
    return markdown(header, rows)


def test_or_development() -> str:
    """Return the table of which data settings were chosen on, by learner."""
    header = ["data", "`recommended`", "CRUMB, `--preset tuned`", "looks", "unknown"]
    _, *rows = rows_of("test_or_development")
    for row in rows:
        row[0] = DATA_SETS.get(row[0], row[0])
    return markdown(header, rows, len(header))


def rival_settings() -> str:
    """Return the best settings of each classifier in ``rival_settings.csv``, and the range of all that were tried."""
    trials: dict[tuple[str, str], list[tuple[float, str]]] = {}
    _, *lines = rows_of("rival_settings")
    for stream, strategy, settings, accuracy, _ in lines:
        tried = trials.setdefault((stream, strategy), [])
        tried.append((float(accuracy), settings))
    rows = []
    for (stream, strategy), tried in trials.items():
        best, settings = max(tried)
        lowest, _ = min(tried)
        accuracies = [f"{best:.1f}", f"{lowest:.1f}"]
        rows.append([stream, f"`{strategy}`", settings, *accuracies, str(len(tried))])
    header = [
        "held-out data of",
        "strategy",
        "best settings",
        "accuracy",
        "lowest",
        "tried",
    ]
    return markdown(header, rows)


ASKED = {
    "other": "taught object, on another photo",
    "new": "held-out object, on a new photo",
    "size 0.33": "held-out, at 0.3 of the height",
    "dark": "held-out, in 0.45 of the light",
    "empty": "empty photo called known",
}


def scenes() -> str:
    """Return the table of objects in scenes, a row for each stream, network, method and looks."""
    keys = ("stream", "backbone", "method", "looks")
    rows = []
    for case, lines in grouped(read(RECORDED / "scenes.csv"), *keys).items():
        by_question = grouped(lines, "asked")
        cells = [f"`{value}`" for value in case]
        for asked in ASKED:
            counted = "known" if asked == "empty" else "right"
            cells.append(share_text(by_question.get((asked,), []), counted))
        splits = {line["split"] for line in by_question["same",]}
        rows.append([*cells, str(len(splits))])
    return markdown([*keys, *ASKED.values(), "splits"], rows, len(keys))


def share_text(lines: Sequence[Line], counted: str) -> str:
    """Return mean and 95 % interval of shares of images in percent; the mean alone of less than three splits."""
    shares = [100 * int(line[counted]) / int(line["images"]) for line in lines]
    if not shares:
        return ""
    mean, half = interval(shares)
    return f"{mean:.1f} ± {half:.1f}" if len(shares) > 2 else f"{mean:.1f}"


UNKNOWN = {
    "known": "taught object on another photo",
    "held out": "another object of a class taught",
    "never taught": "object of another class",
    "empty": "photo without an object",
    "own scene": "the photo that it was taught on, without it",
    "own scene, shown": "the same, after it was shown as nothing",
}


def open_scenes() -> str:
    """Return the table of images called known after two classes of one clip each."""
    groups = grouped(read(RECORDED / "open_set_scenes.csv"), "asked")
    rows = []
    for asked, label in UNKNOWN.items():
        lines = groups[asked,]
        mean, half = interval([100 * known for known in floats(lines, "called known")])
        known = f"{mean:.1f} ± {half:.1f}"
        area = ""
        if asked != "known":
            mean, half = interval(floats(lines, "AUROC"))
            area = f"{mean:.3f} ± {half:.3f}"
        rows.append([label, known, area])
    return markdown(["asked", "called known, %", "AUROC"], rows)


def crumb_as_expert() -> str:
    """Return the table of CRUMB beside and together with the recommended learner: accuracy, and difference to it."""
    by_row: dict[str, dict[str, Lines]] = {}
    streams: dict[str, None] = {}
    groups = grouped(read(RECORDED / "crumb_as_expert.csv"), "row", "stream")
    for (row, stream), lines in groups.items():
        by_row.setdefault(row, {})[stream] = lines
        streams[stream] = None
    rows = []
    for row, by_stream in by_row.items():
        cells = [row]
        for stream in streams:
            lines = by_stream.get(stream, [])
            difference = ""
            if lines and row != "recommended":
                difference = difference_text(lines, by_row["recommended"][stream])
            cells += [mean_of(lines), difference]
        rows.append(cells)
    header = ["row"]
    for stream in streams:
        header += [marked(stream), "difference"]
    return markdown(header, rows)


def difference_text(lines: Lines, reference: Lines) -> str:
    """Format the difference in accuracy to a reference with the same runs, with its interval if there are several."""
    accuracies = {line["run"]: float(line["accuracy"]) for line in reference}
    comparison = compared(lines, accuracies)
    text = f"{comparison.mean:+.1f}"
    if comparison.interval is not None:
        low, high = comparison.interval
        text += f" ({low:+.1f} to {high:+.1f})"
    return text


def vyntri() -> str:
    """Return the accuracies of vyntri and of closed forms on the same features."""
    rows: dict[str, list[str]] = {}
    streams: dict[str, None] = {}
    groups = grouped(read(RECORDED / "vyntri.csv"), "stream", "method")
    for (stream, method), lines in groups.items():
        streams[stream] = None
        cells = rows.setdefault(method, [f"`{method}`"])
        cells.append(mean_text(floats(lines, "accuracy")))
    return markdown(["method", *streams], rows.values())


def bytes_dial() -> str:
    """Return the table of accuracies by budget; a method of fixed size counts from its bytes on."""
    lines = read(RECORDED / "bytes_dial.csv")
    groups = grouped(lines, "benchmark", "row", "budget")
    budgets = sorted({int(line["budget"]) for line in lines} - {0})
    rows = []
    for stream, row in grouped(lines, "benchmark", "row"):
        fixed = groups.get((stream, row, "0"), [])
        least = max(map(int, floats(fixed, "memory_bytes")), default=0)
        cells = [marked(stream), LABELS["bytes_dial"][row]]
        for budget in budgets:
            measured = groups.get((stream, row, str(budget)), [])
            if fixed and budget >= least:
                measured = fixed
            cells.append(mean_text(floats(measured, "accuracy")))
        rows.append(cells)
    sizes = []
    for budget in budgets:
        if budget >= 1e6:
            sizes.append(f"{budget / 1e6:.2f} MB")
        else:
            sizes.append(f"{budget // 1000} kB")
    return markdown(["stream", "method", *sizes], rows, left=2)
