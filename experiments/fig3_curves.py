"""Figures 3, S1 and S2 of the paper: accuracy over all seen classes along the stream.

    python experiments/fig3_curves.py --figure 3 --benchmark core50 cifar100 --dataset-root CORE50 CIFAR100
    python experiments/fig3_curves.py --figure S2 --benchmark eth80 --dataset-root ETH80 --feature-cache CACHE

Figure 3 shows class-instance for video benchmarks and class-i.i.d. for image sets; S1 class-i.i.d. for video
benchmarks; S2 both protocols with room for all images of the stream in every class. Figures 3 and S1 share their runs
with `table1_accuracy.py` (the same --output and --family), so finished runs are drawn at once. Error bars are the
root-mean-square error among runs, as in the paper. The offline bound is a horizontal line. Writes `fig3.csv` (or
`figS1`, `figS2`) with every curve, `.md` with the final accuracies beside the paper's, `.png` and `.svg` to --output.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace

import matplotlib
from matplotlib.figure import Figure
from support.common_options import IMAGE_SETS, PROTOCOLS, CommonOptions, common_options, parser_for, run_script
from support.paper_methods import cells_of
from support.saved_picture import COLOURS, LINES, MARKERS, STYLE, save_picture, set_title
from support.side_by_side import Finding, find, print_findings, write_findings
from support.sweep import exit_code
from table1_accuracy import assembled

from crumb_avalanche.runs.run_folder import write_csv
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


def room_for_all(options: CommonOptions) -> dict[str, int]:
    """Memories with which no class ever gives one up, by benchmark; a class may have 1 / classes of them."""
    from benchmarks_toybox_ilab.catalog import get_benchmark

    sizes = {}
    for benchmark, root in options.roots.items():
        tables = [get_benchmark(benchmark).table(root, run) for run in options.runs]  # runs may hold out other objects
        most = max(count["train"] for table in tables for count in table.counts().values())
        sizes[benchmark] = len(tables[0].classes) * most
    return sizes


def rmse(values: Sequence[float]) -> float:
    """Root-mean-square error of runs about their mean: the standard deviation with n."""
    return statistics.pstdev(values)


def picture(findings: Sequence[Finding], title: str) -> Figure:
    """Plot a panel for each benchmark and protocol, a line for each method."""
    panels = list(dict.fromkeys((item.cell.benchmark, item.cell.protocol) for item in findings))
    rows = list(dict.fromkeys(item.cell.row for item in findings))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1.5 + 4.3 * columns, 0.8 + 3.6 * lines), layout="constrained")
        set_title(figure, title)
        grid = figure.subplots(lines, columns, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        shown = {}
        for axes, panel in zip(grid.flat, panels):
            for item in findings:
                if (item.cell.benchmark, item.cell.protocol) == panel and item.runs:
                    shown[item.cell.row] = draw(axes, item, rows.index(item.cell.row))
            axes.set(ylim=(0, 100), title=f"{panel[0]}, {panel[1].replace('_', '-')}", xlabel="after experience")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(axis="y", color="0.9", lw=0.6)
        grid[0, 0].set_ylabel("accuracy over all seen classes (%)")
        if shown:
            figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=5)
    return figure


def draw(axes, finding: Finding, place: int):
    """Plot the curve of one method; returns its handle for the legend."""
    style = dict(color=COLOURS[place % len(COLOURS)], ls=LINES[place // len(COLOURS) % len(LINES)])
    if finding.runs[0].joint:
        return axes.axhline(finding.mean, **style)
    after = enumerate(zip(*(run.result["accuracy_after"] for run in finding.runs)), start=1)
    tested = {experience: values for experience, values in after if None not in values}
    means, errors = [statistics.fmean(values) for values in tested.values()], [rmse(v) for v in tested.values()]
    marker = MARKERS[place % len(MARKERS)]
    return axes.errorbar(list(tested), means, yerr=errors, marker=marker, ms=4, capsize=2, **style)


def write_curves(path, findings: Sequence[Finding]) -> None:
    """Write every point of every run."""
    csv_rows = [["benchmark", "protocol", "method", "run", "experience", "accuracy"]]
    for item in findings:
        for run in item.runs:
            last = len(run.result["final_accuracy_per_experience"])
            for place, value in enumerate(run.result["accuracy_after"], start=1):
                experience = last if run.joint else place
                cell = item.cell
                accuracy = number(value, ".4f")  # empty without a test
                csv_rows.append([cell.benchmark, cell.protocol, cell.row, run.number, experience, accuracy])
    write_csv(path, csv_rows)


def main() -> int:
    parser = parser_for(__doc__, "runs/table1", several=True)
    parser.add_argument("--figure", choices=["3", "S1", "S2"], default="3", help="figure of the paper")
    parser.add_argument(
        "--strategies", nargs="+", metavar="NAME", help="default those that the paper ran on all benchmarks"
    )
    parser.add_argument("--family", choices=["fair", "paper"], default="fair")
    chosen = parser.parse_args()
    options = common_options(chosen)
    name = f"fig{chosen.figure}"
    usual = QUICK_METHODS if options.quick else REPLAY_METHODS if chosen.figure == "S2" else METHODS
    methods, sizes = chosen.strategies or usual, None
    report = options.output
    if chosen.figure == "S2":
        options = replace(options, output=options.output / "unlimited")
        sizes = room_for_all(options)
    todo, cells = [], []
    for benchmark, root in options.roots.items():
        wanted = protocols_of(chosen.figure, benchmark)
        one = replace(options, roots={benchmark: root})
        if one.protocols(benchmark, wanted):
            todo += cells_of(one, methods, wanted, chosen.family, 417, sizes)
            cells += assembled(one, methods, wanted)
    if not cells:
        raise ValueError(
            f"figure {chosen.figure} has no panel of {', '.join(options.roots)}: it shows video benchmarks"
        )
    if chosen.figure == "S2":  # the paper has its curves only, no numbers
        cells = [replace(cell, paper=None, paper_reference=None) for cell in cells]
    todo.sort(key=lambda cell: options.runs.index(cell.settings.run))
    failed = options.do(todo)
    findings = find(cells, options.runs)
    limit = "no limit of memory" if chosen.figure == "S2" else "the same bytes for all"
    heading = f"Figure {chosen.figure}, {limit}; settings of the family {chosen.family}"
    print(f"\n{heading}")
    print_findings(findings)
    written = write_findings(report, name, findings, heading)[1:]
    write_curves(report / f"{name}.csv", findings)
    written += [report / f"{name}.csv", *save_picture(picture(findings, heading), report, name)]
    print("\nwritten: " + ", ".join(map(str, written)))
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
