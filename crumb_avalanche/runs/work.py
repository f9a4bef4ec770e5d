"""A unit of work, what works on it, and what an engine is.

A unit may be done again at any time and leaves its result in a folder that all workers
see.
"""

import contextlib
import os
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks_toybox_ilab.tables.atomic_file import write_text
from benchmarks_toybox_ilab.tables.disk_errors import DISK_FULL
from crumb_avalanche.runs.run_folder import DamagedRunError
from crumb_avalanche.system.folder_lock import locked

ERROR = "error.txt"  # of a unit that failed: the traceback
LOG = "log.txt"  # of a unit: what it printed
DONE = ""


@dataclass(frozen=True)
class WorkUnit:
    """A piece of work; workers get it pickled.

    Attributes:
        folder: its own; the work leaves its result there, and the worker ``log.txt``,
            or ``error.txt`` if it failed.
        work: does it; begun again where it was cut off.
        is_done: whether the folder holds the result. Raises ValueError if it holds that
            of other work.
    """

    folder: Path
    work: Callable[[], object]
    is_done: Callable[[], bool]

    @property
    def name(self) -> str:
        """The last two parts of the folder, for the progress bar."""
        return "/".join(self.folder.parts[-2:])


@dataclass(frozen=True)
class Ended:
    """How a worker of a unit ended.

    Attributes:
        unit: the unit.
        text: ``DONE``, or the traceback of the unit; ``None`` if the worker was lost.
        cause: why it was lost.
        is_due: whether the cluster ended it by its rules, such as a time limit; it is
            done again then, and goes on from what it left.
    """

    unit: WorkUnit
    text: str | None
    cause: str = ""
    is_due: bool = False


class Engine(ABC):
    """Starts workers, each of which calls ``work_on`` with a unit."""

    @abstractmethod
    def room(self) -> int | None:
        """Return how many more units may start now; ``None`` for all."""

    @abstractmethod
    def start(self, units: Sequence[WorkUnit]) -> None:
        """Start a worker for each of at least one unit, or queue it."""

    @abstractmethod
    def wait(self) -> list[Ended]:
        """Return the units whose worker ended, after some seconds at the latest."""

    @abstractmethod
    def stop(self) -> str:
        """Cancel what waits; return what happens to the rest, empty if all ended."""

    @abstractmethod
    def close(self) -> None:
        """Free what the engine holds; no worker is needed any more."""


def is_done(unit: WorkUnit) -> bool:
    """Whether a unit is done; a damaged result fails later, in the work."""
    try:
        return unit.is_done()
    except DamagedRunError:
        return False


def python_path() -> str:
    """Return a ``PYTHONPATH`` by which workers import what this process does."""
    return os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)


def work_on(unit: WorkUnit) -> str:
    """Do a piece of work, such as a run, in this process.

    Args:
        unit: the work, with a folder of its own; what it prints goes to ``log.txt``
            there.

    Returns:
        ``DONE``, or a traceback, which is also in ``error.txt`` then.
    """
    start = time.perf_counter()
    folder = unit.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if unit.is_done():  # by a worker that was taken for lost
                return DONE
            (folder / ERROR).unlink(missing_ok=True)
            with (
                open(folder / LOG, "a") as log,
                contextlib.redirect_stdout(log),
                contextlib.redirect_stderr(log),
            ):
                unit.work()
                print(f"{time.perf_counter() - start:.0f} s")
        return DONE
    except (KeyboardInterrupt, SystemExit):  # SLURM queues its job again
        raise
    except BaseException as error:
        text = traceback.format_exc() + _advice(error, folder)
        with contextlib.suppress(OSError):
            write_text(folder / ERROR, text)
        return text


def _advice(error: BaseException, folder: Path) -> str:
    """Return a line on what to do about an error of a run; empty if there is nothing.

    Args:
        error: that the run raised.
        folder: of the run, whose disk may be full.
    """
    cause: BaseException | None = error
    while cause is not None:
        if getattr(cause, "errno", None) in DISK_FULL:
            return (
                f"the disk of {folder} is full ({cause}): make room and give the same "
                "command again\n"
            )
        cause = cause.__cause__
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return (
            f"out of memory ({str(error) or 'MemoryError'}): do fewer runs at a time\n"
        )
    return ""
