"""A process: its threads, its random numbers, and the progress and numbers of things that it prints."""

import contextlib
import io
import os
import random

import numpy as np
import pytest
import torch

from benchmarks_toybox_ilab.tables import progress
from benchmarks_toybox_ilab.tables.progress import progress_bar
from crumb_avalanche.system.process import (
    get_rng_state,
    limit_openmp_spin,
    set_rng_state,
)
from crumb_avalanche.system.tensor_file import read_state, write_state
from crumb_avalanche.system.words import counted


@pytest.mark.parametrize(
    ("given", "after"),
    [
        ({}, {"GOMP_SPINCOUNT": "2000"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, {"OMP_WAIT_POLICY": "ACTIVE"}),
    ],
)
def test_threads_sleep_soon_unless_the_user_says_otherwise(given, after, monkeypatch):
    monkeypatch.setattr(os, "environ", dict(given))
    limit_openmp_spin()
    assert os.environ == after


def test_the_state_survives_a_file(tmp_path):
    write_state(tmp_path / "rng.safetensors", get_rng_state(), {})
    expected = torch.rand(3), np.random.rand(3), random.random()
    set_rng_state(read_state(tmp_path / "rng.safetensors")[0])
    assert torch.equal(torch.rand(3), expected[0]) and np.array_equal(
        np.random.rand(3), expected[1]
    )
    assert random.random() == expected[2]


@pytest.mark.parametrize("here", [1, 2])
def test_rng_states_of_as_many_gpus_as_there_are(monkeypatch, here):
    now, taken = get_rng_state(), []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: here)
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: taken.append((state, device))
    )
    states = {**now, "cuda": ["of 0", "of 1"]}
    words = rf"of 2 GPUs, but {here} are here.*use 2 GPUs"
    with (
        pytest.warns(UserWarning, match=words) if here < 2 else contextlib.nullcontext()
    ):
        set_rng_state(states)
    assert taken == [("of 0", 0), ("of 1", 1)][:here]


def test_gpus_that_are_not_in_use_are_not_asked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(
        torch.cuda, "device_count", lambda: pytest.fail("this initialises them")
    )
    state = get_rng_state()
    assert state["cuda"] == []
    set_rng_state(state)


def printed(monkeypatch, seconds, **options):
    file, clock = io.StringIO(), iter(range(0, 1000, seconds))
    monkeypatch.setattr(progress.sys, "stderr", file)
    monkeypatch.setattr("tqdm.std.time", lambda: next(clock))
    with progress_bar(60, "training", **options) as bar:
        for _ in range(4):
            bar.update(10)
    return file.getvalue()


def test_a_line_every_few_seconds_and_one_at_the_end(monkeypatch):
    lines = printed(monkeypatch, 6).splitlines()
    assert lines[-1].startswith("training: 40/60 images, ") and lines[-1].endswith(
        "s/ images"
    )
    assert 2 <= len(lines) <= 4 and "\r" not in "".join(lines)
    assert len(printed(monkeypatch, 1).splitlines()) == 1 and not printed(
        monkeypatch, 6, show=False
    )
    quick = printed(
        monkeypatch, 2, unit="B", initial=20, scale=True
    )  # what was done before is no part of the rate
    assert quick.splitlines()[-1] == "training: 60.0/60.0B, 2.00B/s"


def test_a_new_text_is_a_line_if_wanted(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(progress.sys, "stderr", file)
    with progress_bar(3, "sweep", " runs") as bar:
        for text in ("run0", "run1", "run2"):
            bar.set_postfix_str(text, refresh=text != "run1")
    assert [line.rpartition(", ")[2] for line in file.getvalue().splitlines()] == [
        "run0",
        "run2",
    ]


def test_numbers_are_written_in_words_and_units():
    cases = [(0, "image"), (1, "image"), (1234, "image"), (2, "class"), (2, "memory")]
    assert [counted(*case) for case in cases] == [
        "0 images",
        "1 image",
        "1,234 images",
        "2 classes",
        "2 memories",
    ]
