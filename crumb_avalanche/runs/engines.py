"""Many units of work on an engine: processes of this computer, SLURM or Ray.

Nothing else knows an engine, and all have the same rules: a finished unit is skipped, a
lost one is done again, a failed one stops no other, and the same call goes on after any
end.
"""

import contextlib
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path

from tqdm import tqdm

from benchmarks_toybox_ilab.tables.atomic_file import write_text
from benchmarks_toybox_ilab.tables.progress import progress_bar
from crumb_avalanche.runs.engine_settings import EngineSettings
from crumb_avalanche.runs.local_engines import RUN, Processes, ThisProcess
from crumb_avalanche.runs.ray_engine import RayEngine
from crumb_avalanche.runs.slurm_engine import SlurmEngine
from crumb_avalanche.runs.work import DONE, ERROR, Ended, Engine, WorkUnit, is_done

RETRIES = 2  # times that a lost unit is done again
MOST_DUE = 100  # times that a unit goes on that met a time limit


def engine_of(settings: EngineSettings, folder: Path, preload: str = RUN) -> Engine:
    """Return the engine that settings name.

    Args:
        settings: of the engine.
        folder: that all workers see; engines keep notes and logs in its subfolder.
        preload: module that the work needs; processes of this computer import it once
            for all.

    Raises:
        EngineError: the cluster is not there or has no such partition, or others may
            write to the folder.
        ImportError: the extra of the engine is not installed.
    """
    if settings.engine == "slurm":
        return SlurmEngine(settings, folder)
    if settings.engine == "ray":
        return RayEngine(settings, folder)
    if settings.processes == 0:
        return ThisProcess()
    return Processes(settings.processes, preload=preload)


def do_all(
    units: Sequence[WorkUnit],
    engine: Engine,
    *,
    plural: str = "runs",
    progress: bool = True,
    retries: int = RETRIES,
    finished: Callable[[WorkUnit], object] | None = None,
) -> dict[Path, str]:
    """Do all work that is not finished; the same call goes on after an interrupt.

    Args:
        units: pieces of work, such as runs, each with a folder of its own, in the order
            in which they start.
        engine: where they are done; it is closed at the end.
        plural: what the units are called in the bar that counts them.
        progress: whether to show a bar with the time left.
        retries: number of times that a unit is done again whose worker was lost; one
            that raised an error is not done again.
        finished: called in this process with each unit that is done now.

    Returns:
        Folders of the failed units with the last line of the error; ``error.txt`` in
        the folder has the traceback.

    Raises:
        EngineError: a worker does not see the folder, or has other versions.
        KeyboardInterrupt: after it was said how to go on.
        ValueError: two units share a folder, or a folder holds the result of other
            work.
    """
    check_folders(units)  # raises if two units share one
    waiting = deque(unit for unit in units if not is_done(unit))
    n_done_before = len(units) - len(waiting)
    with (
        contextlib.closing(engine),
        progress_bar(
            total=len(units),
            title="done",
            unit=f" {plural}",
            initial=n_done_before,
            show=progress,
        ) as bar,
    ):
        # Starts units while the engine has room, and does lost ones again.
        sweep = _Sweep(waiting, engine, retries=retries, finished=finished, bar=bar)
        return sweep.run()


def check_folders(units: Sequence[WorkUnit]) -> None:
    """Raise ValueError if two units share a folder."""
    counts = Counter(unit.folder.resolve() for unit in units)
    shared = [folder for folder, count in counts.items() if count > 1]
    if shared:
        raise ValueError(
            f"{len(shared)} folders belong to several runs, such as {shared[0]}; give "
            "each its own output"
        )


class _Sweep:
    """The state of ``do_all``: what waits, was lost and failed.

    Args:
        waiting: units that are not done, in the order in which they start.
        engine: where they are done.
        retries, finished: see ``do_all``.
        bar: its count grows with each unit that ends.
    """

    def __init__(
        self,
        waiting: "deque[WorkUnit]",
        engine: Engine,
        retries: int,
        finished: Callable[[WorkUnit], object] | None,
        bar: tqdm,
    ):
        self.waiting = waiting
        self.engine = engine
        self.retries = retries
        self.finished = finished
        self.bar = bar
        self.running = 0
        self.losses = Counter[Path]()
        self.times_due = Counter[Path]()
        self.failed: dict[Path, str] = {}

    def run(self) -> dict[Path, str]:
        """Do all units of work, such as runs; return the error of each failed one.

        An interrupt stops the workers; what to do then is printed.

        Returns:
            The last line of the error by the folder of the unit.
        """
        try:
            while self.waiting or self.running:
                self._start()  # as many units as the engine takes
                for ended in self.engine.wait():  # those that ended meanwhile
                    self.running -= 1
                    self._end(ended)
        except BaseException as error:
            what_goes_on = self.engine.stop()  # in words; empty if nothing does
            if isinstance(error, KeyboardInterrupt):
                n_left = len(self.waiting) + self.running
                advice = f"{n_left} are left, and the same command goes on"
                tqdm.write("; ".join(filter(None, [what_goes_on, advice])), sys.stderr)
            raise
        return self.failed

    def _start(self) -> None:
        """Start as many units as there is room for."""
        room = self.engine.room()  # None for all units
        count = len(self.waiting) if room is None else min(room, len(self.waiting))
        if not count:
            return
        units = [self.waiting.popleft() for _ in range(count)]
        self.running += count
        self.bar.set_postfix_str(units[-1].name, refresh=True)
        self.engine.start(units)

    def _end(self, ended: Ended) -> None:
        """Note how a unit of work, such as a run, ended; put it back if it was lost.

        Args:
            ended: the unit, with ``text``: ``DONE`` or its traceback, or ``None`` if
                its worker was lost, for the reason ``cause``.
        """
        unit = ended.unit
        text = ended.text
        if text is None:
            is_done_again = self._count_loss(ended)
            if is_done_again:
                self.waiting.append(unit)
                return
            text = ended.cause
            if self.retries:
                text += f", {self.losses[unit.folder]} times"
            with contextlib.suppress(OSError):
                write_text(unit.folder / ERROR, text + "\n")
        if text == DONE:
            if self.finished is not None:
                self.finished(unit)
        else:
            error = text.strip().splitlines()[-1]
            self.failed[unit.folder] = error
            tqdm.write(f"failed: {unit.folder}: {error}", sys.stderr)
        self.bar.n += 1  # by update() the time left would follow the latest units
        self.bar.set_postfix_str("", refresh=sys.stderr.isatty())

    def _count_loss(self, ended: Ended) -> bool:
        """Count and report a lost worker.

        Args:
            ended: a unit whose worker was lost; with ``is_due`` it met a limit of the
                cluster, such as one of time, which does not count as a loss.

        Returns:
            Whether its unit is to be done again.
        """
        folder = ended.unit.folder
        if ended.is_due and self.times_due[folder] < MOST_DUE:
            self.times_due[folder] += 1
            tqdm.write(f"goes on: {folder}: {ended.cause}", sys.stderr)
            return True
        tqdm.write(f"died: {folder}: {ended.cause}", sys.stderr)
        self.losses[folder] += 1
        return self.losses[folder] <= self.retries
