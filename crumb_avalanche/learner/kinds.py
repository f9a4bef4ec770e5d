"""The kinds of learners: in closed form, with their features, statistics and share of the budget; and by replay."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from crumb_avalanche.methods.closed_form import ClassStatistics
from crumb_avalanche.methods.closed_form_settings import RdaSettings
from crumb_avalanche.methods.direction_budget import (
    LEAST_OF_ALL_FEATURES,
    MOST_DIRECTIONS,
    class_bytes,
    share_budget,
)
from crumb_avalanche.methods.directions import direction_bytes, fixed_bytes
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.ranpac import RandomProjection
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.counted import counted

POOLED = dict(maps=False, deviations=False, power=1.0)  # means of the head's input over locations
CLASSES = 20  # A budget that buys enough directions of so many classes has the features of cells.


class BudgetError(ValueError):
    """A class more does not fit into the learner's budget."""


class Kind(ABC):
    """A kind of learner in closed form.

    Attributes:
        moments: arguments of ``FeatureMoments`` for a new learner.
    """

    moments: ClassVar[dict[str, Any]] = POOLED

    def features(self, model: SplitModel, budget: int) -> FeatureMoments:
        """Build the function from maps to features of a new learner with a budget in bytes."""
        return FeatureMoments(**self.moments)

    @abstractmethod
    def build(self, length: int, budget: int, kept: int) -> ClassStatistics:
        """Build statistics without a class.

        Args:
            length: number of features.
            budget: bytes.
            kept: number of the last features, those of the head's input.
        """

    @abstractmethod
    def bytes_for(self, statistics: ClassStatistics, length: int, classes: int) -> int:
        """Return the fewest bytes that so many classes take."""

    def class_bytes(self, statistics: ClassStatistics, label: int) -> int:
        """Return the bytes that one class takes by itself."""
        return self.bytes_for(statistics, statistics.settings["length"], 1) - self.bytes_for(
            statistics, statistics.settings["length"], 0
        )

    def keep(self, statistics: ClassStatistics, length: int) -> None:
        """Drop all features but the last ones, in kinds that drop any.

        Args:
            statistics: changed in place.
            length: number of features to keep.
        """
        raise NotImplementedError(f"{type(self).__name__} drops no features")

    def make_room(self, statistics: ClassStatistics, classes: int, budget: int, kept: int) -> str:
        """Fit the statistics of a number of classes into the budget, before any image of a new one is learned.

        Args:
            statistics: changed in place.
            classes: number of classes.
            budget: bytes.
            kept: number of the last features, which are never dropped.

        Returns:
            What is given up for it, or an empty text.

        Raises:
            BudgetError: even the least does not fit.
        """
        needed = self.bytes_for(statistics, statistics.settings["length"], classes)
        if needed > budget:
            raise BudgetError(
                f"{needed:,} bytes are needed for {counted(classes, 'class')}, but the budget is {budget:,}: forget a "
                "class, or make a learner with a larger budget_bytes and teach it again"
            )
        return ""


class Means(Kind):
    """Nearest class mean; see ``ClassMeans``."""

    def build(self, length, budget, kept):
        return ClassMeans(0, length)

    def bytes_for(self, statistics, length, classes):
        return 4 * classes * (length + 1)


class Lda(Kind):
    """Streaming linear discriminant analysis; see ``StreamingLDA``."""

    def build(self, length, budget, kept):
        return StreamingLDA(0, length)

    def bytes_for(self, statistics, length, classes):
        return 4 * length**2 + 4 * classes * (length + 1)


class Projection(Kind):
    """Ridge regression on a random projection; see ``RandomProjection``. Half of the budget is the Gram matrix."""

    def build(self, length, budget, kept):
        return RandomProjection(0, length, projection=min(2000, max(1, int((budget / 8) ** 0.5))))

    def bytes_for(self, statistics, length, classes):
        return 4 * (len(statistics.gram) * (len(statistics.gram) + classes) + classes)


class Discriminant(Kind):
    """Regularised discriminant analysis; see ``RegularizedDiscriminant``.

    A class takes its mean and at most 64 directions. If the budget is full, the classes with the most directions give
    up their weakest ones. A budget that is too small for 20 classes with 8 directions each has the features of the
    head's input alone; one that becomes too small for the classes taught loses the others.
    """

    moments: ClassVar = dict(maps=True, deviations=False, power=0.7, equal_lengths=True, cells=2)

    def features(self, model, budget):
        features = FeatureMoments(**self.moments)
        length = features.length(model)
        if budget < CLASSES * class_bytes(length, LEAST_OF_ALL_FEATURES):
            features.maps, features.cells = False, 1
        return features

    def build(self, length, budget, kept):
        settings = RdaSettings()
        part = dict(part=kept, part_share=settings.head_share) if kept < length else {}
        return RegularizedDiscriminant(
            0, length, MOST_DIRECTIONS, own=settings.own, diagonal=True, span=False, eight_bits=True, **part
        )

    def bytes_for(self, statistics, length, classes):
        return classes * (_fixed_bytes(statistics) + _direction_bytes(statistics))

    def class_bytes(self, statistics, label):
        return _fixed_bytes(statistics) + int(statistics.directions.counts[label]) * _direction_bytes(statistics)

    def keep(self, statistics, length):
        statistics.keep_features(length)

    def make_room(self, statistics, classes, budget, kept):
        notes = []
        length, eight_bits = statistics.settings["length"], statistics.settings["eight_bits"]
        if kept < length and classes * class_bytes(length, LEAST_OF_ALL_FEATURES, eight_bits) > budget:
            self.keep(statistics, kept)
            notes.append(
                f"{length - kept} of {length} features, those of the feature map, are given up, and with them what was "
                "recorded of the confidence"
            )
        super().make_room(statistics, classes, budget, kept)
        return "; ".join([*notes, *filter(None, [share_budget(statistics, classes, budget)])])


def _fixed_bytes(statistics: ClassStatistics) -> int:
    return fixed_bytes(statistics.settings["length"], statistics.settings["eight_bits"])


def _direction_bytes(statistics: ClassStatistics) -> int:
    return direction_bytes(statistics.settings["length"], statistics.settings["eight_bits"])


KINDS: dict[str, Kind] = {"rda": Discriminant(), "slda": Lda(), "ncm": Means(), "ranpac": Projection()}
RECOMMENDED = "rda"


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
