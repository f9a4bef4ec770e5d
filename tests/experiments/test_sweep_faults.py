"""A sweep whose processes are killed, or whose Ray node is lost, ends with the results of an undisturbed sweep."""

import os
import sys
import time
from pathlib import Path

import killed_sweep
import pytest
from killed_sweep import DRIVER, WORKER, kill_often, lose_a_node, short_cells
from support.engines import InProcess
from support.runs import differences
from support.sweep import sweep

# Each restarted driver imports the library; the quick tests of kills are in test_sweep.py.
pytestmark = pytest.mark.slow
CELLS = 40


@pytest.fixture(scope="module")
def undisturbed(clips, tmp_path_factory):
    """Finished cells, and the mean seconds of one."""
    cells = short_cells(clips, tmp_path_factory.mktemp("undisturbed"), CELLS)
    start = time.perf_counter()
    assert sweep(cells, InProcess()) == {}
    return cells, (time.perf_counter() - start) / CELLS


def assert_equal_results(undisturbed, disturbed):
    for cell, other in zip(undisturbed, disturbed, strict=True):
        assert differences(Path(cell.output), Path(other.output)) == [], other.output
        left = {path.name for path in Path(other.output).iterdir()} & {"error.txt", "lock", "resume", "interrupted"}
        assert not left, other.output


def test_twenty_kills_of_drivers_and_workers_change_no_result(undisturbed, clips, tmp_path, monkeypatch):
    cells = short_cells(clips, tmp_path, CELLS)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    command = [sys.executable, killed_sweep.__file__, str(clips), str(tmp_path), str(CELLS), "2"]
    victims = list(kill_often(cells, command, kills=20, seed=0, longest=undisturbed[1]))
    assert sorted(victims) == [DRIVER] * 10 + [WORKER] * 10
    assert_equal_results(undisturbed[0], cells)


# With a new worker for each cell, each cell imports the library.
@pytest.mark.parametrize(("count", "cells_per_process"), [(10, 1), (CELLS, 0)])
def test_the_loss_of_a_ray_node_changes_no_result(undisturbed, clips, tmp_path, count, cells_per_process):
    pytest.importorskip("ray")
    cells = short_cells(clips, tmp_path, count)
    finished, failed = lose_a_node(cells, cpus=2, cells_per_process=cells_per_process)
    assert failed == {}
    assert finished is not None and count // 3 <= finished < count
    assert_equal_results(undisturbed[0][:count], cells)
