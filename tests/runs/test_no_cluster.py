"""Clusters that are not there, or not as asked for: a line before anything runs."""

import os
import stat

import pytest
from support.sweep import grid

from crumb_avalanche.runs import slurm_engine
from crumb_avalanche.runs.cells import sweep
from crumb_avalanche.runs.engine_settings import EngineSettings
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.slurm_engine import usable_minutes
from crumb_avalanche.runs.worker_check import EngineError

LIMITS = "main* 7-00:00:00\nshort 1:00:00\nendless infinite\n"


@pytest.fixture
def played(tmp_path, monkeypatch):
    """A function that puts a program on the path that prints a text."""

    def play(name, text="", code=0):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\nprintf '{text}'\nexit {code}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        path_of_programs = os.pathsep.join([str(path.parent), os.environ["PATH"]])
        monkeypatch.setenv("PATH", path_of_programs)

    return play


@pytest.fixture
def slurm(played):
    """A SLURM that says which partitions it has."""
    played("sbatch")
    played("srun")
    played("sinfo", LIMITS)


def test_there_is_no_slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    pytest.importorskip("submitit")
    cells = grid(RunSettings(), tmp_path, [0], {"row": {}})
    with pytest.raises(EngineError, match="there is no SLURM here: sbatch and srun"):
        sweep(cells, EngineSettings("slurm"), tmp_path)
    assert not (tmp_path / "row").exists()


def test_slurm_does_not_answer(slurm, played):
    played("sinfo", code=1)
    with pytest.raises(EngineError, match="SLURM does not answer: no reason is given"):
        usable_minutes(EngineSettings("slurm"))


def test_there_is_no_such_partition(slurm):
    words = "no partition gpu; its partitions are main, short, endless"
    with pytest.raises(EngineError, match=words):
        usable_minutes(EngineSettings("slurm", partition="gpu"))


def test_a_partition_ends_jobs_earlier(slurm):
    words = "the partition ends jobs after 1:00:00; give less"
    with pytest.raises(EngineError, match=words):
        usable_minutes(EngineSettings("slurm", partition="short", time="2:00:00"))


@pytest.mark.parametrize(
    ("partition", "time", "minutes"),
    [
        (None, None, 1440),
        ("main", None, 1440),
        ("short", None, 60),
        ("endless", None, 1440),
        ("short", 5, 5),
        ("endless", "30-00:00:00", 43200),
    ],
)
def test_time_of_a_partition(slurm, partition, time, minutes):
    settings = EngineSettings("slurm", partition=partition, time=time)
    assert usable_minutes(settings) == minutes


@pytest.mark.parametrize(
    ("engine", "module", "extra"),
    [("slurm", "submitit", "cluster"), ("ray", "ray", "ray")],
)
def test_an_extra_is_missing(tmp_path, monkeypatch, engine, module, extra):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'crumb-avalanche\[{extra}\]'"):
        sweep([], EngineSettings(engine), tmp_path)


def test_there_is_no_ray(tmp_path):
    pytest.importorskip("ray")
    settings = EngineSettings("ray", address="127.0.0.1:1")
    with pytest.raises(EngineError, match=r"no Ray cluster at 127\.0\.0\.1:1 \("):
        sweep([], settings, tmp_path)


def test_a_ray_of_another_user(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    note = tmp_path / "ray_current_cluster"
    note.write_text("127.0.0.1:6379")
    os.chown(note, 12345, 12345)
    monkeypatch.setattr("crumb_avalanche.runs.ray_engine.CURRENT", note)
    with pytest.raises(EngineError, match="another user started the Ray cluster"):
        sweep([], EngineSettings("ray"), tmp_path)


def test_damaged_notes_of_jobs(tmp_path, slurm):
    pytest.importorskip("submitit")
    engine = slurm_engine.SlurmEngine(EngineSettings("slurm"), tmp_path)
    (tmp_path / "slurm" / "jobs.json").write_text("[1, 2")
    assert engine._recorded_ids() == {}


def test_no_second_job_without_an_answer(tmp_path, slurm, monkeypatch):
    pytest.importorskip("submitit")
    engine = slurm_engine.SlurmEngine(EngineSettings("slurm"), tmp_path)
    (tmp_path / "slurm" / "jobs.json").write_text(f'{{"{tmp_path / "run0"}": "7"}}')
    submitted = []
    monkeypatch.setattr(engine, "_states", lambda: None)
    monkeypatch.setattr(engine, "_submit", submitted.append)
    with pytest.raises(EngineError, match="jobs of an earlier call may still run"):
        engine.start([])
    assert submitted == []
