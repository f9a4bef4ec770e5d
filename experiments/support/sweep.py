"""Runs in processes, each in its folder: finished ones are skipped, failed ones stop no other, killed ones resume."""

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
from dataclasses import replace
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

ERROR, LOG = "error.txt", "log.txt"
DONE, BUSY = "", "another process works in the folder"
METHOD = (
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)
Work = Callable[[RunSettings], object]


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
    # Of an attempt before, or of the process that was killed right after it wrote the
    # result.
    (folder / ERROR).unlink(missing_ok=True)
    return True


def run_cell(cell: RunSettings, work: Work = learn) -> str:
    """Work on a cell in this process, which prints to ``log.txt``; return ``DONE``, ``BUSY`` or a traceback."""
    start, folder = time.perf_counter(), Path(cell.output)
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
        text, full = traceback.format_exc(), error
        while full is not None and getattr(full, "errno", None) not in DISK_FULL:
            full = full.__cause__
        if full is not None:
            text += f"the disk of {folder} is full ({full}): make room and give the same command again\n"
        elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            text += f"out of memory ({str(error) or 'MemoryError'}): do fewer runs at a time\n"
        return text


def _in_child(answer, cell: RunSettings, work: Work) -> None:
    parent = multiprocessing.parent_process()

    def follow_the_parent():
        wait([parent.sentinel])
        os.kill(
            os.getpid(), signal.SIGKILL
        )  # a restarted sweep starts this cell again: never run it twice

    threading.Thread(target=follow_the_parent, daemon=True).start()
    with contextlib.suppress(OSError):  # run_cell reports it
        Path(cell.output).mkdir(parents=True, exist_ok=True)
        log = os.open(
            Path(cell.output) / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666
        )
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
    """Do all unfinished runs; the same call resumes an interrupted sweep, and waits for cells of another sweep.

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
    shared = Counter(Path(cell.output).resolve() for cell in cells)
    if twice := [folder for folder, count in shared.items() if count > 1]:
        raise ValueError(
            f"{len(twice)} folders belong to several cells, such as {twice[0]}; give each its own output"
        )
    context: Any = multiprocessing.get_context(method)
    waiting = deque(cell for cell in cells if not _finished(cell))
    if method == "forkserver":  # import once, in the server that cells are forked from
        context.set_forkserver_preload(["crumb_avalanche.runs.run"])
    failed: dict[Path, str] = {}
    running: dict[
        Any, tuple[BaseProcess, RunSettings]
    ] = {}  # by the end of the pipe that a process answers to
    deaths = Counter[str]()

    def end(cell: RunSettings, text: str, died: bool) -> None:
        error = (text.strip().splitlines() or [""])[-1]
        if died:
            deaths[cell.output] += 1
            tqdm.write(f"died: {cell.output}: {error}", sys.stderr)
        if text == BUSY or (died and deaths[cell.output] <= retries):
            waiting.append(cell)
            return
        if text:
            error += f", {deaths[cell.output]} times" if died and retries else ""
            failed[Path(cell.output)] = error
            tqdm.write(f"failed: {cell.output}: {error}", sys.stderr)
            with contextlib.suppress(OSError):
                write_text(Path(cell.output) / ERROR, error + "\n" if died else text)
        elif finished is not None:
            finished(cell)
        bar.n += 1  # by update() the time left would follow the latest runs
        bar.set_postfix_str("", refresh=sys.stderr.isatty())

    with progress_bar(
        len(cells), "sweep", " runs", initial=len(cells) - len(waiting), show=progress
    ) as bar:
        try:
            while waiting or running:
                room = len(running) < max(1, processes)
                free = next(
                    (
                        cell
                        for cell in waiting
                        if room and not in_use(Path(cell.output))
                    ),
                    None,
                )
                if free is not None:
                    waiting.remove(free)
                    bar.set_postfix_str(
                        "/".join(Path(free.output).parts[-2:]), refresh=True
                    )
                    if processes:
                        running |= _started(context, free, work)
                    else:
                        end(free, run_cell(free, work), died=False)
                    continue
                for answer in wait(list(running), 0.2 if room and waiting else None):
                    process, cell = running.pop(answer)
                    end(cell, *_answered(answer, process))
        finally:
            for process, _ in running.values():
                process.terminate()
    return failed


def _started(
    context: Any, cell: RunSettings, work: Work
) -> dict[Connection, tuple[BaseProcess, RunSettings]]:
    """Start a cell in a process of its own, which inherits no memory, threads or RNG state."""
    answer, there = context.Pipe(duplex=False)
    process = context.Process(target=_in_child, args=(there, cell, work))
    process.start()
    there.close()  # so that the pipe ends with the child
    return {answer: (process, cell)}


def _answered(answer: Connection, process: BaseProcess) -> tuple[str, bool]:
    """What the process of a cell answered, and whether it died instead."""
    text = None
    with answer, contextlib.suppress(EOFError, OSError):
        text = answer.recv()
    process.join()
    if text is not None:
        return text, False
    code = process.exitcode or 0
    if code < 0:
        return (
            f"its process was killed by signal {-code}, perhaps for want of memory",
            True,
        )
    return f"its process ended with {code} and gave no answer", True


def _finished(cell: RunSettings) -> bool:
    """Whether the cell is finished; a damaged result fails later, in the work on the cell."""
    try:
        return is_finished(cell)
    except DamagedRunError:
        return False


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
