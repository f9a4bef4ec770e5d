"""This process: device, CPU threads, random number generators, freed memory.

Importing this file does not import torch, whose threads have settings to be made
before.
"""

import contextlib
import ctypes
import os
import platform
import random
import warnings
from collections.abc import Iterator
from pathlib import Path

SPIN_SETTINGS = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}  # environment variables


def limit_openmp_spin() -> None:
    """Let waiting threads of torch sleep after a short spin; call before its import.

    By default libgomp spins for milliseconds. Where other programs keep the cores busy,
    the thread that is waited for is not scheduled meanwhile, and two threads are
    several times slower than one. An environment that sets ``GOMP_SPINCOUNT`` or
    ``OMP_WAIT_POLICY`` is left as it is.
    """
    if not SPIN_SETTINGS & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "2000"


# From malloc.h. A block of M_MMAP_THRESHOLD bytes or more is a mapping of its own and
# returns to the system when freed; so does free memory above M_TRIM_THRESHOLD bytes at
# the end of the heap.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEPT_BYTES = 512 * 2**20


def check_device(name: str) -> None:
    """Raise ValueError unless a device is ``cpu``, or a ``cuda`` that torch sees.

    Args:
        name: of the device, such as ``cuda`` or ``cuda:1``.
    """
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(
            f"device is {name!r}; give cpu, cuda, or one of several such as cuda:1"
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"device is {name}, but only cpu and cuda are supported; give --device cpu"
        )
    if device.type == "cpu":
        return
    gpu_number = device.index or 0
    n_gpus = torch.cuda.device_count()
    if gpu_number >= n_gpus:
        raise ValueError(
            f"device is {name}, but torch sees {n_gpus} GPUs here; give --device cpu"
        )


def set_up_process(threads: int, seed: int) -> None:
    """Set CPU threads, 0 for one per core, and all global seeds.

    The allocator keeps memory for the next batch; see ``keep_freed_memory``.
    """
    import numpy as np
    import torch

    keep_freed_memory()
    torch.set_num_threads(threads or os.cpu_count() or 1)  # faiss takes torch's number
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def keep_freed_memory() -> None:
    """Let the C library reuse freed blocks instead of returning them to the system.

    That holds for the rest of the process. A batch of 128 maps of 512x13x13 is 44 MB.
    By default, glibc maps new memory for each tensor of that size, which the system
    clears page by page: reading maps from a cache takes twice as long. Blocks above 512
    MB are still returned, and so is free memory above it; without glibc nothing
    changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        for setting in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            ctypes.CDLL("libc.so.6").mallopt(setting, KEPT_BYTES)


def return_freed_memory() -> None:
    """Return the C library's free memory to the system, where it is glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def cpu_name() -> str:
    """Return the model of this machine's CPU, and torch's widest instructions on it."""
    import torch

    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}"


@contextlib.contextmanager
def float32_by_default() -> Iterator[None]:
    """Make tensors and modules whose dtype is not given float32.

    A program may have called ``torch.set_default_dtype``; libraries that build networks
    take that, while weights, maps and images here are float32. Also a decorator.
    """
    import torch

    default = torch.get_default_dtype()
    if default == torch.float32:
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


def get_rng_state() -> dict:
    """Return the states of all global RNGs, as plain values and tensors.

    They are those of Python, NumPy and torch, and a list of those of the GPUs, empty
    if this process uses none: to ask would initialise them all.
    """
    import numpy as np
    import torch

    n_gpus = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(device) for device in range(n_gpus)],
    }


def set_rng_state(state: dict) -> None:
    """Restore what ``get_rng_state`` returned.

    States of GPUs that are absent are skipped with a warning.

    Args:
        state: states of the RNGs ``python``, ``numpy``, ``torch``, and of each GPU in
            the list ``cuda``.
    """
    import numpy as np
    import torch

    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    n_saved = len(state["cuda"])
    n_gpus = torch.cuda.device_count() if n_saved else 0
    if n_saved > n_gpus:
        warnings.warn(
            f"the RNG state is of {n_saved} GPUs, but {n_gpus} are here: the others "
            f"are skipped, so random numbers differ from then on; use {n_saved} GPUs "
            "to reproduce them",
            stacklevel=2,
        )
    for device, cuda_state in zip(range(n_gpus), state["cuda"]):
        torch.cuda.set_rng_state(cuda_state, device)


@contextlib.contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Restore the states of all global RNGs at the end of the block."""
    state = get_rng_state()
    try:
        yield
    finally:
        set_rng_state(state)
