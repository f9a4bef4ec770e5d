"""Base class of all classifiers in closed form: statistics of features, plain torch."""

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from crumb_avalanche.methods.typicality import Typicality
from crumb_avalanche.models.extraction import LARGEST_FEATURE
from crumb_avalanche.system.progress import counted
from crumb_avalanche.system.setting_ranges import check_arguments, checked, declared
from crumb_avalanche.system.tensor_file import (
    StateError,
    storage_bytes,
    tensor_bytes,
    tensors_of,
)

NO_DENSITY = (
    -1e30
)  # score of a class without images: below all others, and finite in float32
LOWEST_SCORE = -1e29  # of a class with images
Form = TypeVar("Form", bound="ClosedForm")


class BudgetError(ValueError):
    """A class more does not fit into a budget."""


class Scores(nn.Module):
    """Scores of a closed form as it is now, in operations that exporters trace, with constants for what is learned."""

    def __init__(self, form: "ClosedForm", solved: Any):
        super().__init__()
        self.form, self.solved = form, solved

    def forward(self, features: Tensor) -> Tensor:
        return self.form._answers(features.double(), self.solved).clamp_min(
            LOWEST_SCORE
        )


class _TypicalSpace(NamedTuple):
    """What ``ClosedForm.typicality`` caches, and what it was computed from."""

    solved: Any
    nothing: Tensor | None
    space: Any


