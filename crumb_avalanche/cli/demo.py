"""``crumb demo``: compare strategies on rendered shapes in a few minutes, without a download."""

from pathlib import Path

from crumb_avalanche.report.report import main as report
from crumb_avalanche.runs.command_settings import DemoSettings, ReportSettings
from crumb_avalanche.runs.demo import demonstrate
from crumb_avalanche.system.folder_lock import locked


def main(settings: DemoSettings) -> None:
    """Do the runs and report them.

    Raises:
        FinishedRunError: the folder holds a demo of another seed.
        FolderInUseError: another process runs a demo in the folder.
    """
    with locked(Path(settings.output)):
        folders = demonstrate(settings)
    report(ReportSettings([str(folder) for folder in folders], settings.output))  # which takes the lock itself
