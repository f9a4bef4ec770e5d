"""Parts are disjoint and add up."""

import pytest

from crumb_avalanche import stopwatch as module
from crumb_avalanche.stopwatch import Stopwatch


@pytest.fixture
def clock(monkeypatch):
    """A clock that tests set by hand."""
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_time_goes_to_the_outer_part(clock):
    watch = Stopwatch()
    with watch.measure("replay"):
        clock[0] += 1
        with watch.measure("plastic"):
            clock[0] += 2
    with watch.measure("plastic"):
        clock[0] += 4
    clock[0] += 8
    with watch.measure("replay"):
        clock[0] += 16
    assert dict(watch.seconds) == {"replay": 19.0, "plastic": 4.0}


def test_an_error_ends_the_part(clock):
    watch = Stopwatch()
    with pytest.raises(KeyError), watch.measure("search"):
        clock[0] += 1
        raise KeyError
    with watch.measure("plastic"):
        clock[0] += 2
    assert dict(watch.seconds) == {"search": 1.0, "plastic": 2.0}
