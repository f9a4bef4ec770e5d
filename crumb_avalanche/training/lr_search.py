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
MOST_EXPERIENCES = 4  # of the small stream
FEWEST_CLASSES = 4  # of the small stream that it takes for several experiences
MOST_IMAGES = 100  # of a class of the small stream


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
    """Split the positions of an experience's frames into training and test.

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
        n_frames = len(positions)
        n_training = round(n_frames * (1 - held_out))
        n_training = min(n_frames - 1, max(1, n_training))  # each part has a frame
        training += positions[:n_training].tolist()
        test += positions[n_training:].tolist()
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


def pseudo_classes(
    labels: Sequence[int], objects: Sequence[Hashable] | None, most: int
) -> list[list[int]]:
    """Divide the images of a first experience into the classes of a small stream.

    These are its own classes if there are at least four. Of fewer classes, they are its
    objects of two images or more, if these are known and at least four: what a class
    that arrives does to earlier ones can be seen only where several arrive. Objects
    come class by class in turn.

    Args:
        labels: class of each image.
        objects: object of each image; ``None`` if they are not known.
        most: largest number of classes of the small stream.

    Returns:
        Positions of the images of each of these classes: ascending, at most
        ``MOST_IMAGES`` (100), evenly spread; each has at least two.
    """
    positions_of_classes = _group_positions(labels)  # a list for each class
    if objects is not None and len(positions_of_classes) < FEWEST_CLASSES:
        positions_of_objects = _objects_in_turn(labels, objects)
        if len(positions_of_objects) >= FEWEST_CLASSES:
            positions_of_classes = positions_of_objects
    return [
        _evenly_spread(positions, MOST_IMAGES)
        for positions in positions_of_classes[:most]
    ]


def _objects_in_turn(
    labels: Sequence[int], objects: Sequence[Hashable]
) -> list[list[int]]:
    """Return the positions of the images of each object, class by class in turn.

    Objects with a single image are left out.

    Args:
        labels: class of each image.
        objects: object of each image; objects of different classes may share a name.

    Returns:
        A list for the first object of each class, then for the second one of each, and
        so on.
    """
    class_and_name = list(zip(labels, objects, strict=True))  # of each image
    images_of_objects = []  # positions of the images, a list for each object
    for positions in _group_positions(class_and_name):
        if len(positions) > 1:
            images_of_objects.append(positions)
    class_of_object = [labels[positions[0]] for positions in images_of_objects]
    # Positions of the objects in the two lists above, a list for each class.
    objects_of_classes = _group_positions(class_of_object)
    in_turn = []
    for turn in zip_longest(*objects_of_classes):  # None for a class without any left
        in_turn += [images_of_objects[number] for number in turn if number is not None]
    return in_turn


def _group_positions(keys: Sequence[Hashable]) -> list[list[int]]:
    """Return the positions of equal keys, ascending, a list for each different key.

    The lists are in the order in which the keys occur first.
    """
    positions_by_key: dict[Hashable, list[int]] = {}
    for position, key in enumerate(keys):
        positions_by_key.setdefault(key, []).append(position)
    return list(positions_by_key.values())


def _evenly_spread(positions: list[int], most: int) -> list[int]:
    """Return at most ``most`` of the positions, evenly spread and in order."""
    count = min(len(positions), most)
    return [positions[number * len(positions) // count] for number in range(count)]


def classes_of_experiences(
    n_classes: int, most: int = MOST_EXPERIENCES
) -> list[list[int]]:
    """Divide the classes of a small stream into experiences.

    They are of almost equal size, and the first has two classes or more. Fewer than
    four classes, such as two of unknown objects, are one experience.

    Args:
        n_classes: of the small stream.
        most: largest number of experiences.
    """
    if n_classes < FEWEST_CLASSES:
        return [list(range(n_classes))]
    n_experiences = min(most, n_classes - 1)
    sections = np.array_split(np.arange(n_classes), n_experiences)
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


def _relabelled_dataset(dataset, label_of_position: dict[int, int]) -> AvalancheDataset:
    """Return some images of a data set with other labels, in the order of the data set.

    They have the attributes that the stream gives them, such as ``frame_row``, by which
    a cache finds their maps.

    Args:
        dataset: Avalanche data set of an experience.
        label_of_position: the new label of each image that is taken, by its position in
            the data set.
    """
    positions = sorted(label_of_position)
    labels = [label_of_position[position] for position in positions]
    attributes = [DataAttribute(labels, "targets")]
    if hasattr(dataset, "frame_row"):
        rows = [dataset.frame_row[position] for position in positions]
        attributes.append(DataAttribute(rows, "frame_row"))
    images = _Relabelled(dataset, positions, labels)
    if not hasattr(dataset, "targets_task_labels"):
        return AvalancheDataset([images], data_attributes=attributes)
    tasks = [0] * len(positions)  # task labels, all alike
    attributes.append(DataAttribute(tasks, "targets_task_labels", use_in_getitem=True))
    return TaskAwareSupervisedClassificationDataset(
        [images], data_attributes=attributes
    )


def small_stream(
    first_experience,
    objects: Sequence[Hashable] | None = None,
    most: int | None = None,
    most_experiences: int = MOST_EXPERIENCES,
):
    """Make a stream of the first experience, in which classes arrive in turn.

    Learning rates are tried on it, before the rest of the stream is seen.

    Args:
        first_experience: of the stream.
        objects: object of each image, which may stand for classes if these are few;
            ``None`` if they are not known.
        most: largest number of classes; without it the experience stays one, with its
            own labels.
        most_experiences: largest number of experiences.

    Returns:
        An Avalanche benchmark; the last fifth of each class is its test.
    """
    dataset = first_experience.dataset
    labels = labels_of(dataset)
    _check_two_frames(labels)
    # The class in the small stream of each image that is in it.
    label_of_position: dict[int, int] = {}
    if most is None:
        label_of_position = dict(enumerate(labels))
        experiences = [sorted(set(labels))]
    else:
        positions_of_classes = pseudo_classes(labels, objects, most)
        for number, positions in enumerate(positions_of_classes):
            label_of_position |= dict.fromkeys(positions, number)
        # A list of classes for each experience.
        experiences = classes_of_experiences(
            len(positions_of_classes), most_experiences
        )
    train: list[AvalancheDataset] = []
    test: list[AvalancheDataset] = []
    for classes in experiences:
        labels_of_experience = {}
        for position, label in sorted(label_of_position.items()):
            if label in classes:
                labels_of_experience[position] = label
        training_labels, test_labels = _split_labels(labels_of_experience)
        train.append(_relabelled_dataset(dataset, training_labels))
        test.append(_relabelled_dataset(dataset, test_labels))
    return benchmark_from_datasets(train=train, test=test)


def _split_labels(
    label_of_position: dict[int, int],
) -> tuple[dict[int, int], dict[int, int]]:
    """Split the labels of images by their positions as ``split_experience`` does."""
    positions = list(label_of_position)
    labels = list(label_of_position.values())
    training_indices, test_indices = split_experience(labels)
    training: dict[int, int] = {}
    for index in training_indices:
        training[positions[index]] = labels[index]
    test: dict[int, int] = {}
    for index in test_indices:
        test[positions[index]] = labels[index]
    return training, test


def tune(
    make_strategy: Callable[[float, EvaluationPlugin], StreamStrategy],
    benchmark,
    rates: Sequence[float] = RATES,
    head_loss: bool = False,
    **loader,
) -> list[Trial]:
    """Train with each rate on a small stream and test on its held-out images.

    The test comes after the last experience. The global RNG state is restored.

    Args:
        make_strategy: function of rate and evaluator that returns a new strategy with a
            new model.
        benchmark: Avalanche benchmark, as of ``small_stream``.
        rates: learning rates to try.
        head_loss: use the loss of the head's logits, for a strategy that predicts by
            other scores.
        loader: keyword arguments of the data loaders, such as ``num_workers``.

    Returns:
        The trials, each with rate, accuracy in percent and loss: first the one whose
        rate ``choose_trial`` takes, then the others from best to worst.

    Raises:
        ValueError: training diverges at all rates.
    """
    trials = []
    for rate in rates:
        with preserve_rng_state():
            trials.append(_try_rate(rate, make_strategy, benchmark, head_loss, loader))
    if not any(np.isfinite(trial.loss) for trial in trials):
        rates_text = ", ".join(f"{rate:g}" for rate in rates)
        raise ValueError(
            f"training diverged at every learning rate of {rates_text} on the first "
            "experience; try lower ones, or look for damaged images"
        )
    best_first = sorted(
        trials, key=lambda trial: (-trial.accuracy, trial.loss, trial.learning_rate)
    )
    chosen = choose_trial(trials)
    return [chosen, *[trial for trial in best_first if trial is not chosen]]


def choose_trial(trials: Sequence[Trial]) -> Trial:
    """Return the trial with the lowest rate that is as good as the best.

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
        """Begin a list of losses, one for each image of the evaluation."""
        self.losses: list[float] = []

    def after_eval_forward(self, strategy, **kwargs):
        """Record the cross-entropy of each image of the batch."""
        losses = cross_entropy(strategy.mb_output, strategy.mb_y, reduction="none")
        self.losses += losses.tolist()


