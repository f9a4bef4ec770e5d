"""Compare the recommended preset with ablations of it, the paper's recipe and rivals at the same bytes.

    python experiments/recommended.py --benchmark eth80 --dataset-root ETH80 --weights
    FILE --feature-cache CACHE python experiments/recommended.py --benchmark cifar100
    --protocol class_iid --dataset-root CIFAR100 --runs 0-2 ...

Each row of `rows/recommended.yaml` is a change of settings. Difference: the row minus
`recommended` in the same runs, with 95 % interval and p-value by Student's t over runs,
or over splits where runs share one; Holm: corrected over the rows. Oldest, newest:
final accuracy on the classes of the first and of the last experience. A row that
exceeds the budget shows that in its bytes. Writes `recommended.csv`, `.md`, `.png`,
`.svg` and a folder for each run to --output.
"""

from statistics import fmean

from support.common_options import (
    PROTOCOLS,
    common_options,
    own_presets,
    parser_for,
    run_script,
)
from support.findings import Cell, Finding
from support.pictures import bars
from support.rows import chosen_rows, folder_name, rows_of
from support.sweep import exit_code
from support.tables import ACCURACY, EFFECT, write_table

from crumb_avalanche.runs.tables import mean_text, number

TABLE = "recommended"
ROWS = rows_of(TABLE)
QUICK = dict(
    relu_logits=False, head_kernel=1
)  # the tiny network has no SqueezeNet classifier to change


def per_experience(found: Finding, place: int) -> str:
    """Format the mean final accuracy over the classes of an experience; empty where all were learned at once."""
    values = [run.per_experience[place] for run in found.runs]
    return "" if found.runs[0].joint else f"{fmean(values):.1f}"


COLUMNS = {
    "row": lambda found: found.cell.row,
    "accuracy": lambda found: mean_text(found.finals),
    "difference": lambda found: number(found.paired and found.paired.mean, "+.1f"),
    **{name: EFFECT[name] for name in ("95 % interval", "p Holm", "verdict")},
    "oldest": lambda found: per_experience(found, 0),
    "newest": lambda found: per_experience(found, -1),
    "runs": lambda found: str(len(found.runs)),
    "bytes": lambda found: f"{fmean(found.ledger('memory_bytes')):,.0f}",
    "images/s": lambda found: f"{fmean(found.ledger('images_per_second')):.0f}",
}


def settings_of(
    name: str, protocol: str, quick: bool = False, budget: int | None = None
) -> dict:
    """Settings of a row, with a budget of bytes where it sets none; None takes the benchmark's."""
    row = {"settings": {}, "method": {}} | ROWS[name]
    own, method, *others = row.values()
    if others:
        raise ValueError(
            f"row {name!r} of rows/recommended.yaml has {list(row)[2]}: put it into settings or method"
        )
    settings = {
        "preset": "recommended",
        "protocol": protocol,
        **own,
        **(QUICK if quick else {}),
    }
    if not {"budget_bytes", "mem_size"} & set(
        own
    ):  # 400 small images: room for copies of the plastic layers
        settings |= (
            {"budget_bytes": budget}
            if budget is not None
            else {"budget_images": 400.0}
            if quick
            else {}
        )
    return settings | ({"method": method} if method else {})


def main() -> int:
    parser = parser_for(__doc__, "runs/recommended")
    parser.add_argument("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    parser.add_argument(
        "--rows", nargs="+", metavar="ROW", help="names of rows; default all"
    )
    parser.add_argument(
        "--budget-bytes",
        type=int,
        help="of all rows but the small one; default the benchmark's",
    )
    chosen = parser.parse_args()
    options = common_options(chosen)
    names, benchmark = chosen_rows(ROWS, chosen.rows), options.benchmark
    own_presets(chosen)
    if not options.protocols(benchmark, [chosen.protocol]):
        raise ValueError(
            f"{benchmark} has no videos, so no {chosen.protocol}: give --protocol class_iid"
        )
    protocol, folder, cells = chosen.protocol, options.output / chosen.protocol, []
    for name in names:
        settings = settings_of(name, protocol, options.quick, chosen.budget_bytes)
        cells.append(
            Cell(
                name,
                benchmark,
                protocol,
                folder / folder_name(name),
                settings,
                reference=folder / TABLE,
            )
        )
    found, failed = options.found(cells)
    found = [item for item in found if item.runs]
    csv_rows = [
        [
            "row",
            "run",
            "accuracy",
            "oldest",
            "newest",
            "memory_bytes",
            "images_per_second",
            "frame_table",
        ]
    ]
    for item in found:
        for run in item.runs:
            per = run.per_experience
            row = [
                item.cell.row,
                run.number,
                *(f"{value:.4f}" for value in (run.final, per[0], per[-1])),
            ]
            csv_rows.append(
                [
                    *row,
                    run.ledger["memory_bytes"],
                    f"{run.ledger['images_per_second']:.1f}",
                    run.split,
                ]
            )
    if found:
        title = f"{benchmark}, {protocol.replace('_', '-')}"
        print(f"\n{title}", end="")
        lines = [[text(item) for text in COLUMNS.values()] for item in found]
        figure = bars(
            {title: {"": {item.cell.row: item.finals for item in found}}},
            title,
            ACCURACY,
            (0, 100),
        )
        write_table(options.output, TABLE, list(COLUMNS), lines, csv_rows, figure)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
