"""What a budget in bytes decides of a classifier in closed form: how much it stores, and what it gives up."""

import inspect
from abc import abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from crumb_avalanche.system.counted import counted
from crumb_avalanche.system.tensor_bytes import tensor_bytes

Form = TypeVar("Form", bound="FitsBudget")


class BudgetError(ValueError):
    """A class more does not fit into a budget."""


class FitsBudget:
    """The part of ``ClosedForm`` that counts bytes; by default all sizes are fixed and nothing is given up.

    Attributes:
        budgeted: whether the budget of a run decides how much is stored; see ``bought``.
    """

    budgeted: ClassVar[bool] = False
    settings: dict[str, Any]

    def __init__(self, n_classes: int, length: int, *decided: Any, **settings: Any): ...

    @abstractmethod
    def _allocate(self, n_classes: int, length: int) -> None:
        """Allocate the statistics; what else a subclass takes here follows from the stream and the budget."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """Return the tensors that hold the statistics."""

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
    def fixed_bytes(cls, n_classes: int, length: int, kept: int, settings: Mapping[str, Any]) -> int:
        """Return the bytes that a run charges to its budget before any item.

        ``length`` features, of which the last ``kept`` are those of the head's input, as in ``narrow``.
        """
        return cls.bytes_of(n_classes, length, **settings)

    @classmethod
    def bought(cls, n_classes: int, length: int, items: int, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the constructor arguments that follow from what a budget buys; ``ValueError`` for too little."""
        return {}

    @classmethod
    def for_stream(
        cls: type[Form], n_classes: int, length: int, kept: int, items: int, seed: int, settings: Mapping[str, Any]
    ) -> Form:
        """Build an instance for a run; it may begin with fewer classes than come. See ``fixed_bytes``, ``bought``."""
        drawn = {"seed": seed} if "seed" in inspect.signature(cls._allocate).parameters else {}
        return cls(n_classes, length, **{**settings, **drawn, **cls.bought(n_classes, length, items, settings)})

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

    def class_bytes(self, label: int) -> int:
        """Return the bytes that a class takes by itself."""
        return self._bytes_without_images(1) - self._bytes_without_images(0)

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
