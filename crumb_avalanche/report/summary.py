"""Tables of a report as text; numbers are rounded here, for page, CSV and LaTeX alike."""

import os
from collections.abc import Sequence
from pathlib import Path

from crumb_avalanche.report.runs import Group, Run, differences
from crumb_avalanche.report.table import EMPTY, Cell, Column, Table, count
from crumb_avalanche.runs.tables import cell, mean_text


def percent(values: Sequence[float]) -> Cell:
    """Mean ± standard deviation (n - 1) of accuracies in percent; a single value alone."""
    return Cell(mean_text(values, ".2f", "±"))


def seconds(value: float) -> Cell:
    """Seconds or images per second, to a tenth."""
    return Cell(f"{value:.1f}")


def setting(value) -> Cell:
    """A setting, shortened if it is long."""
    text, full = cell(value), cell(value, 100_000)
    return Cell(text, None if text == full else full)


def summary_table(groups: list[Group]) -> Table:
    """Return a line for each group: accuracy and cost."""
    columns = [
        Column("group", "group"),
        Column("runs", "runs"),
        Column("final_accuracy", "final accuracy, %"),
        Column("memory_bytes", "memory, bytes"),
        Column("buffer_items", "memories"),
        Column("images_per_second", "images/s"),
        Column("train_seconds", "training, s"),
    ]
    rows = [
        [
            Cell(group.label),
            Cell(str(len(group.runs))),
            percent(group.curve.finals),
            count(group.average("memory_bytes")),
            count(group.average("buffer_items")),
            seconds(group.average("images_per_second")),
            seconds(group.average("train_seconds")),
        ]
        for group in groups
    ]
    return Table(columns, rows)


def curves_table(groups: list[Group]) -> Table:
    """Return a line for each group: accuracy over all seen classes after each experience (joint: the last)."""
    width = max(_width(run) for group in groups for run in group.runs)
    columns = [Column("group", "group"), *[Column(f"after_{i + 1}", f"exp {i + 1}") for i in range(width)]]
    rows = []
    for group in groups:
        after = list(zip(*(_after(run, width) for run in group.runs)))
        rows.append([Cell(group.label), *[EMPTY if None in values else percent(values) for values in after]])
    return Table(columns, rows)


def runs_table(groups: list[Group], beside: Path) -> Table:
    """Return a line for each run: accuracy, bytes, seconds, and the settings that vary.

    Args:
        groups: the runs.
        beside: folder to which paths of runs are relative.
    """
    width = max(_width(run) for group in groups for run in group.runs)
    names = list(dict.fromkeys(["strategy", "benchmark", "protocol", *differences(groups)]))
    names.remove("strategy")
    columns = [Column("group", "group"), Column("run", "run"), Column("final_accuracy", "final accuracy, %")]
    columns += [Column(f"accuracy_after_{i + 1}", f"after exp {i + 1}") for i in range(width)]
    columns += [Column("memory_bytes", "memory, bytes"), Column("train_seconds", "training, s")]
    columns += [Column(name, name) for name in ("strategy", *map(str, names))]
    tuned = any(_tuned_rate(run) is not None for group in groups for run in group.runs)
    columns += [Column("tuned_learning_rate", "tuned learning rate")] * tuned + [Column("folder", "folder")]
    rows = []
    for group in groups:
        for run in group.runs:
            row = [Cell(group.label), setting(run.result["run"]), percent([run.result["final_accuracy"]])]
            row += [EMPTY if value is None else percent([value]) for value in _after(run, width)]
            row += [count(run.ledger["memory_bytes"]), seconds(run.ledger["train_seconds"])]
            row += [setting(group.settings.get(name)) for name in ("strategy", *names)]
            row += [EMPTY if _tuned_rate(run) is None else setting(_tuned_rate(run))] * tuned
            rows.append([*row, Cell(os.path.relpath(run.folder, beside))])
    return Table(columns, rows)


def _width(run: Run) -> int:
    """Number of experiences of the stream."""
    return len(run.matrix[-1]) if run.joint else len(run.matrix)


def _after(run: Run, width: int) -> list[float | None]:
    """Accuracy after each of ``width`` experiences; ``None`` where there is none."""
    before = [None] * (_width(run) - 1) if run.joint else []  # a joint learner compares with the end of a stream
    values = [*before, *run.result["accuracy_after"]]
    return values + [None] * (width - len(values))


def _tuned_rate(run: Run):
    """The learning rate that was tuned in the run, if it was."""
    return run.result.get("learning_rate") if run.settings.get("learning_rate") is None else None
