"""The lines at the end of ``crumb run`` and ``crumb report``, which are written without torch."""

import pytest

from crumb_avalanche.learner import run_file
from crumb_avalanche.learner.classifier import CLOSED_FORMS
from crumb_avalanche.runs.tables import LEARNER, TEACHABLE, usage_of


def test_names_are_those_of_the_learner():
    assert tuple(CLOSED_FORMS) == TEACHABLE and LEARNER == run_file.LEARNER


@pytest.mark.parametrize(("strategy", "lines"), [("rda", 2), ("ncm", 2), ("er", 1)])
def test_what_can_be_done_with_a_run(tmp_path, strategy, lines):
    folder = tmp_path / "my run"
    folder.mkdir()
    assert usage_of(folder, strategy) == []  # --keep-learner none
    (folder / LEARNER).touch()
    found = usage_of(folder, strategy)
    assert len(found) == lines and f"crumb predict '{folder}' photo.jpg" in found[0]
    if lines == 2:
        assert all(part in found[1] for part in (f"'{folder / LEARNER}'", "crumb teach", "crumb serve"))
