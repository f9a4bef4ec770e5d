"""Table 1 of the paper: all methods on all benchmarks in both protocols, at the same bytes.

    python experiments/table1_accuracy.py --benchmark core50 toybox cifar100
    --dataset-root CORE50 TOYBOX CIFAR100 python experiments/table1_accuracy.py
    --benchmark eth80 --dataset-root ETH80 --feature-cache CACHE

The rows are in `rows/table1.yaml`. With --family fair (default), all methods train on
the same frozen features with the same bytes and tune their learning rate on the first
experience. With --family paper, each has the network, resolution and rate of the
paper's authors; only these results are comparable with the paper's numbers as they are.
Image sets have no class-instance protocol. The offline bound trains on all classes at
once, so that one set of runs serves both protocols. `fig3_curves.py` plots the same
runs. Writes the table as `.csv` and `.md`, its picture, `table1_runs.csv` with every
run, and a folder for each run to --output.
"""

from collections.abc import Sequence

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

TABLE, REMIND_SINGLE = "table1", "remind_single"
ROWS = rows_of(TABLE)
METHODS = [name for name in ROWS if name != REMIND_SINGLE]
QUICK_METHODS = ("crumb", "ewc", "finetune", "offline")
MAPS = 417  # of map_replay: as many as CRUMB has in the bytes of 15 images


def settings_of(method: str, protocol: str) -> dict:
    """Settings of a strategy or a row; without a protocol where it trains on all classes at once."""
    from crumb_avalanche.methods.registry import get_strategy

    settings = dict(ROWS.get(method, {}).get("settings") or {"strategy": method})
    if not get_strategy(settings["strategy"]).joint:
        settings["protocol"] = protocol
    return settings | (
        dict(mem_size=MAPS, budget_images=None) if method == "map_replay" else {}
    )


def shared_settings(options: CommonOptions, family: str) -> dict:
    """Settings of all rows of a family, which decides which methods start untrained."""
    return {"family": family} | (
        {"weights": None}
        if (family, options.base.weights) == ("paper", "torchvision")
        else {}
    )


def cells_of(
    options: CommonOptions, methods: Sequence[str], protocols: Sequence[str]
) -> list[Cell]:
    """The cells of all benchmarks; methods are tested against CRUMB, if it is one of them."""
    paper, cells = PaperNumbers(), []
    for benchmark in options.roots:
        for protocol in options.protocols(benchmark, protocols):
            folder = options.output / benchmark
            # Runs of CRUMB that another call left may have other settings: they are not
            # checked here.
            ours = folder / protocol / "crumb" if "crumb" in methods else None
            for method in methods:
                row, settings = ROWS.get(method, {}), settings_of(method, protocol)
                place = folder / settings.get("protocol", "joint") / method
                number, its = (
                    paper.find(TABLE, benchmark, protocol, one)
                    for one in (row.get("paper", method), "crumb")
                )
                made = row.get("title", method), benchmark, protocol, place, settings
                cells.append(Cell(*made, number, benchmark, ours, its))
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
    methods = chosen.strategies or (QUICK_METHODS if options.quick else METHODS)
    cells = cells_of(options, methods, chosen.protocols)
    findings, failed = options.found(cells, **shared_settings(options, chosen.family))
    heading = f"Table 1, all methods at the same bytes; settings of the family {chosen.family}"
    publish(findings, heading, options.output, TABLE)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
