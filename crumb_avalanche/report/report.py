"""``crumb report``: tables, pictures and ``report.html`` of the finished runs in some folders.

The page makes no request and is readable without its script.
"""

import os
import statistics
from collections.abc import Callable
from pathlib import Path

from benchmarks_toybox_ilab.tables.atomic_file import write_text
from benchmarks_toybox_ilab.tables.text import ListedError
from crumb_avalanche.report import pictures, runs
from crumb_avalanche.report.page import (
    EMPTY,
    MARK,
    Cell,
    Matrix,
    Table,
    count,
    percent,
    render,
    seconds,
    setting,
)
from crumb_avalanche.report.settings import ReportSettings
from crumb_avalanche.runs.plan import usual_settings
from crumb_avalanche.runs.run_folder import RESULT, DamagedRunError, refuse_others
from crumb_avalanche.runs.settings import RunSettings, meanings
from crumb_avalanche.runs.tables import (
    LEDGER_BYTES,
    LEDGER_SECONDS,
    cell,
    ledger_table,
    matrix_table,
    table,
    usage_of,
)
from crumb_avalanche.system.folder_lock import locked
from crumb_avalanche.system.progress import counted

PAGE = "report.html"
FILES = [PAGE, "report.csv", "comparison.csv", "report.png", "report.svg"]
MAIN_SETTINGS = [
    *runs.IDENTITY,
    "run",
    "weights",
    "backbone",
    "first_epochs",
    "epochs",
    "batch_size",
    "learning_rate",
]
OPEN_MATRICES = 6  # groups; with more, the matrices are collapsed
WIDE = 12  # experiences; with more, the matrices are set smaller
SUMMARY = {
    "memory_bytes": ("memory, bytes", count),
    "buffer_items": ("memories", count),
    "images_per_second": ("images/s", seconds),
    "train_seconds": ("training, s", seconds),
}


def main(settings: ReportSettings) -> None:
    """Print tables of the runs in some folders; write a page, pictures, and tables as CSV.

    ValueError: there is no finished run, or a run cannot be read; the others are
        reported first.
    """
    finished, unfinished, problems = runs.find_runs(settings.folders)
    found = []
    for folder in finished:
        try:
            found.append(runs.read_run(folder))
        except DamagedRunError as error:
            problems.append(str(error))
    if not found:
        if not problems:
            raise ValueError(
                "no folder was given; write crumb report FOLDER [FOLDER ...]"
            )
        raise ListedError("no run can be reported", problems)
    first = Path(settings.folders[0])
    beside = (
        found[0].folder
        if len(found) == 1
        else first
        if len(settings.folders) == 1
        else first.parent
    )
    output = Path(settings.output or beside)
    groups = runs.groups_of(found)
    left_out = [
        f"unfinished and left out, without {RESULT}: {path}" for path in unfinished
    ]
    try:
        with locked(output):
            refuse_others(output, FILES, {PAGE: MARK})
            # First the page, by which the other files are known.
            summary, runs_of = summary_table(groups), runs_table(groups, output)
            write_text(
                output / PAGE,
                report_page(groups, summary, runs_of, [*problems, *left_out]),
            )
            runs_of.write(output / "report.csv")
            summary.write(output / "comparison.csv")
            alike = [
                name
                for name in runs.IDENTITY[:4]
                if name not in runs.differences(groups)
            ]
            title = ", ".join(f"{name} {groups[0].settings[name]}" for name in alike)
            written = pictures.save(
                pictures.comparison_picture(title, [group.curve for group in groups]),
                output,
            )
            written += [
                output / name for name in (PAGE, "report.csv", "comparison.csv")
            ]
    except OSError as error:
        raise ValueError(
            f"{output} cannot be written to ({error}); name another folder with --output"
        ) from error
    if len(found) == 1:
        print_run(groups[0])
    else:
        print_comparison(groups, summary)
    usage = usage_of(found[0].folder, found[0].settings["strategy"])
    print("\nwritten: " + ", ".join(map(str, written)), *usage, sep="\n")
    if unfinished:
        print(
            f"unfinished and left out, without {RESULT}: "
            + ", ".join(map(str, unfinished))
        )
    if problems:
        raise ListedError(
            "not everything could be reported; the rest is written", problems
        )


