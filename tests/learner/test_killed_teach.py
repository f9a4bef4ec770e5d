"""``crumb teach`` killed at random moments: the file holds the learner before or after the lesson, and is usable."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

from crumb_avalanche.cli import main
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.system.tensor_file import flatten

KILLS = 50
OPTIONS = ["--threads", "1", "--progress", "false"]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="there is no SIGKILL")


@pytest.fixture(scope="module")
def place(tmp_path_factory, weights_file):
    """A folder with the learner before the lesson, the photos of the lesson, and the learner after it."""
    folder = tmp_path_factory.mktemp("killed")
    draws = np.random.default_rng(0)
    for name in ("old", "new"):
        for number in range(6):
            (folder / name).mkdir(exist_ok=True)
            pixels = draws.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    new = ["--weights", str(weights_file), "--backbone", "small_cnn", "--image-size", "32", *OPTIONS]
    learner = str(folder / "before.safetensors")
    assert main(["teach", learner, str(folder / "old"), "--label", "old", *new]) == 0
    return folder


def teach(place, path):
    """Start the lesson in a process of its own."""
    command = [sys.executable, "-m", "crumb_avalanche.cli", "teach", str(path), str(place / "new"), "--label", "new"]
    return subprocess.Popen([*command, *OPTIONS], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def being_saved(folder, process):
    """Wait for the temporary file of the save; false if it came and went unseen."""
    while not any(name.endswith(".part") for name in os.listdir(folder)):
        if process.poll() is not None:
            assert process.returncode == 0, process.stderr.read()
            return False
    return True


def contents(path):
    """Classes, and tensors by name, of a learner file."""
    learner = Learner.load(path)
    state = learner.state_dict()
    return {info.name: info.images for info in learner.classes}, flatten(state["statistics"])[1], len(learner.lessons)


def equal(one, other):
    (names, tensors, lessons), (other_names, others, other_lessons) = one, other
    same = tensors.keys() == others.keys() and all(torch.equal(value, others[name]) for name, value in tensors.items())
    return same and names == other_names and lessons == other_lessons


def kill(place, folder, draws, saving, durations):
    """Kill a lesson at a random moment; return which learner the file holds, after a check that it can be taught."""
    path, name = folder / "mine.safetensors", "save" if saving else "all"
    while True:
        shutil.copy(place / "before.safetensors", path)
        start = time.perf_counter()
        process = teach(place, path)
        if not saving or being_saved(folder, process):
            time.sleep(draws.uniform(0, durations[name]))
            process.kill()
        process.communicate()
        if process.returncode == -signal.SIGKILL:
            break
        if not saving:  # it was faster than expected
            durations[name] = min(durations[name], 0.8 * (time.perf_counter() - start))
    unfinished = sorted(name for name in os.listdir(folder) if name.endswith(".part"))
    found = contents(path)
    before, after = contents(place / "before.safetensors"), contents(place / "after.safetensors")
    state = "before" if equal(found, before) else "after"
    assert state == "before" or equal(found, after)
    assert not (unfinished and state == "after")
    assert main(["teach", str(path), str(place / "new"), "--label", "next", *OPTIONS]) == 0
    assert {info.name for info in Learner.load(path).classes} == {*found[0], "next"}
    shutil.rmtree(folder)
    return f"{state}, half of a file beside it" if unfinished else state


@pytest.fixture
def durations(place):
    """Seconds of the whole lesson and of its save; makes the learner after the lesson."""
    shutil.copy(place / "before.safetensors", place / "after.safetensors")
    start = time.perf_counter()
    process = teach(place, place / "after.safetensors")
    assert being_saved(place, process)
    saving = time.perf_counter()
    while any(name.endswith(".part") for name in os.listdir(place)):
        pass
    durations = {"save": time.perf_counter() - saving}
    assert process.wait(60) == 0
    process.stderr.close()
    durations["all"] = time.perf_counter() - start
    assert set(contents(place / "after.safetensors")[0]) == {"old", "new"}
    return durations


@pytest.mark.slow
def test_a_lesson_killed_at_50_moments(place, durations, tmp_path):
    draws, found = random.Random(0), {}
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        outcome = kill(place, folder, draws, number % 2 == 0, durations)
        found[outcome] = found.get(outcome, 0) + 1
    print(f"killed {KILLS} times, whole {sum(found.values())} times: {found}; seconds: {durations}")
    assert sum(found.values()) == KILLS and any("half" in outcome for outcome in found), found
