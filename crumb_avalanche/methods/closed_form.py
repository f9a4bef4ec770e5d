"""Base class of all classifiers in closed form: statistics of features, plain torch."""

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache, wraps
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from crumb_avalanche.methods.class_tensors import (
    check_finite,
    check_not_negative,
    copy_tensors,
    grown,
)
from crumb_avalanche.methods.typicality import Typicality
from crumb_avalanche.models.extraction import LARGEST_FEATURE, without_autocast
from crumb_avalanche.system.setting_ranges import check_arguments, checked, declared
from crumb_avalanche.system.tensor_file import storage_bytes, tensor_bytes, tensors_of
from crumb_avalanche.system.value_types import StateError
from crumb_avalanche.system.words import counted

# Score of a class without images: below all others, and finite in float32.
NO_DENSITY = -1e30
LOWEST_SCORE = -1e29  # of a class with images
Form = TypeVar("Form", bound="ClosedForm")
Result = TypeVar("Result")


class BudgetError(ValueError):
    """A class more does not fit into a budget."""


CPU = torch.device("cpu")


def isolated(compute: Callable[..., Result]) -> Callable[..., Result]:
    """Compute statistics alike, whatever the caller switched on.

    Statistics that kept a graph would hold every batch in memory, those made in
    inference mode could not be changed outside of it, and autocast cannot concatenate
    float64.
    """

    @wraps(compute)
    def plain(*arguments: Any, **keywords: Any) -> Result:
        with torch.inference_mode(False), torch.no_grad(), without_autocast(CPU):
            return compute(*arguments, **keywords)

    return plain


class Scores(nn.Module):
    """Scores of a closed form as it is now, in operations that exporters trace.

    What is learned is constant in it. Maps ``(B, D)`` float features to ``(B, C)``
    float64 scores of the ``C`` classes with images.
    """

    def __init__(self, form: "ClosedForm", solved: Any):
        super().__init__()
        self.form = form
        self.solved = solved

    def forward(self, features: Tensor) -> Tensor:
        with without_autocast(features.device):
            scores = self.form._answers(features.double(), self.solved)
            return scores.clamp_min(LOWEST_SCORE)


class _TypicalSpace(NamedTuple):
    """What ``ClosedForm.typicality`` caches, and what it was computed from."""

    solved: Any
    nothing: Tensor | None
    space: Any


