"""Make an Avalanche benchmark from a table of frames and a protocol.

- class_instance: each experience holds some classes and shows their clips in random order, each clip from its first
  frame to its last.
- class_iid: the same frames in the same experiences, but shuffled within each.
- offline: one training experience with all frames of all classes, shuffled: training without a stream.

If `classes_per_experience` is None, an experience holds a session of all classes instead: their domain changes, as in
CLEAR, whose sessions are years.

The dataset holds the order, so train with `shuffle=False`. Importing this module imports Avalanche, which takes
seconds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from avalanche.benchmarks import CLScenario, DatasetExperience, EagerCLStream, with_classes_timeline, with_task_labels
from avalanche.benchmarks.utils import (
    AvalancheDataset,
    ConstantSequence,
    DataAttribute,
    TaskAwareSupervisedClassificationDataset,
    TransformGroups,
)

from benchmarks_toybox_ilab.streams.orders import PROTOCOLS, PortableDraws, ReferenceDraws, numbered_clips
from benchmarks_toybox_ilab.streams.torch_dataset import FrameDataset, imagenet_transform
from benchmarks_toybox_ilab.tables.frame import SPLITS, FrameTableError, natural_key, whole_number
from benchmarks_toybox_ilab.tables.frame_table import FrameTable


@dataclass(frozen=True)
class StreamPlan:
    """The rows of each experience in order, without images or tensors.

    Attributes:
        chunks: Labels of the classes of each test experience, in order of appearance.
        train: Row numbers of each training experience in training order, `(n,)` int64 each.
        test: Row numbers of each test experience, ascending.
    """

    chunks: tuple[tuple[int, ...], ...]
    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]


def plan_stream(
    table: FrameTable,
    protocol: str = "class_instance",
    run: int = 0,
    classes_per_experience: int | None = 2,
    class_groups: Sequence[Sequence[str]] | None = None,
    reference: bool = False,
) -> StreamPlan:
    """Draw the order of classes, clips and frames of a run.

    Paper: "Training protocols" (class-instance and class-i.i.d.). All protocols of a run share the order of classes.

    Args:
        table: The frames.
        protocol: One of `orders.PROTOCOLS`.
        run: The seed.
        classes_per_experience: Number of classes in one experience; the last may have fewer. None makes an experience
            of each session, in natural order of their names.
        class_groups: Names of all classes in groups that follow one another and are shuffled separately; None is one
            group, in the order of `table.classes`.
        reference: Draw as the paper's published code does; see `orders.ReferenceDraws`.

    Raises:
        ValueError: If the protocol is unknown, or a number is out of range.
        FrameTableError: If a class has no test frames, or the groups do not contain each class exactly once.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown protocol {protocol!r}; known are {', '.join(PROTOCOLS)}.")
    run = whole_number("run", run, 0)
    size = classes_per_experience
    size = None if size is None else whole_number("classes_per_experience", size, 1)
    for class_name, count in table.counts().items():
        if not count["test"]:
            raise FrameTableError(
                f"class {class_name!r} has no test frames, so it cannot be evaluated. "
                "Mark some of its rows as test, or leave the class out."
            )
    groups = [table.classes] if class_groups is None else class_groups
    if sorted(name for group in groups for name in group) != sorted(table.classes):
        raise FrameTableError(
            f"class_groups is {[list(group) for group in groups]}, but must contain each class of the table once: "
            f"{', '.join(table.classes)}"
        )
    draws = ReferenceDraws(run) if reference else PortableDraws(run)
    label_of = {name: label for label, name in enumerate(table.classes)}
    order = [label_of[group[place]] for group in groups for place in draws.classes(len(group))]
    if size is None:
        parts, tests = _sessions_of(table, "train"), _sessions_of(table, "test")
        chunks = tuple(tuple(label for label in order if label in set(table.labels[rows])) for rows in tests)
    else:
        chunks = tuple(tuple(order[start : start + size]) for start in range(0, len(order), size))
        parts, tests = ([_rows_of(table, split, labels) for labels in chunks] for split in SPLITS)
    train = []
    for experience, rows in enumerate([table.rows("train")] if protocol == "offline" else parts):
        if protocol == "class_instance":
            clips = table.clips(rows)
            if reference:
                clips = numbered_clips(table, clips, [name for group in groups for name in group])
            train.append(np.concatenate([clips[clip] for clip in draws.clips(len(clips), experience)]))
        else:
            train.append(rows[draws.frames(len(rows), experience)])
    return StreamPlan(chunks, tuple(train), tuple(tests))


def _rows_of(table: FrameTable, split: str, labels: tuple[int, ...]) -> np.ndarray:
    rows = table.rows(split)
    return rows[np.isin(table.labels[rows], labels)]


def _sessions_of(table: FrameTable, split: str) -> list[np.ndarray]:
    rows_of: dict[str, list[int]] = {}
    for row in table.rows(split).tolist():
        rows_of.setdefault(table.session[row], []).append(row)
    return [np.array(rows_of[session]) for session in sorted(rows_of, key=natural_key)]


@dataclass(frozen=True)
class StreamInfo:
    """The attributes of `experience.benchmark` that some strategies (iCaRL) read; see `FrameBenchmark`."""

    n_classes: int
    n_classes_per_exp: list[int]
    classes_order: list[int]


class ClassSet(set[int]):
    """A set of labels that can be indexed as a list in ascending order.

    Avalanche's new benchmarks give sets of classes, its classic ones lists, and some of its code takes only a list
    (`MultiHeadClassifier` and `LearningToPrompt`).
    """

    def __getitem__(self, number: int) -> int:
        return sorted(self)[number]


