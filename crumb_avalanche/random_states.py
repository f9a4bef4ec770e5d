"""The global random states of Python, numpy and torch."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def random_states() -> dict:
    """All of them, as plain values and tensors."""
    devices = range(torch.cuda.device_count())
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(device) for device in devices],
    }


def set_random_states(states: dict) -> None:
    """Take over what ``random_states`` gave."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    for device, state in enumerate(states["cuda"]):
        torch.cuda.set_rng_state(state, device)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """They are afterwards what they were before."""
    states = random_states()
    try:
        yield
    finally:
        set_random_states(states)
