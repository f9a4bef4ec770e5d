"""Evaluation with a hint: which experience an image belongs to. For methods that were made for that setting."""

import torch

from crumb_avalanche.training.plugins import UNSEEN_LOGIT
from crumb_avalanche.training.stateful import StatefulPlugin


class TaskIncrementalPlugin(StatefulPlugin):
    """Answers in evaluation are classes of the experience under test only (task-incremental); training is untouched.

    Regularisers such as EWC protect weights, not the balance between old and new outputs: class-incrementally they
    look like fine-tuning, with this hint they do not. A stream of one experience with all classes gives no hint.
    """

    def __init__(self):
        super().__init__()
        self._classes: list[int] = []

    def before_eval_exp(self, strategy, **kwargs):
        self._classes = sorted(set(map(int, strategy.experience.dataset.targets)))

    def after_eval_forward(self, strategy, **kwargs):
        outside = torch.ones(strategy.mb_output.shape[1], dtype=torch.bool, device=strategy.mb_output.device)
        outside[self._classes] = False
        # Below the logit of classes not seen in training, which may be those of this experience.
        strategy.mb_output = strategy.mb_output.masked_fill(outside, 2 * UNSEEN_LOGIT)
