"""Bounds: fine-tuning, training on everything at once, and guessing."""

import math

import torch

from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.system.setting_ranges import NotNegative
from crumb_avalanche.training.stateful import StatefulPlugin
from crumb_avalanche.training.stream_strategy import StreamStrategy


@register(
    "finetune",
    summary="fine-tuning of the plastic layers on each batch (lower bound)",
    source="Talbot et al., lower bound",
    stores="nothing",
)
def build_finetune(recipe: Recipe) -> StreamStrategy:
    """Build fine-tuning of the plastic layers on each batch; nothing is stored."""
    return StreamStrategy(optimizer=recipe.optimizer(), **recipe.common())


@register(
    "offline",
    summary="all classes at once, shuffled, every epoch (upper bound)",
    source="Talbot et al., upper bound",
    stores="every image",
    joint=True,
    own_rate=lambda method: method.peak_rate > 0,
)
class OneCycle(StatefulPlugin):
    """Sets learning rate and momentum of each step as torch's ``OneCycleLR`` does; it has no state but the clock's.

    Smith and Topin, "Super-Convergence: Very Fast Training of Neural Networks Using
    Large Learning Rates", 2018.

    Attributes:
        peak_rate: largest learning rate of one cycle over all epochs, in which the rate
            rises and falls to almost 0; learning rate and momentum of the run are then
            not used. With 0 the rate of the run is kept throughout.
    """

    peak_rate: NotNegative = 1e-2

    def __init__(self, recipe: Recipe):
        super().__init__()

    def before_update(self, strategy, **kwargs):
        if not self.peak_rate:
            return
        steps = strategy.train_epochs * len(strategy.dataloader)
        rate, momentum = one_cycle(
            strategy.clock.train_exp_iterations, steps, self.peak_rate
        )
        for group in strategy.optimizer.param_groups:
            group.update(lr=rate, momentum=momentum)


def one_cycle(step: int, steps: int, peak: float) -> tuple[float, float]:
    """Return learning rate and momentum of a step, counted from 0, with the defaults of torch's ``OneCycleLR``."""
    first, low = peak / 25, peak / 25 / 1e4
    top = 0.3 * steps - 1
    if step <= top:
        share, rates, momenta = step / top, (first, peak), (0.95, 0.85)
    else:
        share, rates, momenta = (
            (step - top) / (steps - 1 - top),
            (peak, low),
            (0.85, 0.95),
        )
    rate, momentum = (
        end + (start - end) / 2 * (1 + math.cos(math.pi * share))
        for start, end in (rates, momenta)
    )
    return rate, momentum


class ChanceStrategy(StreamStrategy):
    """Answers with a random class of those seen so far; training only records which classes were seen."""

    def __init__(self, *, seed: int = 0, **stream_arguments):
        super().__init__(**stream_arguments)
        self._random = torch.Generator().manual_seed(seed)

    def forward(self):
        logits = torch.rand(
            len(self.mb_x), self.model.n_classes, generator=self._random
        ).to(self.mb_x.device)
        return logits.requires_grad_(self.is_training)

    def optimizer_step(self):
        """Do nothing: there is nothing to train."""

    def state_dict(self):
        return super().state_dict() | {"method": {"random": self._random.get_state()}}

    def load_state_dict(self, state, strict=True):
        super().load_state_dict(state, strict)
        self._random.set_state(state["method"]["random"])

    def answer_state(self):
        return super().answer_state() | {"method": {"random": self._random.get_state()}}

    def load_answer_state(self, state):
        super().load_answer_state(state)
        self._random.set_state(state["method"]["random"])


register(
    "chance",
    summary="a random class of those seen so far",
    source="Talbot et al., figure 3",
    stores="nothing",
    gradient=False,
)(
    lambda recipe: ChanceStrategy(
        seed=recipe.seed, optimizer=recipe.optimizer(), **recipe.common()
    )
)
