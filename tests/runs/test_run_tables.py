"""Texts of results: means, settings, and what can be done with a run."""

import pytest

from crumb_avalanche.learner.header import CLOSED_FORMS
from crumb_avalanche.methods import run_header
from crumb_avalanche.runs.tables import LEARNER, TEACHABLE, cell, mean_text, usage_of


@pytest.mark.parametrize(
    ("values", "form", "text"),
    [
        # Deviations from 77: -7, 0, 7; variance 98 / 2.
        ([70, 77, 84], {}, "77.0 +- 7.0"),
        ([70, 77, 84], {"form": "+.2f", "between": "±"}, "+77.00 ± 7.00"),
        # Deviations from 0.625: 1.875 each; variance 7.03.
        ([-1.25, 2.5], {"form": "+.1f"}, "+0.6 +- 2.7"),
        ([70.04], {}, "70.0"),
        ([], {}, ""),
    ],
)
def test_mean_and_deviation(values, form, text):
    assert mean_text(values, **form) == text


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        ("/home/user/robot/clips_a/", 12, "clips_a"),
        ("/home/user/robot/clips_a", 12, "clips_a"),
        (["cup", "duck"], 60, "cup, duck"),
        (None, 60, "none"),
        ("x" * 20, 8, "xxxxx..."),
    ],
)
def test_a_setting_as_a_cell(value, width, text):
    assert cell(value, width) == text


def test_teachable_methods_are_the_learner_s():
    assert tuple(CLOSED_FORMS) == TEACHABLE


def test_the_file_is_the_learner_s():
    assert LEARNER == run_header.LEARNER


@pytest.fixture
def folder(tmp_path):
    """A folder of a run with a learner."""
    folder = tmp_path / "my run"
    folder.mkdir()
    (folder / LEARNER).touch()
    return folder


def test_a_run_without_learner_has_no_use(folder):
    (folder / LEARNER).unlink()  # --keep-learner false
    assert usage_of(folder, "rda") == []


@pytest.mark.parametrize("strategy", ["rda", "ncm", "er"])
def test_every_learner_can_be_asked(folder, strategy):
    first = usage_of(folder, strategy)[0]
    assert first == f"ask it: crumb predict '{folder}' photo.jpg"


@pytest.mark.parametrize(("strategy", "lines"), [("rda", 2), ("ncm", 2), ("er", 1)])
def test_closed_forms_can_be_taught(folder, strategy, lines):
    assert len(usage_of(folder, strategy)) == lines


@pytest.mark.parametrize("words", ["crumb teach", "crumb serve", "my run/learner"])
def test_how_to_teach_is_said(folder, words):
    assert words in usage_of(folder, "rda")[1]
