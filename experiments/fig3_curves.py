"""Figures 3, S1 and S2 of the paper: accuracy over all seen classes along the stream.

    python experiments/fig3_curves.py --figure 3 --benchmark core50 cifar100 --dataset-root CORE50 CIFAR100
    python experiments/fig3_curves.py --figure S2 --benchmark eth80 --dataset-root ETH80 --feature-cache CACHE

Figure 3 shows class-instance for video benchmarks and class-i.i.d. for image sets; S1 class-i.i.d. for video
benchmarks; S2 both protocols with room for all images of the stream in every class. Figures 3 and S1 share their runs
with `table1_accuracy.py` (the same --output and --family). Error bars are the root-mean-square error among runs, as in
the paper. Writes `fig3.csv` (or `figS1`, `figS2`) with every curve, `.md` with the final accuracies beside the paper's,
`.png` and `.svg` to --output.
"""

from collections.abc import Sequence
from dataclasses import replace

from support.common_options import IMAGE_SETS, PROTOCOLS, CommonOptions, common_options, parser_for, run_script
from support.pictures import curves
from support.sweep import exit_code
from support.tables import Finding, panels_of, publish
from table1_accuracy import cells_of, shared_settings

from crumb_avalanche.runs.tables import number

# The methods that the paper ran on every benchmark.
METHODS = ("crumb", "remind", "icarl", "gem", "ewc", "mas", "si", "finetune", "offline")
REPLAY_METHODS = ("crumb", "remind", "icarl", "gem", "offline")
QUICK_METHODS = ("crumb", "finetune", "offline")


def protocols_of(figure: str, benchmark: str) -> list[str]:
    """Protocols of a benchmark that a figure shows."""
    if figure == "S2":
        return list(PROTOCOLS)
    if benchmark in IMAGE_SETS:
        return ["class_iid"] if figure == "3" else []
    return ["class_instance"] if figure == "3" else ["class_iid"]


def room_for_all(options: CommonOptions, benchmark: str) -> int:
    """Memories with which no class of a benchmark ever gives one up; a class may have 1 / classes of them."""
    from benchmarks_toybox_ilab.catalog import get_benchmark

    root = options.roots[benchmark]
    tables = [get_benchmark(benchmark).table(root, run) for run in options.runs]  # runs may hold out other objects
    most = max(count["train"] for table in tables for count in table.counts().values())
    return len(tables[0].classes) * most


def panels_of_curves(findings: Sequence[Finding]) -> dict[str, dict[str, dict[int, list[float]]]]:
    """Accuracies by panel, row and experience that all runs were tested after."""
    panels: dict[str, dict[str, dict[int, list[float]]]] = {}
    for (benchmark, protocol), part in panels_of(findings).items():
        lines = panels[f"{benchmark}, {protocol.replace('_', '-')}"] = {}
        for item in part:
            after = enumerate(zip(*(run.result["accuracy_after"] for run in item.runs)), start=1)
            lines[item.cell.row] = {place: values for place, values in after if None not in values}
    return panels


def csv_rows_of(findings: Sequence[Finding]) -> list[list[object]]:
    """Header, and a row for every point of every run."""
    rows: list[list[object]] = [["benchmark", "protocol", "method", "run", "experience", "accuracy"]]
    for item in findings:
        for run in item.runs:
            last = len(run.result["final_accuracy_per_experience"])
            for place, value in enumerate(run.result["accuracy_after"], start=1):
                cell, experience = item.cell, last if run.joint else place
                accuracy = number(value, ".4f")  # empty without a test
                rows.append([cell.benchmark, cell.protocol, cell.row, run.number, experience, accuracy])
    return rows


def main() -> int:
    parser = parser_for(__doc__, "runs/table1", several=True)
    parser.add_argument("--figure", choices=["3", "S1", "S2"], default="3", help="figure of the paper")
    parser.add_argument("--strategies", nargs="+", metavar="NAME", help="default those of all the paper's benchmarks")
    parser.add_argument("--family", choices=["fair", "paper"], default="fair")
    chosen = parser.parse_args()
    options, name = common_options(chosen), chosen.figure
    methods = chosen.strategies or (QUICK_METHODS if options.quick else REPLAY_METHODS if name == "S2" else METHODS)
    report, cells = options.output, []
    if name == "S2":
        options = replace(options, output=report / "unlimited")
    for benchmark, root in options.roots.items():
        some = cells_of(replace(options, roots={benchmark: root}), methods, protocols_of(name, benchmark))
        if name == "S2":  # of which the paper has the curves only, no numbers
            room = {"mem_size": room_for_all(options, benchmark)}
            some = [replace(one, settings=one.settings | room, paper=None, paper_reference=None) for one in some]
        cells += some
    if not cells:
        raise ValueError(f"figure {name} has no panel of {', '.join(options.roots)}: it shows video benchmarks")
    findings, failed = options.found(cells, **shared_settings(options, chosen.family))
    limit = "no limit of memory" if name == "S2" else "the same bytes for all"
    heading = f"Figure {name}, {limit}; settings of the family {chosen.family}"
    axes = dict(ylim=(0, 100), xlabel="after experience", ylabel="accuracy over all seen classes (%)")
    picture = curves(panels_of_curves(findings), heading, **axes)
    publish(findings, heading, report, f"fig{name}", picture, csv_rows_of(findings))
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
