"""Supplement S5 of the paper: the number of memories in the bytes of raw images, by its formula and in true bytes.

    python experiments/buffer_sizes.py

Nothing is trained. The formula counts one byte for each index and each value of the codebook. The codebook holds
float32 values and a label takes two bytes, so the table also gives the true bytes of the paper's count, and the number
of memories that fit exactly (`crumb run --family fair`). REMIND's count is the paper's: the maps that its authors store
on ResNet-18, scaled by the values of a map. Maps are SqueezeNet's at 224 pixels. Writes `buffer_sizes.csv`, `.md`,
`.png` and `.svg` to --output.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from support.common_options import run_script
from support.paper_numbers import PaperNumbers, read_paper_numbers
from support.saved_picture import COLOURS, STYLE, save_picture

from crumb_avalanche.runs.run_folder import write_csv, write_text
from crumb_avalanche.runs.tables import markdown, table

TABLE = "s5"
PAPER_BENCHMARKS = ("core50", "toybox", "ilab", "icub", "ilab_core50", "cifar100", "imagenet")
SIDE = 224  # pixels of a raw image
LABEL_BYTES = 2
REMIND_MAP = 512 * 7 * 7  # values of the maps of ResNet-18 that REMIND's authors store


def formula(raw_images: float, map_shape: tuple[int, int, int], blocks: int, length: int) -> float:
    """n_x: memories of `length`-dimensional codes in the bytes of raw images (supplement, S5).

    Args:
        raw_images: number of raw images, 224 pixels a side and one byte a value.
        map_shape: `(s, h, w)`.
        blocks: rows of the codebook, whose values count one byte each.
        length: values of a block.
    """
    features, height, width = map_shape
    return (raw_images * 3 * SIDE**2 - blocks * length) / (features * height * width / length)


def remind_formula(raw_images: float, map_shape: tuple[int, int, int], paper: PaperNumbers) -> float:
    """Memories of REMIND in the same bytes: its authors' maps per raw image, scaled by the values of a map."""
    authors = paper.find(TABLE, "imagenet", "", "remind", "n_x_of_resnet18").value / 10_000
    return raw_images * authors * REMIND_MAP / np.prod(map_shape)


@dataclass(frozen=True)
class Size:
    """A line of the table. Numbers are bytes where nothing else is given.

    Attributes:
        benchmark: name of the benchmark.
        raw_images: number of raw images in the budget.
        length: values of a memory block.
        budget: bytes of the raw images.
        formula: memories by the paper's formula, not rounded.
        paper: memories in the paper's published scripts, None where they lack this block length.
        ours: memories of `crumb run`.
        true_bytes: codes, labels and float32 codebook of `ours` memories.
        exact: memories whose true bytes fit the budget.
        exact_bytes: true bytes of `exact` memories without labels, which are left out for every method.
        remind_formula: memories of REMIND by the paper's formula.
        remind: memories of REMIND here, with the tables of centroids in the budget.
    """

    benchmark: str
    raw_images: int
    length: int
    budget: int
    formula: float
    paper: float | None
    ours: int
    true_bytes: int
    exact: int
    exact_bytes: int
    remind_formula: float
    remind: int

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in memories."""
        return None if self.paper is None else self.ours - self.paper


def size_of(name: str, model, paper: PaperNumbers) -> Size:
    """Compute the sizes for a benchmark; the block length is that of the model's codebook."""
    from benchmarks_toybox_ilab.catalog import get_benchmark
    from crumb_avalanche.methods.registry import get_strategy

    images = get_benchmark(name).budget_images
    blocks, length = model.codebook.codebook_size, model.codebook.codebook_dim
    budget, classes = images * 3 * SIDE**2, model.n_classes
    crumb, remind = get_strategy("crumb"), get_strategy("remind")
    item = crumb.bytes_of_item(model, crumb.settings())
    codebook = 4 * model.codebook.blocks.numel()
    count = crumb.memories_in_budget(model, budget, classes)
    exact = crumb.memories_in_budget(model, budget, classes, exact=True)
    published = paper.find(TABLE, name, "", "crumb", "n_x") if length == 16 else None
    return Size(
        name,
        images,
        length,
        budget,
        formula(images, model.map_shape, blocks, length),
        None if published is None else published.value,
        count,
        count * (item + LABEL_BYTES) + codebook,
        exact,
        exact * item + codebook,
        remind_formula(images, model.map_shape, paper),
        remind.memories_in_budget(model, budget, classes),
    )


