r"""Table 4 of the paper: ablations of CRUMB, each row a named change of settings.

    python experiments/table4_ablations.py --benchmark eth80 --dataset-root ETH80
    --feature-cache CACHE python experiments/table4_ablations.py --benchmark core50
    --dataset-root CORE50 --starts FILES

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

TABLE, PAPER_DATASET, FIRST = "table4", "core50", "Ours"
ROWS = rows_of(TABLE)
MEM_SIZES = {
    name: size
    for sizes in rows_of("mem_sizes").values()
    for name, size in sizes.items()
}
QUICK_ROWS = (
    "MeRec replay",
    "Half capacity",
    "Pretrain weights",
    "Uniform init.",
    "16-dim. blocks",
    "Direct loss",
)
OF_TABLE3 = {FIRST: "crumb", "Image replay": "image_replay"}


def flag_of(start: str) -> str:
    """The option that takes the file of a start."""
    return f"--{start.replace('_', '-')}-start"


def folder_of(name: str) -> str:
    """Name of the folder of a row; rows that are "Ours" itself share its folder."""
    if not ROWS[name].keys() & {"settings", "pretraining", "start", "capacity"}:
        return OURS
    spelt = name.lower().replace(" + ", " plus ").replace(" - ", " minus ")
    return "_".join(
        "".join(letter if letter.isalnum() else " " for letter in spelt).split()
    )


def settings_of(row: dict, starts: Starts, mem_size: int) -> dict | str:
    """Settings in which the runs of a row differ where "Ours" stores some maps, or the reason why there are none."""
    start, needs = row.get("start", OURS), row.get("needs", "")
    known = RunSettings.__dataclass_fields__
    shared = {
        name: value
        for name, value in row.get("pretraining", {}).items()
        if name in known
    }
    changes = {
        "mem_size": max(1, round(mem_size * row.get("capacity", 1))),
        "codebook_dim": 8,
        **shared,
    }
    changes |= row.get("settings", {})
    if start != STOCK and starts.file(start):
        changes["pretrained"] = str(starts.file(start))
    elif start != STOCK and starts.folder is not None:
        return (
            f"needs {needs or 'CRUMB pretraining'}: {starts.folder / start}.safetensors"
        )
    elif start != STOCK and needs:
        return f"needs {needs}: --starts{f' or {flag_of(start)}' * (start in OTHER_IMAGES)}"
    elif changes.get("backbone") == "mobilenet_v2":
        changes["weights"] = starts.mobilenet_weights
    return changes


def paper_number(
    paper: PaperNumbers,
    benchmark: str,
    protocol: str,
    name: str,
    dataset: str | None = None,
) -> tuple[PaperValue | None, str]:
    """The paper's number of a row, and its data set: the benchmark itself where Table 3 has the row, otherwise CORe50.

    With `dataset`, the number must be of that.
    """
    own = paper.find("table3", benchmark, protocol, OF_TABLE3.get(name, ""))
    if own is not None and dataset in (None, benchmark):
        return own, benchmark
    return paper.find(TABLE, PAPER_DATASET, protocol, name), PAPER_DATASET


def cells_of(
    names: Sequence[str],
    options: CommonOptions,
    protocols: Sequence[str],
    starts: Starts,
    mem_size: int,
) -> list[Cell]:
    """The cells of the table; those whose start is missing have no runs, and say what they need."""
    paper, cells = PaperNumbers(), []
    ours = settings_of(ROWS[FIRST], starts, mem_size)
    for protocol in protocols:
        for name in names:
            row = ROWS[name]
            changes = settings_of(row, starts, mem_size)
            runnable = isinstance(changes, dict)
            same = (
                runnable and changes == ours
            )  # "Vanilla pretrain" where Ours has no pretraining either
            folder = options.output / protocol / (OURS if same else folder_of(name))
            note = (
                "the same runs as Ours"
                if same and name != FIRST
                else row.get("note", "")
                if runnable
                else changes
            )
            number, dataset = paper_number(paper, options.benchmark, protocol, name)
            cells.append(
                Cell(
                    *(name, options.benchmark, protocol, folder if runnable else None),
                    {"protocol": protocol, **changes} if runnable else {},
                    *(
                        number,
                        dataset,
                        options.output / protocol / OURS
                        if isinstance(ours, dict)
                        else None,
                    ),
                    paper_number(paper, options.benchmark, protocol, FIRST, dataset)[0],
                    row["category"],
                    note,
                )
            )
    return cells


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
    given = {
        name: Path(file)
        for name in OTHER_IMAGES
        if (file := getattr(chosen, f"{name}_start"))
    }
    for name, file in given.items():
        if not file.is_file():
            raise ValueError(
                f"{flag_of(name)} {file}: no such file; make it with crumb pretrain"
            )
    mobilenet = "none" if options.quick else chosen.mobilenet_weights
    starts = Starts(Path(chosen.starts) if chosen.starts else None, mobilenet, given)
    if starts.folder is not None and not options.table_only:
        missing = starts.commands([ROWS[name] for name in names])
        print("\n".join(f"to make a start that is missing: {one}" for one in missing))
    mem_size = chosen.mem_size or MEM_SIZES.get(
        options.benchmark, MEM_SIZES[PAPER_DATASET]
    )
    protocols = options.protocols(options.benchmark, chosen.protocols)
    findings, failed = options.found(
        cells_of(names, options, protocols, starts, mem_size)
    )
    publish(findings, f"Table 4, ablations; {starts.described}", options.output, TABLE)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
