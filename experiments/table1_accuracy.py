"""Table 1 of the paper: all methods on all benchmarks in both protocols, at the same bytes.

    python experiments/table1_accuracy.py --benchmark core50 toybox cifar100 --dataset-root CORE50 TOYBOX CIFAR100
    python experiments/table1_accuracy.py --benchmark eth80 --dataset-root ETH80 --feature-cache CACHE

With --family fair (default), all methods train on the same frozen features with the same bytes and tune their learning
rate on the first experience; `--strategies crumb remind_single` is REMIND one image at a time. With --family paper,
each has the network, resolution and rate of the paper's authors; only these results are comparable with the paper's
numbers as they are. Image sets have no class-instance protocol. The offline bound trains on all classes at once, so
that one set of runs serves both protocols. `fig3_curves.py` plots the same runs. Writes the table as `.csv` and `.md`,
its picture, `table1_runs.csv` with seed, settings and accuracy of each run, and a folder for each run to --output.
"""

from collections.abc import Sequence

from competitors import settings_of_row
from support.common_options import PROTOCOLS, CommonOptions, common_options, parser_for, run_script
from support.paper_methods import METHODS, QUICK_METHODS, cells_of, folder_of, title_of
from support.paper_numbers import read_paper_numbers
from support.saved_picture import publish
from support.side_by_side import Cell, find
from support.sweep import exit_code

TABLE = "table1"


def assembled(options: CommonOptions, methods: Sequence[str], protocols: Sequence[str]) -> list[Cell]:
    """The cells of the table; methods are tested against CRUMB, if it is one of them."""
    paper, cells = read_paper_numbers(), []
    # Runs of CRUMB that another call left may have other settings: they are not checked here.
    tested = "crumb" in methods
    for benchmark in options.roots:
        for protocol in options.protocols(benchmark, protocols):
            for method in methods:
                cells.append(
                    Cell(
                        row=title_of(method),
                        benchmark=benchmark,
                        protocol=protocol,
                        folder=folder_of(options.output, benchmark, protocol, method),
                        paper=paper.find(
                            TABLE, benchmark, protocol, METHODS.get(settings_of_row(method)["strategy"], method)
                        ),
                        paper_dataset=benchmark,
                        reference=folder_of(options.output, benchmark, protocol, "crumb") if tested else None,
                        paper_reference=paper.find(TABLE, benchmark, protocol, "crumb"),
                    )
                )
    return cells


def main() -> int:
    parser = parser_for(__doc__, "runs/table1", several=True)
    parser.add_argument("--protocols", nargs="+", default=list(PROTOCOLS), choices=PROTOCOLS)
    parser.add_argument(
        "--strategies",
        nargs="+",
        metavar="NAME",
        help="names as in crumb strategies, or remind_single; default those of the paper",
    )
    parser.add_argument("--family", choices=["fair", "paper"], default="fair", help="settings, as for crumb run")
    parser.add_argument(
        "--maps", type=int, default=417, help="raw maps that map_replay stores; default as many as CRUMB"
    )
    chosen = parser.parse_args()
    options = common_options(chosen)
    methods = chosen.strategies or (QUICK_METHODS if options.quick else list(METHODS))
    failed = options.do(cells_of(options, methods, chosen.protocols, chosen.family, chosen.maps))
    findings = find(assembled(options, methods, chosen.protocols), options.runs)
    heading = f"Table 1, all methods at the same bytes; settings of the family {chosen.family}"
    publish(findings, heading, options.output, TABLE)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
