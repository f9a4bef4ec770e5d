"""Figure 5 of the paper: locations of test images where memory blocks fire, and the use of each block.

    python experiments/fig5_memory_blocks.py --benchmark eth80 --dataset-root ETH80 --feature-cache CACHE

One CRUMB run in class-instance with 256 blocks of 8 values; a finished run is reused, `--pretrained` starts it from
CRUMB pretraining. Panel a: the most used blocks, each on the images where it fires most, one image per object. As in
the paper, only the first 8 features of a location count, so that a block either fires or not; with `--slices 0` all
features count, and the panel shows the fraction that fires. All-zero slices choose no block and are left out. Panel b:
use of all blocks, sorted, before and after the stream. Writes `fig5.csv`, `.png`, `.svg`, and `fig5_runs.csv` with
seed, settings and accuracy of the run to --output.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from scipy import stats
from support.ablation_rows import MEM_SIZES
from support.block_usage import RebuiltRun, Usage, firing, most_used, rebuilt, strongest, usage_of
from support.cells import Cell
from support.common_options import PROTOCOLS, common_options, parser_for, run_script
from support.finished_runs import finished_runs
from support.run_list import Listed, write_run_list
from support.saved_picture import COLOURS, STYLE, save_picture
from support.sweep import exit_code

from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import table


def overlay(axes, image, heat: np.ndarray, colour: str) -> None:
    """Draw an image under a colour whose opacity is the heat of each location."""
    axes.imshow(np.asarray(image.convert("RGB").resize((224, 224))), extent=(0, 1, 1, 0))
    layer = np.zeros((*heat.shape, 4))
    layer[..., :3], layer[..., 3] = to_rgb(colour), 0.65 * heat / max(heat.max(), 1e-9)
    axes.imshow(layer, extent=(0, 1, 1, 0), interpolation="nearest")
    axes.set_axis_off()


def picture(found: RebuiltRun, before: Usage, after: Usage, blocks: Sequence[int], images: int, title: str) -> Figure:
    """Plot panels a and b."""
    objects = [f"{found.table.class_name[row]} {found.table.object_name[row]}" for row in found.rows]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2 + 1.7 * images, 1.9 * len(blocks) + 3.6), layout="constrained")
        figure.suptitle(title)
        upper, lower = figure.subfigures(2, 1, height_ratios=[1.9 * len(blocks), 3.4])
        grid = upper.subplots(len(blocks), images, squeeze=False)
        for number, (line, block) in enumerate(zip(grid, blocks)):
            heat = firing(after.codes, block)
            for axes in line:
                axes.set_axis_off()
            for axes, place in zip(line, strongest(heat, objects, images)):
                overlay(axes, found.table.read(int(found.rows[place])), heat[place], COLOURS[number % len(COLOURS)])
                axes.set_title(found.table.class_name[found.rows[place]], fontsize=8)
            rank = int((after.counts > after.counts[block]).sum()) + 1
            line[0].text(-0.1, 0.5, f"block {block}\n{rank}. of all", rotation=90, va="center", ha="right", fontsize=8)
        axes = lower.subplots()
        places = np.arange(1, len(after.counts) + 1)
        order = np.argsort(-after.counts, kind="stable")
        axes.plot(places, 100 * after.shares[order], color=COLOURS[0], label="after the stream")
        axes.plot(places, 100 * np.sort(before.shares)[::-1], "--", color=COLOURS[1], label="before it")
        for number, block in enumerate(blocks):
            rank = int(np.flatnonzero(order == block)[0]) + 1
            axes.plot(rank, 100 * after.shares[block], "v", ms=7, color=COLOURS[number % len(COLOURS)])
        axes.set(xlabel="block, in the order of use", ylabel="slices, not zero (%)", yscale="log")
        axes.legend()
    return figure


def write_usage(path: Path, before: Usage, after: Usage) -> None:
    """Write a line for each block, most used first."""
    csv_rows = [["block", "rank", "slices_after", "share_after", "slices_before", "share_before"]]
    for rank, block in enumerate(np.argsort(-after.counts, kind="stable"), start=1):
        values = (after.counts[block], after.shares[block], before.counts[block], before.shares[block])
        csv_rows.append([block, rank, *values])
    write_csv(path, csv_rows)


def summary(before: Usage, after: Usage) -> list[list[str]]:
    """Rows of statistics of use, before and after the stream."""
    rows = [["images", *(f"{len(usage.codes):,}" for usage in (before, after))]]
    rows.append(["slices that are all zero, %", *(f"{100 * usage.zero_share:.2f}" for usage in (before, after))])
    rows.append(["largest share of a block, %", *(f"{100 * usage.shares.max():.2f}" for usage in (before, after))])
    rows.append(["blocks never used", *(str(int((usage.counts == 0).sum())) for usage in (before, after))])
    rows.append(["as varied as so many equal blocks", *(f"{usage.effective_blocks:.1f}" for usage in (before, after))])
    if len(before.counts) > 1 and np.ptp(before.counts) and np.ptp(after.counts):
        rows.append(["rank correlation of use", "", f"{stats.spearmanr(before.counts, after.counts).statistic:.3f}"])
    return rows


def main() -> int:
    parser = parser_for(__doc__, "runs/fig5")
    parser.set_defaults(runs="0")
    parser.add_argument("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    parser.add_argument("--pretrained", help="file of crumb pretrain (256x8) that the run starts from")
    parser.add_argument("--codebook-dim", type=int, default=8, help="values of a block")
    parser.add_argument("--mem-size", type=int, help="maps stored; default the paper's ablations' for the benchmark")
    parser.add_argument("--blocks", type=int, default=5, help="blocks shown")
    parser.add_argument("--images", type=int, default=6, help="images shown of each")
    parser.add_argument(
        "--slices", type=int, default=1, help="number of leading slices of a location that count; 0: all"
    )
    chosen = parser.parse_args()
    options = common_options(chosen)
    run = options.runs[0]
    settings = options.settings(
        options.benchmark,
        protocol=chosen.protocol,
        pretrained=chosen.pretrained,
        codebook_dim=chosen.codebook_dim,
        mem_size=chosen.mem_size or MEM_SIZES.get(options.benchmark, MEM_SIZES["core50"]),
        run=run,
        output=str(options.output / chosen.protocol / f"run{run}"),
        keep_learner="answers",
    )
    cell = Cell(settings)
    if failed := options.do([cell]):
        return exit_code(failed)
    found = rebuilt(settings, cell.folder)
    before = usage_of(found.before, found.batches(), chosen.slices)
    after = usage_of(found.after, found.batches(), chosen.slices)
    print("\n" + table(["use of memory blocks by the test images", "before", "after"], summary(before, after)))
    blocks = most_used(after.codes, len(after.counts), chosen.blocks)
    title = f"Figure 5, {options.benchmark}, {chosen.protocol.replace('_', '-')}, run {run}"
    write_usage(options.output / "fig5.csv", before, after)
    figure = picture(found, before, after, blocks, chosen.images, title)
    finished = Listed("crumb", options.benchmark, chosen.protocol, finished_runs(cell.folder.parent, [run]))
    written = [options.output / "fig5.csv", write_run_list(options.output / "fig5_runs.csv", [finished])]
    written += save_picture(figure, options.output, "fig5")
    print("\nwritten: " + ", ".join(map(str, written)))
    return 0


if __name__ == "__main__":
    run_script(main)
