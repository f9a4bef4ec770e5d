"""The options that scripts share: of `crumb run`, and where runs are done."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from support.sweep import grid, is_finished, sweep
from support.tables import Cell, Finding, find

from benchmarks_toybox_ilab.tables.text import printable, safe_output
from crumb_avalanche.runs.settings import RunSettings

PROTOCOLS = ("class_instance", "class_iid")
IMAGE_SETS = (
    "cifar100",
    "imagenet",
    "tiny_imagenet",
)  # no video: there is no class-instance order
# Rendered shapes and a tiny untrained network: a whole script in about a minute; the
# numbers mean nothing.
QUICK_BENCHMARK = "toy_shapes_short"  # shapes take longer to draw than to learn
QUICK = dict(
    weights="none", backbone="small_cnn", image_size=32, first_epochs=1, preset="paper"
)


@dataclass(frozen=True)
class CommonOptions:
    """The common part of a command line: benchmarks with their folders, seeds, and settings that all runs share."""

    roots: dict[str, str | None]
    runs: list[int]
    base: RunSettings
    processes: int
    output: Path
    quick: bool
    table_only: bool

    @property
    def benchmark(self) -> str:
        """The only benchmark, for scripts that take one."""
        return next(iter(self.roots))

    def protocols(self, benchmark: str, wanted: Sequence[str] = PROTOCOLS) -> list[str]:
        """The wanted protocols that a benchmark has; with --quick only the first."""
        has = [
            name
            for name in wanted
            if name == "class_iid" or benchmark not in IMAGE_SETS
        ]
        return has[:1] if self.quick else has

    def settings(self, benchmark: str, **changes) -> RunSettings:
        """Settings of runs on a benchmark."""
        return replace(
            self.base,
            benchmark=benchmark,
            dataset_root=self.roots[benchmark],
            **changes,
        )

    def do(self, runs: Sequence[RunSettings]) -> dict[Path, str]:
        """Do the unfinished runs, none with --table-only; return the failed ones with their errors."""
        if self.table_only:
            for run in runs:
                is_finished(run)
            return {}
        return sweep(runs, self.processes)

    def found(
        self, cells: Sequence[Cell], **shared
    ) -> tuple[list[Finding], dict[Path, str]]:
        """Do the unfinished runs of the cells, run by run; return what all runs found, and the failed ones.

        Cells of one folder share their runs, those without settings have none. All
        share some settings of `crumb run`.
        """
        folders = {
            cell.folder: cell
            for cell in cells
            if cell.folder is not None and cell.settings
        }
        todo: list[RunSettings] = []
        for cell in folders.values():
            rows = {cell.folder.name: cell.settings}
            todo += grid(
                self.settings(cell.benchmark, **shared),
                cell.folder.parent,
                self.runs,
                rows,
            )
        failed = self.do(sorted(todo, key=lambda one: self.runs.index(one.run)))
        return find(cells, self.runs), failed


def parser_for(doc: str, output: str, several: bool = False) -> argparse.ArgumentParser:
    """A parser with the common options; scripts add their own."""
    parser = argparse.ArgumentParser(
        description=doc.strip().splitlines()[0], allow_abbrev=False
    )
    count = dict(nargs="+") if several else dict(nargs=1)
    plural = "s, in the order of their folders" if several else ""
    parser.add_argument(
        "--benchmark",
        default=["eth80"],
        metavar="NAME",
        help=f"benchmark{plural}",
        **count,
    )
    parser.add_argument(
        "--dataset-root",
        default=[],
        metavar="DIR",
        help="folder of the images of each",
        **count,
    )
    parser.add_argument(
        "--weights", default="torchvision", help="weights, as for crumb run"
    )
    parser.add_argument(
        "--feature-cache", help="folder for F(x): 350 kB an image, half of it with fp16"
    )
    parser.add_argument(
        "--cache-precision",
        default="fp32",
        choices=["fp32", "fp16"],
        help="of cached maps",
    )
    parser.add_argument(
        "--precision",
        default="fp32",
        choices=["fp32", "bf16"],
        help="of F and P, in all runs",
    )
    parser.add_argument(
        "--preset",
        default="paper",
        choices=["paper", "reference"],
        help="as for crumb run",
    )
    parser.add_argument(
        "--replay-weight",
        type=float,
        help="as for crumb run; 1 in tables of version 0.1",
    )
    parser.add_argument("--device", default="cpu", help="of all runs")
    parser.add_argument("--runs", default="0-9", help="seeds, such as 0-9 or 0,3,5")
    parser.add_argument(
        "--output",
        help=f"folder for everything; default {output}{'' if several else '/NAME'}",
    )
    parser.set_defaults(usual_output=output, several=several)
    parser.add_argument(
        "--quick", action="store_true", help="rendered shapes, a tiny network, one run"
    )
    parser.add_argument(
        "--table-only",
        action="store_true",
        help="make the table of finished runs; do no new ones",
    )
    parser.add_argument(
        "--checkpoint",
        action="store_true",
        help="keep model and buffer; interrupted runs resume",
    )
    parser.add_argument(
        "--checkpoint-every",
        type=int,
        default=0,
        help="steps between checkpoints in an experience",
    )
    parser.add_argument(
        "--evaluate-every", type=int, default=1, help="experiences between tests"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        help="runs at a time; 0 does them in this process",
    )
    return parser


def own_presets(
    chosen: argparse.Namespace, rows: str = "every row of this table"
) -> None:
    """Refuse --preset, in a script whose rows have presets of their own."""
    if chosen.preset != "paper":
        raise ValueError(
            f"--preset {chosen.preset}: {rows} has its own preset; leave it out"
        )


def common_options(chosen: argparse.Namespace) -> CommonOptions:
    """The common options of a command line that a parser of `parser_for` parsed."""
    names, roots = (
        ([QUICK_BENCHMARK], [])
        if chosen.quick
        else (chosen.benchmark, chosen.dataset_root)
    )
    if len(roots) > len(names) or len(set(names)) < len(names):
        raise ValueError(
            f"--benchmark {' '.join(names)} --dataset-root {' '.join(roots)}: give each benchmark once, and at most "
            "one folder for each, in the same order"
        )
    if (
        chosen.precision == "bf16" and not chosen.table_only
    ):  # runs warn only in their logs
        import torch

        from crumb_avalanche.models.extraction import warn_where_bf16_is_slow

        warn_where_bf16_is_slow(torch.device(chosen.device))
    as_given = (
        "preset",
        "weights",
        "feature_cache",
        "cache_precision",
        "precision",
        "replay_weight",
        "device",
    )
    base = RunSettings(
        **{
            name: getattr(chosen, name)
            for name in (*as_given, "checkpoint_every", "evaluate_every")
        },
        runs="0" if chosen.quick else chosen.runs,
        threads=1,
        keep_learner=False,
        checkpoint=chosen.checkpoint or chosen.checkpoint_every > 0,
        progress=False,
    )
    usual = Path(chosen.usual_output)
    if chosen.quick or not chosen.several:
        usual = usual / ("quick" if chosen.quick else names[0])
    output = Path(chosen.output or usual)
    if chosen.quick:
        base = replace(
            base, **{**QUICK, "feature_cache": str(output / "feature_cache")}
        )
    roots = dict(zip(names, [*roots, *[None] * len(names)]))
    made = roots, base.run_numbers(), replace(base, runs=None), chosen.processes, output
    return CommonOptions(*made, chosen.quick, chosen.table_only)


def run_script(main) -> None:
    """Call `main()` and exit with its code; print expected errors as one line, and all text as `safe_output` does."""
    with safe_output():
        try:
            sys.exit(main())
        except (ValueError, ImportError, ConnectionError) as error:
            print(printable(f"error: {error}"), file=sys.stderr)
            sys.exit(1)
