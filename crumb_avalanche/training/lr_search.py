"""Choose a learning rate on the first experience of a stream, taken as a small stream of its own."""

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
    """Accuracy in percent and mean loss of a learning rate on the held-out images of the first experience.

    Where training diverged, they are 0 and infinite.
    """

    learning_rate: float
    accuracy: float
    loss: float


def split_experience(
    targets: Sequence[int], held_out: float = 0.2
) -> tuple[list[int], list[int]]:
    """Split positions into training and test; the last frames of each class, in stream order, are for the test.

    In a video stream, the test frames are usually of other clips, and often of other
    objects. A class needs two frames.
    """
    labels = np.asarray(targets)
    learned: list[int] = []
    tested: list[int] = []
    for label in np.unique(labels):
        positions = np.flatnonzero(labels == label)
        if len(positions) < 2:
            raise ValueError(
                f"class {label} of the first experience has {len(positions)} frame, but tuning the learning rate holds "
                "out a frame of every class: give the class 2 frames or more, or set a learning rate"
            )
        cut = min(len(positions) - 1, max(1, round(len(positions) * (1 - held_out))))
        learned += positions[:cut].tolist()
        tested += positions[cut:].tolist()
    return sorted(learned), sorted(tested)


def pieces_of(
    labels: Sequence[int], objects: Sequence[Hashable] | None, most: int
) -> list[list[int]]:
    """Divide the images of a first experience into the classes of a small stream.

    These are its own classes if there are at least four, else its objects, which are
    then told apart: what a class that arrives does to earlier ones can be seen only
    where several arrive. Objects come class by class in turn.

    Returns places of the images of each of at most ``most`` pieces: ascending, at most
    100, evenly spread; a piece has at least two.
    """
    pieces = _grouped([(label,) for label in labels])
    if objects is not None and len(pieces) < FEWEST:
        finer = [
            piece
            for piece in _grouped(list(zip(labels, objects, strict=True)))
            if len(piece) > 1
        ]
        of_class = _grouped([labels[piece[0]] for piece in finer])
        turns = [
            place
            for turn in zip_longest(*of_class)
            for place in turn
            if place is not None
        ]
        if len(turns) >= FEWEST:
            pieces = [finer[place] for place in turns]
    kept = [min(len(piece), MOST_IMAGES) for piece in pieces[:most]]
    return [
        [piece[n * len(piece) // count] for n in range(count)]
        for piece, count in zip(pieces, kept)
    ]


def _grouped(keys: Sequence[Hashable]) -> list[list[int]]:
    groups: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def arrivals_of(pieces: int) -> list[list[int]]:
    """Divide pieces into experiences: four of almost equal size, the first with two pieces or more; else a single one.

    Fewer than four pieces, such as two classes of unknown objects, are one experience.
    """
    if pieces < FEWEST:
        return [list(range(pieces))]
    count = min(ARRIVALS, pieces - 1)
    return [part.tolist() for part in np.array_split(np.arange(pieces), count)]


class _Relabelled(Dataset):
    def __init__(self, dataset, places: Sequence[int], labels: Sequence[int]):
        self.dataset, self.places, self.labels = dataset, places, labels

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int):
        return self.dataset[self.places[number]][0], self.labels[number]


def _relabelled(dataset, label_of: dict[int, int]) -> AvalancheDataset:
    """Return the images in some places of a data set, ascending, with other labels, as the stream gives them."""
    places = sorted(label_of)
    labels = [label_of[place] for place in places]
    attributes = [DataAttribute(labels, "targets")]
    if hasattr(dataset, "frame_row"):
        attributes.append(
            DataAttribute([dataset.frame_row[place] for place in places], "frame_row")
        )
    images = _Relabelled(dataset, places, labels)
    if not hasattr(dataset, "targets_task_labels"):
        return AvalancheDataset([images], data_attributes=attributes)
    attributes.append(
        DataAttribute([0] * len(places), "targets_task_labels", use_in_getitem=True)
    )
    return TaskAwareSupervisedClassificationDataset(
        [images], data_attributes=attributes
    )


def small_stream(
    first_experience, objects: Sequence[Hashable] | None = None, most: int | None = None
):
    """Make a stream of the first experience alone, in which classes arrive one after the other.

    Returns an Avalanche benchmark; the last fifth of each piece is its test. For
    ``objects`` and ``most`` see ``pieces_of``; without ``most`` the experience stays
    one, with its own labels.
    """
    dataset = first_experience.dataset
    labels = labels_of(dataset)
    split_experience(labels)  # raises
    if most is None:
        label_of, experiences = dict(enumerate(labels)), [sorted(set(labels))]
    else:
        pieces = pieces_of(labels, objects, most)
        label_of = {
            place: number for number, piece in enumerate(pieces) for place in piece
        }
        experiences = arrivals_of(len(pieces))
    train: list[AvalancheDataset] = []
    test: list[AvalancheDataset] = []
    for arrived in experiences:
        places = [place for place in sorted(label_of) if label_of[place] in arrived]
        for kept, part in zip(
            (train, test),
            split_experience([label_of[place] for place in places]),
            strict=True,
        ):
            kept.append(
                _relabelled(
                    dataset,
                    {places[number]: label_of[places[number]] for number in part},
                )
            )
    return benchmark_from_datasets(train=train, test=test)


def tune(
    make: Callable[[float, EvaluationPlugin], StreamStrategy],
    parts,
    rates: Sequence[float] = RATES,
    head_loss: bool = False,
    **loader,
) -> list[Trial]:
    """Train with each rate on a small stream and test on its held-out images after the last experience.

    The global RNG state is restored.

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
        raise ValueError(
            f"training diverged at every learning rate of {', '.join(f'{rate:g}' for rate in rates)} on the first "
            "experience; try lower ones, or look for damaged images"
        )
    best_first = sorted(
        trials, key=lambda trial: (-trial.accuracy, trial.loss, trial.learning_rate)
    )
    winner = chosen(trials)
    return [winner, *[trial for trial in best_first if trial is not winner]]


def chosen(trials: Sequence[Trial]) -> Trial:
    """Return the lowest rate that is as good as the best: within 1 point of accuracy and 0.01 nats of loss.

    Several rates often fit a few classes perfectly; the highest may damage the network
    when more classes come.
    """
    best = min(trials, key=lambda trial: (-trial.accuracy, trial.loss))
    as_good = [
        trial
        for trial in trials
        if trial.accuracy >= best.accuracy - POINTS and trial.loss <= best.loss + NATS
    ]
    return min(as_good, key=lambda trial: trial.learning_rate)


class _HeadLoss(StatefulPlugin):
    """Records the cross-entropy of the head's logits in an evaluation, before later plugins change them."""

    def before_eval(self, strategy, **kwargs):
        self.losses: list[float] = []

    def after_eval_forward(self, strategy, **kwargs):
        self.losses += cross_entropy(
            strategy.mb_output, strategy.mb_y, reduction="none"
        ).tolist()


def _trial(make, rate: float, parts, head_loss: bool, loader: dict) -> Trial:
    metrics = accuracy_metrics(stream=True), loss_metrics(stream=True)
    evaluator = EvaluationPlugin(*metrics, loggers=[], strict_checks=False)
    learner = make(rate, evaluator)
    of_head = _HeadLoss()
    learner.plugins.insert(1, of_head)  # after the mask of unseen classes
    try:
        for experience in parts.train_stream:
            learner.train(experience, eval_streams=[], shuffle=False, **loader)
    except TrainingDivergedError:
        return Trial(rate, 0.0, float("inf"))
    metrics = learner.eval(parts.test_stream, **loader)
    accuracy = next(
        value
        for name, value in metrics.items()
        if name.startswith("Top1_Acc_Stream/eval")
    )
    loss = next(
        value for name, value in metrics.items() if name.startswith("Loss_Stream/eval")
    )
    loss = float(np.mean(of_head.losses)) if head_loss else loss
    return Trial(rate, 100 * accuracy, loss if np.isfinite(loss) else float("inf"))
