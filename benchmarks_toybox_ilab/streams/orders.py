"""The protocols by name, the keywords of a stream, and the orders drawn from a seed."""

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypedDict

import numpy as np

from benchmarks_toybox_ilab.tables.frame_table import FrameTable
from benchmarks_toybox_ilab.tables.numbers import whole_number

PROTOCOLS = ("class_instance", "class_iid", "offline")
"""Names of the protocols (paper, "Training protocols").

Clips one after the other, frames shuffled within an experience, all classes at once.
"""
TABLE = "table"
"""Name of the protocol that keeps the order of a table's rows."""


class StreamKeywords(TypedDict, total=False):
    """The keywords of every generator and of `protocols.make_benchmark`.

    Most are those of Avalanche's generators.

    Attributes:
        protocol: "class_instance", "class_iid", "offline" or "table"; see `protocols`.
        n_experiences: Number of experiences, which must divide the classes evenly; give
            it or `classes_per_experience`.
        classes_per_experience: Number of classes in an experience; the last may have
            fewer.
        first_exp_with_half_classes: Put half of the classes into the first experience,
            and divide the others.
        per_exp_classes: Number of classes of some experiences by their number, which
            counts from 0; the other experiences divide the other classes.
        seed: Draw the order of classes as Avalanche does with this seed; `run` is then
            this number for all other draws.
        run: The paper's word for the seed, by default 0: orders are drawn as in
            `PortableDraws`. Where runs differ in their split, it also chooses that.
        fixed_class_order: Labels or names of the classes in their order. Classes that
            it lacks are left out.
        shuffle: False takes the classes in the order of their labels.
        return_task_id: Take the number of the experience as task label instead of 0.
        class_ids_from_zero_from_first_exp: Number the labels by the order of the
            classes.
        class_ids_from_zero_in_each_exp: Number the labels from 0 in each experience.
        train_transform: PIL image to tensor; None is `imagenet_transform`, which gives
            float32 tensors of 3 x 224 x 224 and does not keep the aspect ratio, as in
            the paper.
        eval_transform: The same for the test stream.
    """

    protocol: str
    n_experiences: int | None
    classes_per_experience: int | None
    first_exp_with_half_classes: bool
    per_exp_classes: Mapping[int, int] | None
    seed: int | None
    run: int | None
    fixed_class_order: Sequence[int | str] | None
    shuffle: bool
    return_task_id: bool
    class_ids_from_zero_from_first_exp: bool
    class_ids_from_zero_in_each_exp: bool
    train_transform: Callable | None
    eval_transform: Callable | None


KEYWORD_DEFAULTS: StreamKeywords = {
    "protocol": "class_instance",
    "n_experiences": None,
    "classes_per_experience": 2,
    "first_exp_with_half_classes": False,
    "per_exp_classes": None,
    "seed": None,
    "run": None,
    "fixed_class_order": None,
    "shuffle": True,
    "return_task_id": False,
    "class_ids_from_zero_from_first_exp": False,
    "class_ids_from_zero_in_each_exp": False,
    "train_transform": None,
    "eval_transform": None,
}
"""The defaults of `protocols.make_benchmark`."""

# Children of the run's seed, one per kind of draw, so that another draw of one kind
# does not change the others.
_CLASS_ORDER, _CLIP_ORDER, _FRAME_ORDER = range(3)


class PortableDraws:
    """The orders of a `run`, its seed.

    Each is drawn from a child of the seed, so that they do not influence each other.
    """

    def __init__(self, run: int) -> None:
        self.run = run
        self._groups_drawn = 0  # of classes, so far

    def class_order(self, count: int) -> np.ndarray:
        """Shuffle the `count` classes of a group, `(count,)` int64.

        Call it once per group, in order.
        """
        self._groups_drawn += 1
        return self._draw_order(_CLASS_ORDER, count, self._groups_drawn - 1)

    def clip_order(self, count: int, experience: int) -> np.ndarray:
        """Shuffle the `count` clips of an experience, `(count,)` int64.

        `experience` is its number, from 0 on.
        """
        return self._draw_order(_CLIP_ORDER, count, experience)

    def frame_order(self, count: int, experience: int) -> np.ndarray:
        """Shuffle the `count` frames of an experience, `(count,)` int64.

        `experience` is its number, from 0 on.
        """
        return self._draw_order(_FRAME_ORDER, count, experience)

    def _draw_order(self, kind: int, count: int, number: int) -> np.ndarray:
        """Return a permutation of `count` classes, clips or frames, `(count,)` int64.

        Args:
            kind: `_CLASS_ORDER`, `_CLIP_ORDER` or `_FRAME_ORDER`.
            count: How many there are.
            number: Number of the group of classes, or of the experience, from 0 on.
        """
        child_key: tuple[int, ...] = (kind, number)
        if kind == _CLASS_ORDER and number == 0:
            child_key = (kind,)
        seed = np.random.SeedSequence(self.run, spawn_key=child_key)
        return np.random.default_rng(seed).permutation(count)


