"""Bounds: fine-tuning, training on everything at once, and guessing."""

import math
from dataclasses import dataclass

import torch

from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.system.setting_ranges import NotNegative
from crumb_avalanche.training.ledger import MemorySizes, sizes_of_exemplars
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
    """Sets learning rate and momentum of each step as torch's ``OneCycleLR`` does.

    Smith and Topin, "Super-Convergence: Very Fast Training of Neural Networks Using
    Large Learning Rates", 2018. It has no state but the clock's.

    Args:
        recipe: what the strategy is built from.
        peak_rate: largest learning rate of one cycle over all epochs, in which the rate
            rises and falls to almost 0; learning rate and momentum of the run are then
            not used. With 0 the rate of the run is kept throughout.

    Raises:
        ValueError: when training starts, an experience came before.

    Attributes:
        memory_sizes: of the images that are trained on in every epoch, and so are kept.
    """

    def __init__(self, recipe: Recipe, *, peak_rate: NotNegative = 1e-2):
        super().__init__()
        self.peak_rate = peak_rate
        self.memory_sizes = MemorySizes()

    def after_train_dataset_adaptation(self, strategy, **kwargs):
        """Refuse a second experience, before anything is changed.

        Raises:
            ValueError: an experience came before, so that this would be fine-tuning.
        """
        if strategy.clock.train_exp_counter > 0:
            raise ValueError(
                "the upper bound 'offline' trains on all classes at once, but this is "
                "a second experience: make the stream with protocol='offline', or with "
                "n_experiences=1; to learn one experience after the other is the "
                "method finetune"
            )

    def before_training_exp(self, strategy, **kwargs):
        """Note the sizes of the images, all of which are kept."""
        self.memory_sizes = sizes_of_exemplars(strategy.experience.dataset)

    def before_update(self, strategy, **kwargs):
        """Set learning rate and momentum of the step."""
        if not self.peak_rate:
            return
        steps = strategy.train_epochs * len(strategy.dataloader)
        step = strategy.clock.train_exp_iterations
        cycle = one_cycle(step, steps, self.peak_rate)
        for group in strategy.optimizer.param_groups:
            group.update(lr=cycle.rate, momentum=cycle.momentum)


@dataclass(frozen=True)
class CycleStep:
    """Learning rate and momentum of a step."""

    rate: float
    momentum: float


def one_cycle(step: int, n_steps: int, peak: float) -> CycleStep:
    """Return rate and momentum of a step, with the defaults of torch's ``OneCycleLR``.

    The rate rises to its peak in the first 30 % of the steps, then falls to nearly 0;
    the momentum does the opposite. Unlike torch's scheduler, a function of the step has
    no state that a checkpoint would have to store.

    Args:
        step: number of the step, from 0.
        n_steps: number of all steps.
        peak: largest learning rate.
    """
    # div_factor 25, final_div_factor 1e4, base_momentum 0.85, max_momentum 0.95
    first = CycleStep(rate=peak / 25, momentum=0.95)
    top = CycleStep(rate=peak, momentum=0.85)
    last = CycleStep(rate=peak / 25 / 1e4, momentum=0.95)
    top_step = 0.3 * n_steps - 1  # number of the step with the largest rate
    if step <= top_step:
        return _between(first, top, step / top_step)
    return _between(top, last, (step - top_step) / (n_steps - 1 - top_step))


def _between(start: CycleStep, end: CycleStep, share: float) -> CycleStep:
    """Return rate and momentum between two steps of a cycle, along a cosine.

    Args:
        start, end: the two steps.
        share: of the way from one to the other, 0 to 1.
    """
    weight = 1 + math.cos(math.pi * share)  # 2 at the start, 0 at the end
    return CycleStep(
        rate=end.rate + (start.rate - end.rate) / 2 * weight,
        momentum=end.momentum + (start.momentum - end.momentum) / 2 * weight,
    )


class ChanceStrategy(StreamStrategy):
    """Answers with a random class of those seen so far.

    Training only records which classes were seen.

    Args:
        seed: of the answers.
        stream_arguments: see ``StreamStrategy``.
    """

    takes_gradient_steps = False

    def __init__(self, *, seed: int = 0, **stream_arguments):
        super().__init__(**stream_arguments)
        self._random = torch.Generator().manual_seed(seed)

    def forward(self):
        """Return random logits ``(B, classes)``, with a gradient in training."""
        shape = (len(self.mb_x), self.model.n_classes)
        logits = torch.rand(shape, generator=self._random, dtype=torch.float32)
        return logits.to(self.mb_x.device).requires_grad_(self.is_training)

    def optimizer_step(self):
        """Do nothing: there is nothing to train."""

    def state_dict(self):
        """Return the state of training, with that of the random numbers."""
        return super().state_dict() | {"method": {"random": self._random.get_state()}}

    def load_state_dict(self, state, strict=True):
        """Load what ``state_dict`` returned."""
        super().load_state_dict(state, strict)
        self._random.set_state(state["method"]["random"])

    def answer_state(self):
        """Return the state of the random numbers, which answers are drawn from."""
        return super().answer_state() | {"method": {"random": self._random.get_state()}}

    def load_answer_state(self, state):
        """Load what ``answer_state`` returned."""
        super().load_answer_state(state)
        self._random.set_state(state["method"]["random"])


@register(
    "chance",
    summary="a random class of those seen so far",
    source="Talbot et al., figure 3",
    stores="nothing",
    gradient=False,
)
def build_chance(recipe: Recipe) -> ChanceStrategy:
    """Build guessing, from the seed of the run."""
    return ChanceStrategy(
        seed=recipe.seed, optimizer=recipe.optimizer(), **recipe.common()
    )
