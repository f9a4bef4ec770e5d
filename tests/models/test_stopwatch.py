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
