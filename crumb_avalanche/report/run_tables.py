"""Tables of finished runs: accuracy and cost, and settings."""

import os
from collections.abc import Callable
from pathlib import Path

from crumb_avalanche.report.page import EMPTY, Cell, Table, count, percent, seconds, setting
from crumb_avalanche.report.runs import IDENTITY, Group, Run, differences
from crumb_avalanche.runs.settings import RunSettings, meanings
from crumb_avalanche.runs.tables import LEDGER_BYTES, LEDGER_SECONDS

SUMMARY = {
    "memory_bytes": ("memory, bytes", count),
    "buffer_items": ("memories", count),
    "images_per_second": ("images/s", seconds),
    "train_seconds": ("training, s", seconds),
}


def summary_table(groups: list[Group]) -> Table:
    """Return a line for each group: accuracy and cost."""
    columns = {"group": "group", "runs": "runs", "final_accuracy": "final accuracy, %"}
    columns |= {name: head for name, (head, _) in SUMMARY.items()}
    rows = []
    for group in groups:
        costs = [shown(group.average(name)) for name, (_, shown) in SUMMARY.items()]
        rows.append([Cell(group.label), Cell(str(len(group.runs))), percent(group.curve.finals), *costs])
    return Table(columns, rows)


def ledger_tables(groups: list[Group]) -> tuple[Table, Table]:
    """Return the means over runs of the ledger's bytes, and of its seconds; a line for each group."""
    kept = {"buffer_items": "memories stored", **{name: f"{label}, bytes" for name, label in LEDGER_BYTES.items()}}
    spent = {"train_seconds": "training, s", **{name: f"{label}, s" for name, label in LEDGER_SECONDS.items()}}

    def table(entries: dict[str, str], shown: Callable[[float], Cell]) -> Table:
        rows = [[Cell(group.label), *(shown(group.average(name)) for name in entries)] for group in groups]
        return Table({"group": "group", **entries}, rows)

    return table(kept, count), table({**spent, "images_per_second": "images/s"}, seconds)


def curves_table(groups: list[Group]) -> Table:
    """Return a line for each group: accuracy over all seen classes after each experience (joint: the last)."""
    width = max(_width(run) for group in groups for run in group.runs)
    rows = []
    for group in groups:
        after = list(zip(*(_after(run, width) for run in group.runs)))
        rows.append([Cell(group.label), *[EMPTY if None in values else percent(values) for values in after]])
    return Table({"group": "group", **{f"after_{i}": f"exp {i}" for i in range(1, width + 1)}}, rows)


def runs_table(groups: list[Group], beside: Path) -> Table:
    """Return a line for each run: accuracy, bytes, seconds, the settings that vary, and its path from a folder."""
    width = max(_width(run) for group in groups for run in group.runs)
    names = dict.fromkeys(["strategy", "benchmark", "protocol", *map(str, differences(groups))])
    columns = {"group": "group", "run": "run", "final_accuracy": "final accuracy, %"}
    columns |= {f"accuracy_after_{i}": f"after exp {i}" for i in range(1, width + 1)}
    columns |= {"memory_bytes": "memory, bytes", "train_seconds": "training, s", **{name: name for name in names}}
    rows = []
    for group, run in [(one, run) for one in groups for run in one.runs]:
        row = {"group": Cell(group.label), "run": setting(run.result["run"])}
        row["final_accuracy"] = percent([run.result["final_accuracy"]])
        for number, value in enumerate(_after(run, width), 1):
            row[f"accuracy_after_{number}"] = EMPTY if value is None else percent([value])
        row |= {name: SUMMARY[name][1](run.ledger[name]) for name in ("memory_bytes", "train_seconds")}
        row |= {name: setting(group.settings.get(name)) for name in names}
        tuned = run.result.get("learning_rate") if run.settings.get("learning_rate") is None else None
        row |= {} if tuned is None else {"tuned_learning_rate": setting(tuned)}
        rows.append(row | {"folder": Cell(os.path.relpath(run.folder, beside))})
    return Table.of({**columns, "tuned_learning_rate": "tuned learning rate", "folder": "folder"}, rows)


def _width(run: Run) -> int:
    """Number of experiences of the stream."""
    return len(run.matrix[-1]) if run.joint else len(run.matrix)


def _after(run: Run, width: int) -> list[float | None]:
    """Accuracy after each of ``width`` experiences; ``None`` where there is none."""
    before = [None] * (_width(run) - 1) if run.joint else []  # a joint learner compares with the end of a stream
    values = [*before, *run.result["accuracy_after"]]
    return values + [None] * (width - len(values))


def settings_tables(groups: list[Group]) -> tuple[Table | None, Table]:
    """Return the settings in which the groups differ, if there are any, and all others with their meaning."""
    varying, meaning, first = list(map(str, differences(groups))), meanings(RunSettings), groups[0].settings
    rows = [[Cell(group.label), *[setting(group.settings.get(name)) for name in varying]] for group in groups]
    differ = Table({"group": "group", **{name: name for name in varying}}, rows) if varying else None
    shared = [name for name in first if all(name in group.settings for group in groups)]
    same = [name for name in dict.fromkeys([*filter(shared.__contains__, IDENTITY), *shared]) if name not in varying]
    rows = [[Cell(str(name)), setting(first[name]), Cell(meaning.get(name, ""))] for name in same]
    return differ, Table({name: name for name in ("setting", "value", "meaning")}, rows)
