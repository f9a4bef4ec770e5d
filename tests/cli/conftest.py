"""A tiny clip folder, and the command line as a function."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from crumb_avalanche.cli import main

CLASSES = ("apple", "box", "cup", "dice")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def clips(tmp_path_factory) -> Path:
    """4 classes x 3 objects x 2 clips x 5 frames of 32 pixels; each class has its own pattern, each frame its noise."""
    root = tmp_path_factory.mktemp("clips")
    rows, columns = np.mgrid[:32, :32]
    patterns = [rows % 8 < 4, columns % 8 < 4, (rows + columns) % 12 < 6, (rows // 8 + columns // 8) % 2 == 0]
    noise = np.random.default_rng(0)
    for name, pattern in zip(CLASSES, patterns):
        for clip in range(6):
            folder = root / name / f"object{clip // 2}" / f"clip{clip % 2}"
            folder.mkdir(parents=True)
            for frame in range(5):
                pixels = 60 + 120 * pattern[..., None] + noise.integers(0, 60, (32, 32, 3))
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"frame{frame}.png")
    return root


@pytest.fixture
def crumb(capsys):
    """Call the command line: ``crumb("run", ...)`` gives (exit code, standard output, standard error)."""

    def call(*arguments) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:
            code = error.code
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def tiny(clips) -> list[str]:
    """Settings of a run that takes a second."""
    return [
        *("run", "--benchmark", "clip_folder", "--dataset-root", str(clips), "--weights", "none"),
        *("--backbone", "small_cnn", "--image-size", "32", "--batch-size", "8"),
        *("--first-epochs", "2", "--threads", "1", "--progress", "false"),
    ]
