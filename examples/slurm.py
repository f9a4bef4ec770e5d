"""Three runs of two methods, each a job of SLURM, and a table of their accuracies.

``python examples/slurm.py OUTPUT`` on a login node queues six jobs, waits for them, and
prints a line a method; OUTPUT is a folder that all nodes see. Killed at any time, the
same command goes on. ``python examples/slurm.py OUTPUT processes`` does the same with
two processes of this computer.
"""

import json
import statistics
import sys
from pathlib import Path

from crumb_avalanche.runs.cells import sweep
from crumb_avalanche.runs.engine_settings import EngineSettings
from crumb_avalanche.runs.settings import RunSettings

# What a job needs; one GPU: gpus=1, and device="cuda" below.
ENGINES = {
    "slurm": EngineSettings("slurm", cpus=1, memory="4GB", time="01:00:00"),
    "processes": EngineSettings("processes", processes=2),
}
METHODS = ("rda", "ncm")
RUNS = range(3)


def main(output: Path, engine: str = "slurm") -> None:
    """Do the runs that are not finished, and print the table."""
    cells = []
    for method in METHODS:
        for run in RUNS:
            cell = RunSettings(
                benchmark="toy_shapes_short",  # rendered: no download
                strategy=method,
                backbone="small_cnn",
                weights="none",
                image_size=32,
                run=run,
                output=str(output / method / f"run{run}"),
                threads=1,
                progress=False,
            )
            cells.append(cell)
    failed = sweep(cells, ENGINES[engine], output)
    for folder, error in failed.items():
        print(f"failed: {folder}: {error}")
    for method in METHODS:
        results = sorted((output / method).glob("run*/result.json"))
        finals = [json.loads(path.read_text())["final_accuracy"] for path in results]
        print(f"{method}: {statistics.fmean(finals):.1f} % in {len(finals)} runs")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
