"""Runs on a Ray cluster of three nodes on this computer, one of which is removed in the
middle.
"""

import threading
import time
from pathlib import Path

import pytest
from refused_workers import check_refused_workers
from support.runs import differences
from support.sweep import grid

from crumb_avalanche.runs.cells import learn, sweep, unit_of
from crumb_avalanche.runs.engine_settings import EngineSettings
from crumb_avalanche.runs.engines import do_all
from crumb_avalanche.runs.local_engines import Processes
from crumb_avalanche.runs.settings import RunSettings

pytest.importorskip("ray")
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster():
    """A cluster of three nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(**head)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def engine(cluster):
    return EngineSettings("ray", address=cluster.address)


def when_removed(settings: RunSettings) -> None:
    """Do a run when a node has been removed."""
    deadline = time.monotonic() + 300
    removed = Path(settings.output).parents[1] / "removed"
    while not removed.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    learn(settings)


def test_runs_of_a_node_that_is_removed(base, tmp_path, cluster, engine, capsys):
    cells = grid(base, tmp_path / "ray", range(12), {"row": {}})

    def remove_a_node():
        deadline = time.monotonic() + 300
        # All three nodes work when three logs are there.
        while time.monotonic() < deadline:
            if len(list((tmp_path / "ray").rglob("log.txt"))) > 2:
                break
            time.sleep(0.02)
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        (tmp_path / "ray" / "removed").touch()

    remover = threading.Thread(target=remove_a_node)
    remover.start()
    assert not sweep(cells, engine, tmp_path / "ray", work=when_removed)
    remover.join()
    assert "its worker was lost" in capsys.readouterr().err
    here = grid(base, tmp_path / "here", range(12), {"row": {}})
    assert not do_all(list(map(unit_of, here)), Processes(2, "fork"))
    for cell, undisturbed in zip(cells, here, strict=True):
        assert not differences(Path(cell.output), Path(undisturbed.output))


def test_a_failed_run_stops_no_other(base, tmp_path, engine):
    rows = {"good": {}, "bad": {"dataset_root": str(tmp_path / "none")}}
    good, bad = grid(base, tmp_path, [0], rows)
    failed = sweep([good, bad], engine, tmp_path)
    assert list(failed) == [Path(bad.output)]
    assert (Path(good.output) / "result.json").exists()
    assert "Traceback" in (Path(bad.output) / "error.txt").read_text()


@pytest.mark.usefixtures("another_version")
def test_workers_of_another_version(base, tmp_path, engine):
    check_refused_workers(base, engine, tmp_path)
