"""Make an Avalanche benchmark from a table of frames and a protocol.

- class_instance: each experience holds some classes and shows their clips in random
  order, each clip from its first frame to its last.
- class_iid: the same frames in the same experiences, but shuffled within each.
- offline: one training experience with all frames of all classes, shuffled: training
  without a stream.
- table: the frames of an experience in the order of the table's rows.

If `classes_per_experience` is None, an experience holds a session of all classes
instead: their domain changes, as in CLEAR, whose sessions are years.

The dataset holds the order, so train with `shuffle=False`. Importing this module
imports Avalanche, which takes seconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from avalanche.benchmarks import (
    CLScenario,
    DatasetExperience,
    EagerCLStream,
    with_classes_timeline,
    with_task_labels,
)
from avalanche.benchmarks.utils import (
    AvalancheDataset,
    ConstantSequence,
    DataAttribute,
    TaskAwareSupervisedClassificationDataset,
    TransformGroups,
)

from benchmarks_toybox_ilab.streams.plan import StreamPlan, plan_stream
from benchmarks_toybox_ilab.streams.torch_dataset import (
    FrameDataset,
    imagenet_transform,
)
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

__all__ = [
    "ClassSet",
    "FrameBenchmark",
    "FrameExperience",
    "StreamInfo",
    "StreamPlan",
    "make_benchmark",
    "plan_stream",
]


@dataclass(frozen=True)
class StreamInfo:
    """The attributes of `experience.benchmark` that some strategies (iCaRL) read.

    See `FrameBenchmark`.
    """

    n_classes: int
    n_classes_per_exp: list[int]
    classes_order: list[int]
    original_classes_in_exp: list[set[int]]


class ClassSet(set[int]):
    """A set of labels that can be indexed as a list in ascending order.

    Avalanche's new benchmarks give sets of classes, its classic ones lists, and some of
    its code takes only a list (`MultiHeadClassifier` and `LearningToPrompt`).
    """

    def __getitem__(self, number: int) -> int:
        return sorted(self)[number]


class FrameExperience(DatasetExperience):
    """An experience with a `benchmark` attribute.

    A strategy may replace its dataset; BiC does.
    """

    def __init__(
        self, dataset: AvalancheDataset, current_experience: int, benchmark: StreamInfo
    ) -> None:
        super().__init__(dataset=dataset, current_experience=current_experience)
        self.benchmark = benchmark

    @property
    def dataset(self) -> AvalancheDataset:
        """The frames of the experience."""
        return self._dataset

    @dataset.setter
    def dataset(self, dataset: AvalancheDataset) -> None:
        self._dataset = dataset


class FrameBenchmark(CLScenario):
    """Avalanche's scenario for a frame table; `make_benchmark` makes it.

    Args:
        streams, info: The training and the test stream, and their classes.
        table, protocol, run: See below.

    Attributes:
        train_stream: One experience per chunk of classes; a single one if the protocol
            is "offline".
        test_stream: One experience per chunk of classes, so `test_stream[: t + 1]`
            holds the classes seen up to t.
        n_classes: Number of classes.
        n_classes_per_exp: Number of classes of each training experience.
        classes_order: Labels in order of appearance.
        original_classes_in_exp: The set of labels of each training experience, before
            `class_ids_from_zero_...`.
        class_names: The name of each label.
        frame_table: The table, with the classes in the order of their labels.
        protocol: The protocol.
        run: The seed.
    """

    def __init__(
        self,
        streams: list[EagerCLStream],
        table: FrameTable,
        protocol: str,
        run: int,
        info: StreamInfo,
    ):
        super().__init__(streams)
        for stream in streams:
            stream.benchmark = self
            # Experiences then name the slice that they were taken from, as
            # `strict_checks` of an evaluator needs.
            stream.set_stream_info = True
        self.n_classes = info.n_classes
        self.n_classes_per_exp = info.n_classes_per_exp
        self.classes_order = info.classes_order
        self.original_classes_in_exp = info.original_classes_in_exp
        self.class_names = table.classes
        self.frame_table = table
        self.protocol = protocol
        self.run = run


def make_benchmark(
    table: FrameTable,
    protocol: str = "class_instance",
    run: int | None = None,
    classes_per_experience: int | None = 2,
    train_transform: Callable | None = None,
    eval_transform: Callable | None = None,
    class_groups: Sequence[Sequence[str]] | None = None,
    reference: bool = False,
    *,
    n_experiences: int | None = None,
    seed: int | None = None,
    fixed_class_order: Sequence[int | str] | None = None,
    shuffle: bool = True,
    first_exp_with_half_classes: bool = False,
    per_exp_classes: Mapping[int, int] | None = None,
    return_task_id: bool = False,
    class_ids_from_zero_from_first_exp: bool = False,
    class_ids_from_zero_in_each_exp: bool = False,
    test_split: str = "test",
) -> FrameBenchmark:
    """Make an Avalanche benchmark from a table by `plan_stream`.

    The items of `experience.dataset` are image (what the transform gives, by default
    `(3, 224, 224)` float32), label and task label (int); its attribute `frame_row`
    holds the table row of each item, `clip` the number of its clip. Strategies may
    change their experiences, so make a new benchmark for each strategy.

    Args:
        table: The frames.
        protocol: "class_instance" (clips shuffled), "class_iid" (frames shuffled),
            "offline" (all classes at once), or "table" (in the order of the table).
        run: Number of the run, which seeds all draws; None is 0 unless there is a seed.
        classes_per_experience: Number of classes in one experience; the last may have
            fewer. None makes an experience of each session.
        train_transform, eval_transform: Make a tensor of a PIL image; None gives
            `(3, 224, 224)` float32, normalised for ImageNet networks.
        class_groups: Names of all classes in groups that follow one another and are
            shuffled separately; None is one group.
        reference: Draw orders as the paper's published code does, and label classes by
            the order of their first frames, which differs between runs. By default the
            labels are the same in every run.
        n_experiences: Number of experiences, instead of `classes_per_experience`.
        seed: Draw the order of classes as Avalanche does with this seed.
        fixed_class_order: Labels or names of the classes in their order, not drawn.
        shuffle: False takes the classes in the order of their labels.
        first_exp_with_half_classes: Put half of the classes into the first experience.
        per_exp_classes: Number of classes by number of experience, for some of them.
        return_task_id: Take the number of the experience as task label instead of 0.
        class_ids_from_zero_from_first_exp: Number the labels by the order of the
            classes.
        class_ids_from_zero_in_each_exp: Number the labels from 0 in each experience.
        test_split: The split whose rows the test experiences have; "train" tests on
            the training frames.

    Raises:
        ValueError: As `plan_stream`, or if both numberings of labels are asked for, or
            labels are to be numbered in each experience while experiences share
            classes.
        FrameTableError: As `plan_stream`.
    """
    plan = plan_stream(
        table,
        protocol,
        run=run,
        classes_per_experience=classes_per_experience,
        class_groups=class_groups,
        reference=reference,
        n_experiences=n_experiences,
        seed=seed,
        fixed_class_order=fixed_class_order,
        shuffle=shuffle,
        first_exp_with_half_classes=first_exp_with_half_classes,
        per_exp_classes=per_exp_classes,
        test_split=test_split,
    )
    stream = _NumberedStream(table, plan)
    # Each relabelling below gives another table and another plan: the class that
    # appears first gets the label 0, the next one 1.
    if reference:
        labels_of_frames = table.labels[np.concatenate(plan.train)]  # in training order
        stream = _relabelled_stream(stream, labels_of_frames)
    original_classes = _labels_of_each(stream.table.labels, stream.plan.train)
    if class_ids_from_zero_from_first_exp:
        labels_in_order = np.concatenate(stream.plan.chunks)  # of the experiences
        stream = _relabelled_stream(stream, labels_in_order)
    if class_ids_from_zero_in_each_exp:
        is_excluded = class_ids_from_zero_from_first_exp or protocol == "offline"
        numbering = _numbered_in_each_experience(stream, is_excluded)
    else:
        numbering = _numbered_as_in_table(stream)
    table = stream.table
    plan = stream.plan
    info = StreamInfo(
        n_classes=len(numbering.order),
        n_classes_per_exp=_class_count_of_each(numbering.labels, plan.train),
        classes_order=numbering.order,
        original_classes_in_exp=original_classes,
    )
    test_info = replace(
        info, n_classes_per_exp=_class_count_of_each(numbering.labels, plan.test)
    )
    transforms = {
        "train": (train_transform or imagenet_transform(), None),
        "eval": (eval_transform or imagenet_transform(), None),
    }
    frames = _StreamFrames(table, numbering.labels, transforms, return_task_id)
    # The experiences get attributes that Avalanche's strategies read: task labels, and
    # the classes of before and later.
    streams = _streams_for_strategies(
        frames.experiences(plan.train, info),
        frames.experiences(plan.test, test_info, for_evaluation=True),
    )
    return FrameBenchmark(streams, table, protocol, plan.run, info)


def _streams_for_strategies(
    train: list[FrameExperience], test: list[FrameExperience]
) -> list[EagerCLStream]:
    """Return the training and the test stream of experiences.

    The experiences get the attributes that Avalanche's strategies read: task labels,
    and the classes of before, now and later.
    """
    scenario = CLScenario([EagerCLStream("train", train), EagerCLStream("test", test)])
    decorated = with_task_labels(with_classes_timeline(scenario))
    streams = list(decorated.streams.values())
    for stream in streams:
        _set_classes_of_experiences(stream)
    return streams


@dataclass(frozen=True)
class _Numbering:
    """The numbers that a strategy sees of the classes.

    Attributes:
        labels: Number of the class of each row of the table, `(N,)` integers.
        order: Numbers of the classes in order of appearance.
    """

    labels: np.ndarray
    order: list[int]


def _numbered_as_in_table(stream: "_NumberedStream") -> _Numbering:
    """Number the classes of a stream as its table does."""
    order = dict.fromkeys(np.concatenate(stream.plan.chunks).tolist())
    return _Numbering(labels=stream.table.labels, order=list(order))


def _numbered_in_each_experience(
    stream: "_NumberedStream", is_excluded: bool
) -> _Numbering:
    """Number the classes of each experience of a stream from 0.

    Args:
        stream: The table and its experiences.
        is_excluded: Whether another setting of the stream excludes it.

    Returns:
        `labels`, the number of the class of each row of the table, `(N,)`, -1 for
        classes that the stream leaves out; and `order`, the numbers of the classes in
        order of appearance.

    Raises:
        ValueError: If it is excluded, or experiences share classes.
    """
    chunks = stream.plan.chunks  # labels of each experience
    as_in_table = _numbered_as_in_table(stream)
    have_common_classes = len(as_in_table.order) < sum(map(len, chunks))
    if is_excluded or have_common_classes:
        raise ValueError(
            "class_ids_from_zero_in_each_exp excludes "
            "class_ids_from_zero_from_first_exp, and experiences that share "
            "classes; leave it out."
        )
    # Number of each class, its position in its experience; -1 for those left out.
    numbers = np.full(len(stream.table.classes), -1)
    for label, number in _positions_in_chunks(chunks).items():
        numbers[label] = number
    return _Numbering(
        labels=numbers[as_in_table.labels], order=numbers[as_in_table.order].tolist()
    )


@dataclass(frozen=True)
class _NumberedStream:
    """A table, and the plan of its stream with the table's labels."""

    table: FrameTable
    plan: StreamPlan


