"""Many runs, each in its folder: finished runs are skipped, failed runs stop no other, killed runs resume."""

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from support.engines import Engine, LocalProcesses, Outcome, State, Work, is_finished, learn, record
from tqdm import tqdm

from crumb_avalanche.runs.run_folder import DamagedRunError
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.system.folder_lock import in_use
from crumb_avalanche.system.progress import progress_bar

RETRIES = 2


def sweep(
    cells: Sequence[RunSettings],
    engine: Engine | None = None,
    *,
    progress: bool = True,
    retries: int = RETRIES,
    work: Work = learn,
) -> dict[Path, str]:
    """Do all unfinished runs; the same call resumes an interrupted sweep, and waits for cells of another sweep.

    Args:
        cells: settings of the runs in the order in which they start; ``output`` is the folder of each.
        engine: engine that runs the cells; default one process after the other.
        progress: whether to show a bar with the running cells and the time left.
        retries: number of restarts of a cell whose process died; a cell that raised an error is not restarted.
        work: work on a cell; writes ``result.json`` to the folder last.

    Returns:
        Folders of the failed runs with the last line of the error; ``error.txt`` in the folder has the traceback.

    Raises:
        ValueError: two cells share a folder, or a folder holds a finished run with other settings.
    """
    folders = [Path(cell.output).resolve() for cell in cells]
    twice = [folder for folder, count in Counter(folders).items() if count > 1]
    if twice:
        raise ValueError(f"{len(twice)} folders belong to several cells, such as {twice[0]}; give each its own output")
    waiting = deque(cell for cell in cells if not finished(cell))
    failed: dict[Path, str] = {}
    deaths: Counter[str] = Counter()
    common = os.path.commonpath([folder.parent for folder in folders]) if cells else ""
    bar = progress_bar(len(cells), "sweep", " runs", initial=len(cells) - len(waiting), show=progress)

    def show(running: Sequence[RunSettings], started: bool = False) -> None:
        names = [os.path.relpath(Path(cell.output).resolve(), common) for cell in running]
        text = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        # Refresh the clock of a terminal; write to a file only when a run starts.
        bar.set_postfix_str(text, refresh=started or sys.stderr.isatty())

    with bar, engine or LocalProcesses() as engine:
        while waiting or engine.running:
            while engine.has_room() and (cell := _first_free(waiting)) is not None:
                show([*engine.running, cell], started=True)
                engine.start(cell, work)
            if not engine.running:
                time.sleep(0.2)  # other processes work on all that is left
            for cell, outcome in engine.ended(1.0):
                if outcome.state is State.DIED:
                    deaths[cell.output] += 1
                    tqdm.write(f"died: {cell.output}: {outcome.error}", sys.stderr)
                    if deaths[cell.output] <= retries:
                        waiting.append(cell)
                        continue
                    times = f", {deaths[cell.output]} times" if retries else ""
                    outcome = Outcome(State.FAILED, outcome.error + times)
                    record(cell, outcome.text + "\n")
                if outcome.state is State.BUSY:
                    waiting.append(cell)
                    continue
                if outcome.state is State.FAILED:
                    failed[Path(cell.output)] = outcome.error
                    tqdm.write(f"failed: {cell.output}: {outcome.error}", sys.stderr)
                bar.n += 1  # by update() the time left would follow the latest runs
            show(engine.running)
    return failed


def finished(cell: RunSettings) -> bool:
    """Whether the cell is finished; a damaged result fails later, in the work on the cell."""
    try:
        return is_finished(cell)
    except DamagedRunError:
        return False


def _first_free(waiting: deque[RunSettings]) -> RunSettings | None:
    """Take the first cell that no other process works on."""
    for _ in range(len(waiting)):
        cell = waiting.popleft()
        if not in_use(Path(cell.output)):
            return cell
        waiting.append(cell)
    return None


def grid(base: RunSettings, output: Path, runs: Sequence[int], rows: dict[str, dict]) -> list[RunSettings]:
    """A cell in ``output/ROW/runN`` for each run and row, which has changes of the settings that all rows share."""
    return [
        replace(base, **changes, run=run, output=str(output / name / f"run{run}"))
        for run in runs
        for name, changes in rows.items()
    ]


def exit_code(failed: dict[Path, str]) -> int:
    """Print a line on standard error for each failed run; return 1 if there is one, else 0."""
    for folder, error in failed.items():
        print(f"failed: {folder}: {error}", file=sys.stderr)
    return 1 if failed else 0
