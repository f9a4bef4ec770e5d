r"""Figures 3, S1 and S2 of the paper: accuracy over all seen classes along the stream.

    python experiments/fig3_curves.py --figure S2 --benchmark eth80 \
        --dataset-root ETH80 --feature-cache CACHE

Figure 3 shows class-instance for video benchmarks and class-i.i.d. for image sets; S1
class-i.i.d. for video benchmarks; S2 both protocols with room for all images in every
class. Figures 3 and S1 share their runs with `table1_accuracy.py` (the same --output
and --family). Error bars are 95 % intervals over runs. Writes `fig3.csv`
(or `figS1`, `figS2`) with every curve, `.md`, `.png` and `.svg`.
"""

from collections.abc import Sequence
from dataclasses import replace

from support.common_options import (
    IMAGE_SETS,
    PROTOCOLS,
    CommonOptions,
    common_options,
    parser_for,
    run_script,
)
from support.findings import Cell, Finding
from support.pictures import curves
from support.sweep import exit_code
from support.tables import panels_of, publish
from table1_accuracy import cells_of, shared_settings

from crumb_avalanche.report.paired import unit_means
from crumb_avalanche.runs.tables import number

REPLAY_METHODS = ("crumb", "remind", "icarl", "gem", "offline")
# Methods that the paper ran on every benchmark.
METHODS = (
    "crumb",
    "remind",
    "icarl",
    "gem",
    "ewc",
    "mas",
    "si",
    "finetune",
    "offline",
)
QUICK_METHODS = ("crumb", "finetune", "offline")
UNLIMITED = "S2"  # the figure with room for all images
HEADER = ["benchmark", "protocol", "method", "run", "experience", "accuracy"]

# Accuracies of all runs after each experience, by the name of the row.
Curves = dict[str, dict[int, Sequence[float]]]


def protocols_of(figure: str, benchmark: str) -> list[str]:
    """Protocols of a benchmark that a figure shows."""
    class_instance, class_iid = PROTOCOLS
    if figure == UNLIMITED:
        return [class_instance, class_iid]
    if figure == "3":
        return [class_iid] if benchmark in IMAGE_SETS else [class_instance]
    return [] if benchmark in IMAGE_SETS else [class_iid]


def methods_of(figure: str, quick: bool) -> Sequence[str]:
    """Methods that a figure shows."""
    if quick:
        return QUICK_METHODS
    return REPLAY_METHODS if figure == UNLIMITED else METHODS


def room_for_all(options: CommonOptions, benchmark: str) -> int:
    """Memories with which no class ever gives one up, in any run.

    A class may have 1 / classes of them.
    """
    from benchmarks_toybox_ilab.catalog import get_benchmark

    entry = get_benchmark(benchmark)
    largest_class = 0
    n_classes = 0
    for run in options.runs:
        table = entry.table(options.roots[benchmark], run)
        n_classes = len(table.classes)
        images = [count["train"] for count in table.counts().values()]
        largest_class = max(largest_class, *images)
    return n_classes * largest_class


def cells_of_figure(
    options: CommonOptions, figure: str, methods: Sequence[str]
) -> list[Cell]:
    """Cells of all benchmarks that a figure shows.

    Raises:
        ValueError: the figure shows none of the benchmarks.
    """
    cells = []
    for benchmark, root in options.roots.items():
        only = replace(options, roots={benchmark: root})
        panel = cells_of(only, methods, protocols_of(figure, benchmark))
        if figure == UNLIMITED:
            panel = _without_limit(panel, room_for_all(options, benchmark))
        cells += panel
    if not cells:
        raise ValueError(
            f"figure {figure} has no panel of {', '.join(options.roots)}: it shows "
            "video benchmarks"
        )
    return cells


def _without_limit(cells: Sequence[Cell], mem_size: int) -> list[Cell]:
    """Cells with this room, of which the paper has the curves only, no numbers."""
    cells_with_room = []
    for cell in cells:
        settings = {**cell.settings, "mem_size": mem_size}
        cells_with_room.append(
            replace(cell, settings=settings, paper=None, paper_reference=None)
        )
    return cells_with_room


def panels_of_curves(findings: Sequence[Finding]) -> dict[str, Curves]:
    """Accuracies by panel, row and experience that all runs were tested after."""
    panels = {}
    for (benchmark, protocol), panel in panels_of(findings).items():
        name = f"{benchmark}, {protocol.replace('_', '-')}"
        panels[name] = {finding.cell.row: curve_of(finding) for finding in panel}
    return panels


def curve_of(finding: Finding) -> dict[int, Sequence[float]]:
    """Accuracy of each unit after each experience that all runs were tested after.

    A unit is a split, or a run where all runs have the same split.
    """
    splits = [run.split for run in finding.runs]
    accuracies = zip(*(run.accuracy_after for run in finding.runs))
    curve = {}
    for experience, values in enumerate(accuracies, start=1):
        if None not in values:
            curve[experience] = unit_means(values, splits)
    return curve


def csv_rows_of(findings: Sequence[Finding]) -> list[list[object]]:
    """Header, and a row for every point of every run."""
    rows: list[list[object]] = [list(HEADER)]
    for finding in findings:
        cell = finding.cell
        for run in finding.runs:
            first = len(run.per_experience) if run.joint else 1
            for experience, accuracy in enumerate(run.accuracy_after, first):
                key = [cell.benchmark, cell.protocol, cell.row, run.number]
                rows.append([*key, experience, number(accuracy, ".4f")])
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
    figure = chosen.figure
    options = common_options(chosen)
    report = options.output
    limit = "the same bytes for all"
    if figure == UNLIMITED:
        options = replace(options, output=report / "unlimited")
        limit = "no limit of memory"
    methods = chosen.strategies or methods_of(figure, options.quick)
    cells = cells_of_figure(options, figure, methods)
    findings, failed = options.run_cells(
        cells, **shared_settings(options, chosen.family)
    )
    heading = f"Figure {figure}, {limit}; settings of the family {chosen.family}"
    picture = curves(
        panels_of_curves(findings),
        heading,
        ylim=(0, 100),
        xlabel="after experience",
        ylabel="accuracy over all seen classes (%)",
    )
    publish(findings, heading, report, f"fig{figure}", picture, csv_rows_of(findings))
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
