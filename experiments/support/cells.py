"""A cell of a sweep: one run in its folder, and the outcome of the work on it."""

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from crumb_avalanche.runs.run_folder import RESULT, tidy_up, write_text
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.system.atomic_file import DISK_FULL
from crumb_avalanche.system.folder_lock import FolderInUseError, locked

ERROR = "error.txt"
LOG = "log.txt"


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        settings: settings of ``crumb run``; ``output`` is the cell's folder and ``run`` its seed.
    """

    settings: RunSettings

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return Path(self.settings.output)


Work = Callable[[RunSettings], object]


class State(Enum):
    """End of the work on a cell."""

    DONE = "done"
    FAILED = "it raised an error, and would again"
    DIED = "its process or node died, which may not happen again"
    BUSY = "another process works in the folder"


@dataclass(frozen=True)
class Outcome:
    """End of the work on a cell, with a traceback or a reason as ``text``."""

    state: State
    text: str = ""

    @property
    def error(self) -> str:
        """The last line."""
        return (self.text.strip().splitlines() or ["no reason given"])[-1]


def learn(settings: RunSettings) -> None:
    """Do the run of a cell, as ``crumb run`` does; one that diverges counts with what it reached."""
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.run import run_once

    run_once(RunPlan.of(settings), count_divergence=True)


def is_finished(cell: Cell) -> bool:
    """Whether the cell has a result; removes files that a kill may have left beside it.

    Raises:
        FinishedRunError: the folder holds a finished run with other settings.
        DamagedRunError: a file of the finished run cannot be read.
    """
    if cell.settings.overwrite or not (cell.folder / RESULT).exists():
        return False
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.run_folder import finished_result

    finished_result(cell.folder, RunPlan.of(cell.settings))
    tidy_up(cell.folder)
    # Of an attempt before, or of the process that was killed right after it wrote the result.
    (cell.folder / ERROR).unlink(missing_ok=True)
    return True


def run_cell(cell: Cell, work: Work = learn) -> Outcome:
    """Work on a cell in this process; prints to ``log.txt``, writes an error to ``error.txt``."""
    start = time.perf_counter()
    try:
        cell.folder.mkdir(parents=True, exist_ok=True)
        with locked(cell.folder):
            if is_finished(cell):  # by another process, meanwhile
                return Outcome(State.DONE)
            with (
                open(cell.folder / LOG, "a") as log,
                contextlib.redirect_stdout(log),
                contextlib.redirect_stderr(log),
            ):
                work(cell.settings)
                print(f"{time.perf_counter() - start:.0f} s")
            (cell.folder / ERROR).unlink(missing_ok=True)
        return Outcome(State.DONE)
    except FolderInUseError as error:
        return Outcome(State.BUSY, str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text = traceback.format_exc()
        full = next((cause for cause in causes(error) if getattr(cause, "errno", None) in DISK_FULL), None)
        if full is not None:
            text += f"the disk of {cell.folder} is full ({full}): make room and give the same command again\n"
        elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            text += f"out of memory ({str(error) or 'MemoryError'}): do fewer runs at a time\n"
        record(cell.folder, text)
        return Outcome(State.FAILED, text)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its chain of causes."""
    while error is not None:
        yield error
        error = error.__cause__


def record(folder: Path, text: str) -> None:
    """Write ``error.txt`` if possible; the sweep reports the error in any case."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / ERROR, text)


def verdict(cell: Cell, exit_code: int) -> str:
    """Describe the exit code of a process that gave no answer, and write that to ``error.txt``; empty for 0."""
    if exit_code == 0:
        return ""
    said = f"its process ended with {exit_code} and gave no answer"
    if exit_code < 0:
        said = f"its process was killed by signal {-exit_code}, perhaps for want of memory"
    record(cell.folder, said + "\n")
    return said