def print_run(group: runs.Group) -> None:
    """Print a group's only run: settings, accuracies and ledger."""
    run = group.runs[0]
    settings = run.settings
    usual = usual_settings(
        settings["benchmark"], settings["preset"], settings["strategy"]
    )
    special = [
        name
        for name in settings
        if name not in runs.NOT_COMPARED and settings[name] != usual.get(name)
    ]
    names = [
        name
        for name in dict.fromkeys(MAIN_SETTINGS + special)
        if settings.get(name) is not None
    ]
    print(
        f"{run.folder}\n"
        + table(["setting", "value"], [[name, cell(settings[name])] for name in names])
    )
    print(matrix_table(run.matrix, run.result["accuracy_after"], run.joint))
    print(ledger_table(run.ledger))


def print_comparison(groups: list[runs.Group], summary: Table) -> None:
    """Print groups of runs side by side."""
    print(
        "final accuracy over all classes: mean +- standard deviation of runs (n - 1); the others are means"
    )
    print(summary.lines)
    print(
        "images/s: times of different runs are comparable only when measured side by side on the same machine"
    )
    if (differ := settings_tables(groups)[0]) is not None:
        print("\nsettings in which they differ\n" + differ.lines)
    for note in runs.notes_on(groups):
        print(f"note: {note}")


def report_page(
    groups: list[runs.Group], summary: Table, of_runs: Table, left_out: list[str]
) -> str:
    """Render the page about groups of runs, with a table of the groups, one of the runs, and what is left out."""
    shown = dict.fromkeys(
        stream for streams in runs.streams_of(groups) for stream in streams
    )
    names = " and ".join(
        dict.fromkeys(f"{cell(stream[0])}, {cell(stream[1])}" for stream in shown)
    )
    total = sum(len(group.runs) for group in groups)
    lead = f"{counted(total, 'finished run')} in {counted(len(groups), 'group')}; the runs of a group differ in their "
    lead += "seed only. Accuracy is in percent of the test images, mean ± standard deviation over runs (n - 1)."
    times = "times of different runs are comparable only when measured side by side on the same machine"
    differ, same = settings_tables(groups)
    kept, spent = ledger_tables(groups)
    return render(
        "report.html",
        title=f"{names if len(names) <= 80 else 'Finished runs'}: {counted(total, 'run')}",
        lead=lead,
        numbers=range(len(groups)),
        run_numbers=[number for number, group in enumerate(groups) for _ in group.runs],
        summary=summary,
        notes=[*runs.notes_on(groups), *left_out, times],
        streams=_streams(groups),
        matrices=[(group, _matrix(group), _classes(group)) for group in groups],
        ledger_bytes=kept,
        ledger_seconds=spent,
        runs=of_runs,
        settings_differ=differ,
        settings_same=same,
        OPEN_MATRICES=OPEN_MATRICES,
    )


def _streams(groups: list[runs.Group]) -> list[dict]:
    """Two figures and a table for each stream, because accuracies on different streams do not compare."""
    streams: dict[tuple, list[int]] = {}
    for number, seen_on in enumerate(runs.streams_of(groups)):
        for stream in seen_on:
            streams.setdefault(stream, []).append(number)
    found = []
    for place, (stream, numbers) in enumerate(streams.items()):
        name = f"{cell(stream[0])}, {cell(stream[1])}"
        shown = [groups[number] for number in numbers]
        curves = [group.curve for group in shown]
        for curve, label in zip(curves, _labels_within(shown)):
            curve.label = label
        banded = len(curves) <= pictures.CROWDED and any(curve.std for curve in curves)
        band = ", band of one standard deviation" if banded else ""
        labels = (
            f"Accuracy over all classes seen: mean of runs{band}",
            "Final accuracy: bar mean, line one standard deviation, dots runs",
        )
        drawn = [
            (
                pictures.inline_svg(
                    figure, f"{kind}-{place}-", f"{label}; {name}", numbers
                ),
                label,
            )
            for kind, figure, label in zip(
                ("curves", "finals"), pictures.page_figures(curves), labels
            )
        ]
        found.append(
            {
                "name": name,
                "figures": drawn,
                "table": curves_table(shown),
                "numbers": numbers,
            }
        )
    return found


