"""Supplement S5 of the paper: how many memories the bytes of raw images hold.

    python experiments/buffer_sizes.py

The formula counts one byte for each index and value of the codebook. A value takes four
bytes and a label two, so the table also gives the true bytes of the paper's count, and
the number of memories that fit (`crumb run --family fair`). REMIND's count is that of
its authors' maps on ResNet-18, scaled by the values of a map. Maps are SqueezeNet's.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from support.common_options import run_script
from support.paper_numbers import PaperNumbers
from support.pictures import bars
from support.tables import write_table

from crumb_avalanche.models.split_model import SplitModel

TABLE = "s5"
PAPER_BENCHMARKS = (
    "core50",
    "toybox",
    "ilab",
    "icub",
    "ilab_core50",
    "cifar100",
    "imagenet",
)
RAW = 3 * 224**2  # bytes of a raw image
LABEL_BYTES = 2
REMIND_MAP = 512 * 7 * 7  # values of the maps of ResNet-18 that REMIND's authors store
QUICK_BENCHMARKS = ["core50"]
QUICK_LENGTHS = [16]
PAPER_LENGTH = 16  # values of a block in the paper's counts
HEADER = [
    "benchmark",
    "images",
    "block",
    "budget",
    "formula",
    "paper",
    "ours",
    "ours - paper",
    "true bytes of ours",
    "by the budget",
    "fit exactly",
    "their bytes",
    "REMIND, formula",
    "REMIND, ours",
]
# Fields of a size that are plotted, by their label.
PLOTTED = {
    "the formula": "formula",
    "fit exactly": "exact",
    "REMIND, formula": "remind_formula",
    "REMIND, fit": "remind",
}


@dataclass(frozen=True)
class Size:
    """The sizes of the buffers of a benchmark.

    Attributes:
        benchmark: name of the benchmark.
        raw_images: number of raw images whose bytes are the budget.
        length: values of a block.
        budget: bytes.
        formula: memories by the paper's formula.
        paper: memories in the published scripts; None where they have none.
        ours: memories by the rule of `crumb run`.
        true_bytes: bytes of `ours` with labels and the codebook in float32.
        exact: memories that fit in the budget.
        exact_bytes: bytes of `exact` with the codebook.
        remind_formula: REMIND's memories, scaled from its authors' count.
        remind: REMIND's memories that fit.
    """

    benchmark: str
    raw_images: float
    length: int
    budget: float
    formula: float
    paper: float | None
    ours: int
    true_bytes: int
    exact: int
    exact_bytes: int
    remind_formula: float
    remind: int

    @property
    def line(self) -> list[str]:
        """Values of `HEADER`."""
        paper = ""
        difference = ""
        if self.paper is not None:
            paper = f"{self.paper:,.0f}"
            difference = f"{self.ours - self.paper:+,.0f}"
        return [
            self.benchmark,
            f"{self.raw_images:,}",
            str(self.length),
            f"{self.budget:,}",
            f"{self.formula:,.1f}",
            paper,
            f"{self.ours:,}",
            difference,
            f"{self.true_bytes:,}",
            f"{self.true_bytes / self.budget:.4f}",
            f"{self.exact:,}",
            f"{self.exact_bytes:,}",
            f"{self.remind_formula:,.1f}",
            f"{self.remind:,}",
        ]


def formula(
    raw_images: float, map_shape: tuple[int, int, int], blocks: int, length: int
) -> float:
    """n_x: memories in the bytes of raw images (supplement, S5).

    Args:
        raw_images: number of raw images.
        map_shape: channels, height and width of a map.
        blocks: number of blocks.
        length: values of a block.
    """
    codebook_bytes = blocks * length
    item_bytes = np.prod(map_shape) / length
    return (raw_images * RAW - codebook_bytes) / item_bytes


def remind_formula(
    raw_images: float, map_shape: tuple[int, int, int], paper: PaperNumbers
) -> float:
    """Memories of REMIND in the same bytes.

    Its authors' maps per raw image are scaled by the values of a map.
    """
    count = paper.find(TABLE, "imagenet", "", "remind", "n_x_of_resnet18").value
    maps_per_image = count / 10_000
    return raw_images * maps_per_image * REMIND_MAP / np.prod(map_shape)


def size_of(name: str, model: SplitModel, paper: PaperNumbers) -> Size:
    """The sizes for a benchmark; blocks are as long as the model's codebook has them."""
    from benchmarks_toybox_ilab.catalog import get_benchmark
    from crumb_avalanche.methods.registry import get_strategy

    images = get_benchmark(name).budget_images
    blocks, length = model.codebook.blocks.shape
    budget = images * RAW
    classes = model.n_classes
    crumb = get_strategy("crumb")
    remind = get_strategy("remind")
    item_bytes = crumb.bytes_of_item(model, crumb.settings())
    codebook_bytes = 4 * model.codebook.blocks.numel()
    count = crumb.memories_in_budget(model, budget, classes)
    exact = crumb.memories_in_budget(model, budget, classes, exact=True)
    published = None
    if length == PAPER_LENGTH:
        published = paper.find(TABLE, name, "", "crumb", "n_x")
    return Size(
        benchmark=name,
        raw_images=images,
        length=length,
        budget=budget,
        formula=formula(images, model.map_shape, blocks, length),
        paper=published and published.value,
        ours=count,
        true_bytes=count * (item_bytes + LABEL_BYTES) + codebook_bytes,
        exact=exact,
        exact_bytes=exact * item_bytes + codebook_bytes,
        remind_formula=remind_formula(images, model.map_shape, paper),
        remind=remind.memories_in_budget(model, budget, classes),
    )


def picture(sizes: Sequence[Size]) -> Figure:
    """Plot the memories in the bytes of one raw image."""
    series: dict[str, dict[str, list[float]]] = {label: {} for label in PLOTTED}
    for size in sizes:
        row = f"{size.raw_images:,} images\n256x{size.length}"
        for label, name in PLOTTED.items():
            series[label][row] = [getattr(size, name) / size.raw_images]
    panel = "memories in the bytes of one raw image"
    return bars({panel: series}, "Sizes of the buffers")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], allow_abbrev=False
    )
    add = parser.add_argument
    add(
        "--benchmark",
        nargs="+",
        default=list(PAPER_BENCHMARKS),
        metavar="NAME",
        help="benchmarks",
    )
    add(
        "--codebook-dim",
        nargs="+",
        type=int,
        default=[8, 16, 32],
        metavar="D",
        help="block lengths",
    )
    add("--output", default="runs/buffer_sizes", help="folder of tables and pictures")
    add("--quick", action="store_true", help="only one benchmark and one block length")
    chosen = parser.parse_args()
    from crumb_avalanche import Codebook, split_backbone

    names = QUICK_BENCHMARKS if chosen.quick else chosen.benchmark
    lengths = QUICK_LENGTHS if chosen.quick else chosen.codebook_dim
    paper = PaperNumbers()
    sizes = []
    for length in lengths:
        codebook = Codebook(256, length)
        model = split_backbone(weights=None, n_classes=10, codebook=codebook)
        sizes += [size_of(name, model, paper) for name in names]
    csv_rows = [list(asdict(sizes[0]))]
    for size in sizes:
        csv_rows.append(list(asdict(size).values()))
    lines = [size.line for size in sizes]
    output = Path(chosen.output)
    write_table(output, "buffer_sizes", HEADER, lines, csv_rows, picture(sizes))
    return 0


if __name__ == "__main__":
    run_script(main, smoke_test=False)
