r"""Measure accuracy against bytes, from 10 kB to 50 MB, of all kinds of methods.

    python experiments/bytes_dial.py --benchmark eth80 --dataset-root ETH80 \
        --weights FILE --feature-cache CACHE
    python experiments/bytes_dial.py --benchmark cifar100 --protocol class_iid \
        --dataset-root CIFAR100 --rows rda slda

`rda` is the recommended preset. A method of fixed size (slda, ncm) is run once and
counts at every budget from its bytes on. A budget that is too small for a method is
left out. Writes `bytes_dial.csv`, `.md`, `.png`, `.svg` and a folder for each run to
--output.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure
from support.common_options import (
    PROTOCOLS,
    CommonOptions,
    common_options,
    own_presets,
    parser_for,
    run_script,
)
from support.findings import Cell, Finding
from support.pictures import curves
from support.rows import rows_of
from support.sweep import exit_code
from support.tables import write_table

from crumb_avalanche.runs.tables import mean_text

BUDGETS = (10_000, 25_000, 100_000, 400_000, 2_257_920, 10_000_000, 50_000_000)
FIXED = 0  # budget of a method whose bytes do not depend on it
ROWS = rows_of("bytes_dial")
TOO_SMALL = {"budget", "raise"}  # words of the error for a budget that is too small
CSV_HEADER = [
    "benchmark",
    "row",
    "budget",
    "run",
    "accuracy",
    "memory_bytes",
    "frame_table",
]
HEADER = ["benchmark", "row", "budget", "accuracy", "runs", "bytes"]


def settings_of(row: str, budget: int, protocol: str) -> dict:
    """Settings of a row at a budget."""
    return {
        "budget_bytes": budget or BUDGETS[-1],
        "preset": "recommended",
        "protocol": protocol,
        **ROWS[row].get("settings", {}),
    }


def cells_of(
    options: CommonOptions, rows: Sequence[str], budgets: Sequence[int], protocol: str
) -> list[Cell]:
    """Cells of rows at all budgets; a method of fixed size has one."""
    cells = []
    for name in options.roots:
        (order,) = options.protocols(name, [protocol])
        for row in rows:
            for budget in [FIXED] if ROWS[row].get("fixed") else budgets:
                folder = options.output / name / row / str(budget)
                settings = settings_of(row, budget, order)
                cells.append(Cell(row, name, order, folder, settings))
    return cells


def budget_of(finding: Finding) -> int:
    """Budget of a cell, after which its folder is named."""
    return int(finding.cell.folder.name)


def is_too_small(error: str) -> bool:
    """Whether an error says that a budget is too small for a method."""
    return all(word in error for word in TOO_SMALL)


def line_of(finding: Finding) -> list[str]:
    """Values of `HEADER`."""
    cell = finding.cell
    budget = budget_of(finding)
    return [
        cell.benchmark,
        title_of(cell.row),
        f"{budget:,}" if budget else "",
        mean_text(finding.finals),
        str(len(finding.runs)),
        f"{bytes_of(finding):,}",
    ]


def title_of(row: str) -> str:
    """Title of a row."""
    return ROWS[row].get("title", row)


def bytes_of(finding: Finding) -> int:
    """The largest memory among the runs, in bytes."""
    return int(max(finding.ledger("memory_bytes")))


def csv_rows_of(findings: Sequence[Finding]) -> list[list[object]]:
    """Header, and a row for every run."""
    rows: list[list[object]] = [list(CSV_HEADER)]
    for finding in findings:
        for run in finding.runs:
            rows.append(
                [
                    finding.cell.benchmark,
                    finding.cell.row,
                    budget_of(finding),
                    run.number,
                    f"{run.final:.4f}",
                    run.ledger["memory_bytes"],
                    run.split,
                ]
            )
    return rows


def picture(findings: Sequence[Finding]) -> Figure:
    """Plot accuracy against bytes, a panel for each benchmark."""
    panels: dict[str, dict[str, dict[int, list[float]]]] = {}
    for finding in findings:
        panel = panels.setdefault(finding.cell.benchmark, {})
        line = panel.setdefault(title_of(finding.cell.row), {})
        line[bytes_of(finding)] = finding.units
    return curves(
        panels,
        "Accuracy against bytes",
        xscale="log",
        xlabel="bytes kept",
        ylabel="final accuracy (%)",
        ylim=(0, 101),
    )


def main() -> int:
    parser = parser_for(__doc__, "runs/bytes_dial", several=True, recorded=False)
    parser.add_argument("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    parser.add_argument(
        "--rows",
        nargs="+",
        default=["rda", "slda", "ncm"],
        choices=ROWS,
        help="default rda slda ncm",
    )
    parser.add_argument(
        "--budgets", nargs="+", type=int, default=BUDGETS, metavar="BYTES"
    )
    chosen = parser.parse_args()
    own_presets(chosen, "every row")
    options = common_options(chosen)
    cells = cells_of(options, chosen.rows, chosen.budgets, chosen.protocol)
    findings, failures = options.run_cells(cells)
    failed = {
        path: error for path, error in failures.items() if not is_too_small(error)
    }
    finished = [finding for finding in findings if finding.runs]
    if finished:
        write_table(
            options.output,
            "bytes_dial",
            HEADER,
            [line_of(finding) for finding in finished],
            csv_rows_of(finished),
            picture(finished),
        )
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
