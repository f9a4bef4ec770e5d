"""A sweep whose workers and driver are killed at random moments ends with the results of one that is left alone.

    python experiments/sweep_faults.py                  # 40 short runs, 20 times SIGKILL
    python experiments/sweep_faults.py --engine ray     # on two local Ray nodes, one of which is lost in the middle

Written to --output: the two sweeps, `sweep_faults.csv` and `sweep_faults.md` (what was killed and when), and
`sweep_faults.png`, the finished runs over time. The exit code is 1 if any result differs.
"""

import argparse
import contextlib
import csv
import io
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from support.cells import Cell
from support.engines import InProcess, LocalProcesses
from support.ray_engine import RayCluster
from support.same_results import differences
from support.sweep import RETRIES, exit_code, grid, sweep

from crumb_avalanche.runs.run_folder import RESULT, write_text
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.tables import markdown, table
from crumb_avalanche.system.folder_lock import LOCK, in_use

HEADER = ["second", "killed", "process", "runs finished"]
STRATEGIES = ("crumb", "image_replay", "slda", "ncm", "finetune")
DRIVER, WORKER, NODE = "driver", "worker", "node"


@dataclass(frozen=True)
class Kill:
    """A process that was ended.

    Attributes:
        second: since the sweep began.
        victim: driver, worker or node.
        process: its number.
        finished: runs that were finished then.
    """

    second: float
    victim: str
    process: int
    finished: int


