"""Engines that run the cells of a sweep: in this process, or in processes of this machine; Ray: `ray_engine.py`."""

import contextlib
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait
from typing import Protocol

from support.cells import LOG, Cell, Outcome, State, Work, run_cell, verdict


class Engine(Protocol):
    """Works on cells, one or more at a time; as a context manager, it ends running cells on exit.

    Attributes:
        running: cells that were started and not yet returned by ``ended``.
    """

    running: list[Cell]

    def has_room(self) -> bool:
        """Whether another cell can be started now."""

    def start(self, cell: Cell, work: Work) -> None:
        """Start a cell."""

    def ended(self, seconds: float) -> list[tuple[Cell, Outcome]]:
        """Wait until a cell ends, or for that many seconds; return the cells that ended."""


class InProcess(contextlib.AbstractContextManager):
    """One cell after the other in this process, for debugging; peak memory is that of the largest cell so far."""

    def __init__(self):
        self.running: list[Cell] = []
        self._ended: list[tuple[Cell, Outcome]] = []

    def __exit__(self, *error):
        self.running.clear()

    def has_room(self) -> bool:
        return not self.running

    def start(self, cell: Cell, work: Work) -> None:
        self.running = [cell]
        self._ended.append((cell, run_cell(cell, work)))

    def ended(self, seconds: float) -> list[tuple[Cell, Outcome]]:
        self.running, ended, self._ended = [], self._ended, []
        return ended


class LocalProcesses(contextlib.AbstractContextManager):
    """Cells in parallel on this machine, each in a process of its own that dies with this one.

    No process inherits memory, threads or RNG state of another cell, and a killed process affects no other cell.

    Args:
        processes: number of cells at a time.

    Raises:
        ValueError: less than one process.
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
    def running(self) -> list[Cell]:
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

    def start(self, cell: Cell, work: Work) -> None:
        answer, there = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_in_child, args=(there, cell, work))
        # If the server was killed, the process gives no answer; the next start makes a new server.
        with contextlib.suppress(EOFError, ConnectionError):
            process.start()
        there.close()  # so that the pipe ends with the child
        self._children[answer] = (process, cell)

    def ended(self, seconds: float) -> list[tuple[Cell, Outcome]]:
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
                    said = verdict(cell, process.exitcode) or "its process ended without an answer"
                    outcome = Outcome(State.DIED, said)
            answer.close()
            ended.append((cell, outcome))
        return ended


def _in_child(answer, cell: Cell, work: Work) -> None:
    parent = multiprocessing.parent_process()

    def follow_the_parent():
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)  # a restarted sweep starts this cell again: never run it twice

    threading.Thread(target=follow_the_parent, daemon=True).start()
    with contextlib.suppress(OSError):  # run_cell reports it
        cell.folder.mkdir(parents=True, exist_ok=True)
        log = os.open(cell.folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(log, 1)  # for libraries that write there themselves
        os.dup2(log, 2)
    answer.send(run_cell(cell, work))
