"""Sweeps of short runs, and what kills their processes; as a script, a driver that does such a sweep."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from support.engines import LocalProcesses
from support.sweep import exit_code, grid, sweep

from crumb_avalanche.runs.run_folder import RESULT
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.system.folder_lock import LOCK

STRATEGIES = ("crumb", "image_replay", "slda", "ncm", "finetune")
DRIVER, WORKER = "driver", "worker"


def short_cells(clips: Path, output: Path, count: int) -> list[RunSettings]:
    """Runs of about a second each."""
    base = RunSettings(
        benchmark="clip_folder",
        dataset_root=str(clips),
        weights="none",
        backbone="small_cnn",
        image_size=32,
        batch_size=8,
        mem_size=40,
        first_epochs=2,
        threads=1,
        progress=False,
    )
    runs = range(-(-count // len(STRATEGIES)))
    return grid(base, output, runs, {name: dict(strategy=name) for name in STRATEGIES})[:count]


def finished(cells: list[RunSettings]) -> int:
    """Count the finished cells."""
    return sum((Path(cell.output) / RESULT).exists() for cell in cells)


def workers(cells: list[RunSettings]) -> list[int]:
    """Ids of the processes that hold the lock of a cell's folder, as Linux lists them by the number of the file."""
    files = set()
    for cell in cells:
        with contextlib.suppress(FileNotFoundError):
            files.add(str((Path(cell.output) / LOCK).stat().st_ino))
    held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return [int(line[4]) for line in held if line[1] == "FLOCK" and line[5].split(":")[-1] in files]


def kill_often(cells: list[RunSettings], command: list[str], kills: int, seed: int, longest: float) -> Iterator[str]:
    """Run a driver to its end, restarting it after each SIGKILL to it; yield who was killed, driver or worker.

    Half of the kills hit the driver, the others a worker, in random order and spread over the whole sweep.

    Args:
        cells: the cells of the command.
        command: of the driver.
        kills: number of kills.
        seed: of victims and moments.
        longest: upper bound in seconds of the random time between the start of work and a kill.

    Raises:
        RuntimeError: the driver failed, or ended before the last kill.
    """
    draws = random.Random(seed)
    victims = ([WORKER, DRIVER] * kills)[:kills]
    draws.shuffle(victims)
    # Without these numbers of finished cells, all kills would hit the first few.
    places = sorted(draws.randrange(max(1, len(cells) - 3)) for _ in range(kills))
    driver = subprocess.Popen(command)

    def wait_for_work(place: int) -> list[int]:
        """Process ids of workers, of which there is at least one: a kill during imports can damage no cell."""
        while not (there := workers(cells)) or finished(cells) < place:
            if driver.poll() is not None:
                raise RuntimeError(f"the driver ended with {driver.returncode} before the last kill")
            time.sleep(0.01)
        return there

    try:
        for victim, place in zip(victims, places, strict=True):
            wait_for_work(place)
            time.sleep(draws.uniform(0, longest))
            if victim == DRIVER:
                assert driver.poll() is None, f"the driver ended with {driver.returncode} before the last kill"
                driver.kill()
                driver.wait()
                driver = subprocess.Popen(command)
            else:
                while True:  # until a worker is hit that did not end by itself meanwhile
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(draws.choice(wait_for_work(place)), signal.SIGKILL)
                        break
            yield victim
        if driver.wait():
            raise RuntimeError(f"the driver ended with {driver.returncode} after the last kill")
    finally:
        driver.kill()
        driver.wait()


@contextlib.contextmanager
def two_nodes(cpus: int) -> Iterator:
    """A Ray cluster on this machine: a head without CPUs, and two nodes; yields the cluster and the nodes."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        nodes = [cluster.add_node(num_cpus=cpus) for _ in range(2)]
        cluster.wait_for_nodes()
        yield cluster, nodes
    finally:
        cluster.shutdown()


if __name__ == "__main__":  # killed_sweep.py CLIPS OUTPUT CELLS PROCESSES
    clips, output = map(Path, sys.argv[1:3])
    count, processes = map(int, sys.argv[3:5])
    # Any one cell may meet every kill.
    sys.exit(exit_code(sweep(short_cells(clips, output, count), LocalProcesses(processes), retries=1000)))
