"""Items in processes of this computer."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from crumb_avalanche.runs.work import LOG, Ended, Engine, WorkUnit, work_on

METHOD = "spawn"
if "forkserver" in multiprocessing.get_all_start_methods():
    METHOD = "forkserver"
RUN = "crumb_avalanche.runs.run"


class ThisProcess(Engine):
    """Does units one after the other in this process."""

    def __init__(self) -> None:
        self._waiting: list[WorkUnit] = []

    def room(self) -> int:
        """Return 1: the unit ends before the next one begins."""
        return 1

    def start(self, units: Sequence[WorkUnit]) -> None:
        """Let units wait for ``wait``."""
        self._waiting += units

    def wait(self) -> list[Ended]:
        """Do what waits."""
        units = self._waiting
        self._waiting = []
        return [Ended(unit, work_on(unit)) for unit in units]

    def stop(self) -> str:
        """Do nothing: an interrupt ends the unit."""
        return ""

    def close(self) -> None:
        """Do nothing."""


@dataclass
class _Running:
    """A unit in a process of its own."""

    unit: WorkUnit
    process: BaseProcess


class Processes(Engine):
    """Does each unit in a process of its own, which dies with this one.

    Args:
        count: most processes at a time.
        method: how multiprocessing starts processes.
        preload: module that each process needs; a server imports it once for all.
    """

    def __init__(self, count: int = 1, method: str = METHOD, preload: str = RUN):
        self.count = count
        self.context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            self.context.set_forkserver_preload([preload])
        self._running: dict[Connection, _Running] = {}  # by what the process answers to

    def room(self) -> int:
        """Return the number of free processes."""
        return self.count - len(self._running)

    def start(self, units: Sequence[WorkUnit]) -> None:
        """Start a process for each; it inherits no memory, threads or RNG state."""
        for unit in units:
            answer, sender = self.context.Pipe(duplex=False)
            process = self.context.Process(target=_in_child, args=(sender, unit))
            process.start()
            sender.close()  # so that the pipe ends with the child
            self._running[answer] = _Running(unit, process)

    def wait(self) -> list[Ended]:
        """Wait for a process to answer or to die."""
        ended = []
        for answer in wait(list(self._running)):
            assert isinstance(answer, Connection)
            running = self._running.pop(answer)
            text = _answer_of(answer)
            running.process.join()
            cause = "" if text is not None else _death_of(running.process)
            ended.append(Ended(running.unit, text, cause))
        return ended

    def stop(self) -> str:
        """End all processes."""
        for child in self._running.values():
            child.process.terminate()
        return ""

    def close(self) -> None:
        """Do nothing: all processes ended."""


def _in_child(answer: Connection, unit: WorkUnit) -> None:
    """Work on a unit in a process that was started for it.

    A unit is a piece of work, such as a run, with a folder of its own; what is printed
    goes to ``log.txt`` in it.

    Args:
        answer: gets ``DONE``, or the traceback of the unit.
        unit: the work and its folder.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is a child"

    def follow_the_parent() -> None:
        """End this process as soon as its parent has ended."""
        wait([parent.sentinel])
        # The same command starts this unit again: never do it twice.
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=follow_the_parent, daemon=True).start()
    with contextlib.suppress(OSError):  # work_on reports it
        unit.folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        log = os.open(unit.folder / LOG, flags, 0o666)
        # stdout and stderr, for libraries that write there themselves.
        os.dup2(log, 1)
        os.dup2(log, 2)
    answer.send(work_on(unit))


def _answer_of(answer: Connection) -> str | None:
    """Return what a process answered; ``None`` if it died instead."""
    with answer, contextlib.suppress(EOFError, OSError):
        return answer.recv()
    return None


def _death_of(process: BaseProcess) -> str:
    """Say how a process ended that gave no answer."""
    code = process.exitcode or 0
    if code < 0:
        return f"its process was killed by signal {-code}, perhaps for want of memory"
    return f"its process ended with {code} and gave no answer"
