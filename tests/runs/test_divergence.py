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
def diverging(clips, tmp_path, monkeypatch):
    """A function that gives a run of four experiences of a class each, which diverges in an iteration of one."""
    check = DivergenceGuard.check
    chosen = dict(benchmark="clip_folder", dataset_root=str(clips), preset="paper", weights="none", mem_size=8)
    chosen |= dict(backbone="small_cnn", image_size=32, batch_size=8, first_epochs=1, threads=1, progress=False)

    def settings(*place):
        def checked(guard, strategy, loss):
            now = strategy.clock.train_exp_counter, strategy.clock.train_exp_iterations
            check(guard, strategy, loss * float("nan") if now == place else loss)

        monkeypatch.setattr(DivergenceGuard, "check", checked)
        return RunSettings(**chosen, classes_per_experience=1, output=str(tmp_path / "run0"))

    return settings


def test_it_counts_in_a_sweep(diverging, tmp_path):
    settings = diverging(1, 1)
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


@pytest.mark.parametrize(("place", "counts"), [((1, 1), False), ((0, 0), True)])
def test_otherwise_or_in_the_first_experience_it_is_an_error(diverging, tmp_path, place, counts):
    with pytest.raises(TrainingDivergedError, match="in experience {}, iteration {}".format(*place)):
        run_once(RunPlan.of(diverging(*place)), count_divergence=counts)
    assert not (tmp_path / "run0" / "result.json").exists()
