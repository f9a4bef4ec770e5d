"""An experience costs as much after many others as after a few: calls of functions, bytes of checkpoints, solutions."""

import sys
from pathlib import Path

import many_experiences
import pytest

from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.training.checkpoint import HistoryFile

WATCHED = (36, 37, 38, 52, 53, 54)  # experiences; the memory of a class is full before, and the last one is tested
pytestmark = pytest.mark.filterwarnings("ignore:class .* returns in experience")


@pytest.fixture
def costs(monkeypatch):
    """Calls, bytes written and closed forms solved in each experience but the first, filled by a run."""
    found, now = [], {"calls": 0, "bytes": 0, "solved": 0}
    append, solve = HistoryFile.append, RegularizedDiscriminant._solve

    class Counted(many_experiences.TimedResume):
        def save(self, position):
            super().save(position)
            sys.setprofile(None)
            now["bytes"] += self.files.path(self.files.numbers()[0]).stat().st_size
            found.append(dict(now))
            now.update(dict.fromkeys(now, 0))
            if len(found) in WATCHED:
                sys.setprofile(lambda frame, event, argument: now.update(calls=now["calls"] + (event == "call")))

    def counted_append(history, record):
        before = history._end
        append(history, record)
        now["bytes"] += history._end - before

    def counted_solve(statistics, seen):
        now["solved"] += 1
        return solve(statistics, seen)

    monkeypatch.setattr(many_experiences, "TimedResume", Counted)
    monkeypatch.setattr(HistoryFile, "append", counted_append)
    monkeypatch.setattr(RegularizedDiscriminant, "_solve", counted_solve)
    yield found
    sys.setprofile(None)


@pytest.mark.parametrize(
    "strategy", ["rda", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ncm", "slda", "crumb"))]
)
def test_an_experience_costs_no_more_after_others(tmp_path, monkeypatch, costs, strategy):
    monkeypatch.setattr(many_experiences, "CLASSES", 2)
    many_experiences.seconds_of(strategy, many_experiences.stream_of(56), Path(tmp_path))
    early, late = ([costs[number] for number in some] for some in (WATCHED[:3], WATCHED[3:]))
    assert len(costs) == 56 and min(cost["calls"] for cost in early) > 1000
    for name, slack in (("calls", 1.01), ("bytes", 1.01), ("solved", 1)):
        assert max(cost[name] for cost in late) <= slack * max(cost[name] for cost in early), name
    assert all(cost["solved"] == 0 for cost in late)


def test_the_ratio_is_that_of_the_last_hundred_to_the_first():
    ratio, text = many_experiences.ratio_of([0.01] * 100 + [5.0] * 300 + [0.015] * 100)
    assert ratio == pytest.approx(1.5) and text == "10.0 ms, 15.0 ms at the end, ratio 1.50"
