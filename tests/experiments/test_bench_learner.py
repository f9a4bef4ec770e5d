"""The benchmark of a learner runs and prints its figures, whose values are not tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "bench_learner.py"


@pytest.mark.slow
def test_json_is_one_object_with_the_figures():
    done = subprocess.run([sys.executable, str(SCRIPT), "--json", "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert set(figures) == {
        *("predict_over_bare", "teach_over_bare", "cold_start_over_torch", "predict_bytes", "teach_bytes"),
        *("late_over_early_lessons", "answer_over_bare", "answers_per_second"),
    }
    assert all(value > 0 for value in figures.values())
    assert figures["predict_bytes"] < 1e9  # of this process alone, not of the one that started it
