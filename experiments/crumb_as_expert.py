r"""Ask whether CRUMB helps the recommended learner as one more expert, at equal bytes.

    python experiments/crumb_as_expert.py --benchmark eth80 clip_folder toy_dots \
        --dataset-root ETH80 DIGITS ...

Experts (`rows/crumb_as_expert.yaml`) are `--preset recommended`, and `--preset tuned`,
which answers by its readout in closed form; `untrained CRUMB` is that readout of
memories of stock layers. Together they answer by the sum of their log-probabilities, at
the temperatures that a learner starts from; nothing is fitted. Difference: the row
minus `recommended`, with 95 % interval by Student's t over runs, or over splits where
runs share one. Writes `crumb_as_expert.csv` and `.md` and a folder for each run to
--output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from support.common_options import (
    CommonOptions,
    common_options,
    own_presets,
    parser_for,
    run_script,
)
from support.findings import Cell, Finding, splits_of
from support.rows import rows_of
from support.runs import FinishedRun
from support.sweep import exit_code
from support.tables import interval_text, write_table
from torch import Tensor

from crumb_avalanche.methods.run_file import load_learner
from crumb_avalanche.methods.run_header import LEARNER
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.report.paired import paired
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.stream import open_stream
from crumb_avalanche.runs.tables import mean_text, number
from crumb_avalanche.training.plugins import OutputsPlugin

OURS = "recommended"  # row and expert that the others are compared with
TABLE = "crumb_as_expert"
EXPERTS = rows_of(TABLE)["experts"]  # settings by the name of the expert
ROWS = rows_of(TABLE)["rows"]  # names of experts by the name of the row
SHARED = {"protocol": "class_instance", "keep_learner": True}
CSV_HEADER = ["stream", "row", "run", "accuracy", "memory_bytes", "frame_table"]
HEADER = ["stream", "row", "accuracy", "difference", "95 % interval", "runs", "bytes"]


def log_probabilities(run: FinishedRun, stream: Any, device: str) -> Tensor:
    """Log-probabilities ``(N, classes)`` float64 of a run on a test stream."""
    strategy = load_learner(run.folder / LEARNER, device)[0]
    outputs = OutputsPlugin()
    strategy.plugins.append(outputs)
    strategy.eval(stream)
    # A readout is a linear discriminant.
    form = getattr(strategy, "statistics", StreamingLDA)
    return (torch.cat(outputs.outputs).double() / form.temperature).log_softmax(1)


def together(experts: Sequence[FinishedRun], settings: RunSettings) -> float:
    """Accuracy in percent of the sum of the log-probabilities of runs.

    Args:
        experts: finished runs.
        settings: of the stream whose test images they answer for.
    """
    stream = open_stream(RunPlan.of(settings)).benchmark.test_stream
    scores = [log_probabilities(run, stream, settings.device) for run in experts]
    labels = [label for experience in stream for label in experience.dataset.targets]
    right = sum(scores).argmax(1) == torch.tensor(labels)
    return 100 * float(right.double().mean())


@dataclass(frozen=True)
class Row:
    """A row of a stream.

    Attributes:
        stream: name of the stream.
        name: name of the row.
        accuracies: accuracy in percent by the number of the run.
        bytes: memory of all experts of each run.
    """

    stream: str
    name: str
    accuracies: dict[int, float]
    bytes: dict[int, int]


def cells_of(options: CommonOptions) -> list[Cell]:
    """Cells of all experts on all streams; all but the first have half of the bytes."""
    cells = []
    for stream in options.roots:
        budget = int(RunPlan.of(options.settings(stream, preset=OURS)).budget)
        for name, method in EXPERTS.items():
            share = budget if name == OURS else budget // 2
            settings = {**method, **SHARED, "budget_bytes": share}
            folder = options.output / stream / name
            cells.append(Cell(name, stream, SHARED["protocol"], folder, settings))
    return cells


def row_of(
    options: CommonOptions, stream: str, name: str, experts: Sequence[Finding]
) -> Row:
    """Let the experts of a row answer together, in every run that all have finished.

    Args:
        options: of the command line.
        stream: name of the benchmark.
        name: of the row.
        experts: their runs; the accuracy of a single one is that of its run.
    """
    runs_by_number: dict[int, list[FinishedRun]] = {}  # of all experts
    for expert in experts:
        for run in expert.runs:
            runs_by_number.setdefault(run.number, []).append(run)
    accuracies = {}
    memory_bytes = {}
    for run_number in options.runs:
        runs = runs_by_number.get(run_number, [])
        if len(runs) < len(experts):
            continue
        accuracies[run_number] = runs[0].final
        if len(runs) > 1:
            settings = options.settings(stream, **SHARED, run=run_number)
            accuracies[run_number] = together(runs, settings)
        memory_bytes[run_number] = sum(run.ledger["memory_bytes"] for run in runs)
    return Row(stream, name, accuracies, memory_bytes)


def line_of(row: Row, ours: Row, splits: dict[int, str]) -> list[str]:
    """Values of `HEADER`."""
    comparison = None
    if row.name != OURS:
        comparison = paired(ours.accuracies, row.accuracies, splits)
    return [
        row.stream,
        row.name,
        mean_text(list(row.accuracies.values())),
        number(comparison and comparison.mean, "+.1f"),
        interval_text(comparison),
        str(len(row.accuracies)),
        f"{list(row.bytes.values())[-1]:,}" if row.bytes else "0",
    ]


def csv_rows_of(row: Row, splits: dict[int, str]) -> list[list[object]]:
    """A line for every run of a row."""
    csv_rows: list[list[object]] = []
    for number_of_run, accuracy in row.accuracies.items():
        csv_rows.append(
            [
                row.stream,
                row.name,
                number_of_run,
                f"{accuracy:.4f}",
                row.bytes[number_of_run],
                splits[number_of_run],
            ]
        )
    return csv_rows


def main() -> int:
    chosen = parser_for(
        __doc__, f"runs/{TABLE}", several=True, recorded=False
    ).parse_args()
    own_presets(chosen, "every expert")
    options = common_options(chosen)
    findings, failed = options.run_cells(cells_of(options))
    experts = {}
    for finding in findings:
        experts[finding.cell.benchmark, finding.cell.row] = finding
    lines = []
    csv_rows: list[list[object]] = [list(CSV_HEADER)]
    for stream in options.roots:
        splits = splits_of(experts[stream, OURS].runs)
        rows = []
        for name, names in ROWS.items():
            experts_of_row = [experts[stream, expert] for expert in names]
            rows.append(row_of(options, stream, name, experts_of_row))
        for row in rows:
            lines.append(line_of(row, rows[0], splits))
            csv_rows += csv_rows_of(row, splits)
    if len(csv_rows) > 1:
        write_table(options.output, TABLE, HEADER, lines, csv_rows)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
