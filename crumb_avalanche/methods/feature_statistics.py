"""Statistics of features: named tensors with settings, which are saved and loaded."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from typing_extensions import Self

from crumb_avalanche.methods.class_tensors import (
    check_finite,
    check_not_negative,
    copy_tensors,
)
from crumb_avalanche.models.extraction import without_autocast
from crumb_avalanche.system.named_values import attributes, selected
from crumb_avalanche.system.setting_ranges import (
    checked_arguments,
    checked_setting,
    setting_types,
)
from crumb_avalanche.system.tensor_file import storage_bytes
from crumb_avalanche.system.value_types import StateError

Result = TypeVar("Result")
CPU = torch.device("cpu")


def isolated(compute: Callable[..., Result]) -> Callable[..., Result]:
    """Decorate what computes statistics: it computes alike, whatever is switched on.

    Statistics that kept a graph would hold every batch in memory, those made in
    inference mode could not be changed outside of it, and autocast cannot concatenate
    float64.
    """

    @wraps(compute)
    def compute_isolated(*arguments: Any, **keywords: Any) -> Result:
        with torch.inference_mode(False), torch.no_grad(), without_autocast(CPU):
            return compute(*arguments, **keywords)

    return compute_isolated


class FeatureStatistics(ABC):
    """Tensors of a method in closed form, its settings, and the file format of both.

    A subclass declares the settings of the method as annotated attributes, whose types
    carry their range and whose values are the defaults: ``ridge: NotNegative = 1e-3``.
    They are keyword arguments of the constructor, attributes of an instance, and flags
    of the command line.

    Attributes:
        by_class, shared: names of the tensors with a row for each class, and of those
            that all classes share.
        settings: arguments of the constructor by name.
        counts: images of each class, ``(n_classes,)`` int32.
    """

    by_class: ClassVar[tuple[str, ...]] = ("counts",)
    shared: ClassVar[tuple[str, ...]] = ()
    counts: Tensor
    # Settings that change while learning.
    _changing: ClassVar[frozenset[str]] = frozenset()
    # What is computed from the statistics; None after they change.
    _solution: Any = None

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
        for name, hint in setting_types(type(self)).items():
            value = keywords.pop(name, getattr(self, name))
            declared_settings[name] = checked_setting(name, value, hint)
        signature = inspect.signature(self._allocate)
        bound = signature.bind(n_classes, length, *decided, **keywords)
        bound.apply_defaults()
        names = list(bound.arguments)
        if names[:2] != ["n_classes", "length"]:
            raise TypeError(
                f"{type(self).__name__}._allocate takes {', '.join(names)}; name the "
                "first two n_classes and length"
            )
        arguments = checked_arguments(type(self)._allocate, bound.arguments)
        self.settings = {**arguments, **declared_settings}
        vars(self).update(declared_settings)
        self._allocate(**arguments)
        self._check_allocated()

    def _check_allocated(self) -> None:
        """Raise TypeError unless ``_allocate`` made all tensors of the class."""
        try:
            self.named_tensors()
            _ = self.image_counts
        except AttributeError as error:
            raise TypeError(
                f"{type(self).__name__}._allocate makes no tensor {error.name}, which "
                f"the class names in by_class or shared: set self.{error.name} there, "
                "or take the name out"
            ) from error

    @abstractmethod
    def _allocate(self, n_classes: int, length: int) -> None:
        """Allocate the statistics, of a type that does not depend on torch's default.

        What else a subclass takes here follows from the stream and the budget.
        """

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

    def named_tensors(self) -> dict[str, Tensor]:
        """Return the statistics by name."""
        return attributes(self, (*self.shared, *self.by_class))

    def tensors(self) -> list[Tensor]:
        """Return the tensors that hold the statistics."""
        return list(self.named_tensors().values())

    @property
    def held_bytes(self) -> int:
        """Bytes of the memory of ``tensors()``, with the room that ``grow`` reserves.

        Cached solutions are not included.
        """
        return storage_bytes(self.tensors())

    # Saving and loading

    def state_dict(self) -> dict[str, Any]:
        """Return settings and statistics, which may share memory with this instance."""
        return {"settings": dict(self.settings), **self.named_tensors()}

    @isolated
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` of statistics with the same settings returned.

        Args:
            state: the statistics by name, and their ``settings``.

        Raises:
            StateError: the settings differ, or a tensor is missing, has another shape
                or values that no images give; nothing is changed then.
        """
        self._check_settings(state["settings"], verb="loaded")
        names = self.named_tensors().keys()
        names_in_state = state.keys() - {"settings"}
        if names != names_in_state:
            raise StateError(
                f"the state holds {', '.join(state)}, but {type(self).__name__} needs "
                f"{', '.join(names)}"
            )
        tensors = selected(state, names)
        self._check_values(tensors)
        self._load(tensors)
        self._solution = None  # what was computed from other statistics

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        """Build an instance from what ``state_dict`` returned.

        Args:
            state: the statistics by name, among them ``counts``, and their
                ``settings``, which are the arguments of the constructor.

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

    def like(self, state: dict[str, Any]) -> Self:
        """Build an instance without images that can load a state.

        What changes while learning is as it was then.
        """
        settings = dict(self.settings)
        for name, value in state["settings"].items():
            if name in self._changing:
                settings[name] = value
        return type(self)(**settings)

    def _check_settings(
        self, settings: dict[str, Any], verb: str, free: frozenset[str] = frozenset()
    ) -> None:
        """Raise ``StateError`` if the settings of other statistics differ from these.

        Args:
            settings: of the others, by name.
            verb: what cannot be done with them, for the error: ``merged``, ``loaded``.
            free: names of settings that may differ.
        """
        for name in {**self.settings, **settings}:
            mine = self.settings.get(name)
            theirs = settings.get(name)
            if mine != theirs and name not in free:
                raise StateError(
                    f"statistics with {name}={theirs} cannot be {verb} into those with "
                    f"{name}={mine}; build both with the same settings"
                )
