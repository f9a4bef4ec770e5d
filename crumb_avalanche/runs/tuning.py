"""The learning rate of a run of the family *fair*: tuned on its first experience."""

import copy
from dataclasses import replace

from crumb_avalanche.baselines.registry import build_strategy, get_strategy
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.runs import build
from crumb_avalanche.runs.settings import RunSettings
from crumb_avalanche.runs.tables import table
from crumb_avalanche.training.lr_search import Trial, tune


def trials(settings: RunSettings, stream: build.Stream, model: SplitModel, mem_size: int, plugins: list) -> list[Trial]:
    """All rates tried, the chosen one first; none where a rate is given or no gradient steps are taken.

    A bound that is trained on all classes at once is tuned on the first experience too, as a stream learner would be.
    """
    entry = get_strategy(settings.strategy)
    if settings.learning_rate is not None or not entry.gradient:
        return []
    if entry.joint:
        stream = build.build_stream(settings, settings.run, joint=False)

    def learner(rate, evaluator):
        chosen = replace(settings, learning_rate=rate, first_epochs=1)
        return build_strategy(
            settings.strategy,
            copy.deepcopy(model),
            build.learning_settings(chosen, stream.entry),
            mem_size,
            settings.run,
            settings.device,
            build.strategy_settings(settings) | entry.tuning,
            plugins=list(plugins),
            evaluator=evaluator,
        )

    first = stream.benchmark.train_stream[0]
    return tune(learner, first, head_loss=entry.scores_answer, num_workers=settings.workers)


def described(trials: list[Trial]) -> str:
    """A table of the trials."""
    rows = [
        [f"{trial.learning_rate:g}", f"{trial.accuracy:.1f}", f"{trial.loss:.4f}", "chosen" if not place else ""]
        for place, trial in enumerate(trials)
    ]
    return "learning rates on held-out frames of the first experience\n" + table(["rate", "accuracy", "loss", ""], rows)
