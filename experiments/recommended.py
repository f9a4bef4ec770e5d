r"""Compare the recommended preset with its ablations, CRUMB and rivals at equal bytes.

    python experiments/recommended.py --benchmark eth80 --dataset-root ETH80 \
        --weights FILE --feature-cache CACHE
    python experiments/recommended.py --benchmark cifar100 --protocol class_iid \
        --dataset-root CIFAR100 --runs 0-2 ...

Each row of `rows/recommended.yaml` is a change of settings. Difference: the row minus
`recommended` in the same runs, with 95 % interval and p-value by Student's t over runs,
or over splits where runs share one; Holm: corrected over the rows. Oldest, newest:
final accuracy on the classes of the first and of the last experience. A row that
exceeds the budget shows that in its bytes. Writes `recommended.csv`, `.md`, `.png`,
`.svg` and a folder for each run to --output.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from support.common_options import (
    PROTOCOLS,
    CommonOptions,
    common_options,
    own_presets,
    parser_for,
    run_script,
)
from support.findings import Cell, Finding
from support.pictures import bars
from support.rows import chosen_rows, rows_of
from support.sweep import exit_code
from support.tables import ACCURACY, EFFECT, effect_text, write_table

from crumb_avalanche.runs.tables import mean_text

TABLE = "recommended"
ROWS = rows_of(TABLE)
# The tiny network has no SqueezeNet classifier to change.
QUICK = dict(relu_logits=False, head_kernel=1)
# Images of 32 pixels: room for copies of the plastic layers.
QUICK_BUDGET = 400.0
CSV_HEADER = [
    "row",
    "run",
    "accuracy",
    "oldest",
    "newest",
    "memory_bytes",
    "images_per_second",
    "frame_table",
]
OLDEST = 0  # index of the first experience
NEWEST = -1  # index of the last


def per_experience(finding: Finding, index: int) -> str:
    """Format the mean final accuracy over the classes of an experience.

    The text is empty where all classes were learned at once.
    """
    if finding.runs[0].joint:
        return ""
    return f"{fmean(run.per_experience[index] for run in finding.runs):.1f}"


def mean_of_ledger(finding: Finding, name: str) -> float:
    """Mean of an entry of the ledger."""
    return fmean(finding.ledger(name))


COLUMNS = {
    "row": lambda finding: finding.cell.row,
    "accuracy": lambda finding: mean_text(finding.finals),
    "difference": effect_text,
    "95 % interval": EFFECT["95 % interval"],
    "p Holm": EFFECT["p Holm"],
    "verdict": EFFECT["verdict"],
    "oldest": lambda finding: per_experience(finding, OLDEST),
    "newest": lambda finding: per_experience(finding, NEWEST),
    "runs": lambda finding: str(len(finding.runs)),
    "bytes": lambda finding: f"{mean_of_ledger(finding, 'memory_bytes'):,.0f}",
    "images/s": lambda finding: f"{mean_of_ledger(finding, 'images_per_second'):.0f}",
}


def settings_of(
    name: str, protocol: str, quick: bool = False, budget: int | None = None
) -> dict:
    """Settings of a row.

    Args:
        name: of the row.
        protocol: order of the stream.
        quick: whether the script is only tried out.
        budget: bytes, where the row sets none; None takes the benchmark's.

    Raises:
        ValueError: the row has entries besides settings and method.
    """
    row = ROWS[name]
    unknown = row.keys() - {"settings", "method"}
    if unknown:
        raise ValueError(
            f"row {name!r} of rows/recommended.yaml has {', '.join(sorted(unknown))}: "
            "put it into settings or method"
        )
    settings = {"preset": "recommended", "protocol": protocol}
    settings |= row.get("settings", {})
    if quick:
        settings |= QUICK
    if not {"budget_bytes", "mem_size"} & settings.keys():
        if budget is not None:
            settings["budget_bytes"] = budget
        elif quick:
            settings["budget_images"] = QUICK_BUDGET
    if row.get("method"):
        settings["method"] = row["method"]
    return settings


def cells_of(
    options: CommonOptions, names: Sequence[str], protocol: str, budget: int | None
) -> list[Cell]:
    """Cells of rows, which are tested against the recommended preset."""
    settings = {}
    for name in names:
        settings[name] = settings_of(name, protocol, options.quick, budget)
    return options.cells_of_rows(settings, protocol, reference=TABLE)


def csv_rows_of(findings: Sequence[Finding]) -> list[list[object]]:
    """Header, and a row for every run."""
    rows: list[list[object]] = [list(CSV_HEADER)]
    for finding in findings:
        for run in finding.runs:
            rows.append(
                [
                    finding.cell.row,
                    run.number,
                    f"{run.final:.4f}",
                    f"{run.per_experience[OLDEST]:.4f}",
                    f"{run.per_experience[NEWEST]:.4f}",
                    run.ledger["memory_bytes"],
                    f"{run.ledger['images_per_second']:.1f}",
                    run.split,
                ]
            )
    return rows


def publish(findings: Sequence[Finding], title: str, output: Path) -> None:
    """Print the table; write it, its runs and its picture."""
    print(f"\n{title}", end="")
    lines = []
    units = {}
    for finding in findings:
        lines.append([text(finding) for text in COLUMNS.values()])
        units[finding.cell.row] = finding.units
    figure = bars({title: {"": units}}, title, ACCURACY, (0, 100))
    write_table(output, TABLE, list(COLUMNS), lines, csv_rows_of(findings), figure)


def main() -> int:
    parser = parser_for(__doc__, "runs/recommended", recorded=False)
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
    protocol = chosen.protocol
    names = chosen_rows(ROWS, chosen.rows)
    own_presets(chosen)
    options.check_protocol(protocol)
    cells = cells_of(options, names, protocol, chosen.budget_bytes)
    findings, failed = options.run_cells(cells)
    finished = [finding for finding in findings if finding.runs]
    if finished:
        title = f"{options.benchmark}, {protocol.replace('_', '-')}"
        publish(finished, title, options.output)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
