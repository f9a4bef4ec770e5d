"""The recorded runs of the paper's tables: settings, splits and provenance."""

from collections import defaultdict
from pathlib import Path

import pytest
from support.recorded_runs import COLUMNS, read_recorded

RESULTS = Path(__file__).parents[2] / "experiments" / "results"


def has_all_columns(path):
    """Whether a file of runs has what is needed to repeat them."""
    with open(path, encoding="utf-8") as file:
        return file.readline().strip() == ",".join(COLUMNS)


# Tables that were recorded before runs had these columns are recorded again.
PATHS = [path for path in sorted(RESULTS.rglob("*_runs.csv")) if has_all_columns(path)]


@pytest.fixture(
    params=PATHS, ids=lambda path: str(path.relative_to(RESULTS)), scope="module"
)
def runs(request):
    return read_recorded(request.param)


def test_runs_have_the_replay_weight_of_the_preset(runs):
    unusual = [run for run in runs if "replay_weight=5.0" not in run.settings.split()]
    assert unusual == []


def test_runs_say_where_they_come_from(runs):
    assert all(run.commit and run.cpu and run.split for run in runs)
    assert not any(run.commit.endswith("-dirty") for run in runs)


def test_each_run_of_eth80_has_a_split_of_its_own(runs):
    splits = defaultdict(set)
    numbers = defaultdict(set)
    for run in runs:
        if run.benchmark == "eth80":
            splits[run.split].add(run.number)
            numbers[run.number].add(run.split)
    assert all(len(same) == 1 for same in splits.values())
    assert all(len(same) == 1 for same in numbers.values())


def test_runs_of_a_number_are_tested_on_the_same_images(runs):
    images = defaultdict(set)
    for run in runs:
        images[run.benchmark, run.number].add(run.test_images)
    assert all(len(same) == 1 for same in images.values())