HEADER = ["benchmark", "images", "block", "budget", "formula", "paper", "ours", "ours - paper", "true bytes of ours"]
HEADER += ["by the budget", "fit exactly", "their bytes", "REMIND, formula", "REMIND, ours"]


def line_of(size: Size) -> list[str]:
    """Format a line as text."""
    return [
        *(size.benchmark, f"{size.raw_images:,}", str(size.length), f"{size.budget:,}", f"{size.formula:,.1f}"),
        *("" if size.paper is None else f"{size.paper:,.0f}", f"{size.ours:,}"),
        "" if size.difference is None else f"{size.difference:+,.0f}",
        *(f"{size.true_bytes:,}", f"{size.true_bytes / size.budget:.4f}", f"{size.exact:,}", f"{size.exact_bytes:,}"),
        *(f"{size.remind_formula:,.1f}", f"{size.remind:,}"),
    ]


def picture(sizes: list[Size]) -> Figure:
    """Memories for the bytes of a raw image; a group of bars for each block length and budget."""
    shown = list({(size.raw_images, size.length): size for size in sizes}.values())
    parts = {
        "the formula": [size.formula for size in shown],
        "fit exactly": [size.exact for size in shown],
        "REMIND, the paper's": [size.remind_formula for size in shown],
        "REMIND, fit exactly": [size.remind for size in shown],
    }
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4 + 0.7 * len(shown), 4), layout="constrained")
        axes = figure.subplots()
        places = np.arange(len(shown))
        for number, (label, values) in enumerate(parts.items()):
            per_image = [value / size.raw_images for value, size in zip(values, shown)]
            axes.bar(places + 0.2 * (number - 1.5), per_image, 0.2, label=label, color=COLOURS[number])
        names = [f"{size.raw_images:,} images\n256x{size.length}" for size in shown]
        axes.set_xticks(places, names, fontsize=8)
        axes.set_ylabel("memories in the bytes of one raw image")
        axes.legend()
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--benchmark", nargs="+", default=list(PAPER_BENCHMARKS), metavar="NAME", help="benchmarks")
    parser.add_argument("--codebook-dim", nargs="+", type=int, default=[8, 16, 32], metavar="D", help="block lengths")
    parser.add_argument("--output", default="runs/buffer_sizes", help="folder of tables and pictures")
    parser.add_argument("--quick", action="store_true", help="only one benchmark and one block length")
    chosen = parser.parse_args()
    from crumb_avalanche.models.backbones import split_backbone
    from crumb_avalanche.models.codebook import Codebook

    names, lengths = (["core50"], [16]) if chosen.quick else (chosen.benchmark, chosen.codebook_dim)
    paper, sizes = read_paper_numbers(), []
    for length in lengths:
        model = split_backbone(weights=None, n_classes=10, codebook=Codebook(256, length))
        sizes += [size_of(name, model, paper) for name in names]
    lines = [line_of(size) for size in sizes]
    print(table(HEADER, lines))
    output = Path(chosen.output)
    write_csv(output / "buffer_sizes.csv", [vars(sizes[0]), *(vars(size).values() for size in sizes)])
    rows = [HEADER, ["---"] * len(HEADER), *lines]
    write_text(output / "buffer_sizes.md", markdown(rows))
    pictures = ", ".join(path.name for path in save_picture(picture(sizes), output, "buffer_sizes"))
    print(f"\nwritten to {output}: buffer_sizes.csv, buffer_sizes.md, {pictures}")
    return 0


if __name__ == "__main__":
    run_script(main)
