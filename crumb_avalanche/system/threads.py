"""CPU threads of torch and of the libraries that share its pool."""

import ctypes
import functools
import os
from collections.abc import Callable

SPIN_SETTINGS = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}  # of the environment


def limit_openmp_spin() -> None:
    """Let waiting threads of torch sleep after a short spin. Call before torch is imported.

    By default libgomp spins for milliseconds. Where other programs keep the cores busy, the thread that is waited for
    is not scheduled meanwhile, and two threads are several times slower than one. An environment that sets
    ``GOMP_SPINCOUNT`` or ``OMP_WAIT_POLICY`` is left as it is.
    """
    if not SPIN_SETTINGS & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "2000"


def set_threads(count: int) -> None:
    """Set the CPU threads of torch and faiss; 0 takes one per core."""
    import torch

    torch.set_num_threads(count or os.cpu_count() or 1)


def end_idle_threads() -> None:
    """End the threads that torch keeps for the next operation of this Python thread; torch starts others then.

    Without a limit they spin for milliseconds, on cores that the threads of an inference engine need. To end them takes
    20 us, and to start others 50. Where the environment limits the spin they are kept.
    """
    import torch

    if torch.get_num_threads() > 1:
        _omp_pause()(1)  # omp_pause_soft: settings such as the number of threads stay


@functools.cache
def _omp_pause() -> Callable[[int], object]:
    """Return omp_pause_resource_all of torch's OpenMP; a function that does nothing where there is none or no need."""
    import torch

    try:
        if not SPIN_SETTINGS & os.environ.keys():
            return ctypes.CDLL(torch._C.__file__).omp_pause_resource_all
    except (AttributeError, OSError):
        pass
    return lambda kind: None
