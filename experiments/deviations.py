r"""Measure what each deviation of preset `paper` from the published code changes.

    python experiments/deviations.py --benchmark eth80 --dataset-root ETH80 \
        --weights FILE --feature-cache CACHE

Each row of `rows/deviations.yaml` is a change of settings, and is compared with the row
`paper` in the same runs. Writes `deviations.csv`, `.md`, the picture,
`deviations_runs.csv` with every run, and a folder for each run to --output.
"""

from collections.abc import Sequence

from support.common_options import (
    PROTOCOLS,
    CommonOptions,
    common_options,
    own_presets,
    parser_for,
    run_script,
)
from support.findings import Cell
from support.rows import chosen_rows, rows_of
from support.sweep import exit_code
from support.tables import publish

TABLE = "deviations"
ROWS = rows_of(TABLE)
FIRST = "paper"  # row that the others are compared with
# The tiny network has no SqueezeNet classifier to change.
QUICK = dict(relu_logits=False, head_kernel=1)


def settings_of(name: str, protocol: str, quick: bool = False) -> dict:
    """Settings of a row that differ from those of the table.

    Args:
        name: of the row.
        protocol: order of the stream.
        quick: whether the script is only tried out.
    """
    settings = {"protocol": protocol, "preset": FIRST, **ROWS[name]}
    return settings | QUICK if quick else settings


def cells_of(options: CommonOptions, names: Sequence[str], protocol: str) -> list[Cell]:
    """Cells of rows, which are tested against preset `paper`."""
    settings = {}
    for name in names:
        settings[name] = settings_of(name, protocol, options.quick)
    return options.cells_of_rows(settings, protocol, reference=FIRST)


def main() -> int:
    parser = parser_for(__doc__, f"runs/{TABLE}")
    parser.add_argument("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    parser.add_argument(
        "--rows", nargs="+", metavar="ROW", help="names of rows; default all"
    )
    chosen = parser.parse_args()
    own_presets(chosen)
    options = common_options(chosen)
    options.check_protocol(chosen.protocol)
    names = chosen_rows(ROWS, chosen.rows)
    cells = cells_of(options, names, chosen.protocol)
    findings, failed = options.run_cells(cells)
    heading = f"Deviations from the published code, on {options.benchmark}"
    publish(findings, heading, options.output, TABLE)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
