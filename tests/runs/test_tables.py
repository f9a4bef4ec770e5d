"""Text tables of results, and the lines at the end of ``crumb run`` and ``crumb report``."""

import statistics

import pytest

from crumb_avalanche.learner import run_file
from crumb_avalanche.learner.classifier import CLOSED_FORMS
from crumb_avalanche.runs.tables import LEARNER, TEACHABLE, cell, mean_text, usage_of


def test_mean_and_deviation():
    # Deviations from 77: -7, 0, 7; variance 98 / 2.
    assert mean_text([70, 77, 84]) == "77.0 +- 7.0"
    assert mean_text([70, 77, 84], "+.2f", "±") == "+77.00 ± 7.00"
    assert mean_text([-1.25, 2.5], "+.1f") == f"+0.6 +- {statistics.stdev([-1.25, 2.5]):.1f}"
    assert (mean_text([70.04]), mean_text([])) == ("70.0", "")


def test_a_long_path_is_shown_by_its_last_name():
    assert cell("/home/user/robot/clips_a/", 12) == cell("/home/user/robot/clips_a", 12) == "clips_a"
    assert cell(["cup", "duck"]) == "cup, duck" and cell(None) == "none" and cell("x" * 20, 8) == "xxxxx..."


def test_names_are_those_of_the_learner():
    assert tuple(CLOSED_FORMS) == TEACHABLE and LEARNER == run_file.LEARNER


@pytest.mark.parametrize(("strategy", "lines"), [("rda", 2), ("ncm", 2), ("er", 1)])
def test_what_can_be_done_with_a_run(tmp_path, strategy, lines):
    folder = tmp_path / "my run"
    folder.mkdir()
    assert usage_of(folder, strategy) == []  # --keep-learner false
    (folder / LEARNER).touch()
    found = usage_of(folder, strategy)
    assert len(found) == lines and f"crumb predict '{folder}' photo.jpg" in found[0]
    if lines == 2:
        assert all(part in found[1] for part in (f"'{folder / LEARNER}'", "crumb teach", "crumb serve"))
