"""What answers for images, taught or left by a run."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from crumb_avalanche.learner.prediction import RUNNERS_UP, Ranking
from crumb_avalanche.learner.rates import Rates
from crumb_avalanche.learner.taught_classes import TaughtClasses
from crumb_avalanche.methods.looks import Looks
from crumb_avalanche.models.split_model import SplitModel


class Answering(Protocol):
    """What a learner answers with: a ``Classifier``, or ``RunAnswers``.

    Attributes:
        classes: names of the classes, and how much each was taught.
        looks: the parts of an image that can be looked at.
        strict: confidence from which on a class is named.
    """

    classes: TaughtClasses
    looks: Looks
    strict: float

    @property
    def budget_bytes(self) -> int:
        """Most bytes of what was learned; 0 without a budget."""

    @property
    def rates(self) -> Rates | None:
        """How often it errs about what it knows; ``None`` if nobody can tell."""

    @property
    def missing_clips(self) -> int:
        """Clips to be asked before it tells unknown things; 0 if it does or never."""

    @property
    def note(self) -> str:
        """What a person who reads the answers should know; may be empty."""

    @property
    def shares(self) -> tuple[float, ...]:
        """The parts of an image that have to be looked at, in units of its sides."""

    def tensors(self) -> list[Tensor]:
        """Return the tensors that count for the budget."""

    def compute(
        self, model: SplitModel, pixels: Tensor, shares: Sequence[float]
    ) -> Tensor:
        """Compute what ``evidence`` takes: a row for each of ``n`` images.

        Args:
            model: the network.
            pixels: uint8 of ``n`` images in each look, as ``LookTransform`` returns
                them.
            shares: side of each look in units of that of the image.
        """

    def evidence(self, features: Tensor, /) -> Any:
        """Return what ``ranked`` takes: ``Evidence``, or outputs of a strategy."""

    def ranked(self, evidence: Any, /, runners_up: int = RUNNERS_UP) -> list[Ranking]:
        """Rank the classes for each of ``n`` frames, and for all together as a clip.

        Args:
            evidence: of the frames, as the method of this name returns it.
            runners_up: most classes besides the first.

        Returns:
            ``n + 1`` rankings, the last one for the clip.
        """
