"""The benchmark of replay by number of classes runs and prints its ratios, whose values are not tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "bench_replay.py"


@pytest.mark.slow
def test_json_is_one_object_with_the_ratios():
    options = ["--classes", "3", "--threads", "1", "--batches", "1", "--repeats", "1", "--json"]
    done = subprocess.run([sys.executable, str(SCRIPT), *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ratios = json.loads(done.stdout)
    assert ratios.keys() == {"3"} and ratios["3"].keys() == {"tuned", "paper"}
    assert all(ratio > 0 for ratio in ratios["3"].values())