def _labels_within(groups: list[runs.Group]) -> list[str]:
    """Labels of groups on one stream, without the stream's name if they stay distinct."""
    labels = [group.label for group in groups]
    for name in ("benchmark", "protocol", "dataset_root"):
        labels = [
            label.replace(f", {name}={cell(g.settings.get(name), 24)}", "")
            for g, label in zip(groups, labels)
        ]
    return (
        labels if len(set(labels)) == len(labels) else [group.label for group in groups]
    )


def _matrix(group: runs.Group) -> Matrix:
    width, rows = len(group.runs[0].matrix[-1]), []
    for after, cells in enumerate(group.runs[0].matrix):
        row = []
        for place in range(width):
            values = [
                run.matrix[after][place]
                for run in group.runs
                if place < len(run.matrix[after])
            ]
            seen = place < len(cells) and len(values) == len(group.runs)
            row.append(
                (_mean(values), f"{statistics.fmean(values) / 100:.1%}")
                if seen
                else (EMPTY, "")
            )
        overall = [run.result["accuracy_after"][after] for run in group.runs]
        row.append((EMPTY if None in overall else _mean(overall), ""))
        rows.append(("joint" if group.curve.joint else f"exp {after + 1}", row))
    heads = [
        f"exp {place + 1}" if width <= WIDE else str(place + 1)
        for place in range(width)
    ]
    return Matrix(["after", *heads, "all seen"], rows, width > WIDE)


def _mean(values: list[float]) -> Cell:
    """A mean to a tenth, and with its standard deviation as a tooltip."""
    mean, spread = (
        statistics.fmean(values),
        statistics.stdev(values) if len(values) > 1 else None,
    )
    return Cell(f"{mean:.1f}", None if spread is None else f"{mean:.2f} ± {spread:.2f}")


def _classes(group: runs.Group) -> list[list]:
    """The classes of each experience if the group has one order of them, else nothing."""
    run = group.runs[0]
    if len(group.runs) > 1 or not run.classes_seen or run.joint:
        return []
    return [
        run.result["classes_order"][old:new]
        for old, new in zip([0, *run.classes_seen], run.classes_seen)
    ]


def summary_table(groups: list[runs.Group]) -> Table:
    """Return a line for each group: accuracy and cost."""
    columns = {"group": "group", "runs": "runs", "final_accuracy": "final accuracy, %"}
    columns |= {name: head for name, (head, _) in SUMMARY.items()}
    rows = []
    for group in groups:
        costs = [shown(group.average(name)) for name, (_, shown) in SUMMARY.items()]
        rows.append(
            [
                Cell(group.label),
                Cell(str(len(group.runs))),
                percent(group.curve.finals),
                *costs,
            ]
        )
    return Table(columns, rows)


def ledger_tables(groups: list[runs.Group]) -> tuple[Table, Table]:
    """Return the means over runs of the ledger's bytes, and of its seconds; a line for each group."""
    kept = {
        "buffer_items": "memories stored",
        **{name: f"{label}, bytes" for name, label in LEDGER_BYTES.items()},
    }
    spent = {
        "train_seconds": "training, s",
        **{name: f"{label}, s" for name, label in LEDGER_SECONDS.items()},
    }

    def table(entries: dict[str, str], shown: Callable[[float], Cell]) -> Table:
        rows = [
            [Cell(group.label), *(shown(group.average(name)) for name in entries)]
            for group in groups
        ]
        return Table({"group": "group", **entries}, rows)

    return table(kept, count), table(
        {**spent, "images_per_second": "images/s"}, seconds
    )


