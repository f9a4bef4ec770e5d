"""``crumb run`` learns a stream; ``crumb demo`` and ``crumb strategies`` compare."""

from dataclasses import fields, replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from crumb_avalanche.cli import interrupted_later
from crumb_avalanche.cli.settings import RunCommandSettings, StrategiesSettings
from crumb_avalanche.methods.registry import STRATEGIES, Entry, get_strategy
from crumb_avalanche.report.settings import ReportSettings
from crumb_avalanche.runs.demo_settings import DemoSettings
from crumb_avalanche.runs.engine_settings import EngineSettings, engine_settings
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import CLIPS, RunSettings
from crumb_avalanche.system.folder_lock import locked

if TYPE_CHECKING:
    from crumb_avalanche.runs.session import Stream


class RunsFailedError(RuntimeError):
    """Some of several runs failed."""


def main(settings: RunCommandSettings) -> None:
    """Plan the runs, which checks the settings, then do them.

    Torch is imported between, which takes seconds.
    """
    plan = RunPlan.of(settings)
    engine = engine_settings(settings.engine, settings.processes, settings.resources)
    is_here = engine.engine == "processes" and engine.processes < 2
    if not is_here:
        check_several(settings, engine)
    with interrupted_later():
        from crumb_avalanche.runs.run import main

    if not is_here:
        do_on_engine(settings, engine)
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
    """Do the runs that are not finished yet, each in its subfolder.

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
        first = next(iter(failed))
        raise RunsFailedError(
            f"{len(failed)} of {len(cells)} runs failed, such as {first}: "
            f"{failed[first]} "
            "(error.txt there has all of it); the same command does them again"
        )


def one_run(settings: RunSettings) -> None:
    """Do a run in a worker."""
    from crumb_avalanche.runs.run import run_once

    run_once(RunPlan.of(settings), finished=page_of_mistakes)


def page_of_mistakes(folder: Path, plan: RunPlan, stream: "Stream") -> None:
    """Write the mistakes of a finished run on own clips as a page."""
    from crumb_avalanche.report.mistakes import write_mistakes
    from crumb_avalanche.runs.predictions import read_predictions

    if plan.benchmark == CLIPS:
        predictions = read_predictions(folder)
        write_mistakes(
            folder,
            stream.table,
            predictions,
            str(plan.preset),
            str(plan.strategy),
            len(stream.bad_frames),
        )


def demo(settings: DemoSettings) -> None:
    """Do the runs, report them, and say what they show."""
    from crumb_avalanche.report.report import WIDTH
    from crumb_avalanche.report.report import main as report
    from crumb_avalanche.report.runs import read_run
    from crumb_avalanche.report.standing import same_bytes
    from crumb_avalanche.runs.demo import demonstrate

    with locked(Path(settings.output)):
        folders = demonstrate(settings)
    # The report takes the lock itself.
    report(ReportSettings([str(folder) for folder in folders], settings.output))
    codes = read_run(Path(settings.output) / "crumb")
    images = read_run(Path(settings.output) / "image_replay")
    print("\n" + fill(same_bytes(codes, images), WIDTH))


def strategies(settings: StrategiesSettings) -> None:
    """Print the description of one method, or of all."""
    if settings.name is not None:
        print(described(get_strategy(settings.name)))
        return
    print("\n\n".join(described(entry) for entry in STRATEGIES.values()))


def described(entry: Entry) -> str:
    """Format the description of a strategy."""
    lines = [
        f"{entry.name}: {entry.summary}",
        f"  from    {entry.source}",
        f"  stores  {entry.stores}",
        f"  budget  {budget_rule(entry)}",
    ]
    defaults = entry.settings()
    settings = ", ".join(
        f"{setting.name} {getattr(defaults, setting.name)!r}"
        for setting in fields(defaults)
    )
    if settings:
        lines.append(f"  own settings (--method.NAME VALUE)  {settings}")
    return "\n".join(lines)


def budget_rule(entry: Entry) -> str:
    """Describe how the number of memories follows from the budget."""
    if entry.joint:
        return "none: a bound that is trained on all images"
    if not entry.budgeted:
        return (
            "none: its size does not depend on the budget; the ledger lists its bytes"
        )
    rule = "(budget - fixed bytes) / bytes of one memory, rounded down"
    if entry.round_up:
        rule += "; rounded up if three quarters of a last memory fit"
    return rule
