"""Choose a learning rate on the first experience of a stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.training.plugins import EvaluationPlugin
from torch.nn.functional import cross_entropy

from crumb_avalanche.system.rng_state import preserve_rng_state
from crumb_avalanche.training.labels import labels_of
from crumb_avalanche.training.plugins import TrainingDivergedError
from crumb_avalanche.training.stateful import StatefulPlugin
from crumb_avalanche.training.stream_strategy import StreamStrategy

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
# Rates within these margins of the best count as equally good.
POINTS = 1.0
NATS = 0.01


@dataclass(frozen=True)
class Trial:
    """Result of one learning rate on the held-out part of the first experience.

    Attributes:
        learning_rate: the rate.
        accuracy: percent; 0 where training diverged.
        loss: mean over the held-out images; infinite where training diverged.
    """

    learning_rate: float
    accuracy: float
    loss: float


def split_experience(targets: Sequence[int], held_out: float = 0.2) -> tuple[list[int], list[int]]:
    """Split positions into training and test; the last frames of each class, in stream order, are for the test.

    In a video stream, the test frames are usually of other clips, and often of other objects.

    Raises:
        ValueError: a class has fewer than two frames.
    """
    targets = np.asarray(targets)
    learned: list[int] = []
    tested: list[int] = []
    for label in np.unique(targets):
        positions = np.flatnonzero(targets == label)
        if len(positions) < 2:
            raise ValueError(
                f"class {label} of the first experience has {len(positions)} frame, but tuning the learning rate holds "
                "out a frame of every class: give the class 2 frames or more, or set a learning rate"
            )
        cut = min(len(positions) - 1, max(1, round(len(positions) * (1 - held_out))))
        learned += positions[:cut].tolist()
        tested += positions[cut:].tolist()
    return sorted(learned), sorted(tested)


def tune(
    make: Callable[[float, EvaluationPlugin], StreamStrategy],
    first_experience,
    rates: Sequence[float] = RATES,
    head_loss: bool = False,
    **loader,
) -> list[Trial]:
    """Train with each rate on four fifths of the first experience for one epoch, and test on the rest.

    The global RNG state is restored.

    Args:
        make: function of rate and evaluator that returns a new strategy with a new model, which trains for one epoch.
        first_experience: an experience of an Avalanche stream.
        rates: learning rates to try.
        head_loss: use the loss of the head's logits, for a strategy that predicts by other scores.
        loader: keyword arguments of the data loaders, such as ``num_workers``.

    Returns:
        The trials: the chosen one first (see ``chosen``), then the others from best to worst.

    Raises:
        ValueError: a class has too few frames, or training diverged at every rate.
    """
    dataset = first_experience.dataset
    learned, tested = split_experience(labels_of(dataset))
    parts = benchmark_from_datasets(train=[dataset.subset(learned)], test=[dataset.subset(tested)])
    trials = []
    for rate in rates:
        with preserve_rng_state():
            trials.append(_trial(make, rate, parts, head_loss, loader))
    if not any(np.isfinite(trial.loss) for trial in trials):
        raise ValueError(
            f"training diverged at every learning rate of {', '.join(f'{rate:g}' for rate in rates)} on the first "
            "experience; try lower ones, or look for damaged images"
        )
    best_first = sorted(trials, key=lambda trial: (-trial.accuracy, trial.loss, trial.learning_rate))
    winner = chosen(trials)
    return [winner, *[trial for trial in best_first if trial is not winner]]


def chosen(trials: Sequence[Trial]) -> Trial:
    """Return the lowest rate that is as good as the best: within 1 point of accuracy and 0.01 nats of loss.

    Several rates often fit a first experience of a few classes perfectly, and the highest of them then has the lowest
    loss. A high rate may damage the network when new classes come, which the first experience cannot show; so the
    lowest of equally good rates is chosen. 0.01 nats are 1 % of the probability of the right class.
    """
    best = min(trials, key=lambda trial: (-trial.accuracy, trial.loss))
    as_good = [trial for trial in trials if trial.accuracy >= best.accuracy - POINTS and trial.loss <= best.loss + NATS]
    return min(as_good, key=lambda trial: trial.learning_rate)


class HeadLoss(StatefulPlugin):
    """Record the cross-entropy of the head's logits in an evaluation, before later plugins change them.

    Attributes:
        losses: loss of each image.
    """

    def __init__(self):
        super().__init__()
        self.losses: list[float] = []

    def after_eval_forward(self, strategy, **kwargs):
        self.losses += cross_entropy(strategy.mb_output, strategy.mb_y, reduction="none").tolist()


def _trial(make, rate: float, parts, head_loss: bool, loader: dict) -> Trial:
    metrics = accuracy_metrics(stream=True), loss_metrics(stream=True)
    evaluator = EvaluationPlugin(*metrics, loggers=[], strict_checks=False)
    learner = make(rate, evaluator)
    of_head = HeadLoss()
    learner.plugins.insert(1, of_head)  # after the mask of unseen classes
    try:
        learner.train(parts.train_stream[0], eval_streams=[], shuffle=False, **loader)
    except TrainingDivergedError:
        return Trial(rate, 0.0, float("inf"))
    metrics = learner.eval(parts.test_stream, **loader)
    accuracy, loss = (
        next(value for name, value in metrics.items() if name.startswith(f"{kind}_Stream/eval"))
        for kind in ("Top1_Acc", "Loss")
    )
    if head_loss:
        loss = float(np.mean(of_head.losses))
    return Trial(rate, 100 * accuracy, loss if np.isfinite(loss) else float("inf"))
