"""Cells of a sweep on a Ray cluster; all nodes need run folders, images and this checkout under the same paths."""

import contextlib

from support.cells import Cell, Outcome, State, Work, record, run_cell

from crumb_avalanche.system.ray_cluster import connected


class RayCluster(contextlib.AbstractContextManager):
    """Cells in parallel on a Ray cluster; each takes as many CPUs as its settings have ``threads``.

    Ray's own retries are off: the sweep itself restarts cells whose worker or node died, and counts restarts. Ray would
    restart a worker that ran out of memory without end.

    Args:
        address: address of the head, ``HOST:PORT``; ``auto`` finds a head on this machine.
        cells_per_process: cells after which a worker is replaced; 0 is no limit. With more than 1, imports are done
            once, and the peak memory of a run is that of the largest cell of its worker so far.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: no cluster at that address.
    """

    def __init__(self, address: str = "auto", cells_per_process: int = 1):
        self.address = address
        self.cells_per_process = cells_per_process
        self._tasks: dict = {}
        self._open = contextlib.ExitStack()

    @property
    def running(self) -> list[Cell]:
        return list(self._tasks.values())

    def __enter__(self) -> "RayCluster":
        self._ray = self._open.enter_context(connected(self.address))
        self._run = self._ray.remote(max_retries=0, max_calls=self.cells_per_process)(run_cell)
        return self

    def __exit__(self, *error):
        self._tasks.clear()
        self._open.close()

    def has_room(self) -> bool:
        """Whether CPUs are free; without running cells always, as the first one may wait for a node."""
        taken = sum(_cpus(cell) for cell in self.running)
        return not taken or taken < self._ray.cluster_resources().get("CPU", 0)

    def start(self, cell: Cell, work: Work) -> None:
        self._tasks[self._run.options(num_cpus=_cpus(cell)).remote(cell, work)] = cell

    def ended(self, seconds: float) -> list[tuple[Cell, Outcome]]:
        if not self._tasks:
            return []
        done, _ = self._ray.wait(list(self._tasks), timeout=seconds)
        return [(cell, self._outcome(task, cell)) for task, cell in ((task, self._tasks.pop(task)) for task in done)]

    def _outcome(self, task, cell: Cell) -> Outcome:
        try:
            return self._ray.get(task)
        except self._ray.exceptions.RayTaskError as error:  # such as a module that this node lacks
            record(cell.folder, f"{error}\n")
            return Outcome(State.FAILED, str(error))
        except self._ray.exceptions.RayError as error:
            reason = (str(error).splitlines() or [""])[0]
            return Outcome(State.DIED, f"its worker or node died ({type(error).__name__}: {reason})")


def _cpus(cell: Cell) -> int:
    return cell.settings.threads or 1
