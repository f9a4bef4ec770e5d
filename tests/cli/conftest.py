"""Photos to teach by a command, and a learner that was."""

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crumb_avalanche.cli import main

NEW = [
    "--backbone",
    "small_cnn",
    "--image-size",
    "32",
    "--threads",
    "1",
    "--progress",
    "false",
]
COLOURS = {"red": (200, 30, 30), "green": (30, 200, 30), "blue": (30, 30, 200)}
YELLOW = (200, 200, 30)  # of no class


def save(random, colour, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    noisy = np.clip(np.array(colour) + random.normal(0, 20, (40, 40, 3)), 0, 255)
    Image.fromarray(noisy.astype(np.uint8)).save(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory, weights_file):
    """A folder with weights, a tree of three classes, photos, and an empty scene."""
    folder = tmp_path_factory.mktemp("teach")
    shutil.copy(weights_file, folder / "weights.safetensors")
    random = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        for clip in range(2):
            for frame in range(3):
                save(
                    random,
                    colour,
                    folder / "tree" / name / f"object{clip}" / f"{frame}.png",
                )
        save(random, colour, folder / "photos" / f"{name}.png")
        save(random, colour, folder / "test" / name / "1.png")
    for frame in range(6):
        save(random, YELLOW, folder / "empty" / f"{frame}.png")
    return folder


@pytest.fixture(scope="module")
def new(place):
    """The options of a new learner."""
    return ["--weights", place / "weights.safetensors", *NEW]


@pytest.fixture(scope="module")
def taught_once(place, new):
    """The file of a learner of three classes, not to be changed."""
    path = place / "taught" / "mine.safetensors"
    path.parent.mkdir()
    assert main(list(map(str, ["teach", path, place / "tree", *new]))) == 0
    return path


@pytest.fixture
def mine(taught_once, tmp_path):
    """A learner of three classes."""
    return Path(shutil.copy(taught_once, tmp_path))


@pytest.fixture
def usual_signals():
    """Handle signals as in a foreground process.

    Shells let background ones ignore SIGINT.
    """
    before = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
    }
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
