r"""Table 3 of the paper: replay of n CRUMB codes against replay of n raw images.

    python experiments/table3_codes_vs_images.py --benchmark eth80 \
        --dataset-root ETH80 --feature-cache CACHE

Blocks are 256x8. n runs from 200 to 6,400 on CORe50 and on benchmarks that the paper
does not have; on the others it is the count of the published scripts
(`rows/mem_sizes.yaml`). In the paper, CRUMB starts from CRUMB pretraining on ImageNet
and image replay from stock weights; without `--pretrained`, both start from stock
weights. Writes the table as `.csv` and `.md`, its picture, `table3_runs.csv` with every
run, and a folder for each run to --output.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from support.common_options import (
    PROTOCOLS,
    CommonOptions,
    common_options,
    parser_for,
    run_script,
)
from support.findings import Cell
from support.paper_numbers import PaperNumbers, PaperValue
from support.rows import rows_of
from support.sweep import exit_code
from support.tables import publish

TABLE = "table3"
COUNTS = (200, 400, 800, 1600, 3200, 6400)
QUICK_COUNTS = COUNTS[:2]
NAMES = {"crumb": "Ours", "image_replay": "Im. replay"}
PUBLISHED_MEM_SIZES = rows_of("mem_sizes")["published"]


def paper_row(
    paper: PaperNumbers, benchmark: str, protocol: str, method: str, count: int
) -> tuple[PaperValue | None, str]:
    """Look up the paper's number of a cell.

    Returns:
        The number, None without one; and its data set, which is CORe50 where the paper
        does not have the benchmark.
    """
    dataset = benchmark if paper.has(TABLE, benchmark) else "core50"
    value = paper.find(TABLE, dataset, protocol, f"{method}@n_x={count}")
    if value is None and count == PUBLISHED_MEM_SIZES.get(benchmark):
        value = paper.find(TABLE, dataset, protocol, method)
    return value, dataset


def cells_of(
    options: CommonOptions,
    protocols: Sequence[str],
    counts: Sequence[int],
    pretrained: str | None,
) -> list[Cell]:
    """The cells of the table, codes and images of each count."""
    cells = []
    for protocol, count, method in product(protocols, counts, NAMES):
        cells.append(_cell(options, protocol, count, method, pretrained))
    return cells


def _cell(
    options: CommonOptions,
    protocol: str,
    count: int,
    method: str,
    pretrained: str | None,
) -> Cell:
    """The cell of a count of codes, or of images."""
    paper = PaperNumbers()
    benchmark = options.benchmark
    value, dataset = paper_row(paper, benchmark, protocol, method, count)
    reference, _ = paper_row(paper, benchmark, protocol, "crumb", count)
    folder = options.output / protocol / f"n{count}"
    settings = dict(protocol=protocol, strategy=method, mem_size=count, codebook_dim=8)
    if method == "crumb" and pretrained:
        settings["pretrained"] = pretrained
    return Cell(
        row=f"n={count} {NAMES[method]}",
        benchmark=benchmark,
        protocol=protocol,
        folder=folder / method,
        settings=settings,
        paper=value,
        paper_dataset=dataset,
        reference=folder / "crumb",
        paper_reference=reference,
        category=f"n={count}",
    )


def usual_counts(options: CommonOptions) -> Sequence[int]:
    """The counts of memories that the paper has of a benchmark."""
    benchmark = options.benchmark
    if benchmark in PUBLISHED_MEM_SIZES and benchmark != "core50":
        return [PUBLISHED_MEM_SIZES[benchmark]]
    return QUICK_COUNTS if options.quick else COUNTS


def main() -> int:
    parser = parser_for(__doc__, "runs/table3")
    parser.add_argument(
        "--protocols", nargs="+", default=list(PROTOCOLS), choices=PROTOCOLS
    )
    parser.add_argument(
        "--counts",
        nargs="+",
        type=int,
        metavar="N",
        help="memories; default those of the paper",
    )
    parser.add_argument(
        "--pretrained", help="file of crumb pretrain (256x8) that CRUMB starts from"
    )
    chosen = parser.parse_args()
    options = common_options(chosen)
    protocols = options.protocols(options.benchmark, chosen.protocols)
    counts = chosen.counts or usual_counts(options)
    cells = cells_of(options, protocols, counts, chosen.pretrained)
    findings, failed = options.run_cells(cells)
    start = "from stock weights, as image replay"
    if chosen.pretrained:
        start = f"from {Path(chosen.pretrained).name}"
    heading = (
        f"Table 3, n codes against n images on {options.benchmark}; CRUMB starts "
        f"{start}"
    )
    publish(findings, heading, options.output, TABLE)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