class ClosedForm(ABC):
    """Statistics of features that are updated batch by batch, and score new features.

    They are merged, saved and loaded. A subclass declares the settings of the method as
    annotated attributes, whose types carry their range and whose values are the
    defaults: ``ridge: NotNegative = 1e-3``. They are keyword arguments of the
    constructor, attributes of an instance, and flags of the command line.

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
    # Settings in which statistics that are merged may differ.
    _free: ClassVar[frozenset[str]] = frozenset({"n_classes"})
    # Settings that change while learning.
    _changing: ClassVar[frozenset[str]] = frozenset()
    # Attributes that are replaced, never changed in place: copies share them.
    _cached: ClassVar[tuple[str, ...]] = ("_solution",)
    # What ``_solve`` returned; None after the statistics change.
    _solution: Any = None
    # What ``typicality`` caches; it may be outdated.
    _typical: _TypicalSpace | None = None
    # What ``derived_bytes`` depends on, and the bytes.
    _derived: tuple[Any, int] = (None, 0)

    @isolated
    def __init__(
        self, n_classes: int, length: int, *decided: Any, **keywords: Any
    ) -> None:
        """Check and record all arguments, and allocate the statistics.

        Args:
            n_classes: classes to allocate; ``grow`` adds further ones.
            length: ``D``, number of features.
            decided, keywords: settings, and what else ``_allocate`` takes, such as
                ``seed``.

        Raises:
            ValueError: a value has another type or is out of its range.
            TypeError: an argument is unknown.
        """
        declared_settings = {}
        for name, hint in declared(type(self)).items():
            value = keywords.pop(name, getattr(self, name))
            declared_settings[name] = checked(name, value, hint)
        signature = inspect.signature(self._allocate)
        bound = signature.bind(n_classes, length, *decided, **keywords)
        bound.apply_defaults()
        names = list(bound.arguments)
        if names[:2] != ["n_classes", "length"]:
            raise TypeError(
                f"{type(self).__name__}._allocate takes {', '.join(names)}; name the "
                "first two n_classes and length"
            )
        arguments = check_arguments(type(self)._allocate, bound.arguments)
        self.settings = {**arguments, **declared_settings}
        vars(self).update(declared_settings)
        self._allocate(**arguments)

    def __deepcopy__(self: Form, memo: dict) -> Form:
        for name in (*self._cached, "_typical"):
            cached = getattr(self, name)
            memo[id(cached)] = cached
        copied = copy.copy(self)
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_typical": None}

    # What a subclass defines

    @abstractmethod
    def _allocate(self, n_classes: int, length: int) -> None:
        """Allocate the statistics, of a type that does not depend on torch's default.

        What else a subclass takes here follows from the stream and the budget.
        """

    @abstractmethod
    def _update(self, features: Tensor, labels: Tensor) -> None:
        """Add at least one checked image: ``(B, D)`` float, ``(B,)`` int64."""

    @abstractmethod
    def _solve(self, seen: Tensor) -> Any:
        """Return what ``_answers`` needs.

        Args:
            seen: ``(n_classes,)`` bool, the classes with images, at least one.
        """

    @abstractmethod
    def _answers(self, features: Tensor, solution: Any) -> Tensor:
        """Score the ``C`` classes of a solution: ``(B, D)`` to ``(B, C)``, float64."""

    @abstractmethod
    def _merge(self, other: Any, labels: dict[int, int]) -> None:
        """Add classes of another instance with the same settings.

        Args:
            other: the other instance, which is not changed.
            labels: the number in this instance of each class of the other one.
        """

    def _typical_space(self, nothing: Tensor | None) -> Any:
        """Return what ``_typicality`` needs and is computed once after each change."""
        return None

    def _typicality(self, features: Tensor, space: Any) -> Typicality:
        """Measure how typical ``(B, D)`` float64 features are.

        By default by the largest score.
        """
        scores = self.solution()(features)
        largest = scores.amax(1) / self.temperature
        return Typicality.of_three(scores, largest, largest, largest)

    def _grow(self, n_classes: int) -> None:
        """Add classes up to a larger number."""
        for name in self.by_class:
            setattr(self, name, grown(getattr(self, name), n_classes))

    def _forget(self, label: int) -> None:
        """Remove a class that has images; with the last one, what all classes share."""
        for name in self.by_class:
            getattr(self, name)[label] = 0
        if not self.image_counts.any():
            for name in self.shared:
                getattr(self, name).zero_()

    def _load(self, tensors: dict[str, Tensor]) -> None:
        """Copy the values of all tensors, by name."""
        copy_tensors(tensors, self.named_tensors())

    def _check_values(self, tensors: dict[str, Tensor]) -> None:
        """Raise ``StateError`` for values in a state that no images give."""
        check_finite(tensors)
        check_not_negative("counts", tensors["counts"])

    @property
    def image_counts(self) -> Tensor:
        """Images of each class, ``(n_classes,)`` int32."""
        return self.counts

    @property
    def remains_after_forget(self) -> str:
        """What ``forget`` leaves of the images of a class, in words; maybe nothing."""
        return ""

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the statistics by name."""
        return {name: getattr(self, name) for name in (*self.shared, *self.by_class)}

    def tensors(self) -> list[Tensor]:
        """Return the tensors that hold the statistics."""
        return list(self.named_tensors().values())

    # Learning

    @isolated
    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add images to the statistics.

        Args:
            features: ``(B, D)`` float, on the CPU; at most 1e12 in absolute value.
            labels: ``(B,)`` whole numbers, on the CPU.

        Raises:
            ValueError: a shape or type does not fit, a feature is not finite or too
                large, or there is no such class. The statistics are unchanged then.
        """
        self._check_batch(features, labels)
        if len(labels):
            self._update(features.detach(), labels.long())
            self._solution = None

    @isolated
    def grow(self, n_classes: int) -> None:
        """Add classes without images; scores of the other classes stay as they are.

        Args:
            n_classes: number of classes afterwards.

        Raises:
            ValueError: there are more classes already.
        """
        present = self.settings["n_classes"]
        if n_classes < present:
            raise ValueError(
                f"n_classes is {n_classes}, but there are {present} classes already; "
                "give at least as many, and remove single classes with forget"
            )
        self._grow(n_classes)
        self.settings["n_classes"] = n_classes

    @isolated
    def forget(self, label: int) -> None:
        """Remove all that is held of one class alone; it can be taught again.

        ``remains_after_forget`` names what a matrix shared by all classes keeps until
        the last class is removed.

        Raises:
            ValueError: there is no such class.
        """
        self._check_label(label)
        if self.image_counts[label]:
            self._forget(label)
            self._solution = None

    @isolated
    def merge(
        self, other: "ClosedForm", labels: Mapping[int, int] | None = None
    ) -> None:
        """Add the statistics of another instance of the same class and settings.

        The result is that of one instance trained on both parts, up to rounding, unless
        the class says otherwise.

        Args:
            other: the other instance, which is not changed; ``n_classes`` may differ.
            labels: the number in this instance of each class of ``other`` that has
                images; default the same numbers. Classes are added where a number needs
                it. Two classes may get the same number.

        Raises:
            StateError: the other instance has another class or other settings.
            ValueError: ``labels`` lacks a class, or has a negative number.
        """
        if type(other) is not type(self):
            raise StateError(
                f"{type(other).__name__} cannot be merged into {type(self).__name__}; "
                "give the same kind"
            )
        self._check_settings(other.settings, "merged", self._free)
        numbers = _merged_numbers(other.image_counts, labels)
        if not numbers:
            return
        if other is self:
            other = copy.deepcopy(self)  # whose classes stay while these change
        self.grow(max(self.settings["n_classes"], max(numbers.values()) + 1))
        self._merge(other, numbers)
        self._solution = None

    def keep_features(self, count: int) -> None:
        """Keep the last features; the statistics are of them alone from then on."""
        raise NotImplementedError(f"{type(self).__name__} drops no features")

    # Answering

    def scores(self, features: Tensor) -> Tensor:
        """Score the classes; the largest score is the answer.

        Args:
            features: ``(B, D)`` float, on the CPU; at most 1e12 in absolute value.

        Returns:
            ``(B, n_classes)`` float64; -1e30 (``NO_DENSITY``) for classes without
            images, and at least -1e29 for all others.

        Raises:
            ValueError: the shape does not fit, or a feature is not finite or too large.
        """
        self._check_features(features)
        seen = self.image_counts > 0
        scores = torch.full((len(features), len(seen)), NO_DENSITY, dtype=torch.float64)
        if seen.any():
            scores[:, seen] = self.solution()(features)
        return scores

    def solution(self) -> Scores:
        """Return the classifier of the classes with images, at least one."""
        return Scores(self, self.solved())

    @isolated
    def solved(self) -> Any:
        """Return what ``scores`` computes from, for the classes with images.

        There must be at least one.
        """
        if self._solution is None:  # only after a change
            self._solution = self._solve(self.image_counts > 0)
        return self._solution

    def typicality(self, features: Tensor, nothing: Tensor | None = None) -> Typicality:
        """Score the classes with images, and measure how like their images others are.

        What "like" means is the method's own; see ``_typicality``.

        Args:
            features: ``(B, D)`` float, on the CPU.
            nothing: features of images that show nothing, as in
                ``MeansSpan.against_background``; for forms that are
                ``apart_from_nothing``.
        """
        space = self._cached_typical_space(nothing)
        with without_autocast(CPU):
            return self._typicality(features.double(), space)

    @isolated
    def _cached_typical_space(self, nothing: Tensor | None) -> Any:
        """Return the space of ``_typical_space``, computed anew after each change."""
        solved = self.solved()  # another one after each change
        typical = self._typical
        if (
            typical is None
            or typical.solved is not solved
            or typical.nothing is not nothing
        ):
            space = self._typical_space(nothing)
            typical = _TypicalSpace(solved=solved, nothing=nothing, space=space)
            self._typical = typical
        return typical.space

    # Bytes and budgets

    @property
    def held_bytes(self) -> int:
        """Bytes of the memory of ``tensors()``, with the room that ``grow`` reserves.

        Cached solutions are not included.
        """
        return storage_bytes(self.tensors())

    @property
    def derived_bytes(self) -> int:
        """Bytes of the memory of what ``scores`` caches.

        Solves for the classifier where shapes or classes are new.
        """
        seen = self.image_counts > 0
        shapes = seen.tolist(), [tensor.shape for tensor in self.tensors()]
        if self._solution is None and self._derived[0] == shapes:
            return self._derived[1]
        if seen.any():
            self.solved()
        cached = [getattr(self, name) for name in self._cached]
        size = storage_bytes(tensors_of(cached))
        self._derived = shapes, size
        return size

    @classmethod
    @lru_cache(maxsize=256)
    def bytes_of(cls, n_classes: int, length: int, **arguments: Any) -> int:
        """Return the bytes of an instance without images.

        They come from tensors without memory.
        """
        with torch.device("meta"):
            return tensor_bytes(cls(n_classes, length, **arguments).tensors())

    @classmethod
    def item_bytes(cls, length: int, settings: Mapping[str, Any]) -> int:
        """Return the bytes of one item that a budget buys, in ``budgeted`` forms."""
        raise NotImplementedError(f"the size of {cls.__name__} is fixed")

    @classmethod
    def fixed_bytes(
        cls, n_classes: int, length: int, head_length: int, settings: Mapping[str, Any]
    ) -> int:
        """Return the bytes that a run charges to its budget before any item.

        Args:
            n_classes: classes of the stream.
            length: number of features.
            head_length: number of the last features, those of the head's input, which
                ``narrow`` keeps.
            settings: settings of the method by name.
        """
        return cls.bytes_of(n_classes, length, **settings)

    @classmethod
    def bought(
        cls, n_classes: int, length: int, items: int, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the constructor arguments that follow from what a budget buys.

        Raises:
            ValueError: the budget buys too little.
        """
        return {}

    @classmethod
    def for_stream(
        cls: type[Form],
        n_classes: int,
        length: int,
        head_length: int,
        items: int,
        seed: int,
        settings: Mapping[str, Any],
    ) -> Form:
        """Build an instance for a run; it may begin with fewer classes than come.

        See ``fixed_bytes`` for the arguments; ``items`` are what the budget buys, and
        ``seed`` is for forms that draw random numbers.
        """
        arguments = dict(settings)
        if "seed" in inspect.signature(cls._allocate).parameters:
            arguments["seed"] = seed
        arguments.update(cls.bought(n_classes, length, items, settings))
        return cls(n_classes, length, **arguments)

    @classmethod
    def for_budget(cls: type[Form], length: int, budget: int, head_length: int) -> Form:
        """Build an instance without classes for a budget in bytes.

        Nobody knows how many classes will come.
        """
        return cls(0, length)

    @property
    def allocated_classes(self) -> int:
        """Number of classes that memory is allocated for."""
        return self.settings["n_classes"]

    def least_bytes(self, classes: int) -> int:
        """Return the fewest bytes of so many classes, by default without images."""
        return self._bytes_without_images(classes)

    def _bytes_without_images(self, classes: int) -> int:
        return self.bytes_of(**{**self.settings, "n_classes": classes})

    def narrow(self, classes: int, budget: int, head_length: int) -> str:
        """Drop all features but the last ones where a budget gets small.

        Returns:
            What is given up for it, in words; empty for nothing.
        """
        return ""

    def share(self, classes: int, budget: int) -> str:
        """Fit the statistics of so many classes into a budget in bytes.

        Returns:
            What is given up for it, in words; empty for nothing.
        """
        return ""

    def make_room(self, classes: int, budget: int, head_length: int) -> str:
        """Fit so many classes into a budget, before any image of a new one is learned.

        Returns:
            What is given up for it, in words; see ``narrow`` and ``share``.

        Raises:
            BudgetError: even the least does not fit.
        """
        narrowed = self.narrow(classes, budget, head_length)
        needed = self.least_bytes(classes)
        if needed > budget:
            raise BudgetError(
                f"{needed:,} bytes are needed for {counted(classes, 'class')}, but the "
                f"budget is {budget:,}: forget a class, or make a learner with a "
                "larger budget_bytes and teach it again"
            )
        shared = self.share(classes, budget)
        return "; ".join(filter(None, [narrowed, shared]))

    # Saving and loading

    def state_dict(self) -> dict[str, Any]:
        """Return settings and statistics, which may share memory with this instance."""
        return {"settings": dict(self.settings), **self.named_tensors()}

    @isolated
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned.

        Raises:
            StateError: the settings differ, or a tensor is missing, has another shape
                or values that no images give; nothing is changed then.
        """
        self._check_settings(state["settings"], "loaded")
        names = self.named_tensors().keys()
        if names != state.keys() - {"settings"}:
            raise StateError(
                f"the state holds {', '.join(state)}, but {type(self).__name__} needs "
                f"{', '.join(names)}"
            )
        tensors = {name: state[name] for name in names}
        self._check_values(tensors)
        self._load(tensors)
        self._solution = None

    @classmethod
    def from_state(cls: type[Form], state: dict[str, Any]) -> Form:
        """Build an instance from what ``state_dict`` returned.

        Raises:
            StateError: another class returned it, or it is damaged.
        """
        try:
            settings = state["settings"]
            counts = state["counts"]
            # Checked first, because the constructor allocates memory for this number.
            if len(counts) != settings["n_classes"]:
                raise StateError(
                    f"the state has counts of {len(counts)} classes, not of "
                    f"{settings['n_classes']}"
                )
            statistics = cls(**settings)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"this is no state of {cls.__name__} ({error}); give what its "
                "state_dict returned"
            ) from error
        statistics.load_state_dict(state)
        return statistics

    def like(self: Form, state: dict[str, Any]) -> Form:
        """Build an instance without images that can load a state.

        What changes while learning is as it was then.
        """
        changed = {
            name: value
            for name, value in state["settings"].items()
            if name in self._changing
        }
        return type(self)(**{**self.settings, **changed})

    # Checks

    def _check_settings(
        self, settings: dict[str, Any], verb: str, free: frozenset[str] = frozenset()
    ) -> None:
        """Raise ``StateError`` if settings differ that are not ``free``."""
        for name in {**self.settings, **settings}:
            mine = self.settings.get(name)
            theirs = settings.get(name)
            if mine != theirs and name not in free:
                raise StateError(
                    f"statistics with {name}={theirs} cannot be {verb} into those with "
                    f"{name}={mine}; build both with the same settings"
                )

    def _check_label(self, label: int) -> None:
        n_classes = self.settings["n_classes"]
        if not 0 <= label < n_classes:
            raise ValueError(
                f"there is no class {label} among {n_classes} (from 0); add classes "
                "with grow"
            )

    def _check_batch(self, features: Tensor, labels: Tensor) -> None:
        """Raise ``ValueError`` for images that cannot be learned; see ``update``."""
        length = self.settings["length"]
        if labels.dim() != 1 or features.shape != (len(labels), length):
            raise ValueError(
                f"features have the shape {tuple(features.shape)} and labels "
                f"{tuple(labels.shape)}; give (B, {length}) and (B,)"
            )
        if labels.is_floating_point() or labels.dtype == torch.bool:
            raise ValueError(
                f"labels are {labels.dtype}; give whole numbers, such as torch.int64"
            )
        self._check_features(features)
        if len(labels):
            self._check_label(int(labels.min()))
            self._check_label(int(labels.max()))

    def _check_features(self, features: Tensor) -> None:
        """Raise ``ValueError`` for features that are not ``(B, D)`` and usable."""
        length = self.settings["length"]
        if features.dim() != 2 or features.shape[1] != length:
            raise ValueError(
                f"features have the shape {tuple(features.shape)}; give (B, {length})"
            )
        usable = features.abs() <= LARGEST_FEATURE  # comparisons with NaN are false
        if not usable.all():
            row = int((~usable).any(1).nonzero()[0])
            value = float(features[row][~usable[row]][0])
            raise ValueError(
                f"row {row} of the features holds {value}; features must be finite and "
                f"at most {LARGEST_FEATURE:g} in absolute value: leave this image out"
            )


def _merged_numbers(
    image_counts: Tensor, labels: Mapping[int, int] | None
) -> dict[int, int]:
    """Return the new number of each class with images; see ``ClosedForm.merge``."""
    present = image_counts.nonzero().flatten().tolist()
    if labels is None:
        return {label: label for label in present}
    for label in present:
        if label not in labels:
            raise ValueError(
                f"labels has no number for class {label}, which has images; give one "
                "for each class"
            )
    numbers = {label: labels[label] for label in present}
    if numbers and min(numbers.values()) < 0:
        raise ValueError(
            f"labels holds {min(numbers.values())}; give class numbers from 0"
        )
    return numbers