def _relabelled_stream(
    stream: _NumberedStream, appearance: np.ndarray
) -> _NumberedStream:
    """Label the classes of a stream by the order in which they appear in it.

    Args:
        stream: The table and its experiences.
        appearance: Labels in order of appearance, each once or more; classes that it
            lacks follow.

    Returns:
        The table with its classes in this order, and the plan with their new labels.
    """
    table = stream.table
    plan = stream.plan
    labels = [*appearance.tolist(), *range(len(table.classes))]
    # Each label once, where it appears first; its position is its new label.
    order = list(dict.fromkeys(labels))
    chunks = [tuple(sorted(map(order.index, chunk))) for chunk in plan.chunks]
    classes = [table.classes[label] for label in order]
    return _NumberedStream(
        table=table.with_classes(classes), plan=replace(plan, chunks=tuple(chunks))
    )


def _labels_of_each(
    labels: np.ndarray, experiences: Iterable[np.ndarray]
) -> list[set[int]]:
    """Return the set of labels of each experience.

    Args:
        labels: Label of each row of the table, `(N,)`.
        experiences: Row numbers of each experience.
    """
    return [set(np.unique(labels[rows]).tolist()) for rows in experiences]


def _positions_in_chunks(chunks: Iterable[Sequence[int]]) -> dict[int, int]:
    """Return the position of each label among those of its experience."""
    positions = {}
    for chunk in chunks:
        for position, label in enumerate(chunk):
            positions[label] = position
    return positions


