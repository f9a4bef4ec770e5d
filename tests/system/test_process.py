"""A process: its threads, its random numbers, and the progress that it prints."""

import ctypes
import io
import os
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks_toybox_ilab.tables import progress
from benchmarks_toybox_ilab.tables.progress import progress_bar
from crumb_avalanche.system.process import (
    check_device,
    get_rng_state,
    limit_openmp_spin,
    return_freed_memory,
    set_rng_state,
)
from crumb_avalanche.system.tensor_file import read_state, write_state
from crumb_avalanche.system.words import counted


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {"GOMP_SPINCOUNT": "2000"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
    ids=["default", "spin count", "wait policy"],
)
def test_threads_sleep_soon(environment, expected, monkeypatch):
    monkeypatch.setattr(os, "environ", environment)
    limit_openmp_spin()
    assert os.environ == expected


def test_free_memory_goes_back_to_the_system(monkeypatch):
    kept_bytes = []
    library = SimpleNamespace(malloc_trim=kept_bytes.append)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    return_freed_memory()
    assert kept_bytes == [0]


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1"])
def test_a_device_that_is_there(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_device(name)


@pytest.mark.parametrize(
    ("name", "gpus"), [("cuda:2", 2), ("cuda:0", 0), ("cuda", 0), ("cuda:1", 1)]
)
def test_a_device_that_is_absent(name, gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    words = f"device is {name}, but torch sees {gpus} GPUs here; give --device cpu"
    with pytest.raises(ValueError, match=words):
        check_device(name)


def draw():
    """Random numbers of PyTorch, NumPy and Python."""
    return [torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()]


def test_the_rng_state_survives_a_file(tmp_path):
    write_state(tmp_path / "rng.safetensors", get_rng_state(), {})
    expected = draw()
    state, _ = read_state(tmp_path / "rng.safetensors")
    set_rng_state(state)
    assert draw() == expected


@pytest.fixture
def of_two_gpus(monkeypatch):
    """RNG states of a process with two GPUs, and a list of those that are set."""
    restored = []

    def restore(state, device):
        restored.append((device, state))

    monkeypatch.setattr(torch.cuda, "set_rng_state", restore)
    return {**get_rng_state(), "cuda": ["of 0", "of 1"]}, restored


def test_each_gpu_has_its_rng_state(of_two_gpus, monkeypatch):
    states, restored = of_two_gpus
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    set_rng_state(states)
    assert restored == [(0, "of 0"), (1, "of 1")]


def test_rng_states_of_fewer_gpus(of_two_gpus, monkeypatch):
    states, restored = of_two_gpus
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    words = r"of 2 GPUs, but 1 are here.*use 2 GPUs"
    with pytest.warns(UserWarning, match=words):
        set_rng_state(states)
    assert restored == [(0, "of 0")]


def test_gpus_that_are_not_in_use_are_not_asked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(
        torch.cuda, "device_count", lambda: pytest.fail("this initialises them")
    )
    state = get_rng_state()
    assert state["cuda"] == []
    set_rng_state(state)


def printed(monkeypatch, seconds, **options):
    """What a bar of 60 prints whose four steps of 10 take so long each."""
    file = io.StringIO()
    clock = iter(range(0, 1000, seconds))
    monkeypatch.setattr(progress.sys, "stderr", file)
    monkeypatch.setattr("tqdm.std.time", lambda: next(clock))
    with progress_bar(60, "training", **options) as bar:
        for _ in range(4):
            bar.update(10)
    return file.getvalue()


def test_a_line_every_few_seconds(monkeypatch):
    text = printed(monkeypatch, 6)
    assert 2 <= text.count("\n") <= 4
    assert "\r" not in text


def test_a_line_at_the_end(monkeypatch):
    *_, line = printed(monkeypatch, 6).splitlines()
    assert line.startswith("training: 40/60 images, ")
    assert line.endswith("s/ images")


def test_a_quick_bar_is_one_line(monkeypatch):
    assert printed(monkeypatch, 1).count("\n") == 1


def test_a_bar_that_is_not_shown(monkeypatch):
    assert printed(monkeypatch, 6, show=False) == ""


def test_what_was_done_before_is_no_part_of_the_rate(monkeypatch):
    text = printed(monkeypatch, 2, unit="B", initial=20, scale=True)
    assert text.splitlines()[-1] == "training: 60.0/60.0B, 2.00B/s"


def test_a_new_text_is_a_line_if_wanted(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(progress.sys, "stderr", file)
    with progress_bar(3, "sweep", " runs") as bar:
        bar.set_postfix_str("run0")
        bar.set_postfix_str("run1", refresh=False)
        bar.set_postfix_str("run2")
    first, second = file.getvalue().splitlines()
    assert first.endswith(", run0")
    assert second.endswith(", run2")


@pytest.mark.parametrize(
    ("number", "unit", "words"),
    [
        (0, "image", "0 images"),
        (1, "image", "1 image"),
        (1234, "image", "1,234 images"),
        (2, "class", "2 classes"),
        (2, "memory", "2 memories"),
    ],
)
def test_numbers_in_words(number, unit, words):
    assert counted(number, unit) == words
