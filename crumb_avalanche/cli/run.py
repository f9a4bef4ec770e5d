"""``crumb run`` learns a stream; ``crumb demo`` compares methods on one."""

from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from crumb_avalanche.cli import interrupted_later
from crumb_avalanche.cli.settings import RunCommandSettings
from crumb_avalanche.report.settings import ReportSettings
from crumb_avalanche.runs.demo_settings import DemoSettings
from crumb_avalanche.runs.engine_settings import EngineSettings, engine_settings
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import CLIPS, RunSettings
from crumb_avalanche.system.folder_lock import locked

if TYPE_CHECKING:
    from crumb_avalanche.runs.stream import Stream


class RunsFailedError(RuntimeError):
    """Some of several runs failed."""


def main(settings: RunCommandSettings) -> None:
    """Plan the runs, which checks the settings, then do them.

    Torch is imported between, which takes seconds.
    """
    plan = RunPlan.of(settings)  # the settings with their defaults
    engine = engine_settings(settings.engine, settings.processes, settings.resources)
    is_here = engine.engine == "processes" and engine.processes < 2
    if not is_here:
        check_several(settings, engine)  # raises for a single run
    with interrupted_later():
        from crumb_avalanche.runs.run import main

    if not is_here:
        do_on_engine(settings, engine)
    # After an engine, all runs are finished, and this prints their summary.
    main(plan, page_of_mistakes, default_preset=settings.preset is None)


def check_several(settings: RunCommandSettings, engine: EngineSettings) -> None:
    """Raise ValueError for settings that do not go with runs on an engine."""
    if settings.runs is None:
        raise ValueError(
            f"--engine {engine.engine} and --processes are for several runs: give "
            "--runs, such as 0-9, or leave them out"
        )
    if settings.overwrite:
        raise ValueError(
            "--overwrite starts over in this process alone: choose another --output, "
            "or leave --engine and --processes out"
        )


def do_on_engine(settings: RunCommandSettings, engine: EngineSettings) -> None:
    """Do the runs that are not finished yet on an engine, each in its subfolder.

    Args:
        settings: of all runs, which ``settings.runs`` numbers.
        engine: where they are done: processes, SLURM or Ray.

    Raises:
        RunsFailedError: some failed.
    """
    from crumb_avalanche.runs.cells import sweep

    output = Path(settings.output)
    cells = []
    for number in settings.run_numbers():
        folder = str(output / f"run{number}")
        cell = replace(settings, run=number, runs=None, output=folder, progress=False)
        cells.append(cell)
    failed = sweep(cells, engine, output, progress=settings.progress, work=one_run)
    if failed:
        folder_of_first, message = next(iter(failed.items()))
        raise RunsFailedError(
            f"{len(failed)} of {len(cells)} runs failed, such as {folder_of_first}: "
            f"{message} "
            "(error.txt there has all of it); the same command does them again"
        )


def one_run(settings: RunSettings) -> None:
    """Do a run in a worker of an engine."""
    from crumb_avalanche.runs.run import run_once

    run_once(RunPlan.of(settings), finished=page_of_mistakes)


def page_of_mistakes(folder: Path, plan: RunPlan, stream: "Stream") -> None:
    """Write the mistakes of a finished run as a page, if it was on own clips.

    Args:
        folder: of the run, which holds its predictions and gets the page.
        plan: settings of the run.
        stream: with the table of its frames, which the page shows.
    """
    from crumb_avalanche.report.mistakes import write_mistakes
    from crumb_avalanche.runs.predictions import read_predictions

    if plan.benchmark == CLIPS:
        predictions = read_predictions(folder)
        write_mistakes(
            folder,
            stream.table,
            predictions,
            preset=str(plan.preset),
            strategy=str(plan.strategy),
            unread=len(stream.bad_frames),
        )


def demo(settings: DemoSettings) -> None:
    """Do the runs of the demo, write a report of them, and print what they show.

    It compares a memory of codes with one of images in the same bytes.
    """
    from crumb_avalanche.report.report import WIDTH
    from crumb_avalanche.report.report import main as report
    from crumb_avalanche.report.runs import read_run
    from crumb_avalanche.report.standing import same_bytes
    from crumb_avalanche.runs.demo import demonstrate

    with locked(Path(settings.output)):
        folders = demonstrate(settings)
    # The report takes the lock itself.
    report(ReportSettings([str(folder) for folder in folders], settings.output))
    run_of_codes = read_run(Path(settings.output) / "crumb")
    run_of_images = read_run(Path(settings.output) / "image_replay")
    comparison = same_bytes(run_of_codes, run_of_images)  # in words
    print("\n" + fill(comparison, WIDTH))