def _try_rate(
    rate: float, make_strategy, benchmark, head_loss: bool, loader: dict
) -> Trial:
    """Train with a learning rate on a small stream and test on its held-out images.

    Args:
        rate: the learning rate.
        make_strategy: function of rate and evaluator that returns a new strategy.
        benchmark: Avalanche benchmark; the test comes after its last experience.
        head_loss: whether the loss is that of the head's logits, not of the strategy's
            outputs.
        loader: keyword arguments of the data loaders.

    Returns:
        The rate with accuracy in percent and loss; infinite if training diverged.
    """
    evaluator = EvaluationPlugin(
        accuracy_metrics(stream=True),
        loss_metrics(stream=True),
        loggers=[],
        strict_checks=False,
    )
    strategy = make_strategy(rate, evaluator)
    head_losses = _HeadLoss()  # records the head's losses in evaluation
    strategy.plugins.insert(1, head_losses)  # after the mask of unseen classes
    try:
        for experience in benchmark.train_stream:
            strategy.train(experience, eval_streams=[], shuffle=False, **loader)
    except TrainingDivergedError:
        return Trial(rate, accuracy=0.0, loss=float("inf"))
    metrics = strategy.eval(benchmark.test_stream, **loader)
    # By the beginnings of Avalanche's names.
    accuracy = _metric(metrics, "Top1_Acc_Stream/eval")
    loss = _metric(metrics, "Loss_Stream/eval")
    if head_loss:
        loss = float(np.mean(head_losses.losses))
    if not np.isfinite(loss):
        loss = float("inf")
    return Trial(rate, accuracy=100 * accuracy, loss=loss)


def _metric(metrics: dict[str, float], prefix: str) -> float:
    """Return the metric whose name begins with a prefix."""
    return next(value for name, value in metrics.items() if name.startswith(prefix))