class FrameExperience(DatasetExperience):
    """An experience with a `benchmark` attribute, whose dataset a strategy may replace (BiC does)."""

    def __init__(self, dataset: AvalancheDataset, current_experience: int, benchmark: StreamInfo) -> None:
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
    """Avalanche's scenario for a frame table.

    Args:
        streams: The training and the test stream.
        table, protocol, run: See below.
        info: Classes of the streams.

    Attributes:
        train_stream: One experience per chunk of classes; a single one if the protocol is "offline".
        test_stream: One experience per chunk of classes, so `test_stream[: t + 1]` holds the classes seen up to t.
        n_classes: Number of classes.
        n_classes_per_exp: Number of classes of each training experience.
        classes_order: Labels in order of appearance.
        original_classes_in_exp: The set of labels of each training experience.
        class_names: The name of each label.
        frame_table: The table, with the classes in the order of their labels.
        protocol: The protocol.
        run: The seed.
    """

    def __init__(self, streams: list[EagerCLStream], table: FrameTable, protocol: str, run: int, info: StreamInfo):
        super().__init__(streams)
        for stream in streams:
            stream.benchmark = self
            # Experiences then name the slice that they were taken from, as `strict_checks` of an evaluator needs.
            stream.set_stream_info = True
        self.n_classes = info.n_classes
        self.n_classes_per_exp = info.n_classes_per_exp
        self.classes_order = info.classes_order
        self.original_classes_in_exp = [set(exp.classes_in_this_experience) for exp in self.train_stream]
        self.class_names = table.classes
        self.frame_table = table
        self.protocol = protocol
        self.run = run


def make_benchmark(
    table: FrameTable,
    protocol: str = "class_instance",
    run: int = 0,
    classes_per_experience: int | None = 2,
    train_transform: Callable | None = None,
    eval_transform: Callable | None = None,
    class_groups: Sequence[Sequence[str]] | None = None,
    reference: bool = False,
) -> FrameBenchmark:
    """Make an Avalanche benchmark from a table by `plan_stream`.

    The items of `experience.dataset` are image (what the transform gives, by default `(3, 224, 224)` float32), label
    and task label (int, always 0); its attribute `frame_row` holds the table row of each item. Strategies may change
    their experiences, so make a new benchmark for each strategy.

    Args:
        table, protocol, run, classes_per_experience, class_groups: See `plan_stream`.
        train_transform: PIL image to `(3, h, w)` tensor; None is `imagenet_transform(224)`.
        eval_transform: The same for evaluation.
        reference: Draw orders as the paper's published code does, and label classes by the order of their first frames,
            which differs between runs. By default the labels are the same in every run.

    Raises:
        ValueError, FrameTableError: As `plan_stream`.
    """
    plan = plan_stream(table, protocol, run, classes_per_experience, class_groups, reference)
    if reference:
        appearance = list(dict.fromkeys(table.labels[np.concatenate(plan.train)].tolist()))
        table = table.with_classes([table.classes[label] for label in appearance])
        plan = replace(plan, chunks=tuple(tuple(sorted(map(appearance.index, labels))) for labels in plan.chunks))
    transforms = {
        "train": (imagenet_transform() if train_transform is None else train_transform, None),
        "eval": (imagenet_transform() if eval_transform is None else eval_transform, None),
    }
    order = list(dict.fromkeys(label for labels in plan.chunks for label in labels))
    streams, infos = [], []
    for name, all_rows in (("train", plan.train), ("test", plan.test)):
        counts = [len(np.unique(table.labels[rows])) for rows in all_rows]
        infos.append(StreamInfo(len(order), counts, order))
        datasets = _datasets(table, all_rows, transforms)
        experiences = [
            FrameExperience(dataset if name == "train" else dataset.eval(), number, infos[-1])
            for number, dataset in enumerate(datasets)
        ]
        streams.append(EagerCLStream(name, experiences))
    decorated = with_task_labels(with_classes_timeline(CLScenario(streams)))
    for stream in decorated.streams.values():
        for experience in stream:
            experience.classes_in_this_experience = ClassSet(experience.classes_in_this_experience)
    return FrameBenchmark(list(decorated.streams.values()), table, protocol, int(run), infos[0])


def _datasets(table: FrameTable, all_rows: Sequence[np.ndarray], transforms: dict) -> list[AvalancheDataset]:
    rows = np.concatenate(all_rows)
    frames = FrameDataset(table, rows)
    # This class has the `task_set` that LwF and task-balanced buffers read.
    stream = TaskAwareSupervisedClassificationDataset(
        [frames],
        transform_groups=TransformGroups(transforms),
        # Avalanche expects the task label last. It is not a list, because a list cannot be concatenated with the
        # constant labels of datasets that strategies make for their memory (iCaRL).
        data_attributes=[
            DataAttribute(frames.targets, "targets"),
            DataAttribute(rows.tolist(), "frame_row", use_in_getitem=False),
            DataAttribute(ConstantSequence(0, len(rows)), "targets_task_labels", use_in_getitem=True),
        ],
    )
    # Subsets of one dataset: Avalanche joins these into one, but keeps datasets that have transforms apart, so its
    # replay buffers would grow with every update.
    ends = np.cumsum([len(one) for one in all_rows]).tolist()
    return [stream.subset(range(end - len(one), end)) for one, end in zip(all_rows, ends)]