def _class_count_of_each(
    labels: np.ndarray, experiences: Iterable[np.ndarray]
) -> list[int]:
    """Return the number of classes of each experience; see `_labels_of_each`."""
    return list(map(len, _labels_of_each(labels, experiences)))


@dataclass(frozen=True)
class _StreamFrames:
    """What the datasets of both streams have in common.

    Attributes:
        table: The frames.
        labels: Label of each row of the table, `(N,)` integers.
        transforms: Transforms of image and label by Avalanche's group, "train" and
            "eval"; None leaves the label.
        return_task_id: Whether the task label is the number of the experience.
    """

    table: FrameTable
    labels: np.ndarray
    transforms: dict
    return_task_id: bool

    def experiences(
        self,
        rows_by_experience: Sequence[np.ndarray],
        info: StreamInfo,
        for_evaluation: bool = False,
    ) -> list[FrameExperience]:
        """Make Avalanche's experiences of a stream, numbered from 0.

        Args:
            rows_by_experience: Row numbers of the frames of each in order.
            info: Classes of the stream, for the strategies that read them.
            for_evaluation: Whether images get the transform of the group "eval".
        """
        datasets = self._datasets_of_experiences(rows_by_experience)
        if for_evaluation:
            datasets = [dataset.eval() for dataset in datasets]
        experiences = []
        for number, dataset in enumerate(datasets):
            experiences.append(FrameExperience(dataset, number, info))
        return experiences

    def _datasets_of_experiences(
        self, experiences: Sequence[np.ndarray]
    ) -> list[AvalancheDataset]:
        """Return the dataset of each experience of a stream, in order.

        They are subsets of one dataset: Avalanche joins these into one, but keeps
        datasets that have transforms apart, so its replay buffers would grow with every
        update.

        Args:
            experiences: Row numbers of the frames of each experience.
        """
        rows = np.concatenate(experiences)
        frames = FrameDataset(self.table, rows, labels=self.labels)
        sizes = list(map(len, experiences))
        if self.return_task_id:
            # A list cannot be concatenated with the constant labels of datasets that
            # strategies make for their memory (iCaRL).
            tasks = np.repeat(range(len(sizes)), sizes).tolist()
        else:
            tasks = ConstantSequence(0, len(frames))
        # This class has the `task_set` that LwF and task-balanced buffers read.
        stream = TaskAwareSupervisedClassificationDataset(
            [frames],
            transform_groups=TransformGroups(self.transforms),
            data_attributes=[
                DataAttribute(frames.targets, "targets"),
                DataAttribute(frames.rows.tolist(), "frame_row", use_in_getitem=False),
                DataAttribute(self._clip_numbers(rows), "clip", use_in_getitem=False),
                # Avalanche expects it last.
                DataAttribute(tasks, "targets_task_labels", use_in_getitem=True),
            ],
        )
        datasets = []
        start = 0
        for size in sizes:
            datasets.append(stream.subset(range(start, start + size)))
            start += size
        return datasets

    def _clip_numbers(self, rows: np.ndarray) -> list[int]:
        """Return the number of the clip of each row, from 0 in order of appearance."""
        number_of_clip: dict[tuple[str, str, str], int] = {}
        table = self.table
        numbers = []
        for row in rows.tolist():
            clip = (table.class_name[row], table.object_name[row], table.session[row])
            numbers.append(number_of_clip.setdefault(clip, len(number_of_clip)))
        return numbers


def _set_classes_of_experiences(stream: EagerCLStream) -> None:
    """Set the labels of each experience of a stream, and those of all that follow it.

    As in Avalanche's classic benchmarks, these include classes that were seen and come
    again.
    """
    future: set[int] = set()
    for experience in reversed(list(stream)):
        classes = ClassSet(experience.classes_in_this_experience)
        experience.classes_in_this_experience = classes
        experience.future_classes = future
        future = future | classes
