"""``crumb demo``: rendered shapes, a few minutes, nothing to download."""

from pathlib import Path

from crumb_avalanche.report.report import main as report
from crumb_avalanche.runs.command_settings import DemoSettings, ReportSettings
from crumb_avalanche.runs.demo import demonstrate
from crumb_avalanche.system.folder_lock import locked


def main(settings: DemoSettings) -> None:
    """Do the runs, then show the table and the picture.

    Raises:
        FinishedRunError: the folder holds a demo of another seed.
        FolderInUseError: another process works on the demo in the folder.
    """
    with locked(Path(settings.output)):
        folders = demonstrate(settings)
        report(ReportSettings([str(folder) for folder in folders], settings.output))
