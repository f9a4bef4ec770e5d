r"""Table 4 of the paper: ablations of CRUMB, each row a named change of settings.

    python experiments/table4_ablations.py --benchmark eth80 --dataset-root ETH80 \
        --feature-cache CACHE
    python experiments/table4_ablations.py --benchmark core50 --dataset-root CORE50 \
        --starts FILES

The rows are in `rows/table4.yaml`. The paper's "Ours" starts from CRUMB pretraining on
ImageNet, which some rows change. `--starts` is a folder with a file for each such
start; the script prints the `crumb pretrain` command of each missing one, to which
options of all such as --weights are added. Without `--starts`, all rows begin with
stock weights and a fresh codebook, as the paper's "Vanilla pretrain" does, and rows
about pretraining stay empty and name what they need; `--cifar100-start` and
`--tiny-imagenet-start` fill a row each. Blocks are 256x8; the numbers of stored maps
are in `rows/mem_sizes.yaml`. Writes the table as `.csv` and `.md`, its picture,
`table4_runs.csv` with every run, and a folder for each run.
"""

import argparse
from collections.abc import Sequence
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
from support.rows import chosen_rows, rows_of
from support.starts import OTHER_IMAGES, OURS, STOCK, Starts
from support.sweep import exit_code
from support.tables import publish

from crumb_avalanche.runs.settings import RunSettings

TABLE = "table4"
PAPER_DATASET = "core50"
FIRST = "Ours"
ROWS = rows_of(TABLE)
MEM_SIZES: dict[str, int] = {}  # by benchmark
for _sizes in rows_of("mem_sizes").values():
    MEM_SIZES |= _sizes
CODEBOOK_DIM = 8  # values of a block of the paper's Table 4
QUICK_ROWS = (
    "MeRec replay",
    "Half capacity",
    "Pretrain weights",
    "Uniform init.",
    "16-dim. blocks",
    "Direct loss",
)
OF_TABLE3 = {FIRST: "crumb", "Image replay": "image_replay"}
# Entries of a row that make its runs other than those of "Ours".
CHANGES = ("settings", "pretraining", "start", "capacity")


def flag_of(start: str) -> str:
    """The option that takes the file of a start."""
    return f"--{start.replace('_', '-')}-start"


def folder_of(name: str) -> str:
    """Name of the folder of a row; rows that are "Ours" itself share its folder."""
    if not any(change in ROWS[name] for change in CHANGES):
        return OURS
    spelt = name.lower().replace(" + ", " plus ").replace(" - ", " minus ")
    words = "".join(letter if letter.isalnum() else " " for letter in spelt).split()
    return "_".join(words)


def settings_of(row: dict, starts: Starts, mem_size: int) -> dict | str:
    """Settings in which the runs of a row differ from the defaults.

    Args:
        row: entry of `rows/table4.yaml`.
        starts: pretrained files, from which rows begin.
        mem_size: number of maps that "Ours" stores; rows store a part of it.

    Returns:
        The settings, or the reason why there are none: a start that is missing.
    """
    start = row.get("start", OURS)
    settings = {
        "mem_size": max(1, round(mem_size * row.get("capacity", 1))),
        "codebook_dim": CODEBOOK_DIM,
        **_settings_of_pretraining(row),
        **row.get("settings", {}),
    }
    if start == STOCK:
        return settings
    pretrained_file = starts.file(start)
    if pretrained_file:
        settings["pretrained"] = str(pretrained_file)
        return settings
    missing = _what_is_missing(row, start, starts)
    if missing:
        return missing
    if settings.get("backbone") == "mobilenet_v2":
        settings["weights"] = starts.mobilenet_weights
    return settings


def _settings_of_pretraining(row: dict) -> dict:
    """Settings of `crumb pretrain` in a row that `crumb run` has, too."""
    known = RunSettings.__dataclass_fields__
    changes = row.get("pretraining", {})
    return {name: value for name, value in changes.items() if name in known}


def _what_is_missing(row: dict, start: str, starts: Starts) -> str:
    """Say what a row needs that is not there; empty if it runs without."""
    needs = row.get("needs", "")
    if starts.folder is not None:
        path = starts.folder / start
        return f"needs {needs or 'CRUMB pretraining'}: {path}.safetensors"
    if not needs:
        return ""
    options = f"--starts or {flag_of(start)}" if start in OTHER_IMAGES else "--starts"
    return f"needs {needs}: {options}"


def paper_number(
    paper: PaperNumbers,
    benchmark: str,
    protocol: str,
    name: str,
    dataset: str | None = None,
) -> tuple[PaperValue | None, str]:
    """Look up the paper's number of a row.

    Args:
        paper: all numbers of the paper.
        benchmark: of the runs.
        protocol: of the runs.
        name: of the row.
        dataset: the data set that the number must be of; None for any.

    Returns:
        The number and its data set: the benchmark itself where Table 3 has the row,
        otherwise CORe50.
    """
    paper_value = paper.find("table3", benchmark, protocol, OF_TABLE3.get(name, ""))
    if paper_value is not None and dataset in (None, benchmark):
        return paper_value, benchmark
    return paper.find(TABLE, PAPER_DATASET, protocol, name), PAPER_DATASET