class HostDraws(PortableDraws):
    """The orders of a seed, that of the classes as Avalanche draws it.

    Torch's own generator is not touched.
    """

    def __init__(self, seed: int) -> None:
        import torch

        super().__init__(seed)
        self._generator = torch.Generator().manual_seed(seed)

    def class_order(self, count: int) -> np.ndarray:
        """Shuffle the `count` classes of a group, `(count,)` int64.

        Call it once per group, in order.
        """
        import torch

        return torch.randperm(count, generator=self._generator).numpy()


class ReferenceDraws(PortableDraws):
    """The orders of a run as the published code of the paper draws them.

    One of numpy's legacy generators, seeded with the run, shuffles the classes and then
    the clips of each experience, which are first sorted by `numbered_clips`; call
    `class_order` and then `clip_order` in the order of the stream. Frames are permuted
    by a new generator in each experience, also seeded with the run, as
    `pandas.DataFrame.sample` does with a `random_state`. The frame order of class_iid
    also depends on the row order of the published index files, which are not all
    available; here it is the table's.

    Args:
        run: Seed of the draws.
    """

    def __init__(self, run: int) -> None:
        super().__init__(run)
        self._generator = np.random.RandomState(run)

    def _draw_order(self, kind: int, count: int, number: int) -> np.ndarray:
        """Return a permutation as the published code draws it; see `PortableDraws`."""
        if kind == _FRAME_ORDER:
            return np.random.RandomState(self.run).permutation(count)
        order = np.arange(count)
        self._generator.shuffle(order)
        return order


def numbered_clips(
    table: FrameTable, clips: list[np.ndarray], classes: Sequence[str]
) -> list[np.ndarray]:
    """Sort clips of an experience as the published code does before it shuffles them.

    By number of object, then session, then class. Objects are numbered within their
    class and sessions within their object, in the order of the table's rows; classes by
    their position in `classes`. The published index files of CORe50 may number objects
    across classes instead.

    Args:
        table: The frames.
        clips: Row numbers of each clip.
        classes: Names of all classes.

    Returns:
        The same clips in another order.
    """
    # They number the names within a group in the order in which they are asked for.
    object_numbers = _Numbers()
    session_numbers = _Numbers()
    sort_keys = {}  # by the first row of each clip
    for clip in sorted(clips, key=min):
        first_row = int(clip[0])
        frame = table[first_row]
        object_key = (frame.class_name, frame.object_name)
        sort_keys[first_row] = (
            object_numbers.number(frame.class_name, frame.object_name),
            session_numbers.number(object_key, frame.session),
            classes.index(frame.class_name),
        )
    return sorted(clips, key=lambda clip: sort_keys[int(clip[0])])


class _Numbers:
    """Numbers names within their group from 0, in the order in which they come.

    Such as objects within their class, and sessions within their object.
    """

    def __init__(self) -> None:
        self._names_of_group: dict[Hashable, list[str]] = {}

    def number(self, group: Hashable, name: str) -> int:
        """Return the number of an object or session in its group; it may be new."""
        names = self._names_of_group.setdefault(group, [])
        if name not in names:
            names.append(name)
        return names.index(name)


def draws_of(run: int | None, seed: int | None, reference: bool) -> PortableDraws:
    """Return the object that draws the orders of a stream with a run or a seed.

    Args:
        run: Number of the run; None is 0 unless there is a seed.
        seed: Draw classes as Avalanche does with it; None draws by the run.
        reference: Draw as the paper's published code does.

    Raises:
        ValueError: If a seed is given with a run or `reference`, or one of them is no
            whole number of at least 0.
    """
    if seed is None:
        run = whole_number("run", 0 if run is None else run, 0)
        if reference:
            return ReferenceDraws(run)
        return PortableDraws(run)
    if run is not None or reference:
        excluded = "reference=True" if run is None else f"run={run}"
        raise ValueError(
            f"seed={seed} excludes {excluded}: seed draws the order of classes as "
            "Avalanche does, run as this package (or the published code, with "
            "reference=True) does. Give one of them."
        )
    return HostDraws(whole_number("seed", seed, 0))


