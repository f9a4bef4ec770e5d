"""Tables of measurements that were recorded as they are shown."""

import statistics
from collections.abc import Sequence
from decimal import Decimal

from scipy import stats
from site_parts.csv_tables import DOCS, RECORDED, floats, grouped, markdown, mean_text, read, rows_of

STREAMS = {
    "cifar100": "Online-CIFAR100",
    "eth80": "ETH-80",
    "clip_folder": "sign digits",
    "toy_dots": "toy dots",
    "toy_shapes": "toy shapes",
}
METHODS = {
    "rda": "**`recommended`**",
    "slda": "streaming LDA",
    "ncm": "nearest class mean",
    "crumb": "CRUMB, `--preset tuned`",
    "image_replay": "image replay",
}


def task_incremental() -> str:
    """Return the table of the regularisers with and without task labels."""
    labels = {
        "finetune": "`finetune`",
        "ewc": "`ewc`, strength 10,000",
        "si": "`si`, strength 10,000",
        "mas": "`mas`, strength 100",
        "lwf": "`lwf`, alpha 10",
        "stable_sgd": "`stable_sgd`",
    }
    found = {(line["method"], line["figure"]): line for line in read(DOCS / "task_incremental.csv")}

    def text(method: str, figure: str, mean: str = "mean", spread: str = "std", form: str = ".1f") -> str:
        line = found[method, figure]
        return f"{Decimal(line[mean]):{form}} ± {Decimal(line[spread]):.1f}"

    rows = [
        [
            label,
            text(method, "class_incremental"),
            text(method, "task_incremental"),
            ""
            if method == "finetune"
            else text(method, "task_incremental", "minus_finetune", "minus_finetune_std", "+.1f"),
            text(method, "forgetting"),
        ]
        for method, label in labels.items()
    ]
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
    rows = [
        [
            f"all {line['runs']} runs" if line["strategy"] == "all" else f"`{line['strategy']}`",
            f"{int(line['seconds without']):,}",
            f"{int(line['seconds with']):,}",
            line["times as fast"],
            line["the same bits"],
        ]
        for line in read(RECORDED / "feature_cache.csv")
    ]
    return markdown(["strategy", "seconds without", "with", "times as fast", "the same bits"], rows)


def open_set(part: str) -> str:
    """Return the table of streams or that of scores of ``open_set.csv``, which holds one below the other."""
    lines = rows_of("open_set")
    second = next(number for number, line in enumerate(lines) if line[0] == "score")
    header, *rows = [line for line in (lines[second:] if part == "scores" else lines[:second]) if any(line)]
    return markdown([name for name in header if name], [row[: len(header)] for row in rows])


def recorded(name: str) -> str:
    """Return a table of ``docs/results`` as it was recorded."""
    header, *rows = rows_of(name)
    return markdown(header, rows)


def rival_settings() -> str:
    """Return the best settings of each classifier in ``rival_settings.csv``, and the range of all that were tried."""
    _, *rows = rows_of("rival_settings")
    groups: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for stream, strategy, settings, accuracy, _ in rows:
        groups.setdefault((stream, strategy), []).append((float(accuracy), settings))
    header = ["held-out data of", "strategy", "best settings", "accuracy", "lowest", "tried"]
    cells = [
        [stream, f"`{strategy}`", max(found)[1], f"{max(found)[0]:.1f}", f"{min(found)[0]:.1f}", str(len(found))]
        for (stream, strategy), found in groups.items()
    ]
    return markdown(header, cells)


def difference_text(lines: Sequence[dict[str, str]], reference: Sequence[dict[str, str]]) -> str:
    """Format the difference of a row to a reference in the same runs, with its 95 % interval by Student's t.

    Runs on one split count as one unit, unless all runs have the same.
    """
    alone = {line["run"]: float(line["accuracy"]) for line in reference}
    found = [
        {"split": line["frame_table"], "difference": str(float(line["accuracy"]) - alone[line["run"]])}
        for line in lines
    ]
    groups = grouped(found, "split").values()
    units = (
        floats(found, "difference") if len(groups) == 1 else [statistics.fmean(floats(g, "difference")) for g in groups]
    )
    mean = statistics.fmean(units)
    if len(units) < 2:
        return f"{mean:+.1f}"
    half = stats.t.ppf(0.975, len(units) - 1) * statistics.stdev(units) / len(units) ** 0.5
    return f"{mean:+.1f} ({mean - half:+.1f} to {mean + half:+.1f})"


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
            lines, ours = groups.get((row, stream), []), groups["recommended", stream]
            cells.append(
                mean_text(floats(lines, "accuracy")) + (f" (run {lines[0]['run']})" if len(lines) == 1 else "")
            )
            cells.append(difference_text(lines, ours) if lines and lines is not ours else "")
        rows.append(cells)
    names = [STREAMS[stream] for stream in streams]
    return markdown(["row", *[cell for name in names for cell in (name, "difference")]], rows)


def bytes_dial() -> str:
    """Return the table of accuracies by budget; a method of fixed size counts from its bytes on."""
    groups = grouped(read(RECORDED / "bytes_dial.csv"), "benchmark", "row", "budget")
    budgets = sorted({int(budget) for _, _, budget in groups} - {0})
    rows = []
    for stream, row in dict.fromkeys((stream, row) for stream, row, _ in groups):
        fixed = groups.get((stream, row, "0"), [])
        least = max(map(int, floats(fixed, "memory_bytes")), default=0)
        cells = [STREAMS[stream], METHODS[row]]
        for budget in budgets:
            lines = fixed if fixed and budget >= least else groups.get((stream, row, str(budget)), [])
            cells.append(mean_text(floats(lines, "accuracy")))
        rows.append(cells)
    sizes = [f"{budget / 1e6:.2f} MB" if budget >= 1e6 else f"{budget // 1000} kB" for budget in budgets]
    return markdown(["stream", "method", *sizes], rows, left=2)
