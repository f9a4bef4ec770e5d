"""RNG state of Python, numpy and torch: saved, restored, and of as many GPUs as there are."""

import contextlib
import random

import numpy as np
import pytest
import torch

from crumb_avalanche.system.process import get_rng_state, set_rng_state
from crumb_avalanche.system.tensor_file import read_state, write_state


def test_the_state_survives_a_file(tmp_path):
    write_state(tmp_path / "rng.safetensors", get_rng_state(), {})
    expected = torch.rand(3), np.random.rand(3), random.random()
    set_rng_state(read_state(tmp_path / "rng.safetensors")[0])
    assert torch.equal(torch.rand(3), expected[0]) and np.array_equal(np.random.rand(3), expected[1])
    assert random.random() == expected[2]


@pytest.mark.parametrize("here", [1, 2])
def test_rng_states_of_as_many_gpus_as_there_are(monkeypatch, here):
    now, taken = get_rng_state(), []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: here)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: taken.append((state, device)))
    states = {**now, "cuda": ["of 0", "of 1"]}
    words = rf"of 2 GPUs, but {here} are here.*use 2 GPUs"
    with pytest.warns(UserWarning, match=words) if here < 2 else contextlib.nullcontext():
        set_rng_state(states)
    assert taken == [("of 0", 0), ("of 1", 1)][:here]


def test_gpus_that_are_not_in_use_are_not_asked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: pytest.fail("this initialises them"))
    state = get_rng_state()
    assert state["cuda"] == []
    set_rng_state(state)
