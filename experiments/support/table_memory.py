"""Measure computing CRUMB's codebook or REMIND's tables from a file of maps; used by `cost_of_replay.py`.

A task is a dictionary: `kind`, `file` (float32 maps) and their `shape` `(N, H, W, C)`, `seed`, `threads`; for the
codebook `codebook_size`, `codebook_dim`, `codebook_init` and `measured_images`; for the tables `sub_quantizers`, `bits`
and `fit_vectors`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script

from support.resident_memory import reset_peak, resident

from benchmarks_toybox_ilab.tables.text import safe_output

CODEBOOK, ALL_MAPS, SAMPLE = "crumb", "remind, tables from all maps", "remind, tables from a sample"


def make_table(task: dict, shape: tuple[int, ...]) -> None:
    """Compute the codebook, or fit the tables, from the maps in the file."""
    count, *_, channels = shape
    each = int(np.prod(shape[1:]))

    def read(first: int, images: int) -> np.ndarray:
        return np.fromfile(task["file"], np.float32, images * each, offset=4 * each * first).reshape(-1, *shape[1:])

    if task["kind"] == CODEBOOK:
        from crumb_avalanche.models.calibration import CHUNK, sample_of
        from crumb_avalanche.models.codebook import INITIALISERS, Codebook

        places = np.unique(np.linspace(0, count - 1, task["measured_images"]).astype(int))
        some = (
            np.concatenate([read(place, 1) for place in places[i : i + CHUNK]]) for i in range(0, len(places), CHUNK)
        )
        sample = sample_of(torch.from_numpy(maps).permute(0, 3, 1, 2) for maps in some)
        codebook = Codebook(task["codebook_size"], task["codebook_dim"])
        INITIALISERS[task["codebook_init"]](codebook, sample, torch.Generator().manual_seed(task["seed"]))
    elif task["kind"] == ALL_MAPS:
        import faiss

        faiss.omp_set_num_threads(task["threads"])
        tables = faiss.ProductQuantizer(channels, task["sub_quantizers"], task["bits"])
        tables.cp.min_points_per_centroid = 1  # only warns
        tables.train(read(0, count).reshape(-1, channels))
    else:
        from crumb_avalanche.memory.product_quantizer import ProductQuantizer
        from crumb_avalanche.methods.remind_memory import LocationSample

        sample = LocationSample(count, task["fit_vectors"], np.random.default_rng(task["seed"]))
        for start in range(0, count, 16):
            sample.take(torch.from_numpy(read(start, min(16, count - start))).permute(0, 3, 1, 2))
        tables = ProductQuantizer(channels, task["sub_quantizers"], 2 ** task["bits"])
        tables.fit(sample.vectors, task["seed"])


def made(task: dict) -> dict:
    """Measure seconds, and peak resident memory minus resident memory before, in this process."""
    torch.set_num_threads(task["threads"])
    with tempfile.NamedTemporaryFile() as file:  # the first call of a library allocates more
        shape = (20, 4, 4, task["shape"][-1])
        np.random.default_rng(0).random(shape, np.float32).tofile(file.name)
        make_table({**task, "file": file.name}, shape)
    reset_peak()
    before, start = resident("VmRSS"), time.perf_counter()
    make_table(task, tuple(task["shape"]))
    return {"seconds": time.perf_counter() - start, "bytes": resident("VmHWM") - before}


def made_in_new_process(task: dict) -> dict:
    """Measure in a new process, in which larger freed blocks go back to the system at once."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(task["threads"]), "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, json.dumps(task)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    with safe_output():
        print(json.dumps(made(json.loads(sys.argv[1]))))
