"""The benchmark of the streams runs and prints its figures; how large they are is no matter for a test."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "experiments" / "bench_streams.py"


def test_json_is_one_object_with_the_figures(tmp_path):
    for number in range(8):
        folder = tmp_path / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(folder / f"{number}.png")
    options = ["--json", "--train", "2000", "--images", str(tmp_path), "--count", "8", "--rounds", "1"]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert set(figures) == {
        *("build_seconds", "build_bytes", "avalanche_seconds", "avalanche_bytes", "read_ratio"),
    }
    assert all(value > 0 for value in figures.values())