def make_clips(root: Path) -> None:
    """Frames of 32 pixels: 4 classes, each with its pattern, 3 objects of 2 clips of 5 noisy frames."""
    if root.exists():
        return
    temporary = root.with_name(f"{root.name}.{os.getpid()}.part")
    rows, columns = np.mgrid[:32, :32]
    patterns = [rows % 8 < 4, columns % 8 < 4, (rows + columns) % 12 < 6, (rows // 8 + columns // 8) % 2 == 0]
    noise = np.random.default_rng(0)
    for label, pattern in enumerate(patterns):
        for clip in range(6):
            folder = temporary / f"class{label}" / f"object{clip // 2}" / f"clip{clip % 2}"
            folder.mkdir(parents=True)
            for frame in range(5):
                pixels = 60 + 120 * pattern[..., None] + noise.integers(0, 60, (32, 32, 3))
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"frame{frame}.png")
    temporary.rename(root)


def short_cells(output: Path, count: int) -> list[Cell]:
    """Runs of about a second on the clips beside ``output``."""
    base = RunSettings(
        benchmark="clip_folder",
        dataset_root=str(output.parent / "clips"),
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


def compare(undisturbed: list[Cell], disturbed: list[Cell]) -> list[str]:
    """A line for every cell that is unfinished, and for all that differs in one."""
    lines = []
    for cell, other in zip(undisturbed, disturbed, strict=True):
        unfinished = [str(one.folder) for one in (cell, other) if not (one.folder / RESULT).exists()]
        found = [f"unfinished: {' '.join(unfinished)}"] if unfinished else differences(cell.folder, other.folder)
        lines += [f"{other.folder}: {line}" for line in found]
    return lines


def finished(cells: list[Cell]) -> int:
    """How many are."""
    return sum((cell.folder / RESULT).exists() for cell in cells)


def workers(cells: list[Cell]) -> list[int]:
    """Numbers of the processes that hold a folder now."""
    found = []
    for cell in cells:
        with contextlib.suppress(OSError, ValueError, IndexError):
            if in_use(cell.folder):
                found.append(int((cell.folder / LOCK).read_text().split()[0]))
    return found


def parents(processes: list[int]) -> set[int]:
    """Numbers of the processes that began these."""
    chosen = [f"-p{process}" for process in processes] or ["-p0"]
    return set(map(int, subprocess.run(["ps", "-oppid=", *chosen], capture_output=True, text=True).stdout.split()))


def kill_often(cells: list[Cell], command: list[str], kills: int, seed: int, longest: float) -> Iterator[Kill]:
    """Give the command again and again, with SIGKILL for it or a worker after random times; the last time, let it end.

    Args:
        cells: that the command does.
        command: of the driver.
        kills: how many.
        seed: of who is killed, and when.
        longest: seconds of work before a kill, at most, after a random number of cells is finished.

    Raises:
        RuntimeError: the driver ended by itself with an error, or before the last kill.
    """
    moments = random.Random(seed)
    victims = ([WORKER, DRIVER] * kills)[:kills]
    moments.shuffle(victims)
    # All over the sweep, or those at its beginning would leave the rest in peace.
    places = sorted(moments.randrange(max(1, len(cells) - 3)) for _ in range(kills))
    start = time.perf_counter()
    driver = subprocess.Popen(command)
    try:
        for victim, place in zip(victims, places):
            # Not during the imports each time: what can be damaged is a cell at work.
            while driver.poll() is None and (finished(cells) < place or not workers(cells)):
                time.sleep(0.01)
            time.sleep(moments.uniform(0, longest))
            there = workers(cells)
            if driver.poll() is not None:
                raise RuntimeError(
                    f"the sweep ended with {driver.returncode} before the last kill; take more --cells or fewer --kills"
                )
            process = driver.pid if victim is DRIVER or not there else moments.choice(there)
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(process, signal.SIGKILL)
            at_driver = process == driver.pid
            print(f"killed: {DRIVER if at_driver else WORKER} {process}", file=sys.stderr)
            yield Kill(time.perf_counter() - start, DRIVER if at_driver else WORKER, process, finished(cells))
            if at_driver:
                driver.wait()
                driver = subprocess.Popen(command)
        if driver.wait():
            raise RuntimeError(f"the sweep ended with {driver.returncode} after the last kill; see its messages above")
    finally:
        driver.kill()
        driver.wait()


@contextlib.contextmanager
def two_nodes(cpus: int) -> Iterator:
    """A Ray cluster of a head without CPUs and two nodes, all on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        nodes = [cluster.add_node(num_cpus=cpus) for _ in range(2)]
        cluster.wait_for_nodes()
        yield cluster, nodes
    finally:
        cluster.shutdown()


def lose_a_node(cells: list[Cell], cpus: int, cells_per_process: int) -> tuple[list[Kill], dict[Path, str]]:
    """Do the cells on two nodes, one of which is killed when a third of them are finished and it has work."""
    import threading

    kills: list[Kill] = []
    start = time.perf_counter()
    with two_nodes(cpus) as (cluster, nodes):
        over = threading.Event()

        def lose():
            raylet = nodes[0].all_processes["raylet"][0].process.pid
            while not over.is_set() and (finished(cells) < len(cells) // 3 or raylet not in parents(workers(cells))):
                time.sleep(0.02)
            if not over.is_set():
                kills.append(Kill(time.perf_counter() - start, NODE, raylet, finished(cells)))
                cluster.remove_node(nodes[0], allow_graceful=False)

        thread = threading.Thread(target=lose)
        thread.start()
        try:
            failed = sweep(cells, engine=RayCluster(cluster.address, cells_per_process))
        finally:
            over.set()
            thread.join()
    return kills, failed


def write_tables(output: Path, kills: list[Kill]) -> str:
    """The kills as CSV and Markdown; returns them as text."""
    lines = [[f"{kill.second:.1f}", kill.victim, str(kill.process), str(kill.finished)] for kill in kills]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([HEADER, *lines])
    write_text(output / "sweep_faults.csv", text.getvalue())
    marks = [HEADER, ["---"] * len(HEADER), *lines]
    write_text(output / "sweep_faults.md", markdown(marks))
    return table(HEADER, lines)


def picture(output: Path, kills: list[Kill], cells: int) -> None:
    """Finished runs at each kill."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
    for victim, marker in ((DRIVER, "x"), (WORKER, "o"), (NODE, "s")):
        some = [kill for kill in kills if kill.victim == victim]
        if some:
            axes.plot(
                [kill.second for kill in some], [kill.finished for kill in some], marker, label=f"{victim} killed"
            )
    axes.set(xlabel="seconds", ylabel="runs finished", ylim=(0, cells), title="a sweep under SIGKILL")
    axes.legend()
    for suffix in ("png", "svg"):
        figure.savefig(output / f"sweep_faults.{suffix}", dpi=120)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="processes", choices=["processes", "ray"])
    parser.add_argument("--cells", type=int, default=40)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--longest", type=float, help="seconds of work before a kill, at most; default: a run's own")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time; with ray, on each node")
    parser.add_argument("--cells-per-process", type=int, default=1, help="with ray: runs that one worker does; 0: all")
    parser.add_argument("--output", default="runs/sweep_faults")
    parser.add_argument("--quick", action="store_true", help="5 runs, 3 kills")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # the driver that is killed: do the cells of this folder
    options = parser.parse_args()
    if options.quick:
        options.cells, options.kills = 5, 3
    if options.only:
        cells = short_cells(Path(options.only), options.cells)
        return exit_code(sweep(cells, engine=LocalProcesses(options.processes), retries=RETRIES + options.kills))
    output = Path(options.output)
    alone, disturbed = (short_cells(output / name, options.cells) for name in ("undisturbed", "disturbed"))
    if finished(disturbed):
        parser.error(f"{output} holds a sweep already: it cannot be disturbed; choose another --output")
    make_clips(output / "clips")
    start = time.perf_counter()
    if exit_code(sweep(alone, engine=InProcess())):
        return 1
    longest = options.longest or (time.perf_counter() - start) / options.cells
    if options.engine == "ray":
        kills, failed = lose_a_node(disturbed, options.processes, options.cells_per_process)
    else:
        count = [f"--cells={options.cells}", f"--kills={options.kills}", f"--processes={options.processes}"]
        command = [sys.executable, __file__, *count, "--only", str(output / "disturbed")]
        kills, failed = list(kill_often(disturbed, command, options.kills, options.seed, longest)), {}
    print(write_tables(output, kills))
    picture(output, kills, options.cells)
    lines = compare(alone, disturbed)
    print(f"\n{len(kills)} killed; {len(disturbed) - len(lines)} of {len(disturbed)} runs equal those left alone")
    print("\n".join(lines))
    return 1 if exit_code(failed) or lines or not kills else 0


if __name__ == "__main__":
    sys.exit(main())
