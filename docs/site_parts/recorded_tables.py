"""Tables of measurements that were recorded as they are shown."""

from collections.abc import Sequence
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
    marked,
    mean_of,
    mean_text,
    read,
    rows_of,
)
from support.statistics import interval


def task_incremental() -> str:
    """Return the table of the regularisers with and without task labels."""
    found = {
        (line["method"], line["figure"]): line
        for line in read(DOCS / "task_incremental.csv")
    }
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
    header = [
        "method",
        "class-incremental",
        "task-incremental",
        "minus fine-tuning, same run",
    ]
    return markdown([*header, "forgetting, task-incremental"], rows)


def feature_cache() -> str:
    """Return the table of seconds with and without a feature cache."""
    rows = []
    for line in read(RECORDED / "feature_cache.csv"):
        name = (
            f"all {line['runs']} runs"
            if line["strategy"] == "all"
            else f"`{line['strategy']}`"
        )
        seconds = [f"{int(line[f'seconds {kind}']):,}" for kind in ("without", "with")]
        rows.append([name, *seconds, line["times as fast"], line["the same bits"]])
    return markdown(
        ["strategy", "seconds without", "with", "times as fast", "the same bits"], rows
    )


def recorded(name: str) -> str:
    """Return a table of ``docs/results`` as it was recorded."""
    header, *rows = rows_of(name)
    return markdown(header, rows)


def test_or_development() -> str:
    """Return the table of which data settings were chosen on, by learner."""
    names = ["data", "`recommended`", "CRUMB, `--preset tuned`", "looks", "unknown"]
    _, *rows = rows_of("test_or_development")
    return markdown(
        names,
        [[DATA_SETS.get(name, name), *cells] for name, *cells in rows],
        len(names),
    )


def rival_settings() -> str:
    """Return the best settings of each classifier in ``rival_settings.csv``, and the range of all that were tried."""
    groups: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for stream, strategy, settings, accuracy, _ in rows_of("rival_settings")[1:]:
        groups.setdefault((stream, strategy), []).append((float(accuracy), settings))
    cells = [
        [
            stream,
            f"`{strategy}`",
            max(found)[1],
            f"{max(found)[0]:.1f}",
            f"{min(found)[0]:.1f}",
            str(len(found)),
        ]
        for (stream, strategy), found in groups.items()
    ]
    return markdown(
        [
            "held-out data of",
            "strategy",
            "best settings",
            "accuracy",
            "lowest",
            "tried",
        ],
        cells,
    )


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
    groups = grouped(read(RECORDED / "scenes.csv"), *keys, "asked")
    rows = []
    for case in dict.fromkeys(key[:4] for key in groups):
        cells = [f"`{value}`" for value in case]
        for asked in ASKED:
            counted = "known" if asked == "empty" else "right"
            cells.append(share_text(groups.get((*case, asked), []), counted))
        rows.append(
            [*cells, str(len({line["split"] for line in groups[(*case, "same")]}))]
        )
    return markdown([*keys, *ASKED.values(), "splits"], rows, len(keys))


def share_text(lines: Sequence[dict[str, str]], counted: str) -> str:
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
        lines = groups[(asked,)]
        known = "{:.1f} ± {:.1f}".format(
            *interval([100 * float(line["called known"]) for line in lines])
        )
        area = "{:.3f} ± {:.3f}".format(
            *interval([float(line["AUROC"]) for line in lines])
        )
        rows.append([label, known, "" if asked == "known" else area])
    return markdown(["asked", "called known, %", "AUROC"], rows)


def crumb_as_expert() -> str:
    """Return the table of CRUMB beside and together with the recommended learner: accuracy, and difference to it."""
    groups = grouped(read(RECORDED / "crumb_as_expert.csv"), "row", "stream")
    streams = list(dict.fromkeys(stream for _, stream in groups))
    rows = []
    for row in dict.fromkeys(row for row, _ in groups):
        cells = [row]
        for stream in streams:
            lines, difference = groups.get((row, stream), []), ""
            if lines and row != "recommended":
                found = compared(
                    lines,
                    {
                        one["run"]: float(one["accuracy"])
                        for one in groups["recommended", stream]
                    },
                )
                between = (
                    ""
                    if found.interval is None
                    else " ({:+.1f} to {:+.1f})".format(*found.interval)
                )
                difference = f"{found.mean:+.1f}{between}"
            cells += [mean_of(lines), difference]
        rows.append(cells)
    return markdown(
        ["row", *[cell for name in streams for cell in (marked(name), "difference")]],
        rows,
    )


def bytes_dial() -> str:
    """Return the table of accuracies by budget; a method of fixed size counts from its bytes on."""
    groups = grouped(read(RECORDED / "bytes_dial.csv"), "benchmark", "row", "budget")
    budgets = sorted({int(budget) for _, _, budget in groups} - {0})
    rows = []
    for stream, row in dict.fromkeys((stream, row) for stream, row, _ in groups):
        fixed = groups.get((stream, row, "0"), [])
        least = max(map(int, floats(fixed, "memory_bytes")), default=0)
        cells = [marked(stream), LABELS["bytes_dial"][row]]
        for budget in budgets:
            lines = (
                fixed
                if fixed and budget >= least
                else groups.get((stream, row, str(budget)), [])
            )
            cells.append(mean_text(floats(lines, "accuracy")))
        rows.append(cells)
    sizes = [
        f"{budget / 1e6:.2f} MB" if budget >= 1e6 else f"{budget // 1000} kB"
        for budget in budgets
    ]
    return markdown(["stream", "method", *sizes], rows, left=2)
