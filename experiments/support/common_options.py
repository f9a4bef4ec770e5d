"""The options that scripts share: of `crumb run`, and where runs are done."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from support.findings import Cell, Finding, Run, find, runs_in_folders
from support.recorded_runs import RecordedRun, RecordedRuns
from support.rows import folder_name
from support.runs import finished_runs, planned_text
from support.sweep import cell_settings

from benchmarks_toybox_ilab.tables.text import printable, safe_output
from crumb_avalanche.runs.cells import IsDone, Work, learn, sweep, tidy_if_finished
from crumb_avalanche.runs.engine_settings import EngineSettings, engine_settings
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.worker_check import EngineError
from crumb_avalanche.system.folder_lock import FolderInUseError

PROTOCOLS = ("class_instance", "class_iid")
# No video: there is no class-instance order.
IMAGE_SETS = ("cifar100", "imagenet", "tiny_imagenet")
# Rendered shapes and a tiny untrained network: a whole script in about a minute.
QUICK_BENCHMARK = "toy_shapes_short"  # shapes take longer to draw than to learn
QUICK_FOLDER = "quick"  # in the usual folder of a script
QUICK = dict(
    weights="none",
    backbone="small_cnn",
    image_size=32,
    first_epochs=1,
    preset="paper",
)
SMOKE_TEST = (
    "SMOKE TEST (--quick): an untrained network learns rendered shapes in one run; the "
    "numbers show that the script works, and mean nothing."
)

WHAT_IS_FINISHED = (
    "runs that are finished stay: see to the disk, the folder or the network, and give "
    "the same command again"
)


@dataclass(frozen=True)
class CommonOptions:
    """The common part of a command line.

    Attributes:
        roots: folder of the images of each benchmark; None for its default.
        runs: numbers of the runs, which are their seeds.
        base: settings that all runs share.
        engine: where the runs are done.
        output: folder of everything that is written.
        quick: whether the script is only tried out.
        table_only: whether to make the table of finished runs, and do no new ones.
        recorded: file of recorded runs, which count as finished and which new ones are
            added to; None for no such file.
    """

    roots: dict[str, str | None]
    runs: list[int]
    base: RunSettings
    engine: EngineSettings
    output: Path
    quick: bool
    table_only: bool
    recorded: Path | None = None

    @property
    def benchmark(self) -> str:
        """The only benchmark, for scripts that take one."""
        return next(iter(self.roots))

    def protocols(self, benchmark: str, wanted: Sequence[str] = PROTOCOLS) -> list[str]:
        """Return the wanted protocols that a benchmark has, the first with --quick."""
        protocols = []
        for name in wanted:
            if name == "class_iid" or benchmark not in IMAGE_SETS:
                protocols.append(name)
        if self.quick:
            return protocols[:1]
        return protocols

    def check_protocol(self, protocol: str) -> None:
        """Raise ValueError if the benchmark does not have a protocol."""
        if not self.protocols(self.benchmark, [protocol]):
            raise ValueError(
                f"{self.benchmark} has no videos, so no {protocol}: give --protocol "
                "class_iid"
            )

    def cells_of_rows(
        self, settings: Mapping[str, dict], protocol: str, reference: str
    ) -> list[Cell]:
        """Cells of rows, each in a folder below that of the protocol.

        Args:
            settings: of `crumb run`, by row, that differ from those of the table.
            protocol: order of the stream.
            reference: row that the others are tested against.
        """
        root = self.output / protocol
        cells = []
        for row, settings_of_row in settings.items():
            cell = Cell(
                row=row,
                benchmark=self.benchmark,
                protocol=protocol,
                folder=root / folder_name(row),
                settings=settings_of_row,
                reference=root / folder_name(reference),
            )
            cells.append(cell)
        return cells

    def settings(self, benchmark: str, **changes) -> RunSettings:
        """Settings of runs on a benchmark."""
        root = self.roots[benchmark]
        return replace(self.base, benchmark=benchmark, dataset_root=root, **changes)

    def do(
        self,
        runs: Sequence[RunSettings],
        finished: Callable[[RunSettings], object] | None = None,
        work: Work = learn,
        is_done: IsDone = tidy_if_finished,
    ) -> dict[Path, str]:
        """Do the unfinished runs, none with --table-only.

        Args:
            runs: settings of the runs, in the order in which they start.
            finished: called with the settings of each run that is done.
            work: does a run; writes its result last.
            is_done: whether the folder of a run holds the result of `work`.

        Returns:
            Folders of the failed runs with their errors.
        """
        if self.table_only:
            for run in runs:
                tidy_if_finished(run)
            return {}
        return sweep(
            runs,
            self.engine,
            self.output,
            work=work,
            is_done=is_done,
            finished=finished,
        )

    def run_cells(
        self, cells: Sequence[Cell], **shared
    ) -> tuple[list[Finding], dict[Path, str]]:
        """Do the unfinished runs of the cells, run by run, and read all of them.

        Cells of one folder share their runs, those without settings have none.

        Args:
            cells: cells of the table.
            shared: settings of `crumb run` that all cells share.

        Returns:
            The findings, and the folders of the failed runs with their errors.
        """
        recorder = Recorder.of(self, cells, shared)
        recorder.check_new()
        failed = self.do(recorder.missing(), finished=recorder.add_run_of)
        recorder.add_finished()
        return find(cells, self.runs, recorder.runs_of), failed


@dataclass(frozen=True)
class Recorder:
    """The runs of a table's cells, in their folders and in a file of recorded runs.

    Attributes:
        settings: settings of each run by its folder, in the order in which they start.
        settings_texts: the settings of each run by its folder, as lines of the file of
            recorded runs list them; empty without a file.
        cells: cells of each folder of runs.
        recorded: the recorded runs; None without a file.
    """

    settings: dict[Path, RunSettings]
    settings_texts: dict[Path, str]
    cells: dict[Path, list[Cell]]
    recorded: RecordedRuns | None

    @classmethod
    def of(
        cls, options: CommonOptions, cells: Sequence[Cell], shared: dict
    ) -> "Recorder":
        """Plan the runs of cells; the first run of all cells comes first."""
        by_folder: dict[Path, list[Cell]] = {}
        for cell in cells:
            if cell.folder is not None and cell.settings:
                by_folder.setdefault(cell.folder, []).append(cell)
        settings = {}
        for number in options.runs:
            for folder, cells_of_folder in by_folder.items():
                cell = cells_of_folder[0]  # whose runs all of the folder share
                base = options.settings(cell.benchmark, **shared)
                run = cell_settings(base, folder, number, cell.settings)
                settings[Path(run.output)] = run
        if options.recorded is None:
            return cls(settings, {}, by_folder, None)
        texts = {folder: planned_text(run) for folder, run in settings.items()}
        return cls(settings, texts, by_folder, RecordedRuns(options.recorded))

    def missing(self) -> list[RunSettings]:
        """Settings of the runs that are not recorded."""
        missing = []
        for folder, run in self.settings.items():
            cell = self.cells[folder.parent][0]
            if self._line(cell, run.run) is None:
                missing.append(run)
        return missing

    def _line(self, cell: Cell, number: int) -> RecordedRun | None:
        """Look up a run of a cell among the recorded ones."""
        if self.recorded is None or cell.folder is None:
            return None
        text = self.settings_texts.get(cell.folder / f"run{number}")
        if text is None:
            return None
        return self.recorded.get(cell.benchmark, number, text)

    def check_new(self) -> None:
        """Raise ValueError if a missing run is recorded with other settings."""
        if self.recorded is None:
            return
        for settings in self.missing():
            folder = Path(settings.output)
            for cell in self.cells[folder.parent]:
                key = (cell.row, cell.benchmark, cell.protocol, settings.run)
                self.recorded.check_replaceable(key, self.settings_texts[folder])

    def add_run_of(self, settings: RunSettings) -> None:
        """Record the finished run of these settings for all of its cells."""
        if self.recorded is None:
            return
        folder = Path(settings.output).parent
        for run in finished_runs(folder, [settings.run]):
            for cell in self.cells[folder]:
                self.recorded.add(
                    RecordedRun.of(cell.row, cell.benchmark, cell.protocol, run)
                )

    def add_finished(self) -> None:
        """Record the runs that were finished before, in folders of an earlier call."""
        for settings in self.missing():
            self.add_run_of(settings)

    def runs_of(self, cell: Cell, numbers: Sequence[int]) -> list[Run]:
        """Read the runs of a cell: those recorded, and the others from their folders.

        A folder beside a recorded run may have other settings, which nothing checks.
        """
        runs: dict[int, Run] = {}
        for number in numbers:
            line = self._line(cell, number)
            if line is not None:
                runs[number] = line
        not_recorded = [number for number in numbers if number not in runs]
        for run in runs_in_folders(cell, not_recorded):
            runs[run.number] = run
        return [runs[number] for number in numbers if number in runs]


def parser_for(
    doc: str, output: str, several: bool = False, recorded: bool = True
) -> argparse.ArgumentParser:
    """Make a parser with the common options; scripts add their own.

    Args:
        doc: docstring of the script, whose first line describes it.
        output: the default folder of everything.
        several: whether the script takes several benchmarks.
        recorded: whether it makes its table of recorded runs alone, which have no
            ledger and no folder; else it has no --recorded.
    """
    parser = argparse.ArgumentParser(
        description=doc.strip().splitlines()[0], allow_abbrev=False
    )
    count: int | str = 1
    plural = ""
    own_folder = "/NAME"
    if several:
        count = "+"
        plural = "s, in the order of their folders"
        own_folder = ""
    add = parser.add_argument
    add(
        "--benchmark",
        nargs=count,
        default=["eth80"],
        metavar="NAME",
        help=f"benchmark{plural}",
    )
    add(
        "--dataset-root",
        nargs=count,
        default=[],
        metavar="DIR",
        help="folder of the images of each",
    )
    add("--backbone", help="as for crumb run; default the preset's")
    add("--weights", default="torchvision", help="weights, as for crumb run")
    add(
        "--feature-cache",
        help="folder for F(x): 350 kB an image, half of it with fp16",
    )
    add(
        "--cache-precision",
        default="fp32",
        choices=["fp32", "fp16"],
        help="of cached maps",
    )
    add(
        "--precision",
        default="fp32",
        choices=["fp32", "bf16"],
        help="of F and P, in all runs",
    )
    add(
        "--preset",
        default="paper",
        choices=["paper", "reference"],
        help="as for crumb run",
    )
    add("--replay-weight", type=float, help="as for crumb run; default the preset's, 5")
    add("--device", default="cpu", help="of all runs")
    add("--runs", default="0-9", help="seeds, such as 0-9 or 0,3,5")
    add("--output", help=f"folder for everything; default {output}{own_folder}")
    add("--quick", action="store_true", help="rendered shapes, a tiny network, one run")
    add(
        "--table-only",
        action="store_true",
        help="make the table of finished runs; do no new ones",
    )
    parser.set_defaults(recorded=None)
    if recorded:
        add(
            "--recorded",
            metavar="FILE",
            help="CSV of recorded runs: they count as finished, and new ones are added",
        )
    add(
        "--checkpoint",
        action="store_true",
        help="keep model and buffer; interrupted runs resume",
    )
    add(
        "--checkpoint-every",
        type=int,
        default=0,
        help="steps between checkpoints in an experience",
    )
    add(
        "--evaluate-every",
        type=int,
        default=1,
        help="experiences between tests",
    )
    add_engine_options(parser)
    parser.set_defaults(usual_output=output, several=several)
    return parser


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where runs are done; see `engine_options`."""
    parser.add_argument(
        "--engine",
        default="processes",
        choices=["processes", "slurm", "ray"],
        help="where the runs are done",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        help="of --engine processes: runs at a time; 0 does them in this process",
    )
    parser.add_argument(
        "--resources",
        metavar="FILE",
        help="YAML of what a run needs of a cluster: partition, gpus, time ...",
    )


