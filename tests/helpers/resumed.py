"""A strategy that is saved and restored as an interrupted run is."""

import time

from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.resume import Resume
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.training.checkpoint import Position

EXPERIENCES = 9  # of the stream, more than are trained on


def restore_as_a_run(trained, fresh, folder):
    """Write a checkpoint of a strategy between two experiences; load it into another.

    A folder of the run has the checkpoint.
    """
    plan = RunPlan.of(RunSettings(benchmark="toy_shapes_short", weights="none"))
    before = Resume(folder, plan, {}, time.perf_counter(), EXPERIENCES)
    before.attach(trained)
    n_learned = trained.clock.train_exp_counter
    before.progress.matrix = [[] for _ in range(n_learned)]
    before.progress.accuracy_after = n_learned * [None]
    before.progress.ledgers = [{} for _ in range(n_learned)]
    before.save(Position(n_learned))
    after = Resume(folder, plan, {}, time.perf_counter(), EXPERIENCES)
    after.attach(fresh)
    for strategy in (trained, fresh):  # the plugin that writes checkpoints
        strategy.plugins.pop()
