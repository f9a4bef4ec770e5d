"""Stable SGD: no memory and no penalty, but a training regime that ends in wide minima."""

import warnings
from dataclasses import dataclass

from torch import nn

from crumb_avalanche.baselines.entry import Entry, Recipe
from crumb_avalanche.training.stateful import StatefulPlugin
from crumb_avalanche.training.stream_strategy import StreamStrategy


@dataclass(frozen=True)
class StableSGDSettings:
    """Settings of Stable SGD, with its authors' values on split CIFAR-100.

    The rate of the first experience is the one that all strategies share: the authors' 0.15 belongs to a small ResNet
    trained from scratch.

    Attributes:
        gamma: factor of the rate from each experience to the next.
        lowest_rate: the rate falls no lower.
        momentum: of SGD.
        dropout: probability of the dropout layers that the plastic layers have.
        batch_size: of training, instead of the one that all strategies share; small ones add noise to the steps.
    """

    gamma: float = 0.85
    lowest_rate: float = 5e-5
    momentum: float = 0.8
    dropout: float = 0.1
    batch_size: int = 10

    def __post_init__(self):
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma={self.gamma}: the rate decays by a factor above 0 and up to 1")
        if self.lowest_rate < 0:
            raise ValueError(f"lowest_rate={self.lowest_rate}: a rate is not negative")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum={self.momentum}: it lies from 0 up to, not including, 1")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout}: a probability from 0 up to, not including, 1")
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size}: a batch has at least 1 frame")


class StableSGDPlugin(StatefulPlugin):
    """Before experience ``t`` (from 0): a rate of ``max(first_rate * gamma**t, lowest_rate)`` and no momentum left.

    Mirzadeh et al., Understanding the Role of Training Regimes in Continual Learning, NeurIPS 2020. Their code counts
    experiences from 1, so that its first rate is ``gamma`` times the one given; and it drops the momentum at every
    epoch, which is the same wherever an experience has one epoch.

    Args:
        first_rate: rate in the first experience.
        gamma, lowest_rate: see ``StableSGDSettings``.
    """

    def __init__(self, first_rate: float, gamma: float, lowest_rate: float):
        super().__init__()
        self.first_rate = first_rate
        self.gamma = gamma
        self.lowest_rate = lowest_rate

    def before_training_exp(self, strategy, **kwargs):
        strategy.make_optimizer(reset_optimizer_state=True)
        for group in strategy.optimizer.param_groups:
            group["lr"] = max(self.first_rate * self.gamma**strategy.clock.train_exp_counter, self.lowest_rate)


def build_stable_sgd(recipe: Recipe) -> StreamStrategy:
    """Stable SGD. Where the plastic layers have no dropout none is put in, and a warning says so."""
    method = recipe.method
    dropouts = [module for module in recipe.model.plastic_layers.modules() if isinstance(module, nn.Dropout)]
    for module in dropouts:
        module.p = method.dropout
    if method.dropout and not dropouts:
        warnings.warn(
            f"the plastic layers have no dropout, so dropout={method.dropout} of stable_sgd has no effect; the "
            "decaying rate and the small batches have",
            stacklevel=2,
        )
    plugin = StableSGDPlugin(recipe.settings.learning_rate, method.gamma, method.lowest_rate)
    common = recipe.common(plugin) | {"train_mb_size": method.batch_size}
    return StreamStrategy(optimizer=recipe.optimizer(momentum=method.momentum), **common)


STABLE_SGD = Entry(
    name="stable_sgd",
    summary="a rate that decays from experience to experience, small batches and dropout",
    source="Mirzadeh et al., Understanding the Role of Training Regimes in Continual Learning, NeurIPS 2020",
    stores="nothing",
    build=build_stable_sgd,
    method=StableSGDSettings,
)