def engine_options(chosen: argparse.Namespace) -> EngineSettings:
    """Return the engine of a command line that has `add_engine_options`."""
    return engine_settings(chosen.engine, chosen.processes, chosen.resources)


def own_presets(
    chosen: argparse.Namespace, rows: str = "every row of this table"
) -> None:
    """Refuse --preset, in a script whose rows have presets of their own."""
    if chosen.preset != "paper":
        raise ValueError(
            f"--preset {chosen.preset}: {rows} has its own preset; leave it out"
        )


def common_options(chosen: argparse.Namespace) -> CommonOptions:
    """Return the common options of a command line that `parser_for` parsed."""
    roots = _roots(chosen)
    if chosen.precision == "bf16" and not chosen.table_only:
        _warn_where_bf16_is_slow(chosen.device)  # runs warn only in their logs
    output = _output(chosen, next(iter(roots)))
    base = _shared_settings(chosen)
    if chosen.quick:
        cache = str(output / "feature_cache")
        base = replace(base, **QUICK, feature_cache=cache)
    return CommonOptions(
        roots=roots,
        runs=base.run_numbers(),
        base=replace(base, runs=None),
        engine=engine_options(chosen),
        output=output,
        quick=chosen.quick,
        table_only=chosen.table_only,
        recorded=Path(chosen.recorded) if chosen.recorded else None,
    )


