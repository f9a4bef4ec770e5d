r"""Figure 5 of the paper: where memory blocks fire, and the use of each block.

    python experiments/fig5_memory_blocks.py --benchmark eth80 --dataset-root ETH80 \
        --feature-cache CACHE

One CRUMB run in class-instance with 256 blocks of 8 values, perhaps from CRUMB
pretraining. Panel a: the most used blocks, each on the images where it fires most, one
image per object. As in the paper, only the first 8 features of a location count, so
that a block either fires or not. All-zero slices choose no block and are left out.
Panel b: use of all blocks, sorted, before and after the stream. Writes `fig5.csv`,
`.png`, `.svg`, and `fig5_runs.csv` to --output.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL.Image import Image
from scipy import stats
from support.common_options import PROTOCOLS, common_options, parser_for, run_script
from support.findings import Cell
from support.rebuilt_run import RebuiltRun, rebuild
from support.recorded_runs import write_recorded
from support.sweep import exit_code
from support.tables import recorded_runs_of
from table4_ablations import MEM_SIZES, PAPER_DATASET
from torch import Tensor

from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.report.pictures import COLOURS, STYLE, save
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import format_table

HEADER = [
    "block",
    "rank",
    "slices_after",
    "share_after",
    "slices_before",
    "share_before",
]
NO_BLOCK = -1  # code of a slice that is all zero


@dataclass(frozen=True)
class Usage:
    """Codes of the test images under one codebook.

    Attributes:
        counts: number of slices that chose each block, without all-zero slices;
            `(n,)` int64.
        zeros: number of all-zero slices, for which all blocks tie.
        codes: of the first group of channels, `NO_BLOCK` where a slice is all zero;
            `(N, H, W)` int16.
    """

    counts: np.ndarray
    zeros: int
    codes: np.ndarray

    @property
    def shares(self) -> np.ndarray:
        """Shares of the blocks in the slices that are not zero, `(n,)`."""
        return self.counts / max(1, self.counts.sum())

    @property
    def order(self) -> np.ndarray:
        """Blocks in the order of their use, the most used first, `(n,)`."""
        return np.argsort(-self.counts, kind="stable")

    @property
    def share_of_zeros(self) -> float:
        """Share of the slices that are all zero."""
        return self.zeros / (self.zeros + self.counts.sum())


@torch.no_grad()
def usage_of(model: SplitModel, batches: Iterator[Tensor]) -> Usage:
    """Encode images or cached maps, batch by batch."""
    codebook = model.codebook
    counts = torch.zeros(codebook.codebook_size, dtype=torch.int64)
    zeros = 0
    first_codes = []
    for images in batches:
        maps = model.features(images.to(model.pixel_mean.device))
        codes = codebook.encode(maps).to(torch.int64)  # (B, G, H, W)
        slices = maps.unflatten(1, (-1, codebook.codebook_dim))
        is_zero = ~slices.any(dim=2)  # (B, G, H, W)
        counts += codebook.usage(codes[~is_zero]).cpu()
        zeros += int(is_zero.sum())
        codes[is_zero] = NO_BLOCK
        first_codes.append(codes[:, 0].to(torch.int16).cpu())
    return Usage(counts.numpy(), zeros, torch.cat(first_codes).numpy())


def strongest_images(heat: np.ndarray, objects: Sequence[str], count: int) -> list[int]:
    """Choose the images on which a block fires most.

    One image of each object comes before a second image of any.

    Args:
        heat: where the block fires in each image, `(N, H, W)`.
        objects: name of the object in each image.
        count: number of images.

    Returns:
        Indices of the images.
    """
    hottest_first = np.argsort(-heat.mean(axis=(1, 2)), kind="stable").tolist()
    image_of_object: dict[str, int] = {}
    for index in hottest_first:
        image_of_object.setdefault(objects[index], index)
    first = sorted(image_of_object.values(), key=lambda index: -heat[index].mean())
    further = [index for index in hottest_first if index not in first]
    return [*first, *further][:count]


def overlay(axes: Axes, image: Image, heat: np.ndarray, colour: str) -> None:
    """Draw an image under a colour whose opacity is the heat of each location."""
    pixels = np.asarray(image.convert("RGB").resize((224, 224)))
    axes.imshow(pixels, extent=(0, 1, 1, 0))
    layer = np.zeros((*heat.shape, 4))
    layer[..., :3] = to_rgb(colour)
    layer[..., 3] = 0.65 * heat / max(heat.max(), 1e-9)
    axes.imshow(layer, extent=(0, 1, 1, 0), interpolation="nearest")


def picture(
    run: RebuiltRun,
    before: Usage,
    after: Usage,
    blocks: Sequence[int],
    images: int,
    title: str,
) -> Figure:
    """Plot panel a, images under some blocks, and panel b, the use of all blocks.

    Args:
        run: the run.
        before: use of the blocks as the run began.
        after: use of the blocks as it ended.
        blocks: blocks of panel a.
        images: number of images of each block.
        title: of the figure.
    """
    height = 1.9 * len(blocks)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2 + 1.7 * images, height + 3.6), layout="constrained")
        figure.suptitle(title)
        upper, lower = figure.subfigures(2, 1, height_ratios=[height, 3.4])
        use = lower.subplots()
        _plot_use(use, before, after)
        rows = upper.subplots(len(blocks), images, squeeze=False)
        for number, (axes_of_row, block) in enumerate(zip(rows, blocks)):
            colour = COLOURS[number % len(COLOURS)]
            rank = int(np.flatnonzero(after.order == block)[0]) + 1
            _draw_block(axes_of_row, run, after, block, colour)
            _label_row(axes_of_row[0], f"block {block}\n{rank}. of all")
            use.plot(rank, 100 * after.shares[block], "v", ms=7, color=colour)
        use.legend()
    return figure


def _plot_use(axes: Axes, before: Usage, after: Usage) -> None:
    """Plot how often each block is used, in the order of use."""
    ranks = np.arange(1, len(after.counts) + 1)
    shares_after = 100 * after.shares[after.order]
    shares_before = 100 * np.sort(before.shares)[::-1]
    axes.plot(ranks, shares_after, color=COLOURS[0], label="after the stream")
    axes.plot(ranks, shares_before, "--", color=COLOURS[1], label="before it")
    axes.set(
        xlabel="block, in the order of use",
        ylabel="slices, not zero (%)",
        yscale="log",
    )


def _draw_block(
    axes_of_row: Sequence[Axes], run: RebuiltRun, usage: Usage, block: int, colour: str
) -> None:
    """Draw the images on which a block fires most."""
    table = run.table
    objects = [f"{table.class_name[row]} {table.object_name[row]}" for row in run.rows]
    heat = (usage.codes == block).astype(float)
    for axes in axes_of_row:
        axes.set_axis_off()
    for axes, index in zip(
        axes_of_row, strongest_images(heat, objects, len(axes_of_row))
    ):
        row = int(run.rows[index])
        overlay(axes, table.read(row), heat[index], colour)
        axes.set_title(table.class_name[row], fontsize=8)


def _label_row(axes: Axes, text: str) -> None:
    """Write a text to the left of a row of images."""
    axes.text(-0.1, 0.5, text, rotation=90, va="center", ha="right", fontsize=8)


def statistics_of(usage: Usage) -> dict[str, str]:
    """Statistics of the use of blocks as text."""
    return {
        "images": f"{len(usage.codes):,}",
        "slices that are all zero, %": f"{100 * usage.share_of_zeros:.2f}",
        "largest share of a block, %": f"{100 * usage.shares.max():.2f}",
        "blocks never used": str(int((usage.counts == 0).sum())),
        "as varied as so many equal blocks": (
            f"{np.exp(stats.entropy(usage.shares)):.1f}"
        ),
    }


def summary(before: Usage, after: Usage) -> list[list[str]]:
    """Rows of statistics of use, before and after the stream."""
    texts_before = statistics_of(before)
    texts_after = statistics_of(after)
    rows = [[name, texts_before[name], texts_after[name]] for name in texts_before]
    if len(before.counts) > 1 and np.ptp(before.counts) and np.ptp(after.counts):
        correlation = stats.spearmanr(before.counts, after.counts).statistic
        rows.append(["rank correlation of use", "", f"{correlation:.3f}"])
    return rows


def csv_rows_of(before: Usage, after: Usage) -> list[list[object]]:
    """Header, and a row for every block in the order of use."""
    rows: list[list[object]] = [list(HEADER)]
    for rank, block in enumerate(after.order, start=1):
        rows.append(
            [
                block,
                rank,
                after.counts[block],
                after.shares[block],
                before.counts[block],
                before.shares[block],
            ]
        )
    return rows


def most_used_blocks(usage: Usage, count: int) -> list[int]:
    """Choose the blocks that the first group of channels uses most."""
    used = usage.codes[usage.codes != NO_BLOCK]
    counts = np.bincount(used, minlength=len(usage.counts))
    order = np.argsort(-counts, kind="stable")[:count]
    return [int(block) for block in order if counts[block]]


def main() -> int:
    parser = parser_for(__doc__, "runs/fig5", recorded=False)
    parser.set_defaults(runs="0")
    parser.add_argument("--protocol", default=PROTOCOLS[0], choices=PROTOCOLS)
    parser.add_argument(
        "--pretrained", help="file of crumb pretrain (256x8) that the run starts from"
    )
    parser.add_argument(
        "--mem-size",
        type=int,
        help="maps stored; default the paper's ablations' for the benchmark",
    )
    parser.add_argument("--blocks", type=int, default=5, help="blocks shown")
    parser.add_argument("--images", type=int, default=6, help="images shown of each")
    chosen = parser.parse_args()
    options = common_options(chosen)
    benchmark = options.benchmark
    protocol = chosen.protocol
    number = options.runs[0]
    usual_size = MEM_SIZES.get(benchmark, MEM_SIZES[PAPER_DATASET])
    settings = {
        "protocol": protocol,
        "pretrained": chosen.pretrained,
        "codebook_dim": 8,
        "mem_size": chosen.mem_size or usual_size,
        "keep_learner": True,
    }
    folder = options.output / protocol
    cell = Cell("crumb", benchmark, protocol, folder, settings)
    findings, failed = options.run_cells([cell])
    if failed:
        return exit_code(failed)
    output = str(folder / f"run{number}")
    run = rebuild(options.settings(benchmark, **settings, run=number, output=output))
    before = usage_of(run.before, run.batches())
    after = usage_of(run.after, run.batches())
    header = ["use of memory blocks by the test images", "before", "after"]
    print("\n" + format_table(header, summary(before, after)))
    write_csv(options.output / "fig5.csv", csv_rows_of(before, after))
    write_recorded(options.output / "fig5_runs.csv", recorded_runs_of(findings))
    blocks = most_used_blocks(after, chosen.blocks)
    title = f"Figure 5, {benchmark}, {protocol.replace('_', '-')}, run {number}"
    figure = picture(run, before, after, blocks, chosen.images, title)
    save(figure, options.output, "fig5")
    print(f"\nwritten to {options.output}: fig5.csv, fig5_runs.csv, fig5.png, fig5.svg")
    return 0


if __name__ == "__main__":
    run_script(main)
