"""``--evaluate-every`` leaves out evaluations without changing what is learned."""

import json

import pytest
import torch
from learned import tensors_of


@pytest.mark.parametrize("strategy", ["crumb", "icarl"])
def test_evaluate_every_does_not_change_what_is_learned(crumb, tiny, tmp_path, strategy):
    """Four experiences of one class: ``often`` is tested after each, ``seldom`` not after the second."""
    folder = tmp_path
    for name, every in (("often", 1), ("seldom", 3)):
        more = ("--strategy", strategy, "--classes-per-experience", "1", "--evaluate-every", every)
        code, out, err = crumb(*tiny, *more, "--mem-size", "6", "--output", folder / name)
        assert code == 0, err
    answers = [(folder / name / "predictions.npz").read_bytes() for name in ("often", "seldom")]
    assert answers[0] == answers[1]
    often, seldom = (tensors_of(folder / name) for name in ("often", "seldom"))
    assert often.keys() == seldom.keys() and all(torch.equal(often[key], seldom[key]) for key in often)
    results = [json.loads((folder / name / "result.json").read_text()) for name in ("often", "seldom")]
    every, some = (result["accuracy_after"] for result in results)
    assert some == [every[0], None, every[2], every[3]] and None not in every
    assert results[0]["final_accuracy"] == results[1]["final_accuracy"] == some[-1]
    matrices = [(folder / name / "accuracy_matrix.csv").read_text().splitlines() for name in ("often", "seldom")]
    matrices[0][2] = "1,,,,"
    assert matrices[0] == matrices[1]
    assert "after experience 2/4: not tested" in out and "after experience 3/4: " in out
    ledger = json.loads((folder / "seldom" / "ledger.json").read_text())
    assert len(ledger["after_experience"]) == 4
