"""Table 3 of the paper: replay of n CRUMB codes against replay of n raw images.

    python experiments/table3_codes_vs_images.py --benchmark eth80 --dataset-root ETH80 --feature-cache CACHE

Blocks are 256x8, as in the paper. n runs from 200 to 6,400 on CORe50 and on benchmarks that the paper does not have. On
the other benchmarks of the paper it is the count of the published scripts (`ablation_rows.PUBLISHED_MEM_SIZES`).
`--counts` sets other counts. An n beyond the images of the stream stores them all. In the paper, CRUMB starts from
CRUMB pretraining on ImageNet and image replay from stock weights; without `--pretrained`, both start from stock
weights. Writes the table as `.csv` and `.md`, its picture, `table3_runs.csv` with seed, settings and accuracy of each
run, and a folder for each run to --output.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from support.ablation_rows import PUBLISHED_MEM_SIZES
from support.common_options import PROTOCOLS, CommonOptions, common_options, parser_for, run_script
from support.paper_numbers import PaperNumbers, read_paper_numbers
from support.saved_picture import COLOURS, STYLE, publish, set_title
from support.side_by_side import Cell, Finding, find
from support.sweep import exit_code, grid

TABLE = "table3"
COUNTS = (200, 400, 800, 1600, 3200, 6400)
NAMES = {"crumb": "Ours", "image_replay": "Im. replay"}


def paper_row(paper: PaperNumbers, benchmark: str, protocol: str, method: str, count: int):
    """The paper's number of a cell and its data set: CORe50 where the paper does not have the benchmark."""
    own = any(key[0] == TABLE and key[1] == benchmark for key in paper)
    dataset = benchmark if own else "core50"
    value = paper.find(TABLE, dataset, protocol, f"{method}@n_x={count}")
    if value is None and count == PUBLISHED_MEM_SIZES.get(benchmark):
        value = paper.find(TABLE, dataset, protocol, method)
    return value, dataset


def assembled(
    options: CommonOptions, protocols: Sequence[str], counts: Sequence[int], pretrained: str | None
) -> tuple[dict[str, dict], list[Cell]]:
    """The rows of the sweep by their folder, and the cells of the table."""
    paper, benchmark = read_paper_numbers(), options.benchmark
    todo: dict[str, dict] = {}
    cells = []
    for protocol in protocols:
        for count in counts:
            folder = {method: f"{protocol}/n{count}/{method}" for method in NAMES}
            reference, dataset = paper_row(paper, benchmark, protocol, "crumb", count)
            for method, name in NAMES.items():
                todo[folder[method]] = dict(protocol=protocol, strategy=method, mem_size=count, codebook_dim=8)
                if method == "crumb" and pretrained:
                    todo[folder[method]]["pretrained"] = pretrained
                cells.append(
                    Cell(
                        row=f"n={count} {name}",
                        benchmark=benchmark,
                        protocol=protocol,
                        folder=options.output / folder[method],
                        paper=paper_row(paper, benchmark, protocol, method, count)[0],
                        paper_dataset=dataset,
                        reference=options.output / folder["crumb"],
                        paper_reference=reference,
                        category=f"n={count}",
                    )
                )
    return todo, cells


def picture(findings: Sequence[Finding], counts: Sequence[int], title: str) -> Figure:
    """Plot accuracy against the number of memories, a panel for each protocol; the paper's lines are dashed."""
    protocols = list(dict.fromkeys(item.cell.protocol for item in findings))
    by_cell = {(item.cell.protocol, item.cell.row): item for item in findings}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(1 + 4.5 * len(protocols), 4.2), layout="constrained")
        set_title(figure, title)
        for axes, protocol in zip(figure.subplots(1, len(protocols), sharey=True, squeeze=False)[0], protocols):
            for name, colour in zip(NAMES.values(), COLOURS):
                items = [(count, by_cell[protocol, f"n={count} {name}"]) for count in counts]
                run = [(count, item) for count, item in items if item.runs]
                paper = [(count, item.cell.paper.value) for count, item in items if item.cell.paper]
                axes.errorbar(
                    [count for count, _ in run],
                    [item.mean for _, item in run],
                    yerr=[math.nan if item.spread is None else item.spread for _, item in run],
                    fmt="o-",
                    capsize=2,
                    color=colour,
                    label=f"{name}, here",
                )
                if paper:
                    label = f"{name}, paper, {items[0][1].cell.paper_dataset}"
                    axes.plot(*zip(*paper), "D--", color=colour, mfc="white", label=label)
            axes.set(xscale="log", title=protocol.replace("_", "-"), xlabel="memories stored")
            axes.set_xticks(counts, [f"{count:,}" for count in counts])
            axes.minorticks_off()
            axes.grid(axis="y", color="0.9", lw=0.6)
        figure.axes[0].set(ylabel="accuracy over all classes at the end (%)", ylim=(0, None))  # for all panels: sharey
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def main() -> int:
    parser = parser_for(__doc__, "runs/table3")
    parser.add_argument("--protocols", nargs="+", default=list(PROTOCOLS), choices=PROTOCOLS)
    parser.add_argument(
        "--counts", nargs="+", type=int, metavar="N", help="numbers of memories; default those of the paper"
    )
    parser.add_argument("--pretrained", help="file of crumb pretrain (256x8) that CRUMB starts from")
    chosen = parser.parse_args()
    options = common_options(chosen)
    one_count = options.benchmark in PUBLISHED_MEM_SIZES.keys() - {"core50"}
    usual = [PUBLISHED_MEM_SIZES[options.benchmark]] if one_count else COUNTS[: 2 if options.quick else None]
    counts = chosen.counts or usual
    protocols = options.protocols(options.benchmark, chosen.protocols)
    todo, cells = assembled(options, protocols, counts, chosen.pretrained)
    failed = options.do(grid(options.settings(options.benchmark), options.output, options.runs, todo))
    findings = find(cells, options.runs)
    start = f"from {Path(chosen.pretrained).name}" if chosen.pretrained else "from stock weights, as image replay"
    heading = f"Table 3, n codes against n images on {options.benchmark}; CRUMB starts {start}"
    publish(findings, heading, options.output, TABLE, picture(findings, counts, heading))
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
