"""``report.html``: one page about finished runs that makes no request and is readable without its script."""

import statistics

from crumb_avalanche.report.deviations import deviations_of, meanings
from crumb_avalanche.report.html_figures import CROWDED, curves_figure, finals_figure, inline_svg
from crumb_avalanche.report.page import render
from crumb_avalanche.report.runs import IDENTITY, Group, differences, notes_on, streams_of
from crumb_avalanche.report.summary import curves_table, seconds, setting
from crumb_avalanche.report.table import EMPTY, Cell, Column, Matrix, Table, count
from crumb_avalanche.runs.tables import LEDGER_BYTES, LEDGER_SECONDS, cell
from crumb_avalanche.system.counted import counted

OPEN_MATRICES = 6  # groups; with more, the matrices are collapsed
WIDE = 12  # experiences; with more, the matrices are set smaller


def report_page(groups: list[Group], summary: Table, runs: Table, left_out: list[str]) -> str:
    """Render the page about groups of runs, in ASCII.

    Args:
        groups: what is reported.
        summary: one line for each group.
        runs: one line for each run.
        left_out: runs that are left out, with the reason.
    """
    shown = dict.fromkeys(stream for streams in streams_of(groups) for stream in streams)
    names = " and ".join(dict.fromkeys(f"{cell(stream[0])}, {cell(stream[1])}" for stream in shown))
    total = sum(len(group.runs) for group in groups)
    lead = f"{counted(total, 'finished run')} in {counted(len(groups), 'group')}; the runs of a group differ in their "
    lead += "seed only. Accuracy is in percent of the test images, mean ± standard deviation over runs (n - 1)."
    times = "times of different runs are comparable only when measured side by side on the same machine"
    differ, same = _settings(groups)
    return render(
        "report.html",
        title=f"{names if len(names) <= 80 else 'Finished runs'}: {counted(total, 'run')}",
        lead=lead,
        numbers=range(len(groups)),
        run_numbers=[number for number, group in enumerate(groups) for _ in group.runs],
        summary=summary,
        notes=[*notes_on(groups), *left_out, times],
        streams=_streams(groups),
        matrices=[(group, _matrix(group), _classes(group)) for group in groups],
        ledger_bytes=_ledger(groups, ("buffer_items", "memories stored"), LEDGER_BYTES, "bytes", count),
        ledger_seconds=_ledger(groups, ("train_seconds", "training, s"), LEDGER_SECONDS, "s", seconds),
        runs=runs,
        settings_differ=differ,
        settings_same=same,
        deviations=_deviations(groups),
        OPEN_MATRICES=OPEN_MATRICES,
    )


def _streams(groups: list[Group]) -> list[dict]:
    """Two figures and a table for each stream, because accuracies on different streams do not compare."""
    streams: dict[tuple, list[int]] = {}
    for number, seen_on in enumerate(streams_of(groups)):
        for stream in seen_on:
            streams.setdefault(stream, []).append(number)
    found = []
    for place, (stream, numbers) in enumerate(streams.items()):
        name = f"{cell(stream[0])}, {cell(stream[1])}"
        shown = [groups[number] for number in numbers]
        curves = [group.curve for group in shown]
        for curve, label in zip(curves, _labels_within(shown)):
            curve.label = label
        banded = len(curves) <= CROWDED and any(curve.std for curve in curves)
        band = ", band of one standard deviation" if banded else ""
        figures = {
            "curves": (curves_figure(curves), f"Accuracy over all classes seen: mean of runs{band}"),
            "finals": (finals_figure(curves), "Final accuracy: bar mean, line one standard deviation, dots runs"),
        }
        drawn = [
            (inline_svg(figure, f"{kind}-{place}-", f"{label}; {name}", numbers), label)
            for kind, (figure, label) in figures.items()
        ]
        found.append({"name": name, "figures": drawn, "table": curves_table(shown), "numbers": numbers})
    return found


def _labels_within(groups: list[Group]) -> list[str]:
    """Labels of groups on one stream, without the stream's name if they stay distinct."""
    labels = [group.label for group in groups]
    for name in ("benchmark", "protocol", "dataset_root"):
        labels = [label.replace(f", {name}={cell(g.settings.get(name), 24)}", "") for g, label in zip(groups, labels)]
    return labels if len(set(labels)) == len(labels) else [group.label for group in groups]


def _matrix(group: Group) -> Matrix:
    width, rows = len(group.runs[0].matrix[-1]), []
    for after, cells in enumerate(group.runs[0].matrix):
        row = []
        for place in range(width):
            values = [run.matrix[after][place] for run in group.runs if place < len(run.matrix[after])]
            seen = place < len(cells) and len(values) == len(group.runs)
            row.append((_mean(values), f"{statistics.fmean(values) / 100:.1%}") if seen else (EMPTY, ""))
        overall = [run.result["accuracy_after"][after] for run in group.runs]
        row.append((EMPTY if None in overall else _mean(overall), ""))
        rows.append(("joint" if group.curve.joint else f"exp {after + 1}", row))
    heads = [f"exp {place + 1}" if width <= WIDE else str(place + 1) for place in range(width)]
    return Matrix(["after", *heads, "all seen"], rows, width > WIDE)


def _mean(values: list[float]) -> Cell:
    """A mean to a tenth, and with its standard deviation as a tooltip."""
    mean, spread = statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
    return Cell(f"{mean:.1f}", None if spread is None else f"{mean:.2f} ± {spread:.2f}")


def _classes(group: Group) -> list[list]:
    """The classes of each experience if the group has one order of them, else nothing."""
    run = group.runs[0]
    if len(group.runs) > 1 or not run.classes_seen or run.joint:
        return []
    return [run.result["classes_order"][old:new] for old, new in zip([0, *run.classes_seen], run.classes_seen)]


def _ledger(groups: list[Group], first: tuple[str, str], entries: dict[str, str], unit: str, shown) -> Table:
    """Means over runs of some entries of the ledger, a line for each group."""
    columns = [Column("group", "group"), Column(*first)]
    columns += [Column(name, f"{label}, {unit}") for name, label in entries.items()]
    columns += [Column("images_per_second", "images/s")] * (unit == "s")
    return Table(columns, [[Cell(g.label), *[shown(g.average(c.name)) for c in columns[1:]]] for g in groups])


def _settings(groups: list[Group]) -> tuple[Table | None, Table]:
    """The settings in which the groups differ, if there are any, and all others."""
    varying, meaning, first = differences(groups), meanings(), groups[0].settings
    columns = [Column("group", "group"), *[Column(str(name), str(name)) for name in varying]]
    rows = [[Cell(group.label), *[setting(group.settings.get(name)) for name in varying]] for group in groups]
    shared = [name for name in first if all(name in group.settings for group in groups)]
    same = [name for name in dict.fromkeys([*filter(shared.__contains__, IDENTITY), *shared]) if name not in varying]
    same_rows = [[Cell(str(name)), setting(first[name]), Cell(meaning.get(name, ""))] for name in same]
    same_columns = [Column(name, name) for name in ("setting", "value", "meaning")]
    return Table(columns, rows) if varying else None, Table(same_columns, same_rows)


def _deviations(groups: list[Group]) -> Table:
    """A line for each setting that differs from preset ``paper``."""
    heads = {"setting": "setting", "paper": "preset paper", "run": "these runs", "groups": "groups"}
    rows = []
    for found in deviations_of(groups):
        labels = "all" if len(found.groups) == len(groups) > 1 else "; ".join(found.groups)
        rows.append([Cell(found.setting), found.paper, found.run, Cell(labels)])
    return Table([Column(*head) for head in heads.items()], rows)
