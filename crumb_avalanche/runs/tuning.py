"""Tune the learning rate of a run of the family *fair* on its first experience."""

from dataclasses import replace

from crumb_avalanche.runs.stream import open_stream
from crumb_avalanche.runs.tables import table
from crumb_avalanche.training.lr_search import Trial, tune


def trials(session) -> list[Trial]:
    """Try learning rates on copies of a session's model.

    A joint bound is tuned on the first experience of the stream too.

    Args:
        session: a ``Session`` without a strategy.

    Returns:
        The trials, the chosen one first; none if the plan has a rate or the strategy takes no gradient steps.
    """
    plan, entry = session.plan, session.entry
    if plan.learning_rate is not None or not entry.gradient:
        return []
    stream = open_stream(plan, joint=False) if entry.joint else session.stream

    def learner(rate, evaluator):
        trial = replace(plan, learning_rate=rate, first_epochs=1, method={**plan.method, **entry.tuning})
        return session.new_strategy(trial, session.copied_model(), evaluator=evaluator)

    first = stream.benchmark.train_stream[0]
    return tune(learner, first, head_loss=entry.scores_answer, num_workers=plan.workers)


def described(trials: list[Trial]) -> str:
    """Format the trials as a table."""
    rows = [
        [f"{trial.learning_rate:g}", f"{trial.accuracy:.1f}", f"{trial.loss:.4f}", "chosen" if not place else ""]
        for place, trial in enumerate(trials)
    ]
    return "learning rates on held-out frames of the first experience\n" + table(["rate", "accuracy", "loss", ""], rows)
