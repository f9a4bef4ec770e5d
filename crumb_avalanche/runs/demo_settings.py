"""Typed settings of ``crumb demo``. Imports neither torch nor Avalanche."""

from dataclasses import dataclass

from crumb_avalanche.system import setting_ranges as ranges


@dataclass
class DemoSettings(ranges.InRange):
    """Pretrain on rendered shapes, learn others, and compare CRUMB with its bounds.

    Nothing is downloaded.

    Attributes:
        output: folder for the runs, the table and the picture; runs finished in it are
            not repeated.
        overwrite: start over.
        seed: seed of the pretraining, and number of the run.
    """

    output: str = "runs/demo"
    overwrite: bool = False
    threads: ranges.Threads = 0
    seed: ranges.Seed = 0
    progress: bool = True
