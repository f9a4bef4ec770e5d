"""CPU threads of torch and of the libraries that share its pool."""

import os


def limit_openmp_spin() -> None:
    """Let waiting threads of torch sleep after a short spin. Call before torch is imported.

    By default libgomp spins for milliseconds. Where other programs keep the cores busy, the thread that is waited for
    is not scheduled meanwhile, and two threads are several times slower than one. An environment that sets
    ``GOMP_SPINCOUNT`` or ``OMP_WAIT_POLICY`` is left as it is.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "2000"


def set_threads(count: int) -> None:
    """Set the CPU threads of torch and faiss; 0 takes one per core."""
    import torch

    torch.set_num_threads(count or os.cpu_count() or 1)
