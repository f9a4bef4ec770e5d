"""Parts are disjoint and add up."""

import pytest

from crumb_avalanche.models import stopwatch as module
from crumb_avalanche.models.stopwatch import Stopwatch


def test_time_goes_to_the_outer_part_and_an_error_ends_it(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    watch = Stopwatch()
    with pytest.raises(KeyError), watch.measure("replay"):
        with watch.measure("plastic"):
            now[0] += 2
        raise KeyError
    now[0] += 8
    with watch.measure("plastic"):
        now[0] += 4
    assert dict(watch.seconds) == {"replay": 2.0, "plastic": 4.0}


def test_a_stopwatch_asks_its_own_gpu_and_waits_where_it_is_read(monkeypatch):
    streams, waited = [], []

    class Event:
        now = 0.0

        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            streams.append(stream)
            Event.now += 1000
            self.at = Event.now

        def query(self):
            return False

        def synchronize(self):
            waited.append(self)

        def elapsed_time(self, end):
            return end.at - self.at

    monkeypatch.setattr(module.torch.cuda, "Event", Event)
    monkeypatch.setattr(module.torch.cuda, "current_stream", str)
    watch = Stopwatch("cuda:1")
    for _ in range(3):
        with watch.measure("search"), watch.measure("plastic"):
            pass
    assert set(streams) == {"cuda:1"} and not waited
    assert watch.seconds == {"search": 3.0} and len(waited) == 3
