"""Parts are disjoint and add up."""

import pytest

from crumb_avalanche.models import stopwatch as module
from crumb_avalanche.models.stopwatch import Stopwatch


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


@pytest.mark.parametrize("in_use", [False, True])
def test_a_part_ends_when_the_gpu_has_done_it(clock, monkeypatch, in_use):
    def finish():
        clock[0] += waiting.pop() if waiting else 0

    monkeypatch.setattr(module.torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(module.torch.cuda, "synchronize", finish)
    watch, waiting = Stopwatch(), [32]  # seconds of work ordered before
    with watch.measure("replay"):
        clock[0] += 1
        waiting.append(4)
        with watch.measure("plastic"):  # counted with the outer part, so nothing waits for it
            assert waiting == ([4] if in_use else [32, 4])
    assert dict(watch.seconds) == {"replay": 5.0 if in_use else 1.0}
