"""Small valid files: clips, weights, learners, finished runs."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from support.faults.case import command

from crumb_avalanche.models.networks import SmallCNN
from crumb_avalanche.system.tensor_file import write_tensors

CLASSES = ("cup", "dog", "key")
SIDE = 32
NETWORK = ("--backbone", "small_cnn", "--image-size", SIDE)
QUIET = ("--threads", 1, "--progress", "false")


def pixels(seed: int, side: int = SIDE) -> np.ndarray:
    """A coloured, noisy image; ``(side, side, 3)`` uint8."""
    random = np.random.default_rng(seed)
    colour = random.integers(40, 216, 3)
    return np.clip(colour + random.normal(0, 20, (side, side, 3)), 0, 255).astype(np.uint8)


def write_photo(path: Path, seed: int, side: int = SIDE) -> Path:
    """Write an image file of the format of its extension."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(seed, side)).save(path)
    return path


def write_clips(root: Path, ending: str = ".png", frames: int = 2) -> Path:
    """Write three classes of two objects with a clip each."""
    for number, name in enumerate(CLASSES):
        for which in range(2):
            for frame in range(frames):
                write_photo(root / name / f"object{which}" / "clip" / f"{frame}{ending}", 10 * number + frame, 16)
    return root


def write_weights(path: Path) -> Path:
    """Write random weights, always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        write_tensors(path, SmallCNN().state_dict(), {})
    return path


def run_arguments(root: Path, output: Path, strategy: str = "ncm") -> list[object]:
    """Arguments of a run on clips that takes some tenths of a second."""
    learn = ("--preset", "paper", "--strategy", strategy, "--first-epochs", 1, "--batch-size", 4)
    size = ("--budget-images", 9, "--classes-per-experience", 1)
    clips = ("--benchmark", "clip_folder", "--dataset-root", root)
    return ["run", *clips, *learn, *size, *NETWORK, "--weights", "none", *QUIET, "--output", output]


def finished_run(folder: Path, strategy: str = "ncm", *more: object) -> Path:
    """Do a run in ``folder/run`` on clips in ``folder/clips``."""
    if not (folder / "clips").exists():
        write_clips(folder / "clips")
    done = command(*run_arguments(folder / "clips", folder / "run", strategy), *more)
    assert done.code == 0, done
    return folder / "run"