class ClosedForm(ABC):
    """Statistics of features that are updated batch by batch, merged, saved and loaded, and score new features.

    A subclass declares the settings of the method as annotated attributes, whose types
    carry their range and whose values are the defaults: ``ridge: NotNegative = 1e-3``.
    They are keyword arguments of the constructor, attributes of an instance, and flags
    of the command line.

    ``grow`` adds classes at any time; the statistics do not depend on when. The time of
    ``update`` depends on the batch and the number of features, not on the number of
    classes. The first ``scores`` after a change solves for the classifier and caches
    the solution, which ``copy.deepcopy`` shares.

    Attributes:
        moments: arguments of ``FeatureMoments`` that differ from its defaults in a run,
            where they are settings, too.
        temperature: divisor of the scores whose softmax are probabilities; of those
            below the median of the best ones for held-out images of 40 of 50 classes of
            CIFAR-100 and of Tiny-ImageNet, SqueezeNet 1.0.
        budgeted: whether the budget of a run decides how much is stored; see
            ``bought``.
        apart_from_nothing: whether ``typicality`` sees images apart from those that
            show nothing.
        by_class, shared: names of the tensors with a row for each class, and of those
            that all classes share.
        settings: arguments of the constructor by name; ``n_classes`` follows ``grow``.
        counts: images of each class, ``(n_classes,)`` int32.
    """

    moments: ClassVar[dict[str, Any]] = {}
    temperature: ClassVar[float] = 1.0
    budgeted: ClassVar[bool] = False
    apart_from_nothing: ClassVar[bool] = False
    by_class: ClassVar[tuple[str, ...]] = ("counts",)
    shared: ClassVar[tuple[str, ...]] = ()
    counts: Tensor
    # Settings in which statistics that are merged may differ, and those that change
    # while learning.
    _free: ClassVar[frozenset[str]] = frozenset({"n_classes"})
    _changing: ClassVar[frozenset[str]] = frozenset()
    _solution: Any = None  # cached by ``scores``; None after the statistics change
    _typical: _TypicalSpace | None = None  # cached by ``typicality``; may be outdated
    _derived: tuple[Any, int] = (
        None,
        0,
    )  # what ``derived_bytes`` depends on, and the bytes
    _cached: ClassVar[tuple[str, ...]] = (
        "_solution",
    )  # attributes that are replaced, never changed in place

    def __init__(
        self, n_classes: int, length: int, *decided: Any, **keywords: Any
    ) -> None:
        """Check and record all arguments, and allocate the statistics of ``n_classes`` classes of ``length`` features.

        ``decided`` and ``keywords`` are settings, and what else ``_allocate`` takes,
        such as ``seed``.

        Raises:
            ValueError: a value has another type or is out of its range.
            TypeError: an argument is unknown.
        """
        own = declared(type(self)).items()
        given = {
            name: checked(name, keywords.pop(name, getattr(self, name)), hint)
            for name, hint in own
        }
        bound = inspect.signature(self._allocate).bind(
            n_classes, length, *decided, **keywords
        )
        bound.apply_defaults()
        if [*bound.arguments][:2] != ["n_classes", "length"]:
            taken = ", ".join(bound.arguments)
            raise TypeError(
                f"{type(self).__name__}._allocate takes {taken}; name the first two n_classes and length"
            )
        arguments = check_arguments(type(self)._allocate, bound.arguments)
        self.settings = {**arguments, **given}
        vars(self).update(given)
        self._allocate(**arguments)

    def __deepcopy__(self: Form, memo: dict) -> Form:
        for name in (*self._cached, "_typical"):
            value = getattr(self, name)
            memo[id(value)] = value
        copied = copy.copy(self)
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_typical": None}

    @property
    def image_counts(self) -> Tensor:
        """Images of each class, ``(n_classes,)`` int32."""
        return self.counts

    @property
    def remains_after_forget(self) -> str:
        """What ``forget`` leaves of the images of a class, in words; empty for nothing."""
        return ""

    @abstractmethod
    def _allocate(self, n_classes: int, length: int) -> None:
        """Allocate the statistics; what else a subclass takes here follows from the stream and the budget."""

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the statistics by name."""
        return {name: getattr(self, name) for name in (*self.shared, *self.by_class)}

    @abstractmethod
    def _update(self, features: Tensor, labels: Tensor) -> None:
        """Add at least one checked image."""

    @abstractmethod
    def _solve(self, seen: Tensor) -> Any:
        """Return what ``_answers`` needs, for the classes of a mask with at least one class."""

    @abstractmethod
    def _answers(self, features: Tensor, solution: Any) -> Tensor:
        """Score the classes of a solution for ``(B, D)`` float64 features; ``(B, classes)`` float64."""

    @abstractmethod
    def _merge(self, other: Any, labels: dict[int, int]) -> None:
        """Add the classes ``labels`` of an instance with the same settings, numbered in this one by the values."""

    def _grow(self, n_classes: int) -> None:
        """Add classes up to a larger number."""
        for name in self.by_class:
            setattr(self, name, grown(getattr(self, name), n_classes))

    def _forget(self, label: int) -> None:
        """Remove a class that has images; with the last one, what all classes share."""
        for name in self.by_class:
            getattr(self, name)[label] = 0
        for name in () if self.image_counts.any() else self.shared:
            getattr(self, name).zero_()

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add images to the statistics.

        Args:
            features: ``(B, D)`` float, on the CPU; at most 1e12 in absolute value.
            labels: ``(B,)`` int64, on the CPU.

        Raises:
            ValueError: a shape does not fit, a feature is not finite or too large, or
                there is no such class. The statistics are unchanged then.
        """
        self._check_batch(features, labels)
        if len(labels):
            self._update(features, labels)
            self._solution = None

    def scores(self, features: Tensor) -> Tensor:
        """Score the classes for ``(B, D)`` float features on the CPU; the largest score is the answer.

        Returns:
            ``(B, n_classes)`` float64; -1e30 (``NO_DENSITY``) for classes without
            images, and at least -1e29 for all others.
        """
        seen = self.image_counts > 0
        scores = torch.full((len(features), len(seen)), NO_DENSITY, dtype=torch.float64)
        if seen.any():
            scores[:, seen] = self.solution()(features)
        return scores

    def solution(self) -> "Scores":
        """Return the classifier ``(B, D)`` -> ``(B, C)`` of the classes with images, of which there must be one."""
        return Scores(self, self.solved())

    def solved(self) -> Any:
        """Return what ``scores`` computes from, for the classes with images, of which there must be one."""
        if self._solution is None:  # only after a change
            self._solution = self._solve(self.image_counts > 0)
        return self._solution

    def typicality(self, features: Tensor, nothing: Tensor | None = None) -> Typicality:
        """Score the classes with images, and measure how like their images new ones are.

        What "like" means is the method's own; see ``_typicality``.

        Args:
            features: ``(B, D)`` float, on the CPU.
            nothing: features of images that show nothing, as in
                ``MeansSpan.against_background``; for forms that are
                ``apart_from_nothing``.
        """
        solved, typical = self.solved(), self._typical
        if (
            typical is None
            or typical.solved is not solved  # another one after each change
            or typical.nothing is not nothing
        ):
            space = self._typical_space(nothing)
            typical = _TypicalSpace(solved=solved, nothing=nothing, space=space)
            self._typical = typical
        return self._typicality(features.double(), typical.space)

    def _typical_space(self, nothing: Tensor | None) -> Any:
        """Return what ``_typicality`` needs and is computed once after each change."""
        return None

    def _typicality(self, features: Tensor, space: Any) -> Typicality:
        """Measure how typical ``(B, D)`` float64 features are; by default by the largest score."""
        scores = self.solution()(features)
        largest = scores.amax(1) / self.temperature
        return Typicality.of_three(scores, largest, largest, largest)

    def grow(self, n_classes: int) -> None:
        """Add classes without images, up to ``n_classes``; scores of the other classes stay as they are.

        Raises:
            ValueError: there are more classes already.
        """
        if n_classes < self.settings["n_classes"]:
            raise ValueError(
                f"n_classes is {n_classes}, but there are {self.settings['n_classes']} classes already; give at least "
                "as many, and remove single classes with forget"
            )
        self._grow(n_classes)
        self.settings["n_classes"] = n_classes

    def forget(self, label: int) -> None:
        """Remove all that is held of one class alone; it can be taught again from the start.

        ``remains_after_forget`` names what a matrix shared by all classes keeps until
        the last class is removed.

        Raises:
            ValueError: there is no such class.
        """
        self._check_label(label)
        if self.image_counts[label]:
            self._forget(label)
            self._solution = None

    def merge(
        self, other: "ClosedForm", labels: Mapping[int, int] | None = None
    ) -> None:
        """Add the statistics of another instance of the same class and settings, which is not changed.

        The result is that of one instance trained on both parts, up to rounding, unless
        the class says otherwise.

        Args:
            other: the other instance; ``n_classes`` may differ.
            labels: the number in this instance of each class of ``other`` that has
                images; default the same numbers. Classes are added where a number needs
                it. Two classes may get the same number.

        Raises:
            StateError: the other instance has another class or other settings.
            ValueError: ``labels`` lacks a class, or has a negative number.
        """
        if type(other) is not type(self):
            raise StateError(
                f"{type(other).__name__} cannot be merged into {type(self).__name__}; give the same kind"
            )
        self._check(other.settings, "merged", self._free)
        present = other.image_counts.nonzero().flatten().tolist()
        if labels is not None and (
            missing := [label for label in present if label not in labels]
        ):
            raise ValueError(
                f"labels has no number for class {missing[0]}, which has images; give one for each class"
            )
        numbers = {
            label: label if labels is None else labels[label] for label in present
        }
        if numbers and min(numbers.values()) < 0:
            raise ValueError(
                f"labels holds {min(numbers.values())}; give class numbers from 0"
            )
        if numbers:
            self.grow(
                max(
                    self.settings["n_classes"],
                    *(number + 1 for number in numbers.values()),
                )
            )
            self._merge(other, numbers)
            self._solution = None

    def keep_features(self, kept: int) -> None:
        """Keep the last features; the statistics are those of them alone from then on."""
        raise NotImplementedError(f"{type(self).__name__} drops no features")

    def tensors(self) -> list[Tensor]:
        """Return the tensors that hold the statistics."""
        return [*self.named_tensors().values()]

    @property
    def held_bytes(self) -> int:
        """Bytes of the memory of ``tensors()``, with the room that ``grow`` reserves; cached solutions not included."""
        return storage_bytes(self.tensors())

    @property
    def derived_bytes(self) -> int:
        """Bytes of the memory of what ``scores`` caches; solves for the classifier where shapes or classes are new."""
        seen = self.image_counts > 0
        shapes = seen.tolist(), [tensor.shape for tensor in self.tensors()]
        if self._solution is None and self._derived[0] == shapes:
            return self._derived[1]
        if seen.any():
            self.solved()
        size = storage_bytes(tensors_of([getattr(self, name) for name in self._cached]))
        self._derived = shapes, size
        return size

    @classmethod
    @lru_cache(maxsize=256)
    def bytes_of(cls, n_classes: int, length: int, **arguments: Any) -> int:
        """Return the bytes of an instance without images, from tensors without memory."""
        with torch.device("meta"):
            return tensor_bytes(cls(n_classes, length, **arguments).tensors())

    @classmethod
    def item_bytes(cls, length: int, settings: Mapping[str, Any]) -> int:
        """Return the bytes of what a budget buys more or less of in a run, in forms that are ``budgeted``."""
        raise NotImplementedError(f"the size of {cls.__name__} is fixed")

    @classmethod
    def fixed_bytes(
        cls, n_classes: int, length: int, kept: int, settings: Mapping[str, Any]
    ) -> int:
        """Return the bytes that a run charges to its budget before any item.

        ``length`` features, of which the last ``kept`` are those of the head's input,
        as in ``narrow``.
        """
        return cls.bytes_of(n_classes, length, **settings)

    @classmethod
    def bought(
        cls, n_classes: int, length: int, items: int, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the constructor arguments that follow from what a budget buys; ``ValueError`` for too little."""
        return {}

    @classmethod
    def for_stream(
        cls: type[Form],
        n_classes: int,
        length: int,
        kept: int,
        items: int,
        seed: int,
        settings: Mapping[str, Any],
    ) -> Form:
        """Build an instance for a run; it may begin with fewer classes than come. See ``fixed_bytes``, ``bought``."""
        drawn = (
            {"seed": seed}
            if "seed" in inspect.signature(cls._allocate).parameters
            else {}
        )
        return cls(
            n_classes,
            length,
            **{**settings, **drawn, **cls.bought(n_classes, length, items, settings)},
        )

    @classmethod
    def for_budget(cls: type[Form], length: int, budget: int, kept: int) -> Form:
        """Build an instance without classes for a budget in bytes, where nobody knows how many classes will come."""
        return cls(0, length)

    @property
    def places(self) -> int:
        """Number of classes that memory is allocated for."""
        return self.settings["n_classes"]

    def least_bytes(self, classes: int) -> int:
        """Return the fewest bytes that so many classes take, by default those without images."""
        return self._bytes_without_images(classes)

    def _bytes_without_images(self, classes: int) -> int:
        return self.bytes_of(**{**self.settings, "n_classes": classes})

    def narrow(self, classes: int, budget: int, kept: int) -> str:
        """Drop all features but the last ``kept`` where a budget gets small; return what is given up, in words."""
        return ""

    def share(self, classes: int, budget: int) -> str:
        """Fit the statistics of so many classes into a budget in bytes; return what is given up for it, in words."""
        return ""

    def make_room(self, classes: int, budget: int, kept: int) -> str:
        """Fit the statistics of so many classes into a budget, before any image of a new one is learned.

        Returns:
            What is given up for it, in words; see ``narrow`` and ``share``.

        Raises:
            BudgetError: even the least does not fit.
        """
        narrowed = self.narrow(classes, budget, kept)
        if (needed := self.least_bytes(classes)) > budget:
            raise BudgetError(
                f"{needed:,} bytes are needed for {counted(classes, 'class')}, but the budget is {budget:,}: forget a "
                "class, or make a learner with a larger budget_bytes and teach it again"
            )
        return "; ".join(filter(None, [narrowed, self.share(classes, budget)]))

    def state_dict(self) -> dict[str, Any]:
        """Return settings and statistics; the tensors may share memory with this instance."""
        return {"settings": dict(self.settings), **self.named_tensors()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned.

        Raises:
            StateError: the settings differ, or a tensor is missing or has another
                shape; nothing is changed then.
        """
        self._check(state["settings"], "loaded")
        mine = self.named_tensors()
        if mine.keys() != state.keys() - {"settings"}:
            raise StateError(
                f"the state holds {', '.join(state)}, but {type(self).__name__} needs {', '.join(mine)}"
            )
        self._load({name: state[name] for name in mine})
        self._solution = None

    @classmethod
    def from_state(cls: type[Form], state: dict[str, Any]) -> Form:
        """Build an instance from what ``state_dict`` returned; raise ``StateError`` if another class did."""
        try:
            settings, counts = state["settings"], state["counts"]
            # Checked first, because the constructor allocates memory for this number.
            if len(counts) != settings["n_classes"]:
                raise StateError(
                    f"the state has counts of {len(counts)} classes, not of {settings['n_classes']}"
                )
            statistics = cls(**settings)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"this is no state of {cls.__name__} ({error}); give what its state_dict returned"
            ) from error
        statistics.load_state_dict(state)
        return statistics

    def like(self: Form, state: dict[str, Any]) -> Form:
        """Build an instance without images that can load a state, with what changes while learning as it was then."""
        changed = {
            name: value
            for name, value in state["settings"].items()
            if name in self._changing
        }
        return type(self)(**{**self.settings, **changed})

    def _load(self, tensors: dict[str, Tensor]) -> None:
        """Copy the values of all tensors, by name."""
        copy_tensors(tensors, self.named_tensors())

    def _check(
        self, settings: dict[str, Any], verb: str, free: frozenset[str] = frozenset()
    ) -> None:
        for name in {**self.settings, **settings}:
            mine, theirs = self.settings.get(name), settings.get(name)
            if mine != theirs and name not in free:
                raise StateError(
                    f"statistics with {name}={theirs} cannot be {verb} into those with {name}={mine}; build both with "
                    "the same settings"
                )

    def _check_label(self, label: int) -> None:
        if not 0 <= label < self.settings["n_classes"]:
            raise ValueError(
                f"there is no class {label} among {self.settings['n_classes']} (from 0); add classes with grow"
            )

    def _check_batch(self, features: Tensor, labels: Tensor) -> None:
        length = self.settings["length"]
        if (
            features.dim() != 2
            or features.shape[1] != length
            or labels.shape != features.shape[:1]
        ):
            raise ValueError(
                f"features have the shape {tuple(features.shape)} and labels {tuple(labels.shape)}; give (B, {length}) "
                "and (B,)"
            )
        odd = ~(features.abs() <= LARGEST_FEATURE)  # comparisons with NaN are false
        if odd.any():
            row = int(odd.any(1).nonzero()[0])
            raise ValueError(
                f"row {row} of the features holds {float(features[row][odd[row]][0])}; features must be finite and at "
                f"most {LARGEST_FEATURE:g} in absolute value: leave this image out"
            )
        for label in (labels.min(), labels.max()) if len(labels) else ():
            self._check_label(int(label))


def grown(rows: Tensor, count: int) -> Tensor:
    """Return at least as many rows: those of ``rows``, whose memory it may share, followed by zeros.

    ``rows`` is a tensor of its own or what this function returned: it reserves an
    eighth more room for later calls.
    """
    shape = (count, *rows.shape[1:])
    if rows.untyped_storage().nbytes() < math.prod(shape) * rows.element_size():
        room = rows.new_zeros(max(count, len(rows) + len(rows) // 8), *shape[1:])
        room[: len(rows)] = rows
        rows = room
    return rows.as_strided(shape, rows.stride())


def copy_tensors(new: dict[str, Tensor], held: dict[str, Tensor]) -> None:
    """Copy values into tensors of the same names; raise ``StateError`` and copy nothing if a shape differs."""
    for name, tensor in held.items():
        if new[name].shape != tensor.shape:
            raise StateError(
                f"{name} of the state has the shape {tuple(new[name].shape)}, not {tuple(tensor.shape)}; it does not "
                "belong to the settings of the state"
            )
    for name, tensor in held.items():
        tensor.copy_(new[name])
