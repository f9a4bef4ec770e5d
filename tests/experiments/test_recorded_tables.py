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
OF_ETH80 = {
    "fig4_runs.csv",
    "figS2_runs.csv",
    "figS3_runs.csv",
    "table1_runs.csv",
    "table1_class_iid_runs.csv",
    "table3_runs.csv",
    "table3_tiny_imagenet_runs.csv",
    "table4_runs.csv",
    "table4_class_iid_runs.csv",
    "table4_tiny_imagenet_runs.csv",
    "table4_tiny_imagenet_class_iid_runs.csv",
}


def test_recorded_tables_have_all_columns():
    assert {path.name for path in PATHS} >= OF_ETH80


@pytest.fixture(
    params=PATHS, ids=lambda path: str(path.relative_to(RESULTS)), scope="module"
)
def runs(request):
    return read_recorded(request.param)


def test_runs_have_the_replay_weight_of_the_preset(runs):
    unusual = {
        run.row for run in runs if "replay_weight=5.0" not in run.settings.split()
    }
    assert unusual <= {"replay weight 1"}  # a row of the deviations


def test_runs_name_the_preset_of_the_paper(runs):
    unusual = {run.row for run in runs if not run.settings.startswith("preset=paper ")}
    assert unusual <= {"preset reference"}  # a row of the deviations


def test_runs_say_where_they_come_from(runs):
    assert all(run.commit and run.cpu and run.split for run in runs)
    assert not any(run.commit.endswith("-dirty") for run in runs)


def test_runs_of_eth80_have_the_split_of_their_number():
    pairs = set()  # number and split of the runs of all tables
    for name in OF_ETH80:
        pairs.update((run.number, run.split) for run in read_recorded(RESULTS / name))
    assert sorted(number for number, _ in pairs) == list(range(10))
    assert len({split for _, split in pairs}) == 10


def test_runs_of_a_number_are_tested_on_the_same_images(runs):
    images = defaultdict(set)
    for run in runs:
        images[run.benchmark, run.number].add(run.test_images)
    assert all(len(same) == 1 for same in images.values())
