r"""Table 1 of the paper: all methods, benchmarks and protocols, at equal bytes.

    python experiments/table1_accuracy.py --benchmark core50 toybox cifar100 \
        --dataset-root CORE50 TOYBOX CIFAR100
    python experiments/table1_accuracy.py --benchmark eth80 --dataset-root ETH80 \
        --feature-cache CACHE

The rows are in `rows/table1.yaml`. With --family fair (default), all methods train on
the same frozen features with the same bytes and tune their learning rate on the first
experience. With --family paper, each has the network, resolution and rate of the
paper's authors, as far as `docs/methods.md` says: these results compare best with the
paper's numbers. Image sets have no class-instance protocol. The offline bound trains on all classes at
once, so that one set of runs serves both protocols. `fig3_curves.py` plots the same
runs. Writes the table as `.csv` and `.md`, its picture, `table1_runs.csv` with every
run, and a folder for each run to --output.
"""

from collections.abc import Sequence
from pathlib import Path

from support.common_options import (
    PROTOCOLS,
    CommonOptions,
    common_options,
    parser_for,
    run_script,
)
from support.findings import Cell
from support.paper_numbers import PaperNumbers
from support.rows import rows_of
from support.sweep import exit_code
from support.tables import publish

TABLE = "table1"
OURS = "crumb"  # the row that the others are tested against
REMIND_SINGLE = "remind_single"
ROWS = rows_of(TABLE)
METHODS = [name for name in ROWS if name != REMIND_SINGLE]
QUICK_METHODS = (OURS, "ewc", "finetune", "offline")
MAPS = 417  # of map_replay: as many as CRUMB has in the bytes of 15 images


def settings_of(method: str, protocol: str) -> dict:
    """Settings of a strategy or a row; no protocol where it trains on all at once."""
    from crumb_avalanche.methods.registry import get_strategy

    row = ROWS.get(method, {})
    settings = dict(row.get("settings") or {"strategy": method})
    if not get_strategy(settings["strategy"]).joint:
        settings["protocol"] = protocol
    if method == "map_replay":
        settings["mem_size"] = MAPS
        settings["budget_images"] = None
    return settings


def folder_of(root: Path, settings: dict, method: str) -> Path:
    """Folder of the runs of a method; one for both protocols of an offline bound."""
    return root / settings.get("protocol", "joint") / method


def shared_settings(options: CommonOptions, family: str) -> dict:
    """Settings of all rows of a family, which decides which methods start untrained."""
    if family == "paper" and options.base.weights == "torchvision":
        return {"family": family, "weights": None}
    return {"family": family}


def cells_of(
    options: CommonOptions, methods: Sequence[str], protocols: Sequence[str]
) -> list[Cell]:
    """Cells of all benchmarks; methods are tested against CRUMB, if it is there."""
    cells = []
    for benchmark in options.roots:
        for protocol in options.protocols(benchmark, protocols):
            cells += _cells_of_panel(options, methods, benchmark, protocol)
    return cells


def _cells_of_panel(
    options: CommonOptions, methods: Sequence[str], benchmark: str, protocol: str
) -> list[Cell]:
    """Cells of a benchmark in a protocol."""
    paper = PaperNumbers()
    root = options.output / benchmark
    # Runs of CRUMB that another call left may have other settings: they are not
    # checked here.
    reference = root / protocol / OURS if OURS in methods else None
    cells = []
    for method in methods:
        row = ROWS.get(method, {})
        settings = settings_of(method, protocol)
        paper_row = row.get("paper", method)
        cells.append(
            Cell(
                row=row.get("title", method),
                benchmark=benchmark,
                protocol=protocol,
                folder=folder_of(root, settings, method),
                settings=settings,
                paper=paper.find(TABLE, benchmark, protocol, paper_row),
                paper_dataset=benchmark,
                reference=reference,
                paper_reference=paper.find(TABLE, benchmark, protocol, OURS),
            )
        )
    return cells


def main() -> int:
    parser = parser_for(__doc__, "runs/table1", several=True)
    parser.add_argument(
        "--protocols", nargs="+", default=list(PROTOCOLS), choices=PROTOCOLS
    )
    parser.add_argument(
        "--strategies",
        nargs="+",
        metavar="NAME",
        help="as in crumb strategies, or remind_single",
    )
    parser.add_argument(
        "--family",
        choices=["fair", "paper"],
        default="fair",
        help="settings, as for crumb run",
    )
    chosen = parser.parse_args()
    options = common_options(chosen)
    usual = QUICK_METHODS if options.quick else METHODS
    cells = cells_of(options, chosen.strategies or usual, chosen.protocols)
    findings, failed = options.run_cells(
        cells, **shared_settings(options, chosen.family)
    )
    heading = (
        f"Table 1, all methods at the same bytes; settings of the family "
        f"{chosen.family}"
    )
    publish(findings, heading, options.output, TABLE)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
