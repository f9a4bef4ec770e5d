"""Typed settings of ``crumb report``. Imports neither torch nor Avalanche."""

from dataclasses import dataclass

from crumb_avalanche.system import setting_ranges as ranges


@dataclass
class ReportSettings(ranges.InRange):
    """Show finished runs as tables and pictures.

    Attributes:
        folders: run folders, or folders of runs.
        output: folder for page, tables and pictures; replaces an earlier report there.
            Default: the folder of a single run, the given folder if it holds several
            runs, or the parent of the first of several folders.
    """

    folders: list[str]
    output: str | None = None
