"""Texts of results: means, settings, and what can be done with a run."""

import pytest

from crumb_avalanche.learner.header import CLOSED_FORMS
from crumb_avalanche.methods import run_header
from crumb_avalanche.runs.tables import (
    LEARNER,
    TEACHABLE,
    budget_text,
    cell,
    mean_text,
    usage_of,
)


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


CODES = dict(buffer_items=10, label_bytes=20, codebook_bytes=400, statistics_bytes=0)


def above_budget(memory_bytes, ledger=(), **result):
    result = {"budget_bytes": 1000, "mem_size": 10, "family": None, **result}
    return budget_text({"memory_bytes": memory_bytes, **CODES, **dict(ledger)}, result)


@pytest.mark.parametrize(
    ("memory_bytes", "result"),
    [(900, {}), (1010, {}), (5000, dict(budget_bytes=None))],
    ids=["below", "one percent", "no budget"],
)
def test_memory_within_the_budget(memory_bytes, result):
    assert above_budget(memory_bytes, **result) == ""


@pytest.mark.parametrize(
    ("ledger", "result", "reason"),
    [
        ({}, {}, "it charges a codebook one byte a value instead of four, and"),
        ({}, dict(family="fair"), "B: it does not charge labels (20 B)"),
        (dict(codebook_bytes=0), {}, "B: it does not charge labels (20 B)"),
        (dict(statistics_bytes=8), {}, "have statistics of 8 B beside them"),
        ({}, dict(mem_size=0), "it trains on all images at once"),
        (dict(buffer_items=0), dict(mem_size=0), "limits statistics only where"),
    ],
)
def test_memory_above_the_budget(ledger, result, reason):
    text = above_budget(1360, ledger, **result)
    assert text.startswith("memory in all is 360 B (36 %) above the budget of 1,000 B")
    assert reason in text


def test_memory_above_a_budget_of_nothing():
    assert "360 B (36,000 %)" in above_budget(360, budget_bytes=0)


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


def test_an_own_method_is_asked_by_its_file(folder):
    (line,) = usage_of(folder, "my_cos")
    assert line.startswith(
        f"ask it: python FILE.py predict '{folder}' photo.jpg, where"
    )
    assert "registers my_cos" in line


@pytest.mark.parametrize(("strategy", "lines"), [("rda", 2), ("ncm", 2), ("er", 1)])
def test_closed_forms_can_be_taught(folder, strategy, lines):
    assert len(usage_of(folder, strategy)) == lines


@pytest.mark.parametrize("words", ["crumb teach", "crumb serve", "my run/learner"])
def test_how_to_teach_is_said(folder, words):
    assert words in usage_of(folder, "rda")[1]
