"""Runs in processes, each in its folder.

Finished runs are skipped, failed ones stop no other, killed ones resume.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks_toybox_ilab.tables.atomic_file import write_text
from benchmarks_toybox_ilab.tables.disk_errors import DISK_FULL
from benchmarks_toybox_ilab.tables.progress import progress_bar
from crumb_avalanche.runs.run_folder import RESULT, DamagedRunError, tidy_up
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.system.folder_lock import FolderInUseError, in_use, locked

ERROR = "error.txt"
LOG = "log.txt"
DONE = ""
BUSY = "another process works in the folder"
METHOD = "spawn"
if "forkserver" in multiprocessing.get_all_start_methods():
    METHOD = "forkserver"
Work = Callable[[RunSettings], object]


def learn(cell: RunSettings) -> None:
    """Do the run of a cell, as ``crumb run`` does.

    A run that diverges counts with the accuracy that it reached.
    """
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.run import run_once

    run_once(RunPlan.of(cell), count_divergence=True)


def is_finished(cell: RunSettings) -> bool:
    """Whether the cell has a result, of its settings.

    Files that a kill may have left beside it are removed.
    """
    folder = Path(cell.output)
    if cell.overwrite or not (folder / RESULT).exists():
        return False
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.run_folder import finished_result

    finished_result(folder, RunPlan.of(cell))
    tidy_up(folder)
    # Of an attempt before, or of the process that was killed right after it wrote the
    # result.
    (folder / ERROR).unlink(missing_ok=True)
    return True


def run_cell(cell: RunSettings, work: Work = learn) -> str:
    """Work on a cell in this process, which prints to ``log.txt``.

    Returns:
        ``DONE``, ``BUSY``, or a traceback.
    """
    start = time.perf_counter()
    folder = Path(cell.output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if is_finished(cell):  # by another process, meanwhile
                return DONE
            with (
                open(folder / LOG, "a") as log,
                contextlib.redirect_stdout(log),
                contextlib.redirect_stderr(log),
            ):
                work(cell)
                print(f"{time.perf_counter() - start:.0f} s")
            (folder / ERROR).unlink(missing_ok=True)
        return DONE
    except FolderInUseError:
        return BUSY
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return traceback.format_exc() + _advice(error, folder)


def _advice(error: BaseException, folder: Path) -> str:
    """What to do about an error, as a last line; empty if there is nothing to say."""
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


def _in_child(answer: Connection, cell: RunSettings, work: Work) -> None:
    """Work on a cell in a process that was started for it."""
    parent = multiprocessing.parent_process()

    def follow_the_parent() -> None:
        wait([parent.sentinel])
        # A restarted sweep starts this cell again: never run it twice.
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=follow_the_parent, daemon=True).start()
    with contextlib.suppress(OSError):  # run_cell reports it
        Path(cell.output).mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        log = os.open(Path(cell.output) / LOG, flags, 0o666)
        os.dup2(log, 1)  # for libraries that write there themselves
        os.dup2(log, 2)
    answer.send(run_cell(cell, work))


def sweep(
    cells: Sequence[RunSettings],
    processes: int = 1,
    *,
    progress: bool = True,
    retries: int = 2,
    work: Work = learn,
    method: str = METHOD,
    finished: Callable[[RunSettings], None] | None = None,
) -> dict[Path, str]:
    """Do all unfinished runs.

    The same call resumes an interrupted sweep, and waits for cells of another sweep.

    Args:
        cells: settings of the runs in the order in which they start; ``output`` is the
            folder of each.
        processes: number of runs at a time, each in a process that dies with this one;
            0 does them in this process.
        progress: whether to show a bar with the running cells and the time left.
        retries: number of restarts of a cell whose process died; a cell that raised an
            error is not restarted.
        work: work on a cell; writes ``result.json`` to the folder last.
        method: how multiprocessing starts processes.
        finished: called in this process with the settings of each run that is done.

    Returns:
        Folders of the failed runs with the last line of the error; ``error.txt`` in the
        folder has the traceback.

    Raises:
        ValueError: two cells share a folder, a folder holds a finished run with other
            settings, or ``processes`` is negative.
    """
    if processes < 0:
        raise ValueError(f"processes is {processes}; give 0 or more")
    _check_folders(cells)
    waiting = deque(cell for cell in cells if not _finished(cell))
    count = len(cells)
    with progress_bar(
        count, "sweep", " runs", initial=count - len(waiting), show=progress
    ) as bar:
        todo = _Sweep(waiting, processes, retries, work, method, finished, bar)
        return todo.run()


def _check_folders(cells: Sequence[RunSettings]) -> None:
    """Refuse cells that share a folder."""
    counts = Counter(Path(cell.output).resolve() for cell in cells)
    shared = [folder for folder, count in counts.items() if count > 1]
    if shared:
        raise ValueError(
            f"{len(shared)} folders belong to several cells, such as {shared[0]}; give "
            "each its own output"
        )


def _finished(cell: RunSettings) -> bool:
    """Whether the cell is finished; a damaged result fails later, in the work."""
    try:
        return is_finished(cell)
    except DamagedRunError:
        return False


@dataclass
class _Running:
    """A cell in a process of its own."""

    cell: RunSettings
    process: BaseProcess


class _Sweep:
    """The state of a sweep: what waits, runs, died and failed."""

    def __init__(
        self,
        waiting: "deque[RunSettings]",
        processes: int,
        retries: int,
        work: Work,
        method: str,
        finished: Callable[[RunSettings], None] | None,
        bar: tqdm,
    ):
        self.waiting = waiting
        self.processes = processes
        self.retries = retries
        self.work = work
        self.finished = finished
        self.bar = bar
        self.context: Any = multiprocessing.get_context(method)
        if (
            method == "forkserver"
        ):  # import once, in the server that cells are forked from
            self.context.set_forkserver_preload(["crumb_avalanche.runs.run"])
        self.running: dict[Connection, _Running] = {}  # by what the process answers to
        self.deaths = Counter[str]()
        self.failed: dict[Path, str] = {}

    def run(self) -> dict[Path, str]:
        """Do all cells; return the failed ones with their errors."""
        try:
            while self.waiting or self.running:
                cell = self._next_free()
                if cell is None:
                    self._wait()
                elif self.processes:
                    self._start(cell)
                else:
                    self._end(cell, run_cell(cell, self.work), died=False)
        finally:
            for running in self.running.values():
                running.process.terminate()
        return self.failed

    @property
    def _has_room(self) -> bool:
        """Whether another cell may start."""
        return len(self.running) < max(1, self.processes)

    def _next_free(self) -> RunSettings | None:
        """Take the next cell whose folder nobody works in; None without one or room."""
        if not self._has_room:
            return None
        for cell in self.waiting:
            if not in_use(Path(cell.output)):
                self.waiting.remove(cell)
                name = "/".join(Path(cell.output).parts[-2:])
                self.bar.set_postfix_str(name, refresh=True)
                return cell
        return None

    def _start(self, cell: RunSettings) -> None:
        """Start a cell in a process, which inherits no memory, threads or RNG state."""
        answer, sender = self.context.Pipe(duplex=False)
        process = self.context.Process(target=_in_child, args=(sender, cell, self.work))
        process.start()
        sender.close()  # so that the pipe ends with the child
        self.running[answer] = _Running(cell, process)

    def _wait(self) -> None:
        """Wait for a process to answer, or for a folder that is in use."""
        timeout = 0.2 if self._has_room and self.waiting else None
        for answer in wait(list(self.running), timeout):
            running = self.running.pop(answer)
            text = _answer_of(answer)
            running.process.join()
            if text is None:
                self._end(running.cell, _death_of(running.process), died=True)
            else:
                self._end(running.cell, text, died=False)

    def _end(self, cell: RunSettings, text: str, died: bool) -> None:
        """Note how the work on a cell ended; restart it if its process died."""
        error = (text.strip().splitlines() or [""])[-1]
        if died:
            self.deaths[cell.output] += 1
            tqdm.write(f"died: {cell.output}: {error}", sys.stderr)
        deaths = self.deaths[cell.output]
        if text == BUSY or (died and deaths <= self.retries):
            self.waiting.append(cell)
            return
        if text:
            if died and self.retries:
                error += f", {deaths} times"
            self._note_failure(cell, error, error + "\n" if died else text)
        elif self.finished is not None:
            self.finished(cell)
        self.bar.n += 1  # by update() the time left would follow the latest runs
        self.bar.set_postfix_str("", refresh=sys.stderr.isatty())

    def _note_failure(self, cell: RunSettings, error: str, text: str) -> None:
        """Print the error of a cell, and write all of it to its folder."""
        folder = Path(cell.output)
        self.failed[folder] = error
        tqdm.write(f"failed: {cell.output}: {error}", sys.stderr)
        with contextlib.suppress(OSError):
            write_text(folder / ERROR, text)


def _answer_of(answer: Connection) -> str | None:
    """What the process of a cell answered; None if it died instead."""
    with answer, contextlib.suppress(EOFError, OSError):
        return answer.recv()
    return None


def _death_of(process: BaseProcess) -> str:
    """How a process ended that gave no answer."""
    code = process.exitcode or 0
    if code < 0:
        signal_number = -code
        return (
            f"its process was killed by signal {signal_number}, perhaps for want of "
            "memory"
        )
    return f"its process ended with {code} and gave no answer"


def cell_settings(
    base: RunSettings, folder: Path, number: int, changes: dict
) -> RunSettings:
    """Settings of run `number` in `folder/runN`, with changes of the shared settings."""
    output = str(folder / f"run{number}")
    return replace(base, **changes, run=number, output=output)


def grid(
    base: RunSettings, output: Path, runs: Sequence[int], rows: dict[str, dict]
) -> list[RunSettings]:
    """Settings of a run in ``output/ROW/runN`` for each number and row.

    Args:
        base: settings that all rows share.
        output: folder of everything.
        runs: numbers of the runs.
        rows: changes of the settings by the name of the row.
    """
    return [
        cell_settings(base, output / name, number, changes)
        for number in runs
        for name, changes in rows.items()
    ]


def exit_code(failed: dict[Path, str]) -> int:
    """Print a line on standard error for each failed run; return 1 if there is one, else 0."""
    for folder, error in failed.items():
        print(f"failed: {folder}: {error}", file=sys.stderr)
    return 1 if failed else 0
