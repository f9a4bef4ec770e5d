"""Supplement S5 of the paper: the number of memories in the bytes of raw images, by its formula and in true bytes.

    python experiments/buffer_sizes.py

The formula counts one byte for each index and value of the codebook. A value takes four
bytes and a label two, so the table also gives the true bytes of the paper's count, and
the number of memories that fit (`crumb run --family fair`). REMIND's count is that of
its authors' maps on ResNet-18, scaled by the values of a map. Maps are SqueezeNet's.
"""

import argparse
from pathlib import Path

import numpy as np
from support.common_options import run_script
from support.paper_numbers import PaperNumbers
from support.pictures import bars
from support.tables import write_table

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
COLUMNS = {  # entry of a size, and its format
    "benchmark": ("benchmark", ""),
    **{
        "images": ("raw_images", ","),
        "block": ("length", ""),
        "budget": ("budget", ","),
    },
    **{
        "formula": ("formula", ",.1f"),
        "paper": ("paper", ",.0f"),
        "ours": ("ours", ","),
    },
    **{
        "ours - paper": ("more", "+,.0f"),
        "true bytes of ours": ("true_bytes", ","),
        "by the budget": ("share", ".4f"),
    },
    **{"fit exactly": ("exact", ","), "their bytes": ("exact_bytes", ",")},
    **{"REMIND, formula": ("remind_formula", ",.1f"), "REMIND, ours": ("remind", ",")},
}
SHOWN = {
    "the formula": "formula",
    "fit exactly": "exact",
    "REMIND, formula": "remind_formula",
    "REMIND, fit": "remind",
}


def formula(
    raw_images: float, map_shape: tuple[int, int, int], blocks: int, length: int
) -> float:
    """n_x: memories of codes of `blocks` of a length in the bytes of raw images (supplement, S5)."""
    return (raw_images * RAW - blocks * length) / (np.prod(map_shape) / length)


def remind_formula(
    raw_images: float, map_shape: tuple[int, int, int], paper: PaperNumbers
) -> float:
    """Memories of REMIND in the same bytes: its authors' maps per raw image, scaled by the values of a map."""
    authors = (
        paper.find(TABLE, "imagenet", "", "remind", "n_x_of_resnet18").value / 10_000
    )
    return raw_images * authors * REMIND_MAP / np.prod(map_shape)


def size_of(name: str, model, paper: PaperNumbers) -> dict:
    """The sizes for a benchmark, by column of the CSV file; the block length is that of the model's codebook."""
    from benchmarks_toybox_ilab.catalog import get_benchmark
    from crumb_avalanche.methods.registry import get_strategy

    images, (blocks, length) = (
        get_benchmark(name).budget_images,
        model.codebook.blocks.shape,
    )
    budget, classes, shape = images * RAW, model.n_classes, model.map_shape
    crumb, remind = get_strategy("crumb"), get_strategy("remind")
    item, codebook = (
        crumb.bytes_of_item(model, crumb.settings()),
        4 * model.codebook.blocks.numel(),
    )
    count = crumb.memories_in_budget(model, budget, classes)
    exact = crumb.memories_in_budget(model, budget, classes, exact=True)
    published = paper.find(TABLE, name, "", "crumb", "n_x") if length == 16 else None
    size = {"benchmark": name, "raw_images": images, "length": length, "budget": budget}
    size |= {
        "formula": formula(images, shape, blocks, length),
        "paper": published and published.value,
        "ours": count,
    }
    size |= {"true_bytes": count * (item + LABEL_BYTES) + codebook, "exact": exact}
    size |= {
        "exact_bytes": exact * item + codebook,
        "remind_formula": remind_formula(images, shape, paper),
    }
    return size | {"remind": remind.memories_in_budget(model, budget, classes)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument(
        "--benchmark",
        nargs="+",
        default=list(PAPER_BENCHMARKS),
        metavar="NAME",
        help="benchmarks",
    )
    parser.add_argument(
        "--codebook-dim",
        nargs="+",
        type=int,
        default=[8, 16, 32],
        metavar="D",
        help="block lengths",
    )
    parser.add_argument(
        "--output", default="runs/buffer_sizes", help="folder of tables and pictures"
    )
    parser.add_argument(
        "--quick", action="store_true", help="only one benchmark and one block length"
    )
    chosen = parser.parse_args()
    from crumb_avalanche import Codebook, split_backbone

    names, lengths = (
        (["core50"], [16]) if chosen.quick else (chosen.benchmark, chosen.codebook_dim)
    )
    models = [
        split_backbone(weights=None, n_classes=10, codebook=Codebook(256, length))
        for length in lengths
    ]
    sizes = [size_of(name, model, PaperNumbers()) for model in models for name in names]
    lines, csv_rows = [], [list(sizes[0]), *(list(size.values()) for size in sizes)]
    for size in sizes:
        shown = {**size, "more": size["paper"] and size["ours"] - size["paper"]}
        shown["share"] = size["true_bytes"] / size["budget"]
        lines.append(
            [
                "" if shown[name] is None else f"{shown[name]:{form}}"
                for name, form in COLUMNS.values()
            ]
        )
    rows = [
        (f"{size['raw_images']:,} images\n256x{size['length']}", size) for size in sizes
    ]
    series = {
        label: {row: [size[name] / size["raw_images"]] for row, size in rows}
        for label, name in SHOWN.items()
    }
    figure = bars(
        {"memories in the bytes of one raw image": series}, "Sizes of the buffers"
    )
    write_table(
        Path(chosen.output), "buffer_sizes", list(COLUMNS), lines, csv_rows, figure
    )
    return 0


if __name__ == "__main__":
    run_script(main)
