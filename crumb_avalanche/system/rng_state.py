"""The state of the global random number generators of Python, numpy and torch."""

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def get_rng_state() -> dict:
    """Return the RNG state as plain values and tensors; of GPUs only if this process uses one."""
    devices = range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)  # to ask would initialise them all
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(device) for device in devices],
    }


def set_rng_state(state: dict) -> None:
    """Restore what ``get_rng_state`` returned; states of GPUs that are absent are skipped with a warning."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    saved = len(state["cuda"])
    present = torch.cuda.device_count() if saved else 0
    if saved > present:
        warnings.warn(
            f"the RNG state is of {saved} GPUs, but {present} are here: the others are skipped, so random numbers "
            f"differ from then on; use {saved} GPUs to reproduce them",
            stacklevel=2,
        )
    for device, cuda_state in zip(range(present), state["cuda"]):
        torch.cuda.set_rng_state(cuda_state, device)


@contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Restore the RNG state on exit."""
    state = get_rng_state()
    try:
        yield
    finally:
        set_rng_state(state)
