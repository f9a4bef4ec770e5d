"""The rows of each experience of a stream in order, without images or tensors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from benchmarks_toybox_ilab.streams.orders import (
    PROTOCOLS,
    TABLE,
    PortableDraws,
    class_counts,
    draws_of,
    fixed_order,
    numbered_clips,
)
from benchmarks_toybox_ilab.tables.frame import FrameTableError, natural_key
from benchmarks_toybox_ilab.tables.frame_table import FrameTable

Rows = np.ndarray  # numbers of rows of a table, `(n,)` int64


@dataclass(frozen=True)
class StreamPlan:
    """The rows of each experience in order.

    Attributes:
        chunks: Labels of the classes of each test experience, in order of appearance.
        train: Row numbers of each training experience in training order, `(n,)` int64
            each.
        test: Row numbers of each test experience, ascending.
        run: The seed of the draws.
    """

    chunks: tuple[tuple[int, ...], ...]
    train: tuple[Rows, ...]
    test: tuple[Rows, ...]
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
    per_exp_classes: Mapping[int, int] | None = None,
    test_split: str = "test",
) -> StreamPlan:
    """Draw the order of classes, clips and frames of a run.

    Paper: "Training protocols" (class-instance and class-i.i.d.). All protocols of a
        run share the order of classes.

    Args:
        table: The frames.
        protocol: "class_instance" (clips shuffled), "class_iid" (frames shuffled),
            "offline" (all classes at once), or "table" (in the order of the table).
        run: Number of the run, which seeds all draws; None is 0 unless there is a seed.
        classes_per_experience: Number of classes in one experience; the last may have
            fewer. None makes an experience of each session, in natural order of their
            names.
        class_groups: Names of all classes in groups that follow one another and are
            shuffled separately; None is one group, in the order of `table.classes`.
        reference: Draw as the paper's published code does; see `orders.ReferenceDraws`.
        test_split: The split whose rows the test experiences have; "train" tests on
            the training frames.
        n_experiences: Number of experiences, which goes before
            `classes_per_experience`.
        seed: Draw the order of classes as Avalanche does with this seed.
        fixed_class_order: Labels or names of the classes in their order, not drawn.
        shuffle: False takes the classes in the order of their labels.
        first_exp_with_half_classes: Put half of the classes into the first experience.
        per_exp_classes: Number of classes by number of experience, for some of them.

    Returns:
        The labels of each experience, and the row numbers of its training and test
        frames in their order.

    Raises:
        ValueError: If the protocol is unknown, a number is out of range, or two
            keywords exclude each other.
        FrameTableError: If a class of the stream has no test frames, the groups do not
            contain each class exactly once, or experiences are sessions and some of
            them lack one of the splits.
    """
    _check_protocol(protocol)
    draws = draws_of(run, seed, reference)  # draws all orders
    groups = _checked_groups(table, class_groups)
    if fixed_class_order is not None:
        order = fixed_order(table.classes, fixed_class_order)  # labels
    elif shuffle:
        order = _drawn_class_order(table, groups, draws)
    else:
        order = _sorted_class_order(table, groups)
    if test_split == "test":  # every class of a table has training frames
        _check_test_frames(table, order)
    if classes_per_experience is None and n_experiences is None:
        _check_not_divided(
            fixed_class_order=fixed_class_order,
            first_exp_with_half_classes=first_exp_with_half_classes,
            per_exp_classes=per_exp_classes,
        )
        experiences = _experiences_by_session(
            table, order, test_split, keeps_table_order=protocol == TABLE
        )
    else:
        counts = class_counts(
            total=len(order),
            size=classes_per_experience,
            n_experiences=n_experiences,
            half_first=first_exp_with_half_classes,
            per_exp_classes=per_exp_classes,
        )
        experiences = _experiences_by_class(table, order, counts, test_split)
    train = experiences.train
    if protocol == "offline":
        train = [_rows_of_classes(table, "train", order)]
    if protocol == "class_instance":
        # The published code sorts clips by the number of their class, its position
        # here, before it shuffles them.
        reference_names = _names_in_groups(groups) if reference else None
        train = _shuffled_clips(table, train, draws, reference_names)
    elif protocol != TABLE:
        train = _shuffled_frames(train, draws)
    return StreamPlan(
        chunks=tuple(experiences.chunks),
        train=tuple(train),
        test=tuple(experiences.test),
        run=draws.run,
    )


def _check_protocol(protocol: str) -> None:
    """Raise ValueError if no protocol of a stream has this name."""
    known = (*PROTOCOLS, TABLE)
    if protocol not in known:
        raise ValueError(
            f"unknown protocol {protocol!r}; known are {', '.join(known)}."
        )


def _check_test_frames(table: FrameTable, order: Iterable[int]) -> None:
    """Raise FrameTableError if a class of a stream could not be evaluated.

    Args:
        table: The frames.
        order: Labels of the classes of the stream.
    """
    counts = table.counts()
    for label in sorted(order):
        class_name = table.classes[label]
        if not counts[class_name]["test"]:
            raise FrameTableError(
                f"class {class_name!r} has no test frames, so it cannot be evaluated. "
                "Mark some of its rows as test, or leave the class out, such as by a "
                "fixed_class_order without it."
            )


def _checked_groups(
    table: FrameTable, class_groups: Sequence[Sequence[str]] | None
) -> Sequence[Sequence[str]]:
    """Return the groups of classes of a stream that follow one another.

    Raises:
        FrameTableError: Unless each class of the table is in one of them.
    """
    if class_groups is None:
        return [table.classes]
    if sorted(_names_in_groups(class_groups)) != sorted(table.classes):
        raise FrameTableError(
            f"class_groups is {list(map(list, class_groups))}, but must contain each "
            f"class of the table once: {', '.join(table.classes)}"
        )
    return class_groups


def _names_in_groups(groups: Iterable[Sequence[str]]) -> list[str]:
    """Return the names of the classes of all groups."""
    return list(chain.from_iterable(groups))


# Orders of frames


def _shuffled_clips(
    table: FrameTable,
    experiences: Sequence[Rows],
    draws: PortableDraws,
    names: Sequence[str] | None,
) -> list[Rows]:
    """Return the rows of experiences, clip after clip in a drawn order.

    Args:
        table: The frames.
        experiences: Row numbers of each experience.
        draws: Draw the order.
        names: Names of all classes, if clips are sorted before they are drawn as the
            published code sorts them, see `numbered_clips`; None leaves them in natural
            order.
    """
    shuffled = []
    for number, rows in enumerate(experiences):
        clips = table.clips(rows)  # the row numbers of each
        if names is not None:
            clips = numbered_clips(table, clips, names)
        order = draws.clip_order(len(clips), number)
        shuffled.append(np.concatenate([clips[index] for index in order]))
    return shuffled


def _shuffled_frames(experiences: Sequence[Rows], draws: PortableDraws) -> list[Rows]:
    """Return the rows of experiences, frame after frame in a drawn order."""
    shuffled = []
    for number, rows in enumerate(experiences):
        shuffled.append(rows[draws.frame_order(len(rows), number)])
    return shuffled


# Orders of classes, as labels


def _drawn_class_order(
    table: FrameTable, groups: Iterable[Sequence[str]], draws: PortableDraws
) -> list[int]:
    """Return the labels of the classes in a drawn order, group after group."""
    order = []
    for group in groups:
        for position in draws.class_order(len(group)):
            order.append(table.classes.index(group[position]))
    return order


def _sorted_class_order(
    table: FrameTable, groups: Iterable[Sequence[str]]
) -> list[int]:
    """Return the labels of each group of classes, ascending, group after group."""
    order: list[int] = []
    for group in groups:
        order += sorted(map(table.classes.index, group))
    return order


# Experiences


@dataclass(frozen=True)
class _Experiences:
    """Classes and rows of experiences; the rows ascend.

    Attributes:
        chunks: Labels of the classes of each test experience, in order of appearance.
        train, test: Row numbers of each experience.
    """

    chunks: list[tuple[int, ...]]
    train: list[Rows]
    test: list[Rows]


def _experiences_by_class(
    table: FrameTable, order: Sequence[int], counts: Sequence[int], test_split: str
) -> _Experiences:
    """Make the experiences of a stream that divides its classes.

    Args:
        table: The frames.
        order: Labels of the classes in order of appearance.
        counts: Number of classes of each experience.
        test_split: The split of the test experiences.

    Returns:
        `chunks`, the labels of each experience, and `train` and `test`, the ascending
        row numbers of its frames.
    """
    chunks: list[tuple[int, ...]] = []
    train = []
    test = []
    start = 0
    for count in counts:
        labels = tuple(map(int, order[start : start + count]))
        start += count
        chunks.append(labels)
        train.append(_rows_of_classes(table, "train", labels))
        test.append(_rows_of_classes(table, test_split, labels))
    return _Experiences(chunks=chunks, train=train, test=test)


def _experiences_by_session(
    table: FrameTable, order: Sequence[int], test_split: str, keeps_table_order: bool
) -> _Experiences:
    """Make the experiences of a stream from the sessions of its table.

    Args:
        table: The frames.
        order: Labels of the classes in order of appearance.
        test_split: The split of the test experiences.
        keeps_table_order: Whether classes appear as in the table instead: by session,
            and by label within it.

    Returns:
        `chunks`, the labels of each test experience, and `train` and `test`, the
        ascending row numbers of the frames of each experience.

    Raises:
        FrameTableError: If a session is missing in one of the splits.
    """
    train_sessions = _rows_by_session(table, "train")
    test_sessions = _rows_by_session(table, test_split)
    _check_sessions(train_sessions, test_sessions)
    train = list(train_sessions.values())
    test = list(test_sessions.values())
    if keeps_table_order:
        labels_by_session = [np.unique(table.labels[rows]) for rows in train]
        # Each label once, where it appears first.
        order = list(dict.fromkeys(np.concatenate(labels_by_session).tolist()))
    chunks = []
    for rows in test:
        test_labels = set(table.labels[rows].tolist())
        chunks.append(tuple(label for label in order if label in test_labels))
    return _Experiences(chunks=chunks, train=train, test=test)


def _check_not_divided(**keywords: object) -> None:
    """Raise ValueError for keywords that divide the classes of a stream of sessions."""
    useless = []
    for name, value in keywords.items():
        is_given = value is not None and value is not False
        if is_given:
            useless.append(name)
    if useless:
        raise ValueError(
            "the experiences are the sessions of the table, so "
            f"{' and '.join(useless)} cannot be given; leave it out, or give "
            "n_experiences or classes_per_experience."
        )


def _rows_of_classes(table: FrameTable, split: str, labels: Sequence[int]) -> Rows:
    """Return the row numbers of a split that show any of the classes, `(n,)` int64."""
    rows = table.rows(split)
    return rows[np.isin(table.labels[rows], labels)]


def _check_sessions(train: Iterable[str], test: Iterable[str]) -> None:
    """Raise FrameTableError if experiences of the same number are not of one session.

    One test session may follow all training sessions, and test sessions may be others
    than those of training; neither belongs to a training experience of its number.

    Args:
        train, test: Names of the sessions.
    """
    train = list(train)
    test = list(test)
    if len(test) == 1 or set(train) == set(test) or set(train).isdisjoint(test):
        return
    gaps = []
    for split, sessions, others in (("train", train, test), ("test", test, train)):
        missing = [session for session in others if session not in sessions]
        if missing:
            gaps.append(f"session {', '.join(missing)} has no {split} frames")
    raise FrameTableError(
        f"{' and '.join(gaps)}, so that experiences of the two streams would not fit "
        "together. Complete the data, or leave the whole session out."
    )


def _rows_by_session(table: FrameTable, split: str) -> dict[str, Rows]:
    """Return the row numbers of each session, in natural order of the sessions."""
    rows_of_session: dict[str, list[int]] = {}
    for row in table.rows(split).tolist():
        rows_of_session.setdefault(table.session[row], []).append(row)
    sessions = sorted(rows_of_session, key=natural_key)
    return {session: np.array(rows_of_session[session]) for session in sessions}
