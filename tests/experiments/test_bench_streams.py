"""The benchmark of streams runs and prints its figures, whose values are not tested."""

import json

import numpy as np
import pytest
from called_script import called
from PIL import Image


@pytest.mark.slow
def test_json_is_one_object_with_the_figures(tmp_path):
    for number in range(8):
        folder = tmp_path / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(folder / f"{number}.png")
    options = ["--json", "--train", "2000", "--images", tmp_path, "--count", "8", "--rounds", "1"]
    done = called("bench_streams", *options)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert set(figures) == {
        *("build_seconds", "build_bytes", "avalanche_seconds", "avalanche_bytes", "read_ratio"),
    }
    assert all(value > 0 for value in figures.values())
