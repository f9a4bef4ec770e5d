"""Runs as units of an engine: a cell of a table, or one of the runs of a command."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from crumb_avalanche.runs.cache_units import cache_units
from crumb_avalanche.runs.engine_settings import EngineSettings
from crumb_avalanche.runs.engines import do_all, engine_of
from crumb_avalanche.runs.run_folder import RESULT, check_finished, remove_checkpoints
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.work import ERROR, WorkUnit

CACHES = "feature_caches"  # in the output folder: what is filled
Work = Callable[[RunSettings], object]
IsDone = Callable[[RunSettings], bool]


def learn(cell: RunSettings) -> None:
    """Do the run of a cell, as ``crumb run`` does.

    A run that diverges counts with the accuracy that it reached.
    """
    from crumb_avalanche.runs.plan import RunPlan
    from crumb_avalanche.runs.run import run_once

    run_once(RunPlan.of(cell), count_divergence=True)


def tidy_if_finished(cell: RunSettings) -> bool:
    """Return whether a run of a sweep is finished; remove leftovers beside its result.

    Engines ask it before a run, so that a sweep resumes, and after it. Files that a
    kill may have left are removed only beside a result.

    Args:
        cell: settings of the run; ``output`` is its folder.

    Raises:
        DamagedRunError: the result is damaged.
        FinishedRunError: it is of other settings.
    """
    folder = Path(cell.output)
    if cell.overwrite or not (folder / RESULT).exists():
        return False
    from crumb_avalanche.runs.plan import RunPlan

    check_finished(folder, RunPlan.of(cell))  # raises for a result of other settings
    remove_checkpoints(folder)
    # The error of an earlier attempt, or of a process that was killed right after it
    # wrote the result.
    (folder / ERROR).unlink(missing_ok=True)
    return True


def unit_of(
    cell: RunSettings, work: Work = learn, is_done: IsDone = tidy_if_finished
) -> WorkUnit:
    """Return the work on a cell as a unit; it writes the result last."""
    return WorkUnit(
        folder=Path(cell.output),
        work=partial(work, cell),
        is_done=partial(is_done, cell),
    )


def sweep(
    cells: Sequence[RunSettings],
    settings: EngineSettings,
    folder: Path,
    *,
    progress: bool = True,
    work: Work = learn,
    is_done: IsDone = tidy_if_finished,
    finished: Callable[[RunSettings], object] | None = None,
) -> dict[Path, str]:
    """Do all unfinished runs; the same call resumes an interrupted sweep.

    Args:
        cells: settings of the runs in the order in which they start; ``output`` is the
            folder of each. Where ``threads`` is 0, a run takes its share of the cores.
        settings: of the engine. On a cluster, all runs keep checkpoints.
        folder: that all workers see, for what the engine writes. On a cluster, a
            feature cache of the runs is filled before them.
        progress: whether to show a bar with the time left.
        work: work on a cell, which can be pickled; writes the result last.
        is_done: whether the folder of a cell holds the result of ``work``.
        finished: called in this process with the settings of each run that is done.

    Returns:
        Folders of the failed runs with the last line of the error.

    Raises:
        EngineError: the cluster is not there, or a worker does not fit this process.
        ValueError: two runs share a folder, or a folder holds the result of other
            settings.
    """
    is_on_cluster = settings.engine != "processes"
    cells = [replace(cell, threads=cell.threads or settings.threads) for cell in cells]
    if is_on_cluster:
        cells = [replace(cell, checkpoint=True) for cell in cells]
    cell_by_folder = {Path(cell.output): cell for cell in cells}

    def report_finished(unit: WorkUnit) -> None:
        """Call ``finished`` with the settings of the run that a unit of work does."""
        if finished is not None:
            finished(cell_by_folder[unit.folder])

    if is_on_cluster:
        fill_caches(cells, settings, folder, progress)
    units = [unit_of(cell, work, is_done) for cell in cells]  # each does a run
    engine = engine_of(settings, folder)
    return do_all(units, engine, progress=progress, finished=report_finished)


def fill_caches(
    cells: Sequence[RunSettings],
    settings: EngineSettings,
    folder: Path,
    progress: bool = True,
) -> None:
    """Fill the feature caches of the runs that are not finished, in shards.

    A shard that fails is left to the runs, which compute what they miss.

    Args:
        cells: settings of the runs.
        settings: of the engine whose workers fill the caches.
        folder: that all workers see, for what the engine writes.
        progress: whether to show a bar with the time left.
    """
    unfinished = [cell for cell in cells if not (Path(cell.output) / RESULT).exists()]
    units = cache_units(unfinished, folder / CACHES)  # each fills a shard
    if units:
        engine = engine_of(settings, folder)
        do_all(units, engine, plural="shards of the feature cache", progress=progress)
