"""``crumb run``: learn a stream and write the run folder; ``crumb demo``: compare strategies on rendered shapes."""

from pathlib import Path
from typing import TYPE_CHECKING

from crumb_avalanche.runs.command_settings import DemoSettings, ReportSettings
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.settings import CLIPS, RunSettings
from crumb_avalanche.system.console import interrupted_later
from crumb_avalanche.system.folder_lock import locked

if TYPE_CHECKING:
    from crumb_avalanche.runs.stream import Stream


def main(settings: RunSettings) -> None:
    """Check the settings before importing torch, which takes seconds; then do the runs."""
    RunPlan.of(settings)
    with interrupted_later():
        from crumb_avalanche.runs.run import main

    main(settings, page_of_mistakes)


def page_of_mistakes(folder: Path, plan: RunPlan, stream: "Stream") -> None:
    """Write the mistakes of a finished run on own clips as a page."""
    from crumb_avalanche.report.mistakes import write_mistakes
    from crumb_avalanche.runs.recorder import read_predictions

    if plan.benchmark == CLIPS:
        predictions = read_predictions(folder)
        write_mistakes(folder, stream.table, predictions, str(plan.preset), str(plan.strategy), len(stream.bad_frames))


def demo(settings: DemoSettings) -> None:
    """Do the runs and report them."""
    from crumb_avalanche.report.report import main as report
    from crumb_avalanche.runs.demo import demonstrate

    with locked(Path(settings.output)):
        folders = demonstrate(settings)
    report(ReportSettings([str(folder) for folder in folders], settings.output))  # which takes the lock itself
