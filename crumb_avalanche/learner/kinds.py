"""Which methods a learner may have: closed forms, and methods by replay with what a learner needs to know of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.registry import get_strategy
from crumb_avalanche.models.split_model import SplitModel

CLASSES = 20  # A budget that is too small for so many classes with all features has those of the head's input.
KINDS = ("rda", "slda", "ncm", "ranpac")
RECOMMENDED = "rda"


def form_of(method: str) -> type[ClosedForm]:
    """Return the class of a closed form in ``KINDS``."""
    form = get_strategy(method).form
    assert form is not None
    return form


def features_of(method: str, model: SplitModel, budget: int) -> FeatureMoments:
    """Return the features of a new learner in closed form with a budget in bytes."""
    form = form_of(method)
    features = FeatureMoments(**form.moments)
    length, kept = features.length(model), features.of_head().length(model)
    return features.of_head() if form.for_budget(length, budget, kept).narrow(CLASSES, budget, kept) else features


def _maps(model: SplitModel, pixels: Tensor) -> Tensor:
    return model.extract(pixels)


def _pixels(model: SplitModel, pixels: Tensor) -> Tensor:
    return pixels


@dataclass(frozen=True)
class ReplayKind:
    """A kind of learner by replay.

    Attributes:
        memory: what a memory is, in words.
        temperature: of its scores.
        images: whether memories are images; maps are calibrated on and stored as codes otherwise.
        herds: whether the method chooses its memories itself and orders them by priority.
        rehearsals: steps after each piece on memories with equal shares of all classes.
        learning: ``LearningSettings`` that differ from ``REPLAY_LEARNING``.
        method: settings of the method that differ from its defaults.
    """

    memory: str
    temperature: float = 1.0
    images: bool = False
    herds: bool = False
    rehearsals: int = 0
    learning: dict[str, Any] = field(default_factory=dict, hash=False)
    method: dict[str, Any] = field(default_factory=dict, hash=False)

    def features(self) -> Callable[[SplitModel, Tensor], Tensor]:
        """Return the function from pixels to what is learned: F's maps ``(n, C, H, W)``, or the pixels themselves."""
        return _pixels if self.images else _maps


REPLAY_LEARNING: dict[str, Any] = dict(first_epochs=5, clamp_gradients=10.0)
REPLAY: dict[str, ReplayKind] = {
    # The usual replay weight, 5, holds back a new class that is shown in few images.
    "crumb": ReplayKind("codes of feature maps", rehearsals=8, learning=dict(replay_weight=1.0, replay_steps=4)),
    "remind": ReplayKind("product-quantizer codes of feature maps", rehearsals=8),
    "er": ReplayKind("images", images=True, rehearsals=8),
    "icarl": ReplayKind("images", temperature=0.05, images=True, herds=True),
}
