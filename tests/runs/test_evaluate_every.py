"""``--evaluate-every`` leaves out evaluations without changing what is learned; reports show the others."""

import csv
import json

import pytest
import torch
from html_pages import csv_of, page_of
from learned import tensors_of

from crumb_avalanche.methods.registry import STRATEGIES


@pytest.fixture
def runs(crumb, tiny, tmp_path):
    """A strategy on four experiences of one class: ``often`` is tested after each, ``seldom`` not after the second."""

    def both(strategy):
        for folder, every in (("often", 1), ("seldom", 3)):
            more = ("--strategy", strategy, "--classes-per-experience", "1", "--evaluate-every", every)
            code, out, err = crumb(*tiny, *more, "--mem-size", "6", "--output", tmp_path / folder)
            assert code == 0, err
        return tmp_path, out

    return both


def rows_of(folder):
    with open(folder / "accuracy_matrix.csv") as file:
        return list(csv.reader(file))


# Not `chance`, whose answers are drawn one after the other, nor `offline`, which has one experience.
OTHERS = sorted(set(STRATEGIES) - {"crumb", "icarl", "chance", "offline"})


@pytest.mark.parametrize("strategy", ["crumb", "icarl", *[pytest.param(n, marks=pytest.mark.slow) for n in OTHERS]])
def test_evaluate_every_does_not_change_what_is_learned(runs, strategy):
    folder, out = runs(strategy)
    answers = [(folder / name / "predictions.npz").read_bytes() for name in ("often", "seldom")]
    assert answers[0] == answers[1]
    often, seldom = (tensors_of(folder / name) for name in ("often", "seldom"))
    assert often.keys() == seldom.keys() and all(torch.equal(often[key], seldom[key]) for key in often)
    results = [json.loads((folder / name / "result.json").read_text()) for name in ("often", "seldom")]
    every, some = (result["accuracy_after"] for result in results)
    assert some == [every[0], None, every[2], every[3]] and None not in every
    assert results[0]["final_accuracy"] == results[1]["final_accuracy"] == some[-1]
    rows = rows_of(folder / "often")
    rows[2][1:] = [""] * 4
    assert rows_of(folder / "seldom") == rows
    assert "after experience 2/4: not tested" in out and "after experience 3/4: " in out
    ledger = json.loads((folder / "seldom" / "ledger.json").read_text())
    assert len(ledger["after_experience"]) == 4


def test_reports_leave_untested_cells_empty(runs, crumb):
    folder, _ = runs("crumb")
    code, out, err = crumb("report", folder / "seldom")
    assert f"ask it: crumb predict {folder / 'seldom'} photo.jpg" in out
    assert code == 0, err
    assert (folder / "seldom" / "report.svg").stat().st_size > 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "exp 2" in lines, "the row of the matrix has no numbers"
    assert [line.split()[3:] for line in lines if line.startswith("exp 2 ")] == [["2", "50.00"]], "chance, no accuracy"
    code, _, err = crumb("report", folder, "--output", folder / "both")
    assert code == 0, err
    after = {row["folder"].split("/")[-1]: row["accuracy_after_2"] for row in csv_of(folder / "both")}
    assert after["seldom"] == "" and float(after["often"]) >= 0
    shown = page_of(folder / "both").tables
    assert shown["curves-table-0"][0]["after_2"]["text"] == "" != shown["curves-table-0"][0]["after_3"]["text"]