def fixed_order(classes: Sequence[str], order: Sequence[int | str]) -> list[int]:
    """Return the labels of the classes of a stream in the order that a user fixes.

    Args:
        classes: Names of all classes; the position is the label.
        order: Labels or names.

    Raises:
        ValueError: If one is unknown or repeated, or there are none.
    """
    labels = [_label_of_entry(classes, entry) for entry in order]  # None if unknown
    has_unknown = None in labels
    has_repeated = len(set(labels)) < len(labels)
    if not labels or has_unknown or has_repeated:
        raise ValueError(
            f"fixed_class_order is {list(order)}, but must hold labels from 0 to "
            f"{len(classes) - 1} or names of the classes, each at most once: "
            f"{', '.join(classes)}"
        )
    return [label for label in labels if label is not None]


def _label_of_entry(classes: Sequence[str], entry: int | str) -> int | None:
    """Return the label of a class, given by label or name; None if it is unknown."""
    if isinstance(entry, str):
        return classes.index(entry) if entry in classes else None
    label = int(entry)
    return label if 0 <= label < len(classes) else None


def class_counts(
    total: int,
    size: int | None,
    n_experiences: int | None,
    half_first: bool,
    per_exp_classes: Mapping[int, int] | None = None,
) -> list[int]:
    """Return the number of classes in each experience of a stream.

    Args:
        total: Number of all classes.
        size: Number of classes in an experience; the last may have fewer.
        n_experiences: Number of experiences; if it is not None, it goes before `size`.
        half_first: Whether the first experience has half of the classes.
        per_exp_classes: Number of classes by number of experience; the others divide
            the other classes.

    Raises:
        ValueError: If the classes cannot be divided so.
    """
    fixed_counts = _fixed_class_counts(total, half_first, per_exp_classes)
    remaining = total - sum(fixed_counts.values())  # classes
    if n_experiences is None:
        size = whole_number("classes_per_experience", size, 1)
        if size > remaining > 1:
            warnings.warn(
                f"classes_per_experience is {size}, but there are {remaining} classes, "
                "so one experience has all of them; give a smaller number for a stream "
                "of several",
                stacklevel=2,
            )
        free_counts = [size] * (remaining // size)
        if remaining % size:
            free_counts.append(remaining % size)
    else:
        free_counts = _equal_class_counts(remaining, n_experiences, len(fixed_counts))
    n_all = len(fixed_counts) + len(free_counts)
    if fixed_counts and max(fixed_counts) >= n_all:
        raise ValueError(
            f"per_exp_classes names experience {max(fixed_counts)}, but there are "
            f"{n_all}, which count from 0; give others, or more experiences."
        )
    next_free = iter(free_counts)
    counts = []
    for experience in range(n_all):
        if experience in fixed_counts:
            counts.append(fixed_counts[experience])
        else:
            counts.append(next(next_free))
    return counts


def _fixed_class_counts(
    total: int, half_first: bool, per_exp_classes: Mapping[int, int] | None
) -> dict[int, int]:
    """Return how many classes a user wants in an experience, by number of experience.

    Args:
        total: Number of all classes.
        half_first: Whether the first experience has half of the classes.
        per_exp_classes: Number of classes by number of experience, for some of them.

    Raises:
        ValueError: If both say something, or there are fewer classes.
    """
    if not per_exp_classes:
        if half_first:
            return {0: total // 2}
        return {}
    if half_first:
        raise ValueError(
            "first_exp_with_half_classes and per_exp_classes both say how many classes "
            "an experience has; give one of them."
        )
    counts = {}
    for experience, count in per_exp_classes.items():
        experience = whole_number("a key of per_exp_classes", experience, 0)
        counts[experience] = whole_number("a value of per_exp_classes", count, 1)
    if sum(counts.values()) > total:
        raise ValueError(
            f"per_exp_classes has {sum(counts.values())} classes in all, but there are "
            f"{total}; give fewer."
        )
    return counts


def _equal_class_counts(remaining: int, n_experiences: int, n_given: int) -> list[int]:
    """Return the numbers of classes of the experiences for which none is given.

    Args:
        remaining: number of classes that are left for them.
        n_experiences: number of all experiences.
        n_given: number of experiences whose number of classes is given.

    Raises:
        ValueError: there are more experiences than classes, or the classes cannot be
            divided equally.
    """
    least = max(n_given, 1)  # of all experiences
    if remaining:  # for which one more is needed
        least = n_given + 1
    # Number of the experiences that share the remaining classes.
    count = whole_number("n_experiences", n_experiences, least) - n_given
    if count and remaining % count:
        raise ValueError(
            f"n_experiences is {n_experiences}, but {remaining} classes cannot be "
            f"divided by {count}; give another number, or classes_per_experience, with "
            "which the last experience may have fewer."
        )
    if count and not remaining:
        raise ValueError(
            f"n_experiences is {n_experiences}, but per_exp_classes leaves no classes "
            f"for {count} of them; give fewer experiences."
        )
    if not count:
        return []
    return [remaining // count] * count
