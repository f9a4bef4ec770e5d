"""Make the learner files that every later version has to read, with the answers of the version that makes them.

    python tests/data/make_learner_fixture.py

Run it once for each new format of the learner file; files that are there are left as they are, because a file that is
made anew tests nothing.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from crumb_avalanche.cli import main
from crumb_avalanche.learner.file import LEARNER
from crumb_avalanche.learner.learner import Learner
from crumb_avalanche.models import backbones
from crumb_avalanche.system.tensor_file import read_metadata

FOLDER = Path(__file__).parent / "learner"
ANSWERS = "answers.json"
SIZE = 32
COLOURS = np.random.default_rng(7).integers(0, 256, (6, 2, 2, 3))


class SlimCNN(nn.Module):
    """The layers of ``SmallCNN`` with few channels, so that files are small."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for inputs, outputs in ((3, 8), (8, 12), (12, 16)):
            blocks += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
            blocks += [nn.MaxPool2d(2)]
        self.features = nn.Sequential(*blocks, nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(16, 10)


@contextmanager
def slim() -> Iterator[None]:
    """Build ``small_cnn`` with few channels."""
    usual, backbones.SmallCNN = backbones.SmallCNN, SlimCNN
    try:
        yield
    finally:
        backbones.SmallCNN = usual


def photos(number: int, count: int, seed: int) -> np.ndarray:
    """Noisy images of four patches whose colours belong to a class; ``(count, 32, 32, 3)`` uint8."""
    random = np.random.default_rng(1000 * seed + number)
    patches = np.kron(COLOURS[number], np.ones((SIZE // 2, SIZE // 2, 1)))
    return np.clip(patches + random.normal(0, 25, (count, SIZE, SIZE, 3)), 0, 255).astype(np.uint8)


def answers(learner: Learner) -> list[dict]:
    """The answers for images of four classes that were taught, and of two that were not."""
    return [learner.predict(photos(number, 1, seed=9)).as_dict() for number in range(6)]


def save_taught(path: Path, method: str) -> None:
    """Save a learner of four classes in ten lessons, with a class renamed, one forgotten, and a lesson to take back."""
    learner = Learner(method, "small_cnn", None, SIZE)
    for lesson in range(10):
        learner.teach(photos(lesson % 5, 3, seed=lesson), f"class {lesson % 5}")
    learner.rename("class 0", "Straße <0>")
    learner.forget("class 4")
    learner.teach(photos(1, 2, seed=20), "class 1")
    learner.save(path)


def save_run(path: Path) -> None:
    """Save the learner file of a finished run."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(4):
            for clip in range(6):
                frames = Path(folder) / "clips" / f"class{number}" / f"object{clip // 2}" / f"clip{clip % 2}"
                frames.mkdir(parents=True)
                for place, pixels in enumerate(photos(number, 3, seed=clip)):
                    Image.fromarray(pixels).save(frames / f"{place}.png")
        command = ["run", "--benchmark", "clip_folder", "--dataset-root", f"{folder}/clips", "--weights", "none"]
        command += ["--preset", "paper", "--backbone", "small_cnn", "--image-size", str(SIZE), "--strategy", "rda"]
        command += ["--budget-images", "8", "--threads", "1", "--progress", "false", "--keep-learner", "answers"]
        if main([*command, "--output", f"{folder}/run"]):
            raise RuntimeError("the run failed")
        path.write_bytes((Path(folder) / "run" / LEARNER).read_bytes())


def make(folder: Path) -> list[Path]:
    """Make the files that are missing, and their answers; return them."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    with slim(), tempfile.TemporaryDirectory() as place:
        for name in ("rda", "slda", "run"):
            torch.manual_seed(0)
            path = Path(place) / "a.safetensors"
            save_run(path) if name == "run" else save_taught(path, name)
            target = folder / f"{read_metadata(path)['format']}-{name}.safetensors"
            if not target.exists():
                target.write_bytes(path.read_bytes())
                made[target.name] = answers(Learner.load(target))
    known = json.loads((folder / ANSWERS).read_text()) if (folder / ANSWERS).exists() else {}
    (folder / ANSWERS).write_text(json.dumps(known | made, indent=1, ensure_ascii=False) + "\n")
    return [folder / name for name in made]


if __name__ == "__main__":
    for file in make(FOLDER):
        print(f"{file}: {file.stat().st_size:,} bytes")
    sys.exit()
