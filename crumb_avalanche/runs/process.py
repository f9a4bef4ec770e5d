"""Set up the process before a run: device, threads, seeds, allocator."""

import random

import numpy as np
import torch

from crumb_avalanche.system.allocator import keep_freed_memory
from crumb_avalanche.system.threads import set_threads


def check_device(name: str) -> None:
    """Raise if a device does not exist.

    Raises:
        ValueError: the name is neither cpu nor cuda, or torch does not see the GPU.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"device is {name!r}; give cpu, cuda, or one of several such as cuda:1") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {name}, but only cpu and cuda are supported; give --device cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device is {name}, but torch sees {torch.cuda.device_count()} GPUs here; give --device cpu")


def set_up_process(threads: int, seed: int) -> None:
    """Set CPU threads and all global seeds, and let the allocator keep freed memory for the next batch."""
    keep_freed_memory()
    set_threads(threads)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