def _roots(chosen: argparse.Namespace) -> dict[str, str | None]:
    """Return the folder of each benchmark, None where none was given."""
    if chosen.quick:
        return {QUICK_BENCHMARK: None}
    names = chosen.benchmark
    folders = chosen.dataset_root
    if len(folders) > len(names) or len(set(names)) < len(names):
        raise ValueError(
            f"--benchmark {' '.join(names)} --dataset-root {' '.join(folders)}: give "
            "each benchmark once, and at most one folder for each, in the same order"
        )
    missing = [None] * (len(names) - len(folders))
    return dict(zip(names, [*folders, *missing]))


def _warn_where_bf16_is_slow(device: str) -> None:
    """Warn where the CPU has no instructions for bf16."""
    import torch

    from crumb_avalanche.models.extraction import warn_where_bf16_is_slow

    warn_where_bf16_is_slow(torch.device(device))


def _output(chosen: argparse.Namespace, benchmark: str) -> Path:
    """Return the folder of everything that is written."""
    if chosen.output:
        return Path(chosen.output)
    usual = Path(chosen.usual_output)
    if chosen.quick:
        return usual / QUICK_FOLDER
    return usual if chosen.several else usual / benchmark


def _shared_settings(chosen: argparse.Namespace) -> RunSettings:
    """Return the settings that all runs share."""
    return RunSettings(
        preset=chosen.preset,
        backbone=chosen.backbone,
        weights=chosen.weights,
        feature_cache=chosen.feature_cache,
        cache_precision=chosen.cache_precision,
        precision=chosen.precision,
        replay_weight=chosen.replay_weight,
        device=chosen.device,
        checkpoint=chosen.checkpoint or chosen.checkpoint_every > 0,
        checkpoint_every=chosen.checkpoint_every,
        evaluate_every=chosen.evaluate_every,
        runs="0" if chosen.quick else chosen.runs,
        threads=1,
        keep_learner=False,
        progress=False,
    )


def run_script(main: Callable[[], int | None], smoke_test: bool = True) -> None:
    """Call `main()` and exit with its code.

    Expected errors are printed as one line, and all text as `safe_output` does.

    Args:
        main: of the script.
        smoke_test: whether the numbers of --quick mean nothing, as the first and the
            last line then say.
    """
    notice = SMOKE_TEST if smoke_test and "--quick" in sys.argv[1:] else ""
    with safe_output():
        if notice:
            print(notice)
        try:
            code = main()
        except (ValueError, ImportError, EngineError, FolderInUseError) as error:
            print(printable(f"error: {error}"), file=sys.stderr)
            sys.exit(1)
        except OSError as error:  # a full disk, a folder that cannot be written to
            print(printable(f"error: {error}; {WHAT_IS_FINISHED}"), file=sys.stderr)
            sys.exit(1)
        if notice:
            print(notice)
        sys.exit(code)
