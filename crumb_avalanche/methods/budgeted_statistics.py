"""Bytes of statistics of features, and how they fit into a budget."""

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar

import torch
from typing_extensions import Self

from crumb_avalanche.methods.feature_statistics import FeatureStatistics
from crumb_avalanche.system.tensor_file import tensor_bytes
from crumb_avalanche.system.words import counted


class BudgetError(ValueError):
    """A class more does not fit into a budget."""


class BudgetedStatistics(FeatureStatistics):
    """Statistics that know their bytes and give up some of themselves for a budget.

    A run charges ``fixed_bytes`` to its budget and buys items with the rest, for forms
    that are ``budgeted``. A learner, which meets classes one after another, begins with
    ``for_budget`` and calls ``make_room`` before each new class.

    Attributes:
        budgeted: whether the budget of a run decides how much is stored; see
            ``bought``.
    """

    budgeted: ClassVar[bool] = False

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
                ``fit_features`` keeps.
            settings: settings of the method by name.
        """
        return cls.bytes_of(n_classes, length, **settings)

    @classmethod
    def bought(
        cls, n_classes: int, length: int, n_items: int, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the constructor arguments that follow from what a budget buys.

        Raises:
            ValueError: the budget buys too little.
        """
        return {}

    @classmethod
    def for_stream(
        cls,
        n_classes: int,
        length: int,
        head_length: int,
        n_items: int,
        seed: int,
        settings: Mapping[str, Any],
    ) -> Self:
        """Build empty statistics for a run, maybe of fewer classes than will come.

        Args:
            n_classes: classes of the stream.
            length: number of features.
            head_length: number of the last features, those of the head's input; used
                by subclasses.
            n_items: number of items that the budget buys beside the fixed bytes; what
                an item is, such as a principal direction, the method says.
            seed: for subclasses that draw random numbers.
            settings: settings of the method by name.
        """
        arguments = dict(settings)
        if "seed" in inspect.signature(cls._allocate).parameters:
            arguments["seed"] = seed
        # Sizes that follow from what the budget buys.
        arguments.update(cls.bought(n_classes, length, n_items, settings))
        return cls(n_classes, length, **arguments)

    @classmethod
    def for_budget(cls, length: int, budget: int, head_length: int) -> Self:
        """Build an instance without classes for a budget in bytes.

        Nobody knows how many classes will come.
        """
        return cls(0, length)

    @property
    def allocated_classes(self) -> int:
        """Number of classes that memory is allocated for."""
        return self.settings["n_classes"]

    def least_bytes(self, n_classes: int) -> int:
        """Return the fewest bytes of so many classes, by default without images."""
        return self._bytes_without_images(n_classes)

    def _bytes_without_images(self, n_classes: int) -> int:
        """Return the bytes of statistics of so many classes without images."""
        return self.bytes_of(**{**self.settings, "n_classes": n_classes})

    def holds(self, n_classes: int, budget: int, head_length: int) -> bool:
        """Whether so many classes fit into a budget, maybe with fewer features.

        Args:
            n_classes, budget, head_length: see ``make_room``.
        """
        return self.least_bytes(n_classes) <= budget

    def fit_features(self, n_classes: int, budget: int, head_length: int) -> str:
        """Drop all features but the last ones where a budget gets small.

        Args:
            n_classes: number of classes that are to fit.
            budget: in bytes.
            head_length: number of the last features, which stay.

        Returns:
            What is given up for it, in words; empty for nothing.
        """
        return ""

    def fit_statistics(self, n_classes: int, budget: int) -> str:
        """Fit the statistics of so many classes into a budget in bytes.

        Returns:
            What is given up for it, in words; empty for nothing.
        """
        return ""

    def make_room(self, n_classes: int, budget: int, head_length: int) -> str:
        """Fit so many classes into a budget, before any image of a new one is learned.

        Features are dropped first, then statistics of the classes.

        Args:
            n_classes: number of classes that are to fit.
            budget: in bytes.
            head_length: number of the last features, which are not dropped.

        Returns:
            What is given up for it, in words; empty for nothing.

        Raises:
            BudgetError: even the least does not fit.
        """
        features_given_up = self.fit_features(n_classes, budget, head_length)
        bytes_needed = self.least_bytes(n_classes)
        if bytes_needed > budget:
            raise BudgetError(
                f"{bytes_needed:,} bytes are needed for {counted(n_classes, 'class')}, "
                f"but the budget is {budget:,}: forget a class, or make a learner with "
                "a larger budget_bytes and teach it again"
            )
        statistics_given_up = self.fit_statistics(n_classes, budget)
        return "; ".join(filter(None, [features_given_up, statistics_given_up]))
