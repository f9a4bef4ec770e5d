"""The benchmark of the runtimes runs and prints its figures, whose values are not tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "bench_runtimes.py"


@pytest.mark.slow
def test_json_is_one_object_with_the_figures():
    options = ["--json", "--threads", "1", "--repeats", "1", "--networks", "mobilenet_v2", "--batches", "1", "9"]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (figures,) = json.loads(done.stdout).values()
    assert set(figures) == {"1", "9", "auto_over_eager"}
    for batch, ratio in figures.pop("auto_over_eager").items():
        speeds = figures[batch]
        assert {"eager", "auto", "torch"} <= set(speeds) and min(speeds.values()) > 0
        assert ratio == pytest.approx(speeds["auto"] / speeds["eager"])
