"""A sweep whose processes are killed ends with the results of an undisturbed sweep."""

import os
import sys
import time
from pathlib import Path

import killed_sweep
import pytest
from killed_sweep import DRIVER, WORKER, kill_often, short_cells
from support.engines import InProcess
from support.runs import differences
from support.sweep import sweep

CELLS = 40


@pytest.mark.slow  # each restarted driver imports the library; the quick tests of kills are in test_sweep.py
def test_twenty_kills_of_drivers_and_workers_change_no_result(clips, tmp_path, monkeypatch):
    calm, cells = (short_cells(clips, tmp_path / name, CELLS) for name in ("calm", "disturbed"))
    start = time.perf_counter()
    assert sweep(calm, InProcess()) == {}
    longest = (time.perf_counter() - start) / CELLS
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    command = [sys.executable, killed_sweep.__file__, str(clips), str(tmp_path / "disturbed"), str(CELLS), "2"]
    victims = list(kill_often(cells, command, kills=20, seed=0, longest=longest))
    assert sorted(victims) == [DRIVER] * 10 + [WORKER] * 10
    for cell, other in zip(calm, cells, strict=True):
        assert differences(Path(cell.output), Path(other.output)) == [], other.output
        left = {path.name for path in Path(other.output).iterdir()} & {"error.txt", "lock", "resume", "interrupted"}
        assert not left, other.output
