"""Stable SGD: a training regime that finds wide minima, without memories and penalties.

Mirzadeh et al., NeurIPS 2020.
"""

import warnings

from torch import nn

from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.system.setting_ranges import Count, Factor, NotNegative, Share
from crumb_avalanche.training.stateful import StatefulPlugin


@register(
    "stable_sgd",
    summary=(
        "a rate that decays from experience to experience, small batches and dropout"
    ),
    source=(
        "Mirzadeh et al., Understanding the Role of Training Regimes in Continual "
        "Learning, NeurIPS 2020"
    ),
    stores="nothing",
)
class StableSGDPlugin(StatefulPlugin):
    """Sets rate and momentum before each experience, the batch size and the dropout.

    The rate before experience ``t`` is ``max(first_rate * gamma**t, lowest_rate)``, and
    SGD's momentum begins at 0 again. Experiences count from 0. The authors' code counts
    from 1, so its first rate is ``gamma`` times the given one; and it resets the
    momentum at every epoch, which is the same if an experience has one epoch. The first
    rate is the one that all strategies share: the authors' 0.15 is for a small ResNet
    trained from scratch. Other defaults are theirs on split CIFAR-100.

    Args:
        recipe: what the strategy is built from.
        gamma: factor of the rate from each experience to the next.
        lowest_rate: lower limit of the rate.
        momentum: momentum of SGD.
        dropout: probability of the dropout layers in the plastic layers, of which none
            is added.
        batch_size: batch size of training, instead of that of all strategies; small
            batches add noise to the steps.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        gamma: Factor = 0.85,
        lowest_rate: NotNegative = 5e-5,
        momentum: Share = 0.8,
        dropout: Share = 0.1,
        batch_size: Count = 10,
    ):
        super().__init__()
        self.first_rate = recipe.settings.learning_rate
        self.gamma = gamma
        self.lowest_rate = lowest_rate
        self.batch_size = batch_size
        self.sgd_arguments = {"momentum": momentum}
        _set_dropout(recipe.model.plastic_layers, dropout)

    def before_training(self, strategy, **kwargs):
        """Set the batch size of the method."""
        strategy.train_mb_size = self.batch_size

    def before_training_exp(self, strategy, **kwargs):
        """Set the decayed rate of the experience, with a momentum of 0."""
        strategy.make_optimizer(reset_optimizer_state=True)
        experience = strategy.clock.train_exp_counter
        decayed_rate = self.first_rate * self.gamma**experience
        for group in strategy.optimizer.param_groups:
            group["lr"] = max(decayed_rate, self.lowest_rate)


def _set_dropout(layers: nn.Module, probability: float) -> None:
    """Set the probability of all dropout layers; warn if there are none."""
    dropout_layers = [
        module for module in layers.modules() if isinstance(module, nn.Dropout)
    ]
    for layer in dropout_layers:
        layer.p = probability
    if probability and not dropout_layers:
        warnings.warn(
            f"the plastic layers have no dropout, so dropout={probability} of "
            "stable_sgd has no effect; the decaying rate and the small batches have",
            stacklevel=3,
        )
