"""Photos to teach by a command."""

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def photos(tmp_path):
    """A folder of two classes, three noisy photos each."""
    for name, level in (("dark", 60), ("light", 180)):
        for number in range(3):
            path = tmp_path / "photos" / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng(number).integers(-60, 60, (40, 40, 3))
            Image.fromarray((level + noise).astype(np.uint8)).save(path)
    return tmp_path / "photos"


@pytest.fixture
def new():
    """The options of a new learner with random weights."""
    return ("--weights", "none", "--backbone", "small_cnn", "--image-size", "32", "--progress", "false")
