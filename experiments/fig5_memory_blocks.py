"""Figure 5 of the paper: locations of test images where memory blocks fire, and the use of each block.

    python experiments/fig5_memory_blocks.py --benchmark eth80 --dataset-root ETH80
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
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from scipy import stats
from support.common_options import PROTOCOLS, common_options, parser_for, run_script
from support.findings import Cell
from support.rebuilt_run import RebuiltRun, rebuilt
from support.recorded_runs import write_recorded
from support.sweep import exit_code
from support.tables import recorded_runs_of
from table4_ablations import MEM_SIZES, PAPER_DATASET
from torch import Tensor

from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.report.pictures import COLOURS, STYLE, save
from crumb_avalanche.runs.run_folder import write_csv
from crumb_avalanche.runs.tables import table


@dataclass(frozen=True)
class Usage:
    """Codes of the test images under one codebook."""

    counts: (
        np.ndarray
    )  # `(n,)` int64, number of slices that chose each block, without all-zero slices
    zeros: int  # number of all-zero slices, for which all blocks tie
    codes: (
        np.ndarray
    )  # `(N, H, W)` of the first group of channels, -1 where a slice is all zero

    @property
    def shares(self) -> np.ndarray:
        """Shares of the blocks in the slices that are not zero, `(n,)`."""
        return self.counts / max(1, self.counts.sum())


@torch.no_grad()
def usage_of(model: SplitModel, batches: Iterator[Tensor]) -> Usage:
    """Encode images or cached maps, batch by batch."""
    codebook = model.codebook
    counts, zeros, kept = torch.zeros(codebook.codebook_size, dtype=torch.int64), 0, []
    for images in batches:
        maps = model.features(images.to(model.pixel_mean.device))
        codes = codebook.encode(maps).to(torch.int64)
        nothing = ~maps.unflatten(1, (-1, codebook.codebook_dim)).any(
            dim=2
        )  # (B, G, H, W)
        counts += codebook.usage(codes[~nothing]).cpu()
        zeros += int(nothing.sum())
        codes[nothing] = -1
        kept.append(codes[:, 0].to(torch.int16).cpu())
    return Usage(counts.numpy(), zeros, torch.cat(kept).numpy())


def strongest(heat: np.ndarray, objects: Sequence[str], count: int) -> list[int]:
    """Indices of the images on which a block fires most, one image per object before any second one."""
    order = np.argsort(-heat.mean(axis=(1, 2)), kind="stable")
    first = list({objects[place]: place for place in reversed(order)}.values())
    best = sorted(first, key=lambda place: -heat[place].mean())
    rest = [place for place in order if place not in set(first)]
    return [int(place) for place in (best + rest)[:count]]


def overlay(axes, image, heat: np.ndarray, colour: str) -> None:
    """Draw an image under a colour whose opacity is the heat of each location."""
    axes.imshow(
        np.asarray(image.convert("RGB").resize((224, 224))), extent=(0, 1, 1, 0)
    )
    layer = np.zeros((*heat.shape, 4))
    layer[..., :3], layer[..., 3] = to_rgb(colour), 0.65 * heat / max(heat.max(), 1e-9)
    axes.imshow(layer, extent=(0, 1, 1, 0), interpolation="nearest")


def picture(
    found: RebuiltRun,
    before: Usage,
    after: Usage,
    blocks: Sequence[int],
    images: int,
    title: str,
) -> Figure:
    """Plot panels a and b."""
    names = found.table.class_name
    objects = [f"{names[row]} {found.table.object_name[row]}" for row in found.rows]
    places, order = (
        np.arange(1, len(after.counts) + 1),
        np.argsort(-after.counts, kind="stable"),
    )
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(2 + 1.7 * images, 1.9 * len(blocks) + 3.6), layout="constrained"
        )
        figure.suptitle(title)
        upper, lower = figure.subfigures(2, 1, height_ratios=[1.9 * len(blocks), 3.4])
        below = lower.subplots()
        below.plot(
            places,
            100 * after.shares[order],
            color=COLOURS[0],
            label="after the stream",
        )
        below.plot(
            places,
            100 * np.sort(before.shares)[::-1],
            "--",
            color=COLOURS[1],
            label="before it",
        )
        for number, (line, block) in enumerate(
            zip(upper.subplots(len(blocks), images, squeeze=False), blocks)
        ):
            heat, colour = (
                (after.codes == block).astype(float),
                COLOURS[number % len(COLOURS)],
            )
            for axes in line:
                axes.set_axis_off()
            for axes, place in zip(line, strongest(heat, objects, images)):
                overlay(
                    axes, found.table.read(int(found.rows[place])), heat[place], colour
                )
                axes.set_title(names[found.rows[place]], fontsize=8)
            rank = int(np.flatnonzero(order == block)[0]) + 1
            line[0].text(
                -0.1,
                0.5,
                f"block {block}\n{rank}. of all",
                rotation=90,
                va="center",
                ha="right",
                fontsize=8,
            )
            below.plot(rank, 100 * after.shares[block], "v", ms=7, color=colour)
        below.set(
            xlabel="block, in the order of use",
            ylabel="slices, not zero (%)",
            yscale="log",
        )
        below.legend()
    return figure


def summary(before: Usage, after: Usage) -> list[list[str]]:
    """Rows of statistics of use, before and after the stream."""
    texts = {
        "images": lambda usage: f"{len(usage.codes):,}",
        "slices that are all zero, %": lambda usage: (
            f"{100 * usage.zeros / (usage.zeros + usage.counts.sum()):.2f}"
        ),
        "largest share of a block, %": lambda usage: f"{100 * usage.shares.max():.2f}",
        "blocks never used": lambda usage: str(int((usage.counts == 0).sum())),
        "as varied as so many equal blocks": lambda usage: (
            f"{np.exp(stats.entropy(usage.shares)):.1f}"
        ),
    }
    rows = [[name, text(before), text(after)] for name, text in texts.items()]
    if len(before.counts) > 1 and np.ptp(before.counts) and np.ptp(after.counts):
        rows.append(
            [
                "rank correlation of use",
                "",
                f"{stats.spearmanr(before.counts, after.counts).statistic:.3f}",
            ]
        )
    return rows


def main() -> int:
    parser = parser_for(__doc__, "runs/fig5")
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
    benchmark, protocol, run = options.benchmark, chosen.protocol, options.runs[0]
    settings = {
        "protocol": protocol,
        "pretrained": chosen.pretrained,
        "codebook_dim": 8,
    }
    size = chosen.mem_size or MEM_SIZES.get(benchmark, MEM_SIZES[PAPER_DATASET])
    settings |= {"mem_size": size, "keep_learner": True}
    findings, failed = options.found(
        [Cell("crumb", benchmark, protocol, options.output / protocol, settings)]
    )
    if failed:
        return exit_code(failed)
    folder = str(options.output / protocol / f"run{run}")
    found = rebuilt(options.settings(benchmark, **settings, run=run, output=folder))
    before, after = (
        usage_of(model, found.batches()) for model in (found.before, found.after)
    )
    print(
        "\n"
        + table(
            ["use of memory blocks by the test images", "before", "after"],
            summary(before, after),
        )
    )
    order = np.argsort(-after.counts, kind="stable")
    columns = after.counts, after.shares, before.counts, before.shares
    header = [
        "block",
        "rank",
        "slices_after",
        "share_after",
        "slices_before",
        "share_before",
    ]
    rows = [
        [block, rank, *(values[block] for values in columns)]
        for rank, block in enumerate(order, start=1)
    ]
    write_csv(options.output / "fig5.csv", [header, *rows])
    write_recorded(options.output / "fig5_runs.csv", recorded_runs_of(findings))
    counts = np.bincount(after.codes[after.codes >= 0], minlength=len(after.counts))
    blocks = [
        int(block)
        for block in np.argsort(-counts, kind="stable")[: chosen.blocks]
        if counts[block]
    ]
    title = f"Figure 5, {benchmark}, {protocol.replace('_', '-')}, run {run}"
    save(
        picture(found, before, after, blocks, chosen.images, title),
        options.output,
        "fig5",
    )
    print(f"\nwritten to {options.output}: fig5.csv, fig5_runs.csv, fig5.png, fig5.svg")
    return 0


if __name__ == "__main__":
    run_script(main)
