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

from collections.abc import Callable, Sequence
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

from benchmarks_toybox_ilab.streams.orders import (
    PROTOCOLS,
    TABLE,
    class_counts,
    draws_of,
    fixed_order,
    numbered_clips,
)
from benchmarks_toybox_ilab.streams.torch_dataset import (
    FrameDataset,
    imagenet_transform,
)
from benchmarks_toybox_ilab.tables.frame import SPLITS, FrameTableError, natural_key
from benchmarks_toybox_ilab.tables.frame_table import FrameTable


@dataclass(frozen=True)
class StreamPlan:
    """The rows of each experience in order, without images or tensors.

    Attributes:
        chunks: Labels of the classes of each test experience, in order of appearance.
        train: Row numbers of each training experience in training order, `(n,)` int64
            each.
        test: Row numbers of each test experience, ascending.
        run: The seed of the draws.
    """

    chunks: tuple[tuple[int, ...], ...]
    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    run: int = 0


def plan_stream(
    table: FrameTable,
    protocol: str = "class_instance",
    run: int | None = None,
    classes_per_experience: int | None = 2,
    class_groups: Sequence[Sequence[str]] | None = None,
    reference: bool = False,
    *,
    n_experiences: int | None = None,
    seed: int | None = None,
    fixed_class_order: Sequence[int | str] | None = None,
    shuffle: bool = True,
    first_exp_with_half_classes: bool = False,
) -> StreamPlan:
    """Draw the order of classes, clips and frames of a run.

    Paper: "Training protocols" (class-instance and class-i.i.d.). All protocols of a
        run share the order of classes.

    Args:
        table: The frames.
        classes_per_experience: Number of classes in one experience; the last may have
            fewer. None makes an experience of each session, in natural order of their
            names.
        class_groups: Names of all classes in groups that follow one another and are
            shuffled separately; None is one group, in the order of `table.classes`.
        reference: Draw as the paper's published code does; see `orders.ReferenceDraws`.
        others: See `orders.StreamKeywords`; `n_experiences` goes before
            `classes_per_experience`.

    Raises:
        ValueError: If the protocol is unknown, a number is out of range, or two
            keywords exclude each other.
        FrameTableError: If a class has no test frames, or the groups do not contain
            each class exactly once.
    """
    if protocol not in (known := (*PROTOCOLS, TABLE)):
        raise ValueError(
            f"unknown protocol {protocol!r}; known are {', '.join(known)}."
        )
    draws = draws_of(run, seed, reference)
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
    label_of = {name: label for label, name in enumerate(table.classes)}
    if fixed_class_order is not None:
        order = fixed_order(table.classes, fixed_class_order)
    elif shuffle:
        order = [
            label_of[group[place]]
            for group in groups
            for place in draws.classes(len(group))
        ]
    else:
        order = [
            label
            for group in groups
            for label in sorted(map(label_of.__getitem__, group))
        ]
    if classes_per_experience is None and n_experiences is None:
        if fixed_class_order is not None or first_exp_with_half_classes:
            raise ValueError(
                "the experiences are the sessions of the table, so fixed_class_order and first_exp_with_half_classes "
                "have no meaning; leave them out, or give n_experiences or classes_per_experience."
            )
        parts, tests = _sessions_of(table, "train"), _sessions_of(table, "test")
        if protocol == TABLE:
            order = list(
                dict.fromkeys(
                    label
                    for rows in parts
                    for label in np.unique(table.labels[rows]).tolist()
                )
            )
        chunks = tuple(
            tuple(label for label in order if label in set(table.labels[rows]))
            for rows in tests
        )
    else:
        counts = class_counts(
            len(order),
            classes_per_experience,
            n_experiences,
            first_exp_with_half_classes,
        )
        chunks = tuple(
            tuple(map(int, chunk)) for chunk in np.split(order, np.cumsum(counts)[:-1])
        )
        parts, tests = (
            [_rows_of(table, split, labels) for labels in chunks] for split in SPLITS
        )
    train = []
    for experience, rows in enumerate(
        [_rows_of(table, "train", order)] if protocol == "offline" else parts
    ):
        if protocol == "class_instance":
            clips = table.clips(rows)
            if reference:
                clips = numbered_clips(
                    table, clips, [name for group in groups for name in group]
                )
            train.append(
                np.concatenate(
                    [clips[clip] for clip in draws.clips(len(clips), experience)]
                )
            )
        else:
            train.append(
                rows if protocol == TABLE else rows[draws.frames(len(rows), experience)]
            )
    return StreamPlan(chunks, tuple(train), tuple(tests), draws.run)


def _rows_of(table: FrameTable, split: str, labels: Sequence[int]) -> np.ndarray:
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
    original_classes_in_exp: list[set[int]]


class ClassSet(set[int]):
    """A set of labels that can be indexed as a list in ascending order.

    Avalanche's new benchmarks give sets of classes, its classic ones lists, and some of
    its code takes only a list (`MultiHeadClassifier` and `LearningToPrompt`).
    """

    def __getitem__(self, number: int) -> int:
        return sorted(self)[number]


