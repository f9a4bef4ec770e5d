"""Work on a cell of a sweep, the settings of one run, and the engines that do it: here, or in processes."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import wait
from pathlib import Path

from crumb_avalanche.runs.run_folder import RESULT, tidy_up
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.system.atomic_file import DISK_FULL, write_text
from crumb_avalanche.system.folder_lock import FolderInUseError, locked

ERROR, LOG = "error.txt", "log.txt"
Work = Callable[[RunSettings], object]


class State(Enum):
    """End of the work on a cell."""

    DONE = "done"
    FAILED = "it raised an error, and would again"
    DIED = "its process died, which may not happen again"
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


def learn(cell: RunSettings) -> None:
    """Do the run of a cell, as ``crumb run`` does; one that diverges counts with what it reached."""
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.run import run_once

    run_once(RunPlan.of(cell), count_divergence=True)


def is_finished(cell: RunSettings) -> bool:
    """Whether the cell has a result, of its settings; removes files that a kill may have left beside it."""
    folder = Path(cell.output)
    if cell.overwrite or not (folder / RESULT).exists():
        return False
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.run_folder import finished_result

    finished_result(folder, RunPlan.of(cell))
    tidy_up(folder)
    # Of an attempt before, or of the process that was killed right after it wrote the result.
    (folder / ERROR).unlink(missing_ok=True)
    return True


def run_cell(cell: RunSettings, work: Work = learn) -> Outcome:
    """Work on a cell in this process; prints to ``log.txt``, writes an error to ``error.txt``."""
    start, folder = time.perf_counter(), Path(cell.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if is_finished(cell):  # by another process, meanwhile
                return Outcome(State.DONE)
            with open(folder / LOG, "a") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
                work(cell)
                print(f"{time.perf_counter() - start:.0f} s")
            (folder / ERROR).unlink(missing_ok=True)
        return Outcome(State.DONE)
    except FolderInUseError as error:
        return Outcome(State.BUSY, str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        text, full = traceback.format_exc(), error
        while full is not None and getattr(full, "errno", None) not in DISK_FULL:
            full = full.__cause__
        if full is not None:
            text += f"the disk of {folder} is full ({full}): make room and give the same command again\n"
        elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            text += f"out of memory ({str(error) or 'MemoryError'}): do fewer runs at a time\n"
        record(cell, text)
        return Outcome(State.FAILED, text)


def record(cell: RunSettings, text: str) -> None:
    """Write ``error.txt`` if possible."""
    with contextlib.suppress(OSError):
        Path(cell.output).mkdir(parents=True, exist_ok=True)
        write_text(Path(cell.output) / ERROR, text)


class InProcess(contextlib.AbstractContextManager):
    """Cells one after the other in this process, for debugging; as every engine, ends `running` cells on exit."""

    def __init__(self):
        self.running: list[RunSettings] = []
        self._ended: list[tuple[RunSettings, Outcome]] = []

    def __exit__(self, *error):
        self.running.clear()

    def has_room(self) -> bool:
        """Whether another cell can be started now."""
        return not self.running

    def start(self, cell: RunSettings, work: Work) -> None:
        """Start a cell."""
        self.running = [cell]
        self._ended.append((cell, run_cell(cell, work)))

    def ended(self, seconds: float) -> list[tuple[RunSettings, Outcome]]:
        """Wait until a cell ends, or for that many seconds; return the cells that ended."""
        self.running, ended, self._ended = [], self._ended, []
        return ended


class LocalProcesses(contextlib.AbstractContextManager):
    """Cells in parallel on this machine, each in a process of its own that dies with this one.

    No process inherits memory, threads or RNG state of another cell, and a killed process affects no other cell.
    """

    def __init__(self, processes: int = 1):
        if processes < 1:
            raise ValueError(f"processes is {processes}; at least one run at a time")
        self.processes = processes
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self._context = multiprocessing.get_context(method)
        if method == "forkserver":  # import once, in the server that cells are forked from
            self._context.set_forkserver_preload(["crumb_avalanche.runs.run"])
        self._children: dict = {}

    @property
    def running(self) -> list[RunSettings]:
        return [cell for _, cell in self._children.values()]

    def __exit__(self, *error):
        started = [process for process, _ in self._children.values() if process.pid is not None]
        for process in started:
            process.terminate()
        for process in started:
            process.join()
        self._children.clear()

    def has_room(self) -> bool:
        return len(self._children) < self.processes

    def start(self, cell: RunSettings, work: Work) -> None:
        answer, there = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_in_child, args=(there, cell, work))
        # If the server was killed, the process gives no answer; the next start makes a new server.
        with contextlib.suppress(EOFError, ConnectionError):
            process.start()
        there.close()  # so that the pipe ends with the child
        self._children[answer] = (process, cell)

    def ended(self, seconds: float) -> list[tuple[RunSettings, Outcome]]:
        ended = []
        for answer in wait(list(self._children), seconds):
            process, cell = self._children.pop(answer)
            try:
                outcome = answer.recv()
            except (EOFError, OSError):
                outcome = Outcome(State.DIED, "its process could not be started")
            if process.pid is not None:
                process.join()
                if outcome.state is State.DIED:
                    text = f"its process ended with {process.exitcode} and gave no answer"
                    if process.exitcode < 0:
                        text = f"its process was killed by signal {-process.exitcode}, perhaps for want of memory"
                    outcome = Outcome(State.DIED, text)
                    record(cell, text + "\n")
            answer.close()
            ended.append((cell, outcome))
        return ended


def _in_child(answer, cell: RunSettings, work: Work) -> None:
    parent = multiprocessing.parent_process()

    def follow_the_parent():
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)  # a restarted sweep starts this cell again: never run it twice

    threading.Thread(target=follow_the_parent, daemon=True).start()
    with contextlib.suppress(OSError):  # run_cell reports it
        Path(cell.output).mkdir(parents=True, exist_ok=True)
        log = os.open(Path(cell.output) / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(log, 1)  # for libraries that write there themselves
        os.dup2(log, 2)
    answer.send(run_cell(cell, work))


Engine = InProcess | LocalProcesses
