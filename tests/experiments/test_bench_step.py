"""The benchmark of a stream step runs and prints its figures, whose values are not tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "bench_step.py"


@pytest.mark.slow
def test_json_is_one_object_with_the_figures():
    options = ["--json", "--no-compile", "--threads", "1", "--batches", "1", "--repeats", "1", "--precision", "fp32"]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert set(figures) == {
        *("search_speedup", "search_working_bytes", "step_over_bare", "step_speedup", "dropout_speedup"),
    }
    assert all(value > 0 for value in figures.values())
    assert figures["search_working_bytes"] < 16e6
