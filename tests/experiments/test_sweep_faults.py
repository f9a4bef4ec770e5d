"""Sweeps of real runs under SIGKILL, and on a Ray cluster that loses a node, end with the results of one left alone."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Each driver that is begun again imports the library; the quick tests of kills are in test_sweep.py.
pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "experiments" / "sweep_faults.py"


def faults(output: Path, *more: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, str(SCRIPT), "--quick", "--output", str(output), *more]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)


def victims(output: Path) -> list[str]:
    with open(output / "sweep_faults.csv") as file:
        return [row["killed"] for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    output = tmp_path_factory.mktemp("faults") / "killed"
    return output, faults(output)


def test_killed_three_times_it_ends_with_the_same_results(killed):
    output, done = killed
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 killed; 5 of 5 runs equal those left alone" in done.stdout
    assert sorted(victims(output)) == ["driver", "worker", "worker"]
    assert done.stderr.count("killed: driver") == 1 and done.stderr.count("killed: worker") == 2
    for name in ("sweep_faults.md", "sweep_faults.png", "sweep_faults.svg"):
        assert (output / name).stat().st_size > 50
    assert len(list(output.glob("disturbed/*/run0/result.json"))) == 5
    assert not list(output.glob("disturbed/*/run0/error.txt")) and not list(output.glob("*/*/run0/lock"))


def test_a_difference_is_found(killed, monkeypatch):
    output, _ = killed
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from support.same_results import differences
    from sweep_faults import compare, short_cells

    cells = [short_cells(output / name, 5) for name in ("undisturbed", "disturbed")]
    assert compare(*cells) == []
    one, other = (some[0].folder for some in cells)
    result = json.loads((other / "result.json").read_text())
    (other / "result.json").write_text(json.dumps({**result, "seconds": 1e6}))
    assert differences(one, other) == []
    (other / "result.json").write_text(json.dumps({**result, "mem_size": 41}))
    assert differences(one, other) == ["result.json: mem_size is 40 and 41"]
    assert compare(*cells) == [f"{other}: result.json: mem_size is 40 and 41"]
    (other / "result.json").unlink()
    assert compare(*cells) == [f"{other}: unfinished: {other}"]


def test_a_sweep_that_is_there_is_not_disturbed(killed):
    output, _ = killed
    done = faults(output)
    assert done.returncode == 2 and "holds a sweep already: it cannot be disturbed; choose another" in done.stderr


def test_ray_loses_a_node_and_ends_with_the_same_results(tmp_path):
    pytest.importorskip("ray")
    done = faults(tmp_path / "ray", "--engine", "ray", "--cells-per-process", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 killed; 5 of 5 runs equal those left alone" in done.stdout
    assert victims(tmp_path / "ray") == ["node"]
