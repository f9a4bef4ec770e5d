"""Measure accuracy against bytes: the recommended preset, its rivals, CRUMB and image replay, from 10 kB to 50 MB.

    python experiments/bytes_dial.py --benchmark eth80 --dataset-root ETH80 --weights
    FILE --feature-cache CACHE python experiments/bytes_dial.py --benchmark cifar100
    --protocol class_iid --dataset-root CIFAR100 --rows rda slda

`rda` is the recommended preset. A method of fixed size (slda, ncm) is run once and
counts at every budget from its bytes on. A budget that is too small for a method is
left out. Writes `bytes_dial.csv`, `.md`, `.png`, `.svg` and a folder for each run to
--output.
"""

from support.common_options import (
    PROTOCOLS,
    common_options,
    own_presets,
    parser_for,
    run_script,
)
from support.findings import Cell
from support.pictures import curves
from support.rows import rows_of
from support.sweep import exit_code
from support.tables import write_table

from crumb_avalanche.runs.tables import mean_text

BUDGETS = (10_000, 25_000, 100_000, 400_000, 2_257_920, 10_000_000, 50_000_000)
FIXED = 0  # budget of a method whose bytes do not depend on it
ROWS = rows_of("bytes_dial")
TOO_SMALL = {"budget", "raise"}  # words of the error for a budget that is too small
HEADER = ["benchmark", "row", "budget", "accuracy", "runs", "bytes"]


def settings_of(row: str, budget: int, protocol: str) -> dict:
    """Settings of a row at a budget."""
    usual = {
        "budget_bytes": budget or BUDGETS[-1],
        "preset": "recommended",
        "protocol": protocol,
    }
    return {**usual, **ROWS[row].get("settings", {})}


def main() -> int:
    parser = parser_for(__doc__, "runs/bytes_dial", several=True)
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
    options, cells = common_options(chosen), []
    for name in options.roots:
        (protocol,) = options.protocols(name, [chosen.protocol])
        for row in chosen.rows:
            for budget in (FIXED,) if ROWS[row].get("fixed") else chosen.budgets:
                folder = options.output / name / row / str(budget)
                cells.append(
                    Cell(
                        row, name, protocol, folder, settings_of(row, budget, protocol)
                    )
                )
    found, failed = options.found(cells)
    failed = {
        path: said
        for path, said in failed.items()
        if not all(word in said for word in TOO_SMALL)
    }
    lines, csv_rows = (
        [],
        [
            [
                "benchmark",
                "row",
                "budget",
                "run",
                "accuracy",
                "memory_bytes",
                "frame_table",
            ]
        ],
    )
    panels: dict[str, dict[str, dict[int, list[float]]]] = {}
    for item in [item for item in found if item.runs]:
        name, row, budget = (
            item.cell.benchmark,
            item.cell.row,
            int(item.cell.folder.name),
        )
        title, kept = ROWS[row].get("title", row), int(max(item.ledger("memory_bytes")))
        panels.setdefault(name, {}).setdefault(title, {})[kept] = item.finals
        text = (
            f"{budget:,}" if budget else "",
            mean_text(item.finals),
            str(len(item.runs)),
            f"{kept:,}",
        )
        lines.append([name, title, *text])
        for run in item.runs:
            csv_rows.append(
                [
                    name,
                    row,
                    budget,
                    run.number,
                    f"{run.final:.4f}",
                    run.ledger["memory_bytes"],
                    run.split,
                ]
            )
    if lines:
        axes = dict(
            xscale="log",
            xlabel="bytes kept",
            ylabel="final accuracy (%)",
            ylim=(None, 101),
        )
        figure = curves(panels, "Accuracy against bytes", **axes)
        write_table(options.output, "bytes_dial", HEADER, lines, csv_rows, figure)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
