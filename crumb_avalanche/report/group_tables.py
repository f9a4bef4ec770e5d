"""Tables about groups of runs, for ``report.html``, CSV files and the terminal."""

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crumb_avalanche.report.page import (
    EMPTY,
    Cell,
    Matrix,
    MatrixCell,
    MatrixRow,
    Table,
    accuracy_cell,
    count_cell,
    seconds_cell,
    setting_cell,
)
from crumb_avalanche.report.runs import IDENTITY, Group, Run, differences
from crumb_avalanche.runs.settings import RunSettings, meanings
from crumb_avalanche.runs.tables import LEDGER_BYTES, LEDGER_SECONDS

WIDE = 12  # experiences; with more, the matrices are set smaller


@dataclass(frozen=True)
class Cost:
    """An entry of the ledger as a column of a table.

    Attributes:
        heading: of the column.
        cell_of: writes a value of the entry.
    """

    heading: str
    cell_of: Callable[[float], Cell]


COSTS = {
    "memory_bytes": Cost("kept, bytes", count_cell),
    "images_per_second": Cost("images/s", seconds_cell),
    "train_seconds": Cost("train, s", seconds_cell),
}
COSTS_OF_RUN = {
    "memory_bytes": COSTS["memory_bytes"],
    "buffer_items": Cost("memories", count_cell),
    "train_seconds": COSTS["train_seconds"],
}


def summary_table(groups: Sequence[Group]) -> Table:
    """Return a line for each group of runs: accuracy, forgetting and cost.

    Accuracies are final ones in percent, forgetting is in points and empty for a joint
    learner, costs are means over the runs.

    Args:
        groups: of runs that differ in their seed only.
    """
    columns = {
        "group": "group",
        "runs": "runs",
        "final_accuracy": "accuracy, %",
        "forgetting": "forgets",
    }
    columns |= _headings(COSTS)
    rows = []
    for group in groups:
        n_runs = Cell(str(len(group.runs)))
        row = [Cell(group.label), n_runs, accuracy_cell(group.curve.finals)]
        row.append(_forgetting(group))
        for name, cost in COSTS.items():
            row.append(cost.cell_of(group.average(name)))
        rows.append(row)
    return Table(columns, rows)


def _headings(costs: Mapping[str, Cost]) -> dict[str, str]:
    """Return the headings of columns of costs, by the name of the ledger's entry."""
    return {name: cost.heading for name, cost in costs.items()}


def _forgetting(group: Group) -> Cell:
    """Return the mean points that the runs of a group forget; empty if unknown."""
    points = [run.forgetting for run in group.runs if run.forgetting is not None]
    if len(points) < len(group.runs):
        return EMPTY
    return Cell(f"{statistics.fmean(points):.1f}")


def bytes_table(groups: Sequence[Group]) -> Table:
    """Return the means over runs of the ledger's bytes; a line for each group."""
    columns = {"buffer_items": "memories stored"}
    for name, label in LEDGER_BYTES.items():
        columns[name] = f"{label}, bytes"
    return _ledger_table(groups, columns, count_cell)


def seconds_table(groups: Sequence[Group]) -> Table:
    """Return the means over runs of the ledger's seconds; a line for each group."""
    columns = {"train_seconds": "training, s"}
    for name, label in LEDGER_SECONDS.items():
        columns[name] = f"{label}, s"
    columns["images_per_second"] = "images/s"
    return _ledger_table(groups, columns, seconds_cell)


def _ledger_table(
    groups: Sequence[Group], columns: dict[str, str], cell_of: Callable[[float], Cell]
) -> Table:
    """Return the means over runs of entries of the ledger, a row for each group.

    Args:
        groups: of runs.
        columns: headings, by the name of the entry.
        cell_of: function that writes a mean, such as bytes or seconds, into a cell.
    """
    rows = []
    for group in groups:
        row = [Cell(group.label)]
        for name in columns:
            row.append(cell_of(group.average(name)))
        rows.append(row)
    return Table({"group": "group", **columns}, rows)


def curves_table(groups: Sequence[Group]) -> Table:
    """Return a line for each group of runs: accuracy after each experience.

    It is over all classes seen so far, in percent, of all runs of the group. A cell is
    empty where a run was not tested; a joint learner has the last one alone.

    Args:
        groups: of runs that differ in their seed only.
    """
    n_experiences = _longest_stream(groups)
    columns = {"group": "group"}
    for number in range(1, n_experiences + 1):
        columns[f"after_{number}"] = f"exp {number}"
    rows = []
    for group in groups:
        row = [Cell(group.label)]
        accuracies_of_runs = [run.accuracy_after(n_experiences) for run in group.runs]
        for accuracies in zip(*accuracies_of_runs):  # of all runs, by experience
            row.append(EMPTY if None in accuracies else accuracy_cell(accuracies))
        rows.append(row)
    return Table(columns, rows)


