"""Choose a learning rate on the first experience of a stream.

It is taken as a small stream of its own.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import (
    AvalancheDataset,
    DataAttribute,
    TaskAwareSupervisedClassificationDataset,
)
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.training.plugins import EvaluationPlugin
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from crumb_avalanche.system.process import preserve_rng_state
from crumb_avalanche.training.avalanche_fixes import labels_of
from crumb_avalanche.training.plugins import TrainingDivergedError
from crumb_avalanche.training.stateful import StatefulPlugin
from crumb_avalanche.training.stream_strategy import StreamStrategy

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
# Rates within these margins of the best count as equally good.
POINTS = 1.0
NATS = 0.01
ARRIVALS = 4  # experiences of the small stream
FEWEST = 4  # pieces that it takes for several of them
MOST_IMAGES = 100  # of a piece


@dataclass(frozen=True)
class Trial:
    """Result of a learning rate on the held-out images of the first experience.

    Accuracy is in percent, loss is the mean.

    Where training diverged, they are 0 and infinite.
    """

    learning_rate: float
    accuracy: float
    loss: float


def split_experience(
    targets: Sequence[int], held_out: float = 0.2
) -> tuple[list[int], list[int]]:
    """Split positions into training and test.

    The last frames of each class, in stream order, are for the test. In a video stream,
    they are usually of other clips, and often of other objects.

    Args:
        targets: the label of each frame.
        held_out: share of each class for the test.

    Returns:
        positions for training and for the test, ascending.

    Raises:
        ValueError: a class has one frame.
    """
    _check_two_frames(targets)
    labels = np.asarray(targets)
    training: list[int] = []
    test: list[int] = []
    for label in np.unique(labels):
        positions = np.flatnonzero(labels == label)
        count = len(positions)
        end = min(count - 1, max(1, round(count * (1 - held_out))))
        training += positions[:end].tolist()
        test += positions[end:].tolist()
    return sorted(training), sorted(test)


def _check_two_frames(targets: Sequence[int]) -> None:
    """Raise ValueError for a class of a single frame, which leaves none to hold out."""
    for label, count in sorted(Counter(targets).items()):
        if count < 2:
            raise ValueError(
                f"class {label} of the first experience has {count} frame, but tuning "
                "the learning rate holds out a frame of every class: give the class 2 "
                "frames or more, or set a learning rate"
            )


def pieces_of(
    labels: Sequence[int], objects: Sequence[Hashable] | None, most: int
) -> list[list[int]]:
    """Divide the images of a first experience into the classes of a small stream.

    These are its own classes if there are at least four, else its objects, which are
    then told apart: what a class that arrives does to earlier ones can be seen only
    where several arrive. Objects come class by class in turn.

    Args:
        labels: of the images.
        objects: of the images; ``None`` if they are not known.
        most: pieces.

    Returns:
        Positions of the images of each piece: ascending, at most 100, evenly spread; a
        piece has at least two.
    """
    pieces = _positions_by_key(labels)
    if objects is not None and len(pieces) < FEWEST:
        pieces_by_object = _objects_in_turn(labels, objects)
        if len(pieces_by_object) >= FEWEST:
            pieces = pieces_by_object
    return [_evenly_spread(piece, MOST_IMAGES) for piece in pieces[:most]]


def _objects_in_turn(
    labels: Sequence[int], objects: Sequence[Hashable]
) -> list[list[int]]:
    """Return positions of each object with several images, class by class in turn."""
    of_objects = _positions_by_key(list(zip(labels, objects, strict=True)))
    several = [positions for positions in of_objects if len(positions) > 1]
    of_classes = _positions_by_key([labels[positions[0]] for positions in several])
    in_turn = []
    for turn in zip_longest(*of_classes):
        in_turn += [several[index] for index in turn if index is not None]
    return in_turn


def _positions_by_key(keys: Sequence[Hashable]) -> list[list[int]]:
    """Return the positions of each key, in order of its first."""
    groups: dict[Hashable, list[int]] = {}
    for position, key in enumerate(keys):
        groups.setdefault(key, []).append(position)
    return list(groups.values())


def _evenly_spread(positions: list[int], most: int) -> list[int]:
    count = min(len(positions), most)
    return [positions[number * len(positions) // count] for number in range(count)]


def arrivals_of(pieces: int) -> list[list[int]]:
    """Divide pieces into experiences: four of almost equal size, else a single one.

    The first has two pieces or more. Fewer than four pieces, such as two classes of
    unknown objects, are one experience.
    """
    if pieces < FEWEST:
        return [list(range(pieces))]
    count = min(ARRIVALS, pieces - 1)
    sections = np.array_split(np.arange(pieces), count)
    return [section.tolist() for section in sections]


class _Relabelled(Dataset):
    """Some images of a data set with other labels."""

    def __init__(self, dataset, positions: Sequence[int], labels: Sequence[int]):
        self.dataset = dataset
        self.positions = positions
        self.labels = labels

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, number: int):
        return self.dataset[self.positions[number]][0], self.labels[number]


def _relabelled(dataset, label_of: dict[int, int]) -> AvalancheDataset:
    """Return images of a data set, ascending, with other labels, by their positions.

    They have the attributes that the stream gives them.
    """
    positions = sorted(label_of)
    labels = [label_of[position] for position in positions]
    attributes = [DataAttribute(labels, "targets")]
    if hasattr(dataset, "frame_row"):
        rows = [dataset.frame_row[position] for position in positions]
        attributes.append(DataAttribute(rows, "frame_row"))
    images = _Relabelled(dataset, positions, labels)
    if not hasattr(dataset, "targets_task_labels"):
        return AvalancheDataset([images], data_attributes=attributes)
    tasks = [0] * len(positions)
    attributes.append(DataAttribute(tasks, "targets_task_labels", use_in_getitem=True))
    return TaskAwareSupervisedClassificationDataset(
        [images], data_attributes=attributes
    )


def small_stream(
    first_experience, objects: Sequence[Hashable] | None = None, most: int | None = None
):
    """Make a stream of the first experience, in which classes arrive in turn.

    Args:
        first_experience: of the stream.
        objects: see ``pieces_of``.
        most: see ``pieces_of``; without it the experience stays one, with its own
            labels.

    Returns:
        An Avalanche benchmark; the last fifth of each piece is its test.
    """
    dataset = first_experience.dataset
    labels = labels_of(dataset)
    _check_two_frames(labels)
    if most is None:
        label_of = dict(enumerate(labels))
        experiences = [sorted(set(labels))]
    else:
        pieces = pieces_of(labels, objects, most)
        label_of = {}
        for number, piece in enumerate(pieces):
            label_of |= dict.fromkeys(piece, number)
        experiences = arrivals_of(len(pieces))
    train: list[AvalancheDataset] = []
    test: list[AvalancheDataset] = []
    for classes in experiences:
        positions = [row for row in sorted(label_of) if label_of[row] in classes]
        learned, tested = split_experience([label_of[row] for row in positions])
        train.append(_part_of(dataset, label_of, [positions[i] for i in learned]))
        test.append(_part_of(dataset, label_of, [positions[i] for i in tested]))
    return benchmark_from_datasets(train=train, test=test)


def _part_of(
    dataset, label_of: dict[int, int], positions: Sequence[int]
) -> AvalancheDataset:
    """Return the frames at some positions, with their labels of the small stream."""
    return _relabelled(
        dataset, {position: label_of[position] for position in positions}
    )


def tune(
    make: Callable[[float, EvaluationPlugin], StreamStrategy],
    parts,
    rates: Sequence[float] = RATES,
    head_loss: bool = False,
    **loader,
) -> list[Trial]:
    """Train with each rate on a small stream and test on its held-out images.

    The test comes after the last experience. The global RNG state is restored.

    Args:
        make: function of rate and evaluator that returns a new strategy with a new
            model.
        parts: the benchmark, see ``small_stream``.
        rates: learning rates to try; it is an error if training diverges at all of
            them.
        head_loss: use the loss of the head's logits, for a strategy that predicts by
            other scores.
        loader: keyword arguments of the data loaders, such as ``num_workers``.

    Returns:
        The trials: the chosen one first (see ``chosen``), then the others from best to
        worst.
    """
    trials = []
    for rate in rates:
        with preserve_rng_state():
            trials.append(_trial(make, rate, parts, head_loss, loader))
    if not any(np.isfinite(trial.loss) for trial in trials):
        tried = ", ".join(f"{rate:g}" for rate in rates)
        raise ValueError(
            f"training diverged at every learning rate of {tried} on the first "
            "experience; try lower ones, or look for damaged images"
        )
    best_first = sorted(
        trials, key=lambda trial: (-trial.accuracy, trial.loss, trial.learning_rate)
    )
    winner = chosen(trials)
    return [winner, *[trial for trial in best_first if trial is not winner]]


def chosen(trials: Sequence[Trial]) -> Trial:
    """Return the lowest rate that is as good as the best.

    That is within 1 point of accuracy and 0.01 nats of loss. Several rates often fit a
    few classes perfectly; the highest may damage the network when more classes come.
    """
    best = min(trials, key=lambda trial: (-trial.accuracy, trial.loss))
    as_good = [
        trial
        for trial in trials
        if trial.accuracy >= best.accuracy - POINTS and trial.loss <= best.loss + NATS
    ]
    return min(as_good, key=lambda trial: trial.learning_rate)


class _HeadLoss(StatefulPlugin):
    """Records the cross-entropy of the head's logits in an evaluation.

    Before later plugins change them.
    """

    def before_eval(self, strategy, **kwargs):
        self.losses: list[float] = []

    def after_eval_forward(self, strategy, **kwargs):
        losses = cross_entropy(strategy.mb_output, strategy.mb_y, reduction="none")
        self.losses += losses.tolist()


def _trial(make, rate: float, parts, head_loss: bool, loader: dict) -> Trial:
    """Train with a rate and test; see ``tune``."""
    evaluator = EvaluationPlugin(
        accuracy_metrics(stream=True),
        loss_metrics(stream=True),
        loggers=[],
        strict_checks=False,
    )
    learner = make(rate, evaluator)
    of_head = _HeadLoss()
    learner.plugins.insert(1, of_head)  # after the mask of unseen classes
    try:
        for experience in parts.train_stream:
            learner.train(experience, eval_streams=[], shuffle=False, **loader)
    except TrainingDivergedError:
        return Trial(rate, accuracy=0.0, loss=float("inf"))
    metrics = learner.eval(parts.test_stream, **loader)
    accuracy = _metric(metrics, "Top1_Acc_Stream/eval")
    loss = _metric(metrics, "Loss_Stream/eval")
    if head_loss:
        loss = float(np.mean(of_head.losses))
    if not np.isfinite(loss):
        loss = float("inf")
    return Trial(rate, accuracy=100 * accuracy, loss=loss)


def _metric(metrics: dict[str, float], prefix: str) -> float:
    """Return the metric whose name begins with a prefix."""
    return next(value for name, value in metrics.items() if name.startswith(prefix))
