"""Task-incremental evaluation: the experience of an image is known. For methods designed for that setting."""

import torch

from crumb_avalanche.training.labels import labels_of
from crumb_avalanche.training.plugins import UNSEEN_LOGIT, give_unseen_probability
from crumb_avalanche.training.stateful import StatefulPlugin


class TaskIncrementalPlugin(StatefulPlugin):
    """Restricts answers in evaluation to the classes of the tested experience; training does not change.

    Regularisers such as EWC protect weights, not the balance between old and new outputs: in class-incremental
    evaluation they equal fine-tuning, in task-incremental evaluation they do not. A test stream of one experience with
    all classes restricts nothing.
    """

    def __init__(self):
        super().__init__()
        self._classes: list[int] = []

    def before_eval_exp(self, strategy, **kwargs):
        self._classes = sorted(set(labels_of(strategy.experience.dataset)))

    def after_eval_forward(self, strategy, **kwargs):
        outside = torch.ones(strategy.mb_output.shape[1], dtype=torch.bool, device=strategy.mb_output.device)
        outside[self._classes] = False
        # Below the logit of classes not seen in training, which this experience may have.
        answers = strategy.mb_output.masked_fill(outside, 2 * UNSEEN_LOGIT)
        unseen = strategy.seen_classes.unseen(answers.shape[1]).to(outside.device)
        if bool((unseen & ~outside).any()) and not bool((unseen | outside).all()):
            answers = give_unseen_probability(answers, unseen & ~outside)  # before, relative to other experiences
        strategy.mb_output = answers
