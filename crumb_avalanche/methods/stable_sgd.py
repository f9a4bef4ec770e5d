"""Stable SGD: a training regime that finds wide minima, without memories and penalties."""

import warnings

from torch import nn

from crumb_avalanche.methods.penalty_settings import StableSGDSettings
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.training.stateful import StatefulPlugin
from crumb_avalanche.training.stream_strategy import StreamStrategy


class StableSGDPlugin(StatefulPlugin):
    """Sets the rate to ``max(first_rate * gamma**t, lowest_rate)`` and the momentum to 0 before experience ``t``.

    Mirzadeh et al., Understanding the Role of Training Regimes in Continual Learning, NeurIPS 2020. Experiences count
    from 0. The authors' code counts from 1, so its first rate is ``gamma`` times the given one; and it resets the
    momentum at every epoch, which is the same if an experience has one epoch.

    Args:
        first_rate: rate of the first experience.
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
    """Build Stable SGD; warn if the plastic layers have no dropout, since none is added."""
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


register(
    "stable_sgd",
    summary="a rate that decays from experience to experience, small batches and dropout",
    source="Mirzadeh et al., Understanding the Role of Training Regimes in Continual Learning, NeurIPS 2020",
    stores="nothing",
    settings=StableSGDSettings,
)(build_stable_sgd)
