"""Measure a lesson by one and by two workers of a Ray cluster on this machine, and its parts.

    python experiments/bench_many.py
    python experiments/bench_many.py --source FOLDER_OF_CLASS_FOLDERS --budget-bytes 100000000 --repeats 1

Each worker is a process with one thread; they have started, imported torch and built the network before the clock
starts. The images are made-up JPEG photos or those of --source, the network is SqueezeNet with random weights. Figures:
  seconds             of the fastest lesson by number of workers
  speedup             of two workers over one
  images_per_second   of one worker: reading, resizing, network, statistics and merging
  state_bytes         of what all shards taught: the largest state that is sent between nodes
  merge_seconds       of two such states on one thread
"""

import argparse
import copy
import tempfile
import time
from pathlib import Path

import torch
from ray.cluster_utils import Cluster
from support.bench import bench_parser, photos, report, seconds
from support.common_options import run_script

from crumb_avalanche.learner.distributed import shards_of
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.learner.sources import files_of
from crumb_avalanche.system.ray_cluster import RayCalls


def lesson(options: argparse.Namespace, engine: RayCalls, source: Path) -> tuple[float, int, Learner]:
    """Teach a new learner; return seconds, images and the learner."""
    torch.manual_seed(0)  # random weights, the same in all lessons
    learner = Learner("recommended", "squeezenet1_0", None, 224, options.budget_bytes)
    start = time.perf_counter()
    images = sum(learner.teach(source, engine=engine).images.values())
    return time.perf_counter() - start, images, learner


def measured(options: argparse.Namespace, source: Path, warm: Path) -> dict:
    """Time lessons by each number of workers."""
    every: dict[int, list[float]] = {}
    for workers in options.workers:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": workers})
        with RayCalls(cluster.address) as engine:
            for place in [warm] * 2 + [source] * options.repeats:
                taken, images, learner = lesson(options, engine, place)
                every.setdefault(workers, []).append(taken)
        cluster.shutdown()
    one, other = (copy.deepcopy(learner._classifier) for _ in range(2))
    merging = seconds(lambda: one.merge(other))
    times = {workers: min(some[2:]) for workers, some in every.items()}
    return {
        "seconds": times,
        "speedup": times[min(times)] / times[max(times)],
        "images": images,
        "shards": len(shards_of(files_of(source))),
        "images_per_second": images / times[options.workers[0]] / options.workers[0],
        "state_bytes": learner.bytes,
        "merge_seconds": merging,
    }


def main() -> None:
    parser = bench_parser(__doc__, threads=1, repeats=3)
    parser.add_argument("--source", type=Path, help="folder of class folders; default made-up photos")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers of one-thread workers")
    parser.add_argument("--pixels", type=int, default=320, help="side of the made-up photos")
    parser.add_argument("--budget-bytes", type=int, help="of the learner; default the network's size")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        warm = photos(Path(folder) / "warm", 4, 8, 2, 64)
        source = options.source or photos(Path(folder) / "photos", 20, 8, 10, options.pixels)
        figures = measured(options, source, warm)
    rows = ", ".join(f"{count} {some:.1f} s" for count, some in figures["seconds"].items())
    report(options, figures, [f"{figures['images']} images in {figures['shards']} shards by workers: {rows}"])


if __name__ == "__main__":
    run_script(main)