def curves_table(groups: list[runs.Group]) -> Table:
    """Return a line for each group: accuracy over all seen classes after each experience (joint: the last)."""
    width = max(_width(run) for group in groups for run in group.runs)
    rows = []
    for group in groups:
        after = list(zip(*(_after(run, width) for run in group.runs)))
        rows.append(
            [
                Cell(group.label),
                *[EMPTY if None in values else percent(values) for values in after],
            ]
        )
    return Table(
        {"group": "group", **{f"after_{i}": f"exp {i}" for i in range(1, width + 1)}},
        rows,
    )


def runs_table(groups: list[runs.Group], beside: Path) -> Table:
    """Return a line for each run: accuracy, bytes, seconds, the settings that vary, and its path from a folder."""
    width = max(_width(run) for group in groups for run in group.runs)
    names = dict.fromkeys(
        ["strategy", "benchmark", "protocol", *map(str, runs.differences(groups))]
    )
    columns = {"group": "group", "run": "run", "final_accuracy": "final accuracy, %"}
    columns |= {f"accuracy_after_{i}": f"after exp {i}" for i in range(1, width + 1)}
    columns |= {
        "memory_bytes": "memory, bytes",
        "train_seconds": "training, s",
        **{name: name for name in names},
    }
    rows = []
    for group, run in [(one, run) for one in groups for run in one.runs]:
        row = {"group": Cell(group.label), "run": setting(run.result["run"])}
        row["final_accuracy"] = percent([run.result["final_accuracy"]])
        for number, value in enumerate(_after(run, width), 1):
            row[f"accuracy_after_{number}"] = (
                EMPTY if value is None else percent([value])
            )
        row |= {
            name: SUMMARY[name][1](run.ledger[name])
            for name in ("memory_bytes", "train_seconds")
        }
        row |= {name: setting(group.settings.get(name)) for name in names}
        tuned = (
            run.result.get("learning_rate")
            if run.settings.get("learning_rate") is None
            else None
        )
        row |= {} if tuned is None else {"tuned_learning_rate": setting(tuned)}
        rows.append(row | {"folder": Cell(os.path.relpath(run.folder, beside))})
    return Table.of(
        {**columns, "tuned_learning_rate": "tuned learning rate", "folder": "folder"},
        rows,
    )


def _width(run: runs.Run) -> int:
    """Number of experiences of the stream."""
    return len(run.matrix[-1]) if run.joint else len(run.matrix)


def _after(run: runs.Run, width: int) -> list[float | None]:
    """Accuracy after each of ``width`` experiences; ``None`` where there is none."""
    before = (
        [None] * (_width(run) - 1) if run.joint else []
    )  # a joint learner compares with the end of a stream
    values = [*before, *run.result["accuracy_after"]]
    return values + [None] * (width - len(values))


def settings_tables(groups: list[runs.Group]) -> tuple[Table | None, Table]:
    """Return the settings in which the groups differ, if there are any, and all others with their meaning."""
    varying, meaning, first = (
        list(map(str, runs.differences(groups))),
        meanings(RunSettings),
        groups[0].settings,
    )
    rows = [
        [Cell(group.label), *[setting(group.settings.get(name)) for name in varying]]
        for group in groups
    ]
    differ = (
        Table({"group": "group", **{name: name for name in varying}}, rows)
        if varying
        else None
    )
    shared = [name for name in first if all(name in group.settings for group in groups)]
    same = [
        name
        for name in dict.fromkeys(
            [*filter(shared.__contains__, runs.IDENTITY), *shared]
        )
        if name not in varying
    ]
    rows = [
        [Cell(str(name)), setting(first[name]), Cell(meaning.get(name, ""))]
        for name in same
    ]
    return differ, Table({name: name for name in ("setting", "value", "meaning")}, rows)