def cells_of(
    names: Sequence[str],
    options: CommonOptions,
    protocols: Sequence[str],
    starts: Starts,
    mem_size: int,
) -> list[Cell]:
    """The cells of the table; one whose start is missing says what it needs."""
    cells = []
    for protocol in protocols:
        for name in names:
            cells.append(_cell(name, options, protocol, starts, mem_size))
    return cells


def _cell(
    name: str, options: CommonOptions, protocol: str, starts: Starts, mem_size: int
) -> Cell:
    """The cell of a row in a protocol, beside the paper's number and that of "Ours".

    A row whose start is missing has no folder, and a note of what it needs.
    """
    row = ROWS[name]
    folder_of_protocol = options.output / protocol
    folder_of_ours = folder_of_protocol / OURS
    changes = settings_of(row, starts, mem_size)
    changes_of_ours = settings_of(ROWS[FIRST], starts, mem_size)
    folder: Path | None = folder_of_protocol / folder_of(name)
    settings: dict = {}
    note = row.get("note", "")
    if isinstance(changes, str):
        folder = None
        note = changes
    else:
        settings = {"protocol": protocol, **changes}
        # "Vanilla pretrain" where Ours has no pretraining either.
        if changes == changes_of_ours:
            folder = folder_of_ours
            note = "" if name == FIRST else "the same runs as Ours"
    reference = None
    if isinstance(changes_of_ours, dict):
        reference = folder_of_ours
    paper = PaperNumbers()
    number, dataset = paper_number(paper, options.benchmark, protocol, name)
    paper_ours, _ = paper_number(paper, options.benchmark, protocol, FIRST, dataset)
    return Cell(
        row=name,
        benchmark=options.benchmark,
        protocol=protocol,
        folder=folder,
        settings=settings,
        paper=number,
        paper_dataset=dataset,
        reference=reference,
        paper_reference=paper_ours,
        category=row["category"],
        note=note,
    )


def starts_of(chosen: argparse.Namespace, quick: bool) -> Starts:
    """The pretrained files that a command line names.

    Raises:
        ValueError: a file does not exist.
    """
    files = {}
    for name in OTHER_IMAGES:
        path = getattr(chosen, f"{name}_start")
        if path is None:
            continue
        if not Path(path).is_file():
            raise ValueError(
                f"{flag_of(name)} {path}: no such file; make it with crumb pretrain"
            )
        files[name] = Path(path)
    return Starts(
        folder=Path(chosen.starts) if chosen.starts else None,
        mobilenet_weights="none" if quick else chosen.mobilenet_weights,
        files=files,
    )


def main() -> int:
    parser = parser_for(__doc__, "runs/table4")
    parser.add_argument(
        "--protocols", nargs="+", default=list(PROTOCOLS), choices=PROTOCOLS
    )
    parser.add_argument(
        "--rows",
        nargs="+",
        metavar="ROW",
        help="rows by the paper's names; default all",
    )
    parser.add_argument(
        "--mem-size",
        type=int,
        help="number of maps that 'Ours' stores; default that of the paper",
    )
    parser.add_argument(
        "--mobilenet-weights",
        default="torchvision",
        help="weights of MobileNetV2, as for crumb run",
    )
    parser.add_argument(
        "--starts",
        metavar="DIR",
        help="folder of pretrained files; default: stock weights",
    )
    for start, row in zip(
        OTHER_IMAGES, ("CIFAR100 pretrain", "Tiny-ImageNet pretrain")
    ):
        parser.add_argument(
            flag_of(start),
            metavar="FILE",
            help=f"file for the row '{row}', without --starts",
        )
    chosen = parser.parse_args()
    options = common_options(chosen)
    names = chosen_rows(ROWS, chosen.rows or (QUICK_ROWS if options.quick else None))
    starts = starts_of(chosen, options.quick)
    if starts.folder is not None and not options.table_only:
        for command in starts.commands([ROWS[name] for name in names]):
            print(f"to make a start that is missing: {command}")
    mem_size = chosen.mem_size
    if mem_size is None:
        mem_size = MEM_SIZES.get(options.benchmark, MEM_SIZES[PAPER_DATASET])
    protocols = options.protocols(options.benchmark, chosen.protocols)
    cells = cells_of(names, options, protocols, starts, mem_size)
    findings, failed = options.run_cells(cells)
    heading = f"Table 4, ablations; {starts.described}"
    publish(findings, heading, options.output, TABLE)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
