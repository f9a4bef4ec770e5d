"""Peak memory of ``crumb predict`` and ``crumb teach`` above that of a process that imports torch (509 MB)."""

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")]
# Not resource.getrusage, whose peak includes that of the process that starts this one.
PEAK = "\nprint(next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM')))"
CRUMB = "import sys; from crumb_avalanche.cli import main; assert main(sys.argv[1:]) == 0"


def peak(code, *arguments):
    """Peak of the resident memory of a process that runs ``code``, in MB."""
    command, environment = (
        [sys.executable, "-c", code + PEAK, *map(str, arguments)],
        {**os.environ, "OMP_NUM_THREADS": "1"},
    )
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return int(done.stdout.split()[-1]) * 1024 / 1e6


def test_predict_and_teach_have_bounds_that_hold_for_any_number_of_photos(tmp_path):
    photo, model, above = tmp_path / "photo.jpg", tmp_path / "model.safetensors", {}
    small = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
    Image.fromarray(small).resize((4000, 3000)).save(photo)  # 12 megapixels
    torch_alone = peak("import torch")
    for count in (50, 500):
        for number in range(count):
            folder = tmp_path / str(count) / f"class {number % 5}"  # at least a batch of 8 each
            folder.mkdir(parents=True, exist_ok=True)
            os.link(photo, folder / f"{number}.jpg")
        model.unlink(missing_ok=True)
        arguments = ("teach", model, tmp_path / str(count), "--weights", "none", "--progress", "false")
        above[count] = peak(CRUMB, *arguments) - torch_alone
    assert max(above.values()) < 400, above
    assert above[500] - above[50] < 36, above  # pixels of one photo
    answers = {count: peak(CRUMB, "predict", model, *[photo] * count) - torch_alone for count in (1, 50)}
    assert max(answers.values()) < 200, answers