def runs_table(groups: Sequence[Group], beside: Path) -> Table:
    """Return a line for each run, for ``report.csv`` and the page.

    It has accuracy, bytes, seconds, the settings that vary, and the folder of the run.

    Args:
        groups: of the runs.
        beside: folder that paths are relative to, that of the report.
    """
    n_experiences = _longest_stream(groups)
    setting_names = dict.fromkeys(
        ["strategy", "benchmark", "protocol", *differences(groups)]
    )
    # Headings by the name of the column.
    columns = {"group": "group", "run": "run", "final_accuracy": "final accuracy, %"}
    for number in range(1, n_experiences + 1):
        columns[f"accuracy_after_{number}"] = f"after exp {number}"
    columns["forgetting"] = "forgets"
    columns |= _headings(COSTS_OF_RUN)
    columns |= zip(setting_names, setting_names)  # headed by their names
    columns["tuned_learning_rate"] = "tuned learning rate"
    columns["folder"] = "folder"
    rows = []
    for group in groups:
        for run in group.runs:
            row = _run_cells(run, n_experiences)
            row["group"] = Cell(group.label)
            for name in setting_names:
                row[name] = setting_cell(group.settings.get(name))
            row["folder"] = Cell(os.path.relpath(run.folder, beside))
            rows.append(row)
    return Table.of(columns, rows)


def _run_cells(run: Run, n_experiences: int) -> dict[str, Cell]:
    """Return number, accuracies, costs and tuned learning rate of a run by column.

    Args:
        run: a finished run.
        n_experiences: of the longest stream in the table, each of which has a column.
    """
    cells = {
        "run": setting_cell(run.result["run"]),
        "final_accuracy": accuracy_cell([run.result["final_accuracy"]]),
    }
    for number, accuracy in enumerate(run.accuracy_after(n_experiences), 1):
        cells[f"accuracy_after_{number}"] = (
            EMPTY if accuracy is None else accuracy_cell([accuracy])
        )
    if run.forgetting is not None:
        cells["forgetting"] = Cell(f"{run.forgetting:.2f}")
    for name, cost in COSTS_OF_RUN.items():
        cells[name] = cost.cell_of(run.ledger[name])
    learning_rate = run.result.get("learning_rate")
    was_given = run.settings.get("learning_rate") is not None
    if learning_rate is not None and not was_given:
        cells["tuned_learning_rate"] = setting_cell(learning_rate)
    return cells


def _longest_stream(groups: Sequence[Group]) -> int:
    """Return the number of experiences of the longest stream of any run."""
    n_experiences = 0
    for group in groups:
        for run in group.runs:
            n_experiences = max(n_experiences, run.experiences)
    return n_experiences


def differing_settings(groups: Sequence[Group]) -> Table | None:
    """Return the settings in which the groups differ; ``None`` if there are none."""
    varying = differences(groups)
    if not varying:
        return None
    columns = {"group": "group", **dict(zip(varying, varying))}
    rows = []
    for group in groups:
        values = map(group.settings.get, varying)
        rows.append([Cell(group.label), *map(setting_cell, values)])
    return Table(columns, rows)


def same_settings(groups: Sequence[Group]) -> Table:
    """Return the settings that are the same in all groups, with their meaning."""
    settings = groups[0].settings
    meaning = meanings(RunSettings)
    varying = differences(groups)
    rows = []
    for name in dict.fromkeys([*IDENTITY, *settings]):
        in_all = all(name in group.settings for group in groups)
        if in_all and name not in varying:
            rows.append(
                [Cell(name), setting_cell(settings[name]), Cell(meaning.get(name, ""))]
            )
    columns = {"setting": "setting", "value": "value", "meaning": "meaning"}
    return Table(columns, rows)


def accuracy_matrix(group: Group) -> Matrix:
    """Return mean accuracies in percent over the runs of a group, as a table.

    A row is after each experience; a column is of the test images of an experience, the
    last one of all classes seen. A cell is empty where a run was not tested.
    """
    matrices = [run.matrix for run in group.runs]
    *_, last_row = matrices[0]  # which has all columns
    n_columns = len(last_row)
    rows = []
    for experience, rows_of_runs in enumerate(zip(*matrices)):
        cells = [_matrix_cell(rows_of_runs, column) for column in range(n_columns)]
        overall = [run.result["accuracy_after"][experience] for run in group.runs]
        cells.append(MatrixCell(EMPTY if None in overall else _mean_cell(overall)))
        name = "joint" if group.curve.joint else f"exp {experience + 1}"
        rows.append(MatrixRow(name, cells))
    is_wide = n_columns > WIDE
    heads = []
    for number in range(1, n_columns + 1):
        heads.append(str(number) if is_wide else f"exp {number}")
    return Matrix(["after", *heads, "all seen"], rows, small=is_wide)


def _matrix_cell(rows: Sequence[Sequence[float]], column: int) -> MatrixCell:
    """Return the mean of a column over runs; empty unless each has the column.

    Args:
        rows: accuracies in percent after an experience, a row for each run; it ends
            with the last experience that was tested.
        column: number of the experience.
    """
    if any(column >= len(row) for row in rows):
        return MatrixCell()
    accuracies = [row[column] for row in rows]
    share = f"{statistics.fmean(accuracies) / 100:.1%}"
    return MatrixCell(_mean_cell(accuracies), share)


def _mean_cell(accuracies: Sequence[float]) -> Cell:
    """Return the mean of runs to a tenth, with its standard deviation as a tooltip."""
    mean = statistics.fmean(accuracies)
    tooltip = None
    if len(accuracies) > 1:
        tooltip = f"{mean:.2f} ± {statistics.stdev(accuracies):.2f}"
    return Cell(f"{mean:.1f}", tooltip)


def classes_of_experiences(group: Group) -> list[list[str]]:
    """Return the classes of each experience; none if the runs differ in their order."""
    run = group.runs[0]
    if len(group.runs) > 1 or not run.classes_seen or run.joint:
        return []
    order = run.result["classes_order"]
    experiences = []
    start = 0
    for end in run.classes_seen:
        experiences.append(order[start:end])
        start = end
    return experiences
