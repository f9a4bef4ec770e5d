"""Bounds: fine-tuning, training on everything at once, and guessing."""

import torch

from crumb_avalanche.baselines.entry import Entry, Recipe
from crumb_avalanche.training.stream_strategy import StreamStrategy


def build_finetune(recipe: Recipe) -> StreamStrategy:
    """Build fine-tuning of the plastic layers on each batch; nothing is stored."""
    return StreamStrategy(optimizer=recipe.optimizer(), **recipe.common())


class ChanceStrategy(StreamStrategy):
    """Answers with a random class of those seen so far; training only records which classes were seen.

    Args:
        seed: of the answers.
        stream_arguments: see ``StreamStrategy``.
    """

    def __init__(self, *, seed: int = 0, **stream_arguments):
        super().__init__(**stream_arguments)
        self._random = torch.Generator().manual_seed(seed)

    def forward(self):
        logits = torch.rand(len(self.mb_x), self.model.n_classes, generator=self._random).to(self.mb_x.device)
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


FINETUNE = Entry(
    name="finetune",
    summary="fine-tuning of the plastic layers on each batch (lower bound)",
    source="Talbot et al., lower bound",
    stores="nothing",
    build=build_finetune,
)
OFFLINE = Entry(
    name="offline",
    summary="all classes at once, shuffled, every epoch (upper bound)",
    source="Talbot et al., upper bound",
    stores="every image",
    build=build_finetune,
    joint=True,
)
CHANCE = Entry(
    name="chance",
    summary="a random class of those seen so far",
    source="Talbot et al., figure 3",
    stores="nothing",
    build=lambda recipe: ChanceStrategy(seed=recipe.seed, optimizer=recipe.optimizer(), **recipe.common()),
    gradient=False,
)
