r"""Table 4 of the paper: ablations of CRUMB, each row a named change of settings.

    python experiments/table4_ablations.py --benchmark eth80 --dataset-root ETH80 --feature-cache CACHE
    python experiments/table4_ablations.py --benchmark core50 --dataset-root CORE50 --starts FILES \
        --make-starts --pretrain-data IMAGENET/train

The rows are in `support/ablation_rows.py`. The paper's "Ours" starts from CRUMB pretraining on ImageNet, which some
rows change. `--starts` is a folder with a file for each such start. The script prints the `crumb pretrain` command of
each missing file, and with `--make-starts` makes the files from `--pretrain-data` (ImageNet as in the paper, or other
images; the table names them). Each file serves all runs. Without `--starts`, all rows begin with stock weights and a
fresh codebook, as the paper's "Vanilla pretrain" does: rows that change the stream or the codebook are run, rows about
pretraining stay empty and name what they need. `--cifar100-start FILE` fills the row about pretraining on CIFAR-100,
`--tiny-imagenet-start FILE` that on Tiny-ImageNet, which the paper does not have.

Blocks are 256x8 and 200 maps are stored, as in the paper's ablations; the counts of other benchmarks are in
`support/ablation_rows.py`. Writes the table as `.csv` and `.md`, its picture, `table4_runs.csv` with seed, settings and
accuracy of each run, and a folder for each run to --output.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from support.ablation_rows import MEM_SIZES, MEMORY_RECALL, ROWS, STOCK, Ablation
from support.common_options import PROTOCOLS, CommonOptions, common_options, parser_for, rows_named, run_script
from support.paper_numbers import PaperNumbers, PaperValue, read_paper_numbers
from support.pretrained_starts import OTHER_IMAGES, Starts
from support.saved_picture import publish
from support.side_by_side import Cell, find
from support.sweep import exit_code, grid

from crumb_avalanche.runs.command_settings import PretrainSettings
from crumb_avalanche.runs.settings import RunSettings

TABLE, PAPER_DATASET, OURS = "table4", "core50", ROWS[0]
QUICK_ROWS = ("MeRec replay", "Half capacity", "Pretrain weights", "Uniform init.", "16-dim. blocks", "Direct loss")


def flag_of(start: str) -> str:
    """The option that takes the file of a start."""
    return f"--{start.replace('_', '-')}-start"


def settings_of(row: Ablation, starts: Starts, mem_size: int) -> dict | str:
    """Settings in which the runs of a row differ, or the reason why there are none.

    Args:
        row: row of the table.
        starts: pretrained files.
        mem_size: number of maps that "Ours" stores.
    """
    known = set(RunSettings.__dataclass_fields__)
    shared = {name: value for name, value in row.pretraining.items() if name in known}
    changes = {"mem_size": max(1, round(mem_size * row.capacity)), "codebook_dim": 8, **shared, **row.stream}
    if changes.get("strategy") == "memory_recall":
        changes["method"] = MEMORY_RECALL
    if row.start != STOCK and starts.file(row.start):
        changes["pretrained"] = str(starts.file(row.start))
    elif row.start != STOCK and starts.folder is not None:
        return f"needs {row.needs or 'CRUMB pretraining'}: {starts.folder / row.start}.safetensors"
    elif row.start != STOCK and row.needs:
        return f"needs {row.needs}: --starts{f' or {flag_of(row.start)}' * (row.start in OTHER_IMAGES)}"
    elif changes.get("backbone") == "mobilenet_v2":
        changes["weights"] = starts.mobilenet_weights
    return changes


def paper_number(
    paper: PaperNumbers, benchmark: str, protocol: str, row: Ablation, dataset: str | None = None
) -> tuple[PaperValue | None, str]:
    """The paper's number of a row, and its data set: the benchmark itself where Table 3 has the row, otherwise CORe50.

    Args:
        paper: the paper's numbers.
        benchmark: benchmark of our runs.
        protocol: protocol of our runs.
        row: the row.
        dataset: data set that the number must be of.
    """
    method = {"Ours": "crumb", "Image replay": "image_replay"}.get(row.name)
    own = paper.find("table3", benchmark, protocol, method) if method else None
    if own is not None and dataset in (None, benchmark):
        return own, benchmark
    return paper.find(TABLE, PAPER_DATASET, protocol, row.name), PAPER_DATASET


def assembled(
    rows: Sequence[Ablation], options: CommonOptions, protocols: Sequence[str], starts: Starts, mem_size: int
) -> tuple[dict[str, dict], list[Cell]]:
    """The rows of the sweep by their folder, and the cells of the table."""
    paper = read_paper_numbers()
    todo: dict[str, dict] = {}
    cells = []
    ours = settings_of(OURS, starts, mem_size)
    for protocol in protocols:
        for row in rows:
            changes = settings_of(row, starts, mem_size)
            runnable = isinstance(changes, dict)
            same = runnable and changes == ours  # "Vanilla pretrain" where Ours has no pretraining either
            name = f"{protocol}/{OURS.folder if same else row.folder}"
            note = "the same runs as Ours" if same and row is not OURS else row.note if runnable else changes
            number, dataset = paper_number(paper, options.benchmark, protocol, row)
            if runnable:
                todo[name] = {"protocol": protocol, **changes}
            cells.append(
                Cell(
                    row=row.name,
                    benchmark=options.benchmark,
                    protocol=protocol,
                    folder=options.output / name if runnable else None,
                    paper=number,
                    paper_dataset=dataset,
                    reference=options.output / protocol / OURS.folder if isinstance(ours, dict) else None,
                    paper_reference=paper_number(paper, options.benchmark, protocol, OURS, dataset)[0],
                    category=row.category,
                    note="; ".join(filter(None, [note, runnable and starts.unlike_ours(row)])),
                )
            )
    return todo, cells


def starts_of(chosen: argparse.Namespace, options: CommonOptions) -> Starts:
    """The pretrained files that the command line names.

    Raises:
        ValueError: --make-starts without --starts or --pretrain-data, or a file that does not exist.
    """
    if chosen.make_starts and not (chosen.starts and chosen.pretrain_data):
        raise ValueError("--make-starts needs --starts, the folder to write to, and --pretrain-data, the images")
    base = PretrainSettings(
        data=chosen.pretrain_data or "IMAGENET/train",
        dataset_root=chosen.pretrain_root,
        weights=options.base.weights,
        backbone=options.base.backbone or "squeezenet1_0",
        image_size=options.base.image_size or 224,
        images_per_class=chosen.images_per_class,
        epochs=chosen.pretrain_epochs,
        batch_size=chosen.pretrain_batch_size,
        codebook_dim=8,
        precision=options.base.precision,
        feature_cache=options.base.feature_cache,
        cache_precision=options.base.cache_precision,
        device=options.base.device,
        threads=0,
        progress=False,
        **(dict(relu_logits=True, head_kernel=3) if options.base.preset == "reference" else {}),
    )
    mobilenet = "none" if options.quick else chosen.mobilenet_weights
    given = {name: Path(file) for name in OTHER_IMAGES if (file := getattr(chosen, f"{name}_start"))}
    for name, file in given.items():
        if not file.is_file():
            raise ValueError(f"{flag_of(name)} {file}: no such file; make it with crumb pretrain")
    return Starts(Path(chosen.starts) if chosen.starts else None, base, mobilenet, given)


def main() -> int:
    parser = parser_for(__doc__, "runs/table4")
    parser.add_argument("--protocols", nargs="+", default=list(PROTOCOLS), choices=PROTOCOLS)
    parser.add_argument("--rows", nargs="+", metavar="ROW", help="rows by the paper's names; default all")
    parser.add_argument("--mem-size", type=int, help="number of maps that 'Ours' stores; default that of the paper")
    parser.add_argument("--mobilenet-weights", default="torchvision", help="weights of MobileNetV2, as for crumb run")
    parser.add_argument("--starts", metavar="DIR", help="folder of pretrained files; default: stock weights")
    for start, row in (("cifar100", "CIFAR100 pretrain"), ("tiny_imagenet", "Tiny-ImageNet pretrain")):
        parser.add_argument(flag_of(start), metavar="FILE", help=f"file for the row '{row}', without --starts")
    parser.add_argument("--make-starts", action="store_true", help="make missing pretrained files")
    parser.add_argument(
        "--pretrain-data", help="images to make them from: one folder for each class, or torchvision:NAME"
    )
    parser.add_argument("--pretrain-root", help="folder of a torchvision data set")
    parser.add_argument("--pretrain-epochs", type=int, default=10, help="epochs of pretraining")
    parser.add_argument("--pretrain-batch-size", type=int, default=128, help="images in a batch of pretraining")
    parser.add_argument("--images-per-class", type=int, default=0, help="images of each class to pretrain on; 0: all")
    chosen = parser.parse_args()
    options = common_options(chosen)
    rows = rows_named(ROWS, chosen.rows or (QUICK_ROWS if options.quick else None), always=OURS)
    starts = starts_of(chosen, options)
    if starts.folder is not None and not options.table_only:
        problems = starts.make(rows) if chosen.make_starts else starts.mix(rows) or []
        missing = [] if chosen.make_starts else [f"to make a start that is missing: {c}" for c in starts.commands(rows)]
        print("\n".join([*problems, *missing]))
    mem_size = chosen.mem_size or MEM_SIZES.get(options.benchmark, MEM_SIZES[PAPER_DATASET])
    protocols = options.protocols(options.benchmark, chosen.protocols)
    todo, cells = assembled(rows, options, protocols, starts, mem_size)
    failed = options.do(grid(options.settings(options.benchmark), options.output, options.runs, todo))
    findings = find(cells, options.runs)
    heading = f"Table 4, ablations; {starts.described}"
    publish(findings, heading, options.output, TABLE)
    return exit_code(failed)


if __name__ == "__main__":
    run_script(main)
