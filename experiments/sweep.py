"""Many runs, each in a process and a folder of its own: finished ones are skipped, a failed one stops no other."""

import multiprocessing
import os
import shutil
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path

from tqdm import tqdm

from crumb_avalanche.cli.settings import RunSettings

ERROR = "error.txt"
LOG = "log.txt"


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        settings: as given to ``crumb run``; ``output`` is the cell's folder and ``run`` its seed.
    """

    settings: RunSettings

    @property
    def folder(self) -> Path:
        return Path(self.settings.output)


def sweep(cells: Sequence[Cell], processes: int = 1, progress: bool = True) -> dict[Path, str]:
    """Do all runs that are not done yet.

    Args:
        cells: in the order in which they are begun.
        processes: runs at a time; give each run as many threads as there are cores for it.
        progress: show a bar with the time left.

    Returns:
        Folders of the runs that failed, with the last line of the error; the whole traceback is in their ``error.txt``.

    Raises:
        FinishedRunError: a folder holds a finished run with other settings.
    """
    from crumb_avalanche.cli.run import finished_result
    from crumb_avalanche.cli.run_folder import RESULT

    open_cells = []
    for cell in cells:
        if (cell.folder / RESULT).exists() and not cell.settings.overwrite:
            finished_result(cell.folder, cell.settings.resolved())
        else:
            open_cells.append(cell)
    # A process for each run: none inherits memory, threads or random states of another, and one that is killed takes
    # nothing along. The server it is forked from has the imports done.
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["crumb_avalanche.cli.run"])
    failed: dict[Path, str] = {}
    running: dict[int, tuple] = {}
    waiting = iter(open_cells)
    with tqdm(total=len(cells), initial=len(cells) - len(open_cells), unit=" runs", disable=not progress) as bar:
        try:
            while True:
                while len(running) < processes and (cell := next(waiting, None)) is not None:
                    process = context.Process(target=run_cell, args=(cell.settings,))
                    process.start()
                    running[process.sentinel] = (process, cell)
                if not running:
                    return failed
                for sentinel in wait(list(running)):
                    process, cell = running.pop(sentinel)
                    process.join()
                    error = verdict(cell, process.exitcode)
                    if error:
                        failed[cell.folder] = error
                        bar.write(f"failed: {cell.folder}: {error}")
                    bar.update()
        finally:
            for process, _ in running.values():
                process.terminate()


def verdict(cell: Cell, exit_code: int) -> str:
    """Nothing if a run succeeded, else the last line of its error."""
    if exit_code == 0:
        return ""
    if exit_code < 0 or not (cell.folder / ERROR).exists():
        cell.folder.mkdir(parents=True, exist_ok=True)
        signal = f"its process was killed by signal {-exit_code}" if exit_code < 0 else f"it ended with {exit_code}"
        (cell.folder / ERROR).write_text(f"{signal}, perhaps for want of memory\n")
    return (cell.folder / ERROR).read_text().strip().splitlines()[-1]


def run_cell(settings: RunSettings) -> None:
    """One run in this process; what it prints goes to ``log.txt``, and what ends it to ``error.txt``."""
    from crumb_avalanche.cli.run import run_once
    from crumb_avalanche.cli.run_folder import write_text

    folder = Path(settings.output)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOG, "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    start = time.perf_counter()
    try:
        run_once(settings.resolved())
        print(f"{time.perf_counter() - start:.0f} s")
        (folder / ERROR).unlink(missing_ok=True)
        shutil.rmtree(folder / "interrupted", ignore_errors=True)
    except BaseException:
        write_text(folder / ERROR, traceback.format_exc())
        sys.exit(1)


def grid(base: RunSettings, output: Path, runs: Sequence[int], rows: dict[str, dict]) -> list[Cell]:
    """A cell for each row and run, run by run, so that a sweep that is cut short has some runs of every row.

    Args:
        base: settings that all share.
        output: folder; the cell of a row is in ``output/ROW/runN``.
        runs: seeds.
        rows: what is different in each row, by its name.
    """
    return [
        Cell(replace(base, **changes, run=run, output=str(output / name / f"run{run}")))
        for run in runs
        for name, changes in rows.items()
    ]
