"""Set up this process: device, CPU threads, seeds, and whether the C library keeps freed memory.

Importing this file does not import torch, whose threads have settings to be made before.
"""

import contextlib
import ctypes
import os
import random

SPIN_SETTINGS = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}  # of the environment


def limit_openmp_spin() -> None:
    """Let waiting threads of torch sleep after a short spin. Call before torch is imported.

    By default libgomp spins for milliseconds. Where other programs keep the cores busy, the thread that is waited for
    is not scheduled meanwhile, and two threads are several times slower than one. An environment that sets
    ``GOMP_SPINCOUNT`` or ``OMP_WAIT_POLICY`` is left as it is.
    """
    if not SPIN_SETTINGS & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "2000"


# From malloc.h. A block of M_MMAP_THRESHOLD bytes or more is a mapping of its own and returns to the system when freed;
# so does free memory above M_TRIM_THRESHOLD bytes at the end of the heap.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def check_device(name: str) -> None:
    """Raise ValueError if a device is neither cpu nor cuda, or torch does not see it."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device is {name!r}; give cpu, cuda, or one of several such as cuda:1") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {name}, but only cpu and cuda are supported; give --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device is {name}, but torch sees {torch.cuda.device_count()} GPUs here; give --device cpu")


def set_up_process(threads: int, seed: int) -> None:
    """Set CPU threads, 0 for one per core, and all global seeds; let the allocator keep memory for the next batch."""
    import numpy as np
    import torch

    keep_freed_memory()
    torch.set_num_threads(threads or os.cpu_count() or 1)  # faiss takes torch's number
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def keep_freed_memory(limit: int = 512 * 2**20) -> bool:
    """Let the C library reuse freed blocks for the rest of the process instead of returning them to the system.

    A batch of 128 maps of 512x13x13 is 44 MB. By default, glibc maps new memory for each tensor of that size, which the
    system clears page by page: reading maps from a cache takes twice as long. ``limit`` are the bytes of a block, and
    of free memory, above which memory is returned. Returns whether it took effect; without glibc nothing changes.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return all([mallopt(M_MMAP_THRESHOLD, limit), mallopt(M_TRIM_THRESHOLD, limit)])


def return_freed_memory() -> None:
    """Return the C library's free memory to the system; without glibc nothing changes."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
