"""A run of a sweep that diverges counts, with the accuracy of its last finite weights on all classes."""

import json

import numpy as np
import pytest
from support.runs import finished_runs
from support.sweep import DONE, run_cell

from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run import run_once
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.training.plugins import DivergenceGuard, TrainingDivergedError


@pytest.fixture
def settings(clips, tmp_path, monkeypatch):
    """A run of four experiences of a class each, which diverges in the second one."""
    check = DivergenceGuard.check

    def checked(guard, strategy, loss):
        clock = strategy.clock
        check(
            guard,
            strategy,
            loss * float("nan") if (clock.train_exp_counter, clock.train_exp_iterations) == (1, 1) else loss,
        )

    monkeypatch.setattr(DivergenceGuard, "check", checked)
    chosen = dict(benchmark="clip_folder", dataset_root=str(clips), preset="paper", weights="none", mem_size=8)
    chosen |= dict(backbone="small_cnn", image_size=32, batch_size=8, first_epochs=1, threads=1, progress=False)
    return RunSettings(**chosen, classes_per_experience=1, output=str(tmp_path / "run0"))


def test_it_counts_in_a_sweep(settings, tmp_path):
    assert run_cell(settings) == DONE
    (run,) = finished_runs(tmp_path, [0])
    assert run.result["diverged_in_experience"] == 1
    after = run.result["accuracy_after"]
    assert after[1:] == [None, None, run.final] and len(run.result["final_accuracy_per_experience"]) == 4
    answers = run.predictions
    assert len(answers["row"]) == 40 and set(answers["label"]) == {0, 1, 2, 3}, "all classes are asked"
    assert run.final == pytest.approx(100 * np.mean(answers["label"] == answers["answer"]))
    seen = run.result["classes_order"][:2]
    assert set(answers["answer"]) <= {sorted(run.result["classes_order"]).index(name) for name in seen}
    assert "the run ends here and counts" in (run.folder / "log.txt").read_text()
    assert len(json.loads((run.folder / "ledger.json").read_text())["after_experience"]) == 4
    assert run_cell(settings) == DONE, "it is finished"


def test_otherwise_it_is_an_error(settings, tmp_path):
    with pytest.raises(TrainingDivergedError, match="in experience 1, iteration 1"):
        run_once(RunPlan.of(settings))
    assert not (tmp_path / "run0" / "result.json").exists()


def test_nothing_was_reached_in_the_first_experience(settings, monkeypatch):
    check = DivergenceGuard.check
    monkeypatch.setattr(
        DivergenceGuard, "check", lambda guard, strategy, loss: check(guard, strategy, loss * float("nan"))
    )
    with pytest.raises(TrainingDivergedError, match="in experience 0, iteration 0"):
        run_once(RunPlan.of(settings), count_divergence=True)