class FrameExperience(DatasetExperience):
    """An experience with a `benchmark` attribute, whose dataset a strategy may replace (BiC does)."""

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
    return_task_id: bool = False,
    class_ids_from_zero_from_first_exp: bool = False,
    class_ids_from_zero_in_each_exp: bool = False,
) -> FrameBenchmark:
    """Make an Avalanche benchmark from a table by `plan_stream`.

    The items of `experience.dataset` are image (what the transform gives, by default
    `(3, 224, 224)` float32), label and task label (int); its attribute `frame_row`
    holds the table row of each item. Strategies may change their experiences, so make a
    new benchmark for each strategy.

    Args:
        table, class_groups: See `plan_stream`.
        reference: Draw orders as the paper's published code does, and label classes by
            the order of their first frames, which differs between runs. By default the
            labels are the same in every run.
        others: See `orders.StreamKeywords`.

    Raises:
        ValueError: As `plan_stream`, or if both numberings of labels are asked for, or
            labels are to be numbered in each experience while experiences share
            classes.
        FrameTableError: As `plan_stream`.
    """
    keywords = dict(
        n_experiences=n_experiences,
        seed=seed,
        fixed_class_order=fixed_class_order,
        shuffle=shuffle,
    )
    keywords["first_exp_with_half_classes"] = first_exp_with_half_classes
    plan = plan_stream(
        table,
        protocol,
        run,
        classes_per_experience,
        class_groups,
        reference,
        **keywords,
    )
    original = [set(np.unique(table.labels[rows]).tolist()) for rows in plan.train]
    if reference:
        table, plan = _relabelled(table, plan, table.labels[np.concatenate(plan.train)])
        original = [set(np.unique(table.labels[rows]).tolist()) for rows in plan.train]
    if class_ids_from_zero_from_first_exp:
        table, plan = _relabelled(table, plan, np.concatenate(plan.chunks))
    labels, order = (
        table.labels,
        list(dict.fromkeys(label for chunk in plan.chunks for label in chunk)),
    )
    if class_ids_from_zero_in_each_exp:
        if (
            class_ids_from_zero_from_first_exp
            or protocol == "offline"
            or len(order) < sum(map(len, plan.chunks))
        ):
            raise ValueError(
                "class_ids_from_zero_in_each_exp excludes class_ids_from_zero_from_first_exp, and experiences that "
                "share classes; leave it out."
            )
        place = {
            label: number for chunk in plan.chunks for number, label in enumerate(chunk)
        }
        labels = np.array(
            [place.get(label, -1) for label in range(len(table.classes))]
        )[labels]
    transforms = {
        "train": (
            imagenet_transform() if train_transform is None else train_transform,
            None,
        ),
        "eval": (
            imagenet_transform() if eval_transform is None else eval_transform,
            None,
        ),
    }
    shown = (
        [place[label] for label in order] if class_ids_from_zero_in_each_exp else order
    )
    streams, infos = [], []
    for name, all_rows in (("train", plan.train), ("test", plan.test)):
        counts = [len(np.unique(labels[rows])) for rows in all_rows]
        infos.append(StreamInfo(len(order), counts, shown, original))
        frames = FrameDataset(table, np.concatenate(all_rows), labels=labels)
        datasets = _datasets(
            frames, [len(rows) for rows in all_rows], transforms, return_task_id
        )
        experiences = [
            FrameExperience(
                dataset if name == "train" else dataset.eval(), number, infos[-1]
            )
            for number, dataset in enumerate(datasets)
        ]
        streams.append(EagerCLStream(name, experiences))
    decorated = with_task_labels(with_classes_timeline(CLScenario(streams)))
    for stream in decorated.streams.values():
        future: set[int] = (
            set()
        )  # as in Avalanche's classic benchmarks: also classes that were seen and come again
        for experience in reversed(list(stream)):
            experience.classes_in_this_experience = ClassSet(
                experience.classes_in_this_experience
            )
            experience.future_classes, future = (
                future,
                future | experience.classes_in_this_experience,
            )
    return FrameBenchmark(
        list(decorated.streams.values()), table, protocol, plan.run, infos[0]
    )


def _relabelled(
    table: FrameTable, plan: StreamPlan, appearance: Sequence[int]
) -> tuple[FrameTable, StreamPlan]:
    """Number the classes by the order in which their labels appear, then those that do not."""
    order = list(dict.fromkeys([*map(int, appearance), *range(len(table.classes))]))
    renumbered = tuple(
        tuple(sorted(map(order.index, labels))) for labels in plan.chunks
    )
    return table.with_classes([table.classes[label] for label in order]), replace(
        plan, chunks=renumbered
    )


def _datasets(
    frames: FrameDataset, sizes: Sequence[int], transforms: dict, return_task_id: bool
) -> list[AvalancheDataset]:
    # A list cannot be concatenated with the constant labels of datasets that strategies
    # make for their memory (iCaRL).
    tasks = (
        np.repeat(range(len(sizes)), sizes).tolist()
        if return_task_id
        else ConstantSequence(0, len(frames))
    )
    # This class has the `task_set` that LwF and task-balanced buffers read.
    stream = TaskAwareSupervisedClassificationDataset(
        [frames],
        transform_groups=TransformGroups(transforms),
        data_attributes=[
            DataAttribute(frames.targets, "targets"),
            DataAttribute(frames.rows.tolist(), "frame_row", use_in_getitem=False),
            DataAttribute(
                tasks, "targets_task_labels", use_in_getitem=True
            ),  # Avalanche expects it last
        ],
    )
    # Subsets of one dataset: Avalanche joins these into one, but keeps datasets that
    # have transforms apart, so its replay buffers would grow with every update.
    ends = np.cumsum(sizes).tolist()
    return [stream.subset(range(end - size, end)) for size, end in zip(sizes, ends)]
