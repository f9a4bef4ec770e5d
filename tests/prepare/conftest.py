"""A quiet `prepare` with one worker for every test of this folder, and a local address
for each download.
"""

from dataclasses import replace

import pytest

from benchmarks_toybox_ilab.datasets.registry import BENCHMARKS
from benchmarks_toybox_ilab.prepare.core import prepare


@pytest.fixture
def said():
    """The lines that `run` reports."""
    return []


@pytest.fixture
def run(said):
    """Call `prepare`."""

    def call(name, root, source=None, **arguments):
        return prepare(
            name, root, source, **{"workers": 1, "say": said.append, **arguments}
        )

    return call


@pytest.fixture
def publish(monkeypatch):
    """A function that lets a data set be published at another address, with another
    checksum.
    """
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def change(name, url, md5):
        data = BENCHMARKS[name]
        monkeypatch.setitem(
            BENCHMARKS, name, replace(data, files=replace(data.files, url=url, md5=md5))
        )

    return change
