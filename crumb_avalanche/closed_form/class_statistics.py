"""Base class of all classifiers in closed form."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from crumb_avalanche.system.tensor_file import StateError


class ClassStatistics(ABC):
    """Statistics of features that are updated batch by batch, merged, saved and loaded, and score new features.

    Attributes:
        settings: arguments of the constructor by name; statistics with other settings cannot be merged or loaded.
    """

    settings: dict[str, Any]
    _solution: Any = None  # cached by ``scores``; None after the statistics change

    @abstractmethod
    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add images to the statistics.

        Args:
            features: ``(B, D)`` float, on the CPU.
            labels: ``(B,)`` int64, on the CPU.
        """

    @abstractmethod
    def scores(self, features: Tensor) -> Tensor:
        """Score the classes; the largest score is the answer.

        Args:
            features: ``(B, D)`` float, on the CPU.

        Returns:
            ``(B, classes)`` float64. Scores of classes without images are undefined.
        """

    @abstractmethod
    def named_tensors(self) -> dict[str, Tensor]:
        """Return the statistics by name."""

    @abstractmethod
    def _merge(self, other: "ClassStatistics") -> None:
        """Add the statistics of an instance with the same settings."""

    def tensors(self) -> list[Tensor]:
        """Return the statistics as a list."""
        return [*self.named_tensors().values()]

    def merge(self, other: "ClassStatistics") -> None:
        """Add the statistics of another instance.

        The result is that of one instance trained on both parts, up to rounding, unless the class says otherwise.

        Raises:
            StateError: the other instance has another class or other settings.
        """
        if type(other) is not type(self):
            raise StateError(f"{type(other).__name__} cannot be merged into {type(self).__name__}; give the same kind")
        self._check(other.settings, "merged")
        self._merge(other)
        self._solution = None

    def state_dict(self) -> dict[str, Any]:
        """Return settings and statistics."""
        return {"settings": dict(self.settings), **self.named_tensors()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned.

        Raises:
            StateError: the settings differ, or a tensor is missing.
        """
        self._check(state["settings"], "loaded")
        mine = self.named_tensors()
        if mine.keys() != state.keys() - {"settings"}:
            raise StateError(f"the state holds {', '.join(state)}, but {type(self).__name__} needs {', '.join(mine)}")
        for name, tensor in mine.items():
            tensor.copy_(state[name])
        self._solution = None

    def _check(self, settings: dict[str, Any], verb: str) -> None:
        for name in {**self.settings, **settings}:
            mine, theirs = self.settings.get(name), settings.get(name)
            if mine != theirs:
                raise StateError(
                    f"statistics with {name}={theirs} cannot be {verb} into those with {name}={mine}; build both with "
                    "the same settings"
                )
