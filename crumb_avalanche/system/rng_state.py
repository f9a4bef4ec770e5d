"""The global random states of Python, numpy and torch."""

import random
import warnings
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
    """Take over what ``random_states`` gave; of the GPUs those that are here."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    given, here = len(states["cuda"]), torch.cuda.device_count()
    if given > here:
        warnings.warn(
            f"there are random states of {given} GPUs to take over, but {here} GPUs here: those of the others are left "
            f"out, so that what was drawn on them goes on otherwise; for the same bits go on with {given} GPUs",
            stacklevel=2,
        )
    for device, state in zip(range(here), states["cuda"]):
        torch.cuda.set_rng_state(state, device)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """They are afterwards what they were before."""
    states = random_states()
    try:
        yield
    finally:
        set_random_states(states)
