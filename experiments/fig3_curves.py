"""Figures 3, S1 and S2 of the paper: accuracy over all seen classes along the stream.

    python experiments/fig3_curves.py --figure S2 --benchmark eth80 --dataset-root ETH80
    --feature-cache CACHE

Figure 3 shows class-instance for video benchmarks and class-i.i.d. for image sets; S1
class-i.i.d. for video benchmarks; S2 both protocols with room for all images in every
class. Figures 3 and S1 share their runs with `table1_accuracy.py` (the same --output
and --family). Error bars are the root-mean-square error among runs. Writes `fig3.csv`
(or `figS1`, `figS2`) with every curve, `.md`, `.png` and `.svg`.
"""

from dataclasses import replace

from support.common_options import (
    IMAGE_SETS,
    PROTOCOLS,
    CommonOptions,
    common_options,
    parser_for,
    run_script,
)
from support.findings import Finding
from support.pictures import curves
from support.sweep import exit_code
from support.tables import panels_of, publish
from table1_accuracy import cells_of, shared_settings

from crumb_avalanche.runs.tables import number

REPLAY_METHODS = ("crumb", "remind", "icarl", "gem", "offline")
METHODS = (
    *REPLAY_METHODS[:-1],
    "ewc",
    "mas",
    "si",
    "finetune",
    "offline",
)  # that the paper ran on every benchmark
QUICK_METHODS = ("crumb", "finetune", "offline")


def protocols_of(figure: str, benchmark: str) -> list[str]:
    """Protocols of a benchmark that a figure shows."""
    images = benchmark in IMAGE_SETS
    return {
        "S2": list(PROTOCOLS),
        "3": [PROTOCOLS[images]],
        "S1": [] if images else ["class_iid"],
    }[figure]


def room_for_all(options: CommonOptions, benchmark: str) -> int:
    """Memories with which no class ever gives one up, in any run; a class may have 1 / classes of them."""
    from benchmarks_toybox_ilab.catalog import get_benchmark

    tables = [
        get_benchmark(benchmark).table(options.roots[benchmark], run)
        for run in options.runs
    ]
    return len(tables[0].classes) * max(
        count["train"] for table in tables for count in table.counts().values()
    )


def panels_of_curves(
    findings: list[Finding],
) -> dict[str, dict[str, dict[int, list[float]]]]:
    """Accuracies by panel, row and experience that all runs were tested after."""
    panels = {}
    for (benchmark, protocol), part in panels_of(findings).items():
        lines = panels[f"{benchmark}, {protocol.replace('_', '-')}"] = {}
        for item in part:
            after = enumerate(zip(*(run.accuracy_after for run in item.runs)), start=1)
            lines[item.cell.row] = {
                place: values for place, values in after if None not in values
            }
    return panels


def csv_rows_of(findings: list[Finding]) -> list[list[object]]:
    """Header, and a row for every point of every run."""
    rows = [["benchmark", "protocol", "method", "run", "experience", "accuracy"]]
    for item in findings:
        for run in item.runs:
            of = [item.cell.benchmark, item.cell.protocol, item.cell.row, run.number]
            first = len(run.per_experience) if run.joint else 1
            rows += [
                [*of, place, number(one, ".4f")]
                for place, one in enumerate(run.accuracy_after, first)
            ]
    return rows


def main() -> int:
    parser = parser_for(__doc__, "runs/table1", several=True)
    parser.add_argument(
        "--figure", choices=["3", "S1", "S2"], default="3", help="figure of the paper"
    )
    parser.add_argument(
        "--strategies",
        nargs="+",
        metavar="NAME",
        help="default those of all the paper's benchmarks",
    )
    parser.add_argument("--family", choices=["fair", "paper"], default="fair")
    chosen = parser.parse_args()
    options, name, cells = common_options(chosen), chosen.figure, []
    methods = chosen.strategies or (
        QUICK_METHODS if options.quick else REPLAY_METHODS if name == "S2" else METHODS
    )
    report = options.output
    options = replace(options, output=report / "unlimited") if name == "S2" else options
    for benchmark, root in options.roots.items():
        some = cells_of(
            replace(options, roots={benchmark: root}),
            methods,
            protocols_of(name, benchmark),
        )
        if name == "S2":  # of which the paper has the curves only, no numbers
            room = {"mem_size": room_for_all(options, benchmark)}
            some = [
                replace(
                    one, settings=one.settings | room, paper=None, paper_reference=None
                )
                for one in some
            ]
        cells += some
    if not cells:
        raise ValueError(
            f"figure {name} has no panel of {', '.join(options.roots)}: it shows video benchmarks"
        )
    findings, failed = options.found(cells, **shared_settings(options, chosen.family))
    limit = "no limit of memory" if name == "S2" else "the same bytes for all"
    heading = f"Figure {name}, {limit}; settings of the family {chosen.family}"
    axes = dict(
        ylim=(0, 100),
        xlabel="after experience",
        ylabel="accuracy over all seen classes (%)",
    )
    picture = curves(panels_of_curves(findings), heading, **axes)
    publish(findings, heading, report, f"fig{name}", picture, csv_rows_of(findings))
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
