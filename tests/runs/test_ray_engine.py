"""What the Ray engine asks of Ray, which is played here; a real one is in test_ray."""

import socket
import sys
from types import ModuleType, SimpleNamespace

import pytest
from support.sweep import grid

from crumb_avalanche.runs.cells import sweep
from crumb_avalanche.runs.engine_settings import EngineSettings
from crumb_avalanche.runs.settings import RunSettings


class PlayedRay(ModuleType):
    """A Ray without nodes, in which an interrupt comes while tasks run.

    Attributes:
        tasks: what was sent, by number.
        cancelled: numbers of the tasks that were cancelled, and whether by force.
        is_open: whether the process is in the cluster.
    """

    def __init__(self):
        super().__init__("ray")
        self.tasks = {}
        self.cancelled = []
        self.is_open = False

    def init(self, **_):
        self.is_open = True

    def shutdown(self):
        self.is_open = False

    def nodes(self):
        return []

    def remote(self, function):
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self.send))

    def send(self, _, unit):
        number = len(self.tasks)
        self.tasks[number] = unit
        return number

    def wait(self, tasks, num_returns, timeout):
        if tasks:
            raise KeyboardInterrupt
        return [], []

    def cancel(self, task, force):
        self.cancelled.append((task, force))


@pytest.fixture
def ray(monkeypatch):
    ray = PlayedRay()
    strategies = ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = None
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.util", ModuleType("ray.util"))
    monkeypatch.setitem(sys.modules, strategies.__name__, strategies)
    return ray


@pytest.fixture
def engine():
    """The engine of a cluster whose head answers."""
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        yield EngineSettings("ray", address=f"127.0.0.1:{port}")


def test_an_interrupt_cancels_all_tasks(tmp_path, ray, engine, capsys):
    cells = grid(RunSettings(), tmp_path, [0, 1], {"row": {}})
    with pytest.raises(KeyboardInterrupt):
        sweep(cells, engine, tmp_path)
    assert len(ray.tasks) == 2
    assert ray.cancelled == [(0, True), (1, True)]
    assert not ray.is_open
    assert "2 are left, and the same command goes on" in capsys.readouterr().err
