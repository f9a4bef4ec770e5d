"""Plugins of every stream strategy: losses over the classes seen, epochs, clamped gradients, a guard against NaN."""

from collections.abc import Iterable

import torch
from torch import Tensor

from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.training.stateful import StatefulPlugin

# Logit of a class not yet seen: no probability is left to it, and losses stay finite.
UNSEEN_LOGIT = -1e4


def check_outputs(labels: Iterable[int], outputs: int) -> None:
    """Make sure that a head has an output for every class.

    Raises:
        ValueError: it has not.
    """
    highest = max(labels, default=-1)
    if highest >= outputs:
        raise ValueError(
            f"class {highest} was seen, but the head has {outputs} outputs (0 to {outputs - 1}); "
            f"build the model with n_classes={highest + 1} or more"
        )


class SeenClassesPlugin(StatefulPlugin):
    """Losses and predictions over the classes seen so far: logits of all others are set to -10,000.

    Put it first in the plugin list. It works with any strategy whose model gives ``(B, classes)`` logits.

    Attributes:
        seen: the classes of all experiences trained on, in order of arrival.
    """

    def __init__(self):
        super().__init__()
        self.seen: list[int] = []
        self._unseen: Tensor | None = None

    def before_training_exp(self, strategy, **kwargs):
        labels = sorted(set(map(int, strategy.experience.dataset.targets)))
        if isinstance(strategy.model, SplitModel):  # before a method looks a class up in tables as long as the head
            check_outputs(labels, strategy.model.n_classes)
        for label in labels:
            if label not in self.seen:
                self.seen.append(label)
        self._unseen = None

    def mask(self, logits: Tensor) -> Tensor:
        """``(B, classes)`` logits with the unseen classes silenced.

        Raises:
            ValueError: a class was seen for which the head has no output.
        """
        classes = logits.shape[1]
        check_outputs(self.seen, classes)
        if self._unseen is None or len(self._unseen) != classes:
            self._unseen = torch.ones(classes, dtype=torch.bool)
            self._unseen[self.seen] = False
        return logits.masked_fill(self._unseen.to(logits.device), UNSEEN_LOGIT)

    def after_forward(self, strategy, **kwargs):
        strategy.mb_output = self.mask(strategy.mb_output)

    def after_eval_forward(self, strategy, **kwargs):
        if self.seen:
            strategy.mb_output = self.mask(strategy.mb_output)

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen, self._unseen = list(state["seen"]), None

    def answer_state(self, strategy):
        return self.state_dict()

    load_answer_state = load_state_dict


class EpochSchedule(StatefulPlugin):
    """Many epochs on the first experience, one on each later (paper, "Training protocols"); for any strategy.

    Args:
        first: epochs on the first experience.
        later: epochs on each later one.
    """

    def __init__(self, first: int, later: int = 1):
        super().__init__()
        self.first = first
        self.later = later

    def before_training_exp(self, strategy, **kwargs):
        strategy.train_epochs = self.first if strategy.clock.train_exp_counter == 0 else self.later


class ClampGradients(StatefulPlugin):
    """Clamp every gradient element to ``[-limit, limit]`` before each step (the reference code's 10).

    Args:
        limit: largest absolute value.
    """

    def __init__(self, limit: float):
        super().__init__()
        self.limit = limit

    def before_update(self, strategy, **kwargs):
        gradients = [p.grad for group in strategy.optimizer.param_groups for p in group["params"] if p.grad is not None]
        if gradients:
            torch._foreach_clamp_min_(gradients, -self.limit)
            torch._foreach_clamp_max_(gradients, self.limit)

    # The replay step is an update like any other.
    on_replay_update = before_update


class TrainingDivergedError(RuntimeError):
    """The loss became NaN or infinite; the model was put back to its last good state."""


class DivergenceGuard(StatefulPlugin):
    """Stop at a loss that is not finite, with the weights that last gave a finite one.

    Keeps one copy of the trainable weights, and of the plastic layers' running statistics, taken before each step. The
    copy is not part of the state, because the first step after a resume takes it anew.
    """

    def __init__(self):
        super().__init__()
        self._good: list[Tensor] = []

    def before_backward(self, strategy, **kwargs):
        self.check(strategy, strategy.loss)

    def on_replay_loss(self, strategy, **kwargs):
        self.check(strategy, strategy.replay_loss)

    @torch.no_grad()
    def check(self, strategy, loss: Tensor) -> None:
        """Keep the present weights if ``loss`` is finite, else put the kept ones back and stop.

        Raises:
            TrainingDivergedError: the loss is NaN or infinite.
        """
        model = strategy.model
        weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
        learned = model.plastic_layers if isinstance(model, SplitModel) else model
        weights += [statistic for statistic in learned.buffers() if statistic.is_floating_point()]
        if bool(torch.isfinite(loss)):
            if len(self._good) != len(weights):
                self._good = [torch.empty_like(weight) for weight in weights]
            torch._foreach_copy_(self._good, weights)
            return
        if len(self._good) == len(weights):
            torch._foreach_copy_(weights, self._good)
        clock = strategy.clock
        raise TrainingDivergedError(
            f"the loss became {float(loss)} in experience {clock.train_exp_counter}, iteration "
            f"{clock.train_exp_iterations}; the weights were put back to the last ones with a finite loss. Lower the "
            "learning rate, set --clamp-gradients 10, or look for damaged images"
        )
