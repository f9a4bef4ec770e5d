"""Tune the learning rate of a run of the family *fair* on its first experience."""

from dataclasses import replace

from crumb_avalanche.runs.stream import open_stream
from crumb_avalanche.runs.tables import table
from crumb_avalanche.training.lr_search import Trial, small_stream, tune


def trials(session) -> list[Trial]:
    """Try learning rates on copies of a session's model, on a small stream made of the first experience.

    A joint bound is tuned on the first experience of the stream as a whole.

    Args:
        session: a ``Session`` without a strategy.

    Returns:
        The trials, the chosen one first; none if the plan has a rate, or the strategy has its own or takes no gradient
        steps.
    """
    plan, entry = session.plan, session.entry
    own_rate = getattr(entry.method_settings(plan.method), "own_rate", False)
    if plan.learning_rate is not None or not entry.gradient or own_rate:
        return []
    stream = open_stream(plan, joint=False, left_out=session.stream.left_out) if entry.joint else session.stream

    def learner(rate, evaluator):
        trial = replace(plan, learning_rate=rate, method={**plan.method, **entry.tuning})
        return session.new_strategy(trial, session.copied_model(), evaluator=evaluator)

    first = stream.benchmark.train_stream[0]
    objects = [stream.table.object_name[row] for row in first.dataset.frame_row]
    parts = small_stream(first) if entry.joint else small_stream(first, objects, session.model.n_classes)
    return tune(learner, parts, head_loss=entry.scores_answer, num_workers=plan.workers)


def described(trials: list[Trial]) -> str:
    """Format the trials as a table."""
    rows = [
        [f"{trial.learning_rate:g}", f"{trial.accuracy:.1f}", f"{trial.loss:.4f}", "chosen" if not place else ""]
        for place, trial in enumerate(trials)
    ]
    return (
        "learning rates on held-out frames of the first experience, whose classes or objects arrive in turn\n"
        + table(["rate", "accuracy", "loss", ""], rows)
    )
