"""Settings of an engine, from a command line and a file of resources."""

import os

import pytest

from crumb_avalanche.runs.engine_settings import EngineSettings, engine_settings

RESOURCES = """
partition: gpu
gpus: 1
cpus: 4
memory: 16GB
time: '1-12:30:00'
options:
  account: vision
"""


def test_a_file_of_resources(tmp_path):
    path = tmp_path / "gpu.yaml"
    path.write_text(RESOURCES)
    settings = engine_settings("slurm", resources=path)
    assert settings.partition == "gpu" and settings.options == {"account": "vision"}
    assert settings.minutes == 36 * 60 + 30
    assert settings.memory_bytes == 16 * 2**30


@pytest.mark.parametrize(
    ("time", "minutes"),
    [(5, 5), ("00:05:00", 5), ("2-00:00:00", 2880), ("12:00:59", 720), (None, None)],
)
def test_minutes(time, minutes):
    assert EngineSettings("slurm", time=time).minutes == minutes


@pytest.mark.parametrize(
    ("settings", "threads"),
    [
        (EngineSettings(processes=0), 8),
        (EngineSettings(processes=1), 8),
        (EngineSettings(processes=3), 2),
        (EngineSettings(processes=9), 1),
        (EngineSettings("slurm"), 1),
        (EngineSettings("ray", cpus=4), 4),
    ],
)
def test_threads_of_a_run(settings, threads, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert settings.threads == threads


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu", "holds no lines of the form name: value"),
        ("queue: gpu", "sets queue; known are cpus, gpus, memory, time, partition"),
        ("engine: ray", "sets engine; known are"),
        ("time: 12:00", "reads as 720; write a decimal number, or a text in quotes"),
        ("time: soon", "time is 'soon'; give minutes, at least 1"),
        ("time: 0", "time is 0; give minutes, at least 1"),
        ("gpus: -1", "gpus is -1; give 0 or more"),
        ("memory: much", "memory is 'much'; give a text such as 8GB"),
        ("options: account", "options is 'account'; give lines such as account: NAME"),
    ],
)
def test_wrong_resources(text, words, tmp_path):
    path = tmp_path / "resources.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        engine_settings("slurm", resources=path)
    assert words in str(error.value)


def test_resources_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match="is no file of resources"):
        engine_settings("ray", resources=tmp_path / "none.yaml")


def test_resources_of_processes(tmp_path):
    with pytest.raises(ValueError, match="is for --engine slurm or ray; leave it out"):
        engine_settings("processes", resources=tmp_path / "any.yaml")


def test_a_negative_number_of_processes():
    with pytest.raises(ValueError, match="processes is -1; give 0 or more"):
        engine_settings("processes", -1)
