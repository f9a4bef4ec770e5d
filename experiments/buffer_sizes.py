"""Supplement S5 of the paper: the number of memories in the bytes of raw images, by its formula and in true bytes.

    python experiments/buffer_sizes.py

The formula counts one byte for each index and each value of the codebook. The codebook holds float32 values and a label
takes two bytes, so the table also gives the true bytes of the paper's count, and the number of memories that fit
exactly (`crumb run --family fair`). REMIND's count is the paper's: the maps that its authors store on ResNet-18, scaled
by the values of a map. Maps are SqueezeNet's at 224 pixels. Writes `buffer_sizes.csv`, `.md`, `.png` and `.svg`.
"""

import argparse
from pathlib import Path

import numpy as np
from support.common_options import run_script
from support.pictures import bars
from support.tables import PaperNumbers, write_table

TABLE = "s5"
PAPER_BENCHMARKS = ("core50", "toybox", "ilab", "icub", "ilab_core50", "cifar100", "imagenet")
SIDE = 224  # pixels of a raw image
LABEL_BYTES = 2
REMIND_MAP = 512 * 7 * 7  # values of the maps of ResNet-18 that REMIND's authors store


def formula(raw_images: float, map_shape: tuple[int, int, int], blocks: int, length: int) -> float:
    """n_x: memories of codes of `blocks` of a length in the bytes of raw images (supplement, S5)."""
    features, height, width = map_shape
    return (raw_images * 3 * SIDE**2 - blocks * length) / (features * height * width / length)


def remind_formula(raw_images: float, map_shape: tuple[int, int, int], paper: PaperNumbers) -> float:
    """Memories of REMIND in the same bytes: its authors' maps per raw image, scaled by the values of a map."""
    authors = paper.find(TABLE, "imagenet", "", "remind", "n_x_of_resnet18").value / 10_000
    return raw_images * authors * REMIND_MAP / np.prod(map_shape)


def size_of(name: str, model, paper: PaperNumbers) -> dict:
    """The sizes for a benchmark, by column of the CSV file; the block length is that of the model's codebook.

    Memories by the paper's formula, in its published scripts and of `crumb run`, with the true bytes of these (codes,
    labels, float32 codebook); those whose true bytes without labels fit the budget; and those of REMIND.
    """
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
    return {
        "benchmark": name,
        "raw_images": images,
        "length": length,
        "budget": budget,
        "formula": formula(images, model.map_shape, blocks, length),
        "paper": published and published.value,
        "ours": count,
        "true_bytes": count * (item + LABEL_BYTES) + codebook,
        "exact": exact,
        "exact_bytes": exact * item + codebook,
        "remind_formula": remind_formula(images, model.map_shape, paper),
        "remind": remind.memories_in_budget(model, budget, classes),
    }


HEADER = ["benchmark", "images", "block", "budget", "formula", "paper", "ours", "ours - paper", "true bytes of ours"]
HEADER += ["by the budget", "fit exactly", "their bytes", "REMIND, formula", "REMIND, ours"]
SHOWN = {"the formula": "formula", "fit exactly": "exact", "REMIND, formula": "remind_formula", "REMIND, fit": "remind"}


def line_of(size: dict) -> list[str]:
    """Format a line as text."""
    paper = size["paper"]
    return [
        *(size["benchmark"], f"{size['raw_images']:,}", str(size["length"]), f"{size['budget']:,}"),
        *(f"{size['formula']:,.1f}", "" if paper is None else f"{paper:,.0f}", f"{size['ours']:,}"),
        "" if paper is None else f"{size['ours'] - paper:+,.0f}",
        *(f"{size['true_bytes']:,}", f"{size['true_bytes'] / size['budget']:.4f}", f"{size['exact']:,}"),
        *(f"{size['exact_bytes']:,}", f"{size['remind_formula']:,.1f}", f"{size['remind']:,}"),
    ]


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
    paper, sizes = PaperNumbers(), []
    for length in lengths:
        model = split_backbone(weights=None, n_classes=10, codebook=Codebook(256, length))
        sizes += [size_of(name, model, paper) for name in names]
    series: dict[str, dict[str, list[float]]] = {label: {} for label in SHOWN}
    for size in sizes:
        for label, name in SHOWN.items():
            row = f"{size['raw_images']:,} images\n256x{size['length']}"
            series[label][row] = [size[name] / size["raw_images"]]
    figure = bars({"memories in the bytes of one raw image": series}, "Sizes of the buffers")
    csv_rows = [list(sizes[0]), *(list(size.values()) for size in sizes)]
    write_table(Path(chosen.output), "buffer_sizes", HEADER, [line_of(size) for size in sizes], csv_rows, figure)
    return 0


if __name__ == "__main__":
    run_script(main)
