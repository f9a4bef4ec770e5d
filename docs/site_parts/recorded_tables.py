"""Tables of measurements that were recorded as they are shown."""

from decimal import Decimal

from site_parts.csv_tables import (
    DATA_SETS,
    DOCS,
    LABELS,
    RECORDED,
    compared,
    floats,
    grouped,
    markdown,
    mean_of,
    mean_text,
    read,
    rows_of,
)
from support.statistics import interval


def task_incremental() -> str:
    """Return the table of the regularisers with and without task labels."""
    found = {(line["method"], line["figure"]): line for line in read(DOCS / "task_incremental.csv")}
    rows = []
    for method, label in LABELS["task_incremental"].items():
        cells = [label]
        for figure, mean, form in (
            ("class_incremental", "mean", ".1f"),
            ("task_incremental", "mean", ".1f"),
            ("task_incremental", "minus_finetune", "+.1f"),
            ("forgetting", "mean", ".1f"),
        ):
            line = found[method, figure]
            spread = line["std" if mean == "mean" else f"{mean}_std"]
            cells.append(f"{Decimal(line[mean]):{form}} ± {Decimal(spread):.1f}")
        if method == "finetune":
            cells[3] = ""
        rows.append(cells)
    header = ["method", "class-incremental", "task-incremental", "minus fine-tuning, same run"]
    return markdown([*header, "forgetting, task-incremental"], rows)


def feature_cache() -> str:
    """Return the table of seconds with and without a feature cache."""
    rows = []
    for line in read(RECORDED / "feature_cache.csv"):
        name = f"all {line['runs']} runs" if line["strategy"] == "all" else f"`{line['strategy']}`"
        seconds = [f"{int(line[f'seconds {kind}']):,}" for kind in ("without", "with")]
        rows.append([name, *seconds, line["times as fast"], line["the same bits"]])
    return markdown(["strategy", "seconds without", "with", "times as fast", "the same bits"], rows)


def recorded(name: str) -> str:
    """Return a table of ``docs/results`` as it was recorded."""
    header, *rows = rows_of(name)
    return markdown(header, rows)


def rival_settings() -> str:
    """Return the best settings of each classifier in ``rival_settings.csv``, and the range of all that were tried."""
    groups: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for stream, strategy, settings, accuracy, _ in rows_of("rival_settings")[1:]:
        groups.setdefault((stream, strategy), []).append((float(accuracy), settings))
    cells = [
        [stream, f"`{strategy}`", max(found)[1], f"{max(found)[0]:.1f}", f"{min(found)[0]:.1f}", str(len(found))]
        for (stream, strategy), found in groups.items()
    ]
    return markdown(["held-out data of", "strategy", "best settings", "accuracy", "lowest", "tried"], cells)


ASKED = {
    "same": "taught objects, other views on their photo",
    "other": "taught objects on the photo of another class's object",
    "new": "held-out objects on new photos",
    "size 1": "the same, 0.9 of the height",
    "size 0.5": "0.45 of the height",
    "size 0.33": "0.3 of the height",
    "dark": "at 0.45 of the light",
    "warm": "in warm light",
    "empty": "new photos without an object, called known",
}


def scenes() -> str:
    """Return the table of objects in scenes, by stream and looks of the learner."""
    groups = grouped(read(RECORDED / "scenes.csv"), "stream", "looks", "asked")
    cases = sorted(dict.fromkeys(key[:2] for key in groups))
    rows = []
    for asked, label in ASKED.items():
        cells = [label]
        for case in cases:
            lines, counted = groups.get((*case, asked), []), "known" if asked == "empty" else "right"
            shares = [100 * int(line[counted]) / int(line["images"]) for line in lines]
            mean, half = interval(shares) if shares else (0.0, 0.0)
            cells.append("" if not shares else f"{mean:.1f} ± {half:.1f}" if len(shares) > 2 else f"{mean:.1f}")
        rows.append(cells)
    splits = [str(len(groups[(*case, "same")])) for case in cases]
    return markdown(["asked", *(f"{stream}, looks {looks}" for stream, looks in cases)], [*rows, ["splits", *splits]])


def crumb_as_expert() -> str:
    """Return the table of CRUMB beside and together with the recommended learner: accuracy, and difference to it.

    Of the two experts that are no answer of CRUMB's trained readout, only the sum at usual temperatures is shown.
    """
    groups = grouped(read(RECORDED / "crumb_as_expert.csv"), "row", "stream")
    streams = list(dict.fromkeys(stream for _, stream in groups))
    rows = []
    for row in dict.fromkeys(row for row, _ in groups):
        if row.startswith(("both, CRUMB's head", "both, untrained")) and not row.endswith("usual temperatures"):
            continue
        cells = [row]
        for stream in streams:
            lines, difference = groups.get((row, stream), []), ""
            if lines and row != "recommended":
                found = compared(lines, {one["run"]: float(one["accuracy"]) for one in groups["recommended", stream]})
                between = "" if found.interval is None else " ({:+.1f} to {:+.1f})".format(*found.interval)
                difference = f"{found.mean:+.1f}{between}"
            cells += [mean_of(lines), difference]
        rows.append(cells)
    return markdown(["row", *[cell for name in streams for cell in (DATA_SETS[name], "difference")]], rows)


def bytes_dial() -> str:
    """Return the table of accuracies by budget; a method of fixed size counts from its bytes on."""
    groups = grouped(read(RECORDED / "bytes_dial.csv"), "benchmark", "row", "budget")
    budgets = sorted({int(budget) for _, _, budget in groups} - {0})
    rows = []
    for stream, row in dict.fromkeys((stream, row) for stream, row, _ in groups):
        fixed = groups.get((stream, row, "0"), [])
        least = max(map(int, floats(fixed, "memory_bytes")), default=0)
        cells = [DATA_SETS[stream], LABELS["bytes_dial"][row]]
        for budget in budgets:
            lines = fixed if fixed and budget >= least else groups.get((stream, row, str(budget)), [])
            cells.append(mean_text(floats(lines, "accuracy")))
        rows.append(cells)
    sizes = [f"{budget / 1e6:.2f} MB" if budget >= 1e6 else f"{budget // 1000} kB" for budget in budgets]
    return markdown(["stream", "method", *sizes], rows, left=2)
