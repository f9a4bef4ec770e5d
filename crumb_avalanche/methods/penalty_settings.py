"""Settings of the methods that store no images: penalties, stable SGD. Imports neither torch nor Avalanche."""

from dataclasses import dataclass

from crumb_avalanche.system.setting_ranges import InRange


def _not_negative(settings: object, *names: str) -> None:
    for name in names:
        if getattr(settings, name) < 0:
            raise ValueError(f"{name} is {getattr(settings, name)}, but must not be negative")


def _between_0_and_1(settings: object, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(settings, name) <= 1:
            raise ValueError(f"{name} is {getattr(settings, name)}, but must be from 0 to 1")


def _above_0(settings: object, *names: str) -> None:
    for name in names:
        if not getattr(settings, name) > 0:
            raise ValueError(f"{name} is {getattr(settings, name)}, but must be above 0")


@dataclass(frozen=True)
class EWCSettings(InRange):
    """Settings of EWC.

    Attributes:
        weight: weight of the sum of Fisher information times squared shift (the paper's port: 100).
        online: keep one set of importances, summed over the experiences, instead of one for each.
        decay: with ``online``, factor of the earlier sum at each new experience.
    """

    weight: float = 100.0
    online: bool = False
    decay: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        _not_negative(self, "weight")
        _between_0_and_1(self, "decay")


@dataclass(frozen=True)
class SISettings(InRange):
    """Settings of SI.

    Attributes:
        weight: weight of the sum of importance times squared shift (the paper's port: 0.01).
        damping: summand of the squared shift that a path integral is divided by (the paper's port: 0.1).
    """

    weight: float = 0.01
    damping: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        _not_negative(self, "weight")
        _above_0(self, "damping")


@dataclass(frozen=True)
class MASSettings(InRange):
    """Settings of MAS.

    Attributes:
        weight: weight of the sum of importance times squared shift (MAS's authors and the paper's port: 1).
        decay: factor of the importances so far when those of a new experience are added.
    """

    weight: float = 1.0
    decay: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        _not_negative(self, "weight")
        _between_0_and_1(self, "decay")


@dataclass(frozen=True)
class LwFSettings(InRange):
    """Settings of LwF.

    Attributes:
        alpha: weight of the distillation loss (lambda_o of LwF's authors: 1).
        temperature: temperature of both softmaxes (LwF's authors: 2).
    """

    alpha: float = 1.0
    temperature: float = 2.0

    def __post_init__(self):
        super().__post_init__()
        _not_negative(self, "alpha")
        _above_0(self, "temperature")


@dataclass(frozen=True)
class StableSGDSettings(InRange):
    """Settings of Stable SGD, with its authors' values on split CIFAR-100.

    The rate of the first experience is the one that all strategies share: the authors' 0.15 is for a small ResNet
    trained from scratch.

    Attributes:
        gamma: factor of the rate from each experience to the next.
        lowest_rate: lower limit of the rate.
        momentum: momentum of SGD.
        dropout: probability of the dropout layers in the plastic layers.
        batch_size: batch size of training, instead of that of all strategies; small batches add noise to the steps.
    """

    gamma: float = 0.85
    lowest_rate: float = 5e-5
    momentum: float = 0.8
    dropout: float = 0.1
    batch_size: int = 10

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma is {self.gamma}; it is a factor of the rate: above 0 and at most 1")
        _not_negative(self, "lowest_rate")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}; give 0 or more, but less than 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is {self.dropout}; it is a probability: give 0 or more, but less than 1")
        if self.batch_size < 1:
            raise ValueError(f"batch_size is {self.batch_size}; it counts images: give 1 or more")
