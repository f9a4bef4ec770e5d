"""Figures 3, S1 and S2 of the paper: accuracy over all seen classes along the stream.

    python experiments/fig3_curves.py --figure 3 --benchmark core50 cifar100 --dataset-root CORE50 CIFAR100
    python experiments/fig3_curves.py --figure S2 --benchmark eth80 --dataset-root ETH80 --feature-cache CACHE

Figure 3 shows class-instance for video benchmarks and class-i.i.d. for image sets; S1 class-i.i.d. for video
benchmarks; S2 both protocols with room for all images of the stream in every class. Figures 3 and S1 share their runs
with `table1_accuracy.py` (the same --output and --family), so finished runs are drawn at once. Error bars are the
root-mean-square error among runs, as in the paper. The offline bound is a horizontal line. Writes `fig3.csv` (or
`figS1`, `figS2`) with every curve, `.md` with the final accuracies beside the paper's, `.png` and `.svg` to --output.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev

import matplotlib
from matplotlib.figure import Figure
from support.common_options import IMAGE_SETS, PROTOCOLS, CommonOptions, common_options, parser_for, run_script
from support.pictures import set_title
from support.sweep import exit_code
from support.tables import Finding, panels_of, publish
from table1_accuracy import cells_of, shared_settings

from crumb_avalanche.report.palette import COLOURS, LINES, MARKERS
from crumb_avalanche.report.pictures import STYLE
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


def picture(findings: Sequence[Finding], title: str) -> Figure:
    """Plot a panel for each benchmark and protocol, a line for each method."""
    panels = panels_of(findings)
    rows = list(dict.fromkeys(item.cell.row for item in findings))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.5 + 4.3 * columns, 0.8 + 3.6 * lines), layout="constrained")
        set_title(figure, title)
        grid, handles = figure.subplots(lines, columns, squeeze=False), {}
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, ((benchmark, protocol), part) in zip(grid.flat, panels.items()):
            for item in part:
                if item.runs:
                    handles[item.cell.row] = draw(axes, item, rows.index(item.cell.row))
            axes.set(ylim=(0, 100), title=f"{benchmark}, {protocol.replace('_', '-')}", xlabel="after experience")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(axis="y", color="0.9", lw=0.6)
        grid[0, 0].set_ylabel("accuracy over all seen classes (%)")
        if handles:
            figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5)
    return figure


def draw(axes, finding: Finding, place: int):
    """Plot the curve of one method; returns its handle for the legend."""
    style = dict(color=COLOURS[place % len(COLOURS)], ls=LINES[place // len(COLOURS) % len(LINES)])
    if finding.runs[0].joint:
        return axes.axhline(finding.mean, **style)
    after = enumerate(zip(*(run.result["accuracy_after"] for run in finding.runs)), start=1)
    tested = {experience: values for experience, values in after if None not in values}
    means, errors = ([of(values) for values in tested.values()] for of in (fmean, pstdev))
    marker = MARKERS[place % len(MARKERS)]
    return axes.errorbar(list(tested), means, yerr=errors, marker=marker, ms=4, capsize=2, **style)


def curves(findings: Sequence[Finding]) -> list[list[object]]:
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
    options = common_options(chosen)
    figure, report = chosen.figure, options.output
    methods = chosen.strategies or (QUICK_METHODS if options.quick else REPLAY_METHODS if figure == "S2" else METHODS)
    if figure == "S2":
        options = replace(options, output=report / "unlimited")
    cells = []
    for benchmark, root in options.roots.items():
        some = cells_of(replace(options, roots={benchmark: root}), methods, protocols_of(figure, benchmark))
        if figure == "S2":  # of which the paper has the curves only, no numbers
            room = {"mem_size": room_for_all(options, benchmark)}
            some = [replace(one, settings=one.settings | room, paper=None, paper_reference=None) for one in some]
        cells += some
    if not cells:
        raise ValueError(f"figure {figure} has no panel of {', '.join(options.roots)}: it shows video benchmarks")
    findings, failed = options.found(cells, **shared_settings(options, chosen.family))
    limit = "no limit of memory" if figure == "S2" else "the same bytes for all"
    heading = f"Figure {figure}, {limit}; settings of the family {chosen.family}"
    publish(findings, heading, report, f"fig{figure}", picture(findings, heading), curves(findings))
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
