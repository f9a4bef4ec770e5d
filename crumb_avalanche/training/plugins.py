"""Plugins of stream strategies: classes seen, epochs, clamped gradients, a guard against NaN, answers by experience."""

import math

import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor, nn

from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import Epochs, check_count
from crumb_avalanche.training.avalanche_fixes import labels_of, use_int64_labels
from crumb_avalanche.training.criterion import UNSEEN_LOGIT, SeenClassesLoss
from crumb_avalanche.training.stateful import StatefulPlugin

# Probability of each class not seen yet in evaluation: the loss of its image is 13.8
# instead of 10,000.
UNSEEN_PROBABILITY = 1e-6


def give_unseen_probability(logits: Tensor, unseen: Tensor) -> Tensor:
    """Set the ``(B, classes)`` logits of unseen classes to ``UNSEEN_PROBABILITY``, relative to all others together.

    The highest of the classes seen stays the highest; not all may be ``unseen``.
    """
    unseen = unseen.to(logits.device)
    seen = logits.float().masked_fill(unseen, -torch.inf)
    floor = seen.logsumexp(1, keepdim=True) + math.log(UNSEEN_PROBABILITY)
    # Logits above 1e8 are so far apart that the sum would be rounded to the highest
    # one.
    below = seen.amax(1, keepdim=True).nextafter(floor.new_tensor(-torch.inf))
    return torch.where(unseen, floor.minimum(below).to(logits.dtype), logits)


def check_outputs(labels: list[int], outputs: int) -> None:
    """Raise ``ValueError`` unless a head has an output for every class."""
    if min(labels, default=0) < 0:
        raise ValueError(
            f"the labels hold {min(labels)}; classes count from 0: remove such images, or number them anew"
        )
    highest = max(labels, default=-1)
    if highest >= outputs:
        raise ValueError(
            f"class {highest} was seen, but the head has {outputs} outputs (0 to {outputs - 1}); "
            f"build the model with n_classes={highest + 1} or more"
        )


class SeenClassesPlugin(StatefulPlugin):
    """Restricts losses and predictions to the classes seen so far (paper, "Training": the outputs ``C_t``).

    In training the logits of all other classes are -10,000. In evaluation each of them
    has a probability of 1e-6, so that an image of a class not seen yet has a
    cross-entropy of 13.8. The criterion of the strategy gets the outputs of the classes
    seen alone; see ``SeenClassesLoss``.

    Put it first in the plugin list. It works with any strategy whose model returns
    ``(B, classes)`` logits.

    Attributes:
        seen: the classes of all experiences trained on, in order of arrival.

    Raises:
        ValueError: when training starts, the head of a ``SplitModel`` has no output for
            a class, or a label is below 0.
    """

    def __init__(self):
        super().__init__()
        self.seen: list[int] = []
        self._unseen: Tensor | None = None

    def before_training(self, strategy, **kwargs):
        if not isinstance(strategy._criterion, SeenClassesLoss | SupervisedPlugin):
            strategy._criterion = SeenClassesLoss(strategy._criterion, self.unseen)

    before_eval = before_training

    def before_training_iteration(self, strategy, **kwargs):
        use_int64_labels(strategy, targets=True)

    before_eval_iteration = before_training_iteration

    def before_training_exp(self, strategy, **kwargs):
        coming = (
            strategy.experience.dataset,
            strategy.adapted_dataset,
        )  # the second may have all experiences so far
        labels = sorted({label for dataset in coming for label in labels_of(dataset)})
        if isinstance(
            strategy.model, SplitModel
        ):  # before a method indexes tables with an entry for each output
            check_outputs(labels, strategy.model.n_classes)
        for label in labels:
            if label not in self.seen:
                self.seen.append(label)
        self._unseen = None

    def mask(self, logits: Tensor) -> Tensor:
        """Mask the unseen classes of ``logits``, ``(B, classes)``, in training; raises as ``unseen``."""
        return logits.masked_fill(
            self.unseen(logits.shape[1], logits.device), UNSEEN_LOGIT
        )

    def mask_answers(self, logits: Tensor) -> Tensor:
        """Mask the unseen classes of ``logits``, ``(B, classes)``, as ``give_unseen_probability`` does."""
        return (
            give_unseen_probability(logits, self.unseen(logits.shape[1], logits.device))
            if self.seen
            else logits
        )

    def unseen(self, classes: int, device: torch.device | str = "cpu") -> Tensor:
        """Return on a ``device`` which of a head's ``classes`` outputs were not seen yet, ``(classes,)`` bool."""
        check_outputs(self.seen, classes)
        if (
            self._unseen is None
            or len(self._unseen) != classes
            or self._unseen.device != torch.device(device)
        ):
            unseen = torch.ones(classes, dtype=torch.bool)
            unseen[self.seen] = False
            self._unseen = unseen.to(device)
        return self._unseen

    def after_forward(self, strategy, **kwargs):
        strategy.mb_output = self.mask(strategy.mb_output)

    def after_eval_forward(self, strategy, **kwargs):
        strategy.mb_output = self.mask_answers(strategy.mb_output)

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen, self._unseen = list(state["seen"]), None

    def answer_state(self, strategy):
        return self.state_dict()

    load_answer_state = load_state_dict


class EpochSchedule(StatefulPlugin):
    """Trains another number of epochs on the first experience than on the later ones, in any strategy.

    The paper trains 10 epochs, then 1 ("Training protocols").

    Args:
        first: epochs on the first experience, at least 1.
    """

    kept = ("_later",)

    def __init__(self, first: int):
        super().__init__()
        check_count("first_epochs", first, Epochs)
        self.first = first
        self._later: int | None = (
            None  # the strategy's own number, during the first experience
        )

    def before_training_exp(self, strategy, **kwargs):
        if strategy.clock.train_exp_counter > 0:
            return
        if (
            self._later is None or strategy.train_epochs != self.first
        ):  # else an interrupted first experience
            self._later = strategy.train_epochs
        strategy.train_epochs = self.first

    def after_training_exp(self, strategy, **kwargs):
        if (
            self._later is not None and strategy.train_epochs == self.first
        ):  # else set by the user meanwhile
            strategy.train_epochs = self._later
        self._later = None


class ClampGradients(StatefulPlugin):
    """Clamps every gradient element to ``[-limit, limit]`` before each step (published code: 10).

    Args:
        limit: largest absolute value of an element.

    Raises:
        ValueError: ``limit`` is not above 0.
    """

    def __init__(self, limit: float):
        super().__init__()
        if not limit > 0:
            raise ValueError(
                f"clamp_gradients is {limit}; give a number above 0, or None to clamp nothing"
            )
        self.limit = limit

    def before_update(self, strategy, **kwargs):
        gradients = [
            p.grad
            for group in strategy.optimizer.param_groups
            for p in group["params"]
            if p.grad is not None
        ]
        if gradients:
            torch._foreach_clamp_min_(gradients, -self.limit)
            torch._foreach_clamp_max_(gradients, self.limit)

    # A replay step is an update, too.
    on_replay_update = before_update


class TrainingDivergedError(RuntimeError):
    """The loss became NaN or infinite; the last weights with a finite loss were restored."""


class DivergenceGuard(StatefulPlugin):
    """Stops at a loss that is not finite and restores the last weights with a finite one.

    Keeps a copy of the trainable weights and of the running statistics of the plastic
    layers, taken before each step; on a GPU two, since losses are read at the end of an
    iteration: each reading waits for it.

    Raises:
        TrainingDivergedError: in training, a loss is NaN or infinite.
    """

    def __init__(self):
        super().__init__()
        self._good: list[Tensor] = []
        self._latest: list[
            Tensor
        ] = []  # of the iteration whose losses were not read yet
        self._unread: list[Tensor] | None = (
            None  # losses of the iteration; None outside of one
        )

    def before_training_iteration(self, strategy, **kwargs):
        self._unread = []

    def after_training_iteration(self, strategy, **kwargs):
        losses, self._unread = self._unread, None
        if not losses:
            return
        if not torch.stack([loss.isfinite().all() for loss in losses]).all():
            for state in strategy.optimizer.state.values():  # the steps were taken
                for value in state.values():
                    if isinstance(value, Tensor) and value.is_floating_point():
                        value.nan_to_num_(0, 0, 0)
            self._stop(
                strategy, next(loss for loss in losses if not loss.isfinite().all())
            )
        self._good, self._latest = self._latest, self._good

    def before_backward(self, strategy, **kwargs):
        self.check(strategy, strategy.loss)

    def on_replay_loss(self, strategy, **kwargs):
        self.check(strategy, strategy.replay_loss)

    def check(self, strategy, loss: Tensor) -> None:
        """Copy the weights of a ``strategy`` if a scalar ``loss`` is finite; else restore the copy and stop.

        On a GPU this is done after the iteration.
        """
        weights = self._weights(strategy.model)
        if not weights:
            return
        if self._unread is not None and loss.device.type != "cpu":
            if not self._unread:
                self._latest = self._copy(weights, self._latest)
            self._unread.append(loss.detach())
        elif bool(torch.isfinite(loss)):
            self._good = self._copy(weights, self._good)
        else:
            self._stop(strategy, loss)

    @staticmethod
    def _weights(model: nn.Module) -> list[Tensor]:
        if isinstance(
            model, SplitModel
        ):  # to list the frozen F takes longer than to copy all the rest
            model = nn.ModuleList(
                part
                for part in (model.plastic_layers, model.codebook)
                if part is not None
            )
        weights = [
            parameter for parameter in model.parameters() if parameter.requires_grad
        ]
        return weights + [
            statistic for statistic in model.buffers() if statistic.is_floating_point()
        ]

    @staticmethod
    @torch.no_grad()
    def _copy(weights: list[Tensor], to: list[Tensor]) -> list[Tensor]:
        if len(to) != len(weights):
            to = [torch.empty_like(weight) for weight in weights]
        torch._foreach_copy_(to, weights)
        return to

    @torch.no_grad()
    def _stop(self, strategy, loss: Tensor) -> None:
        weights = self._weights(strategy.model)
        if len(self._good) == len(weights):
            torch._foreach_copy_(weights, self._good)
        clock = strategy.clock
        raise TrainingDivergedError(
            f"the loss became {float(loss)} in experience {clock.train_exp_counter}, iteration "
            f"{clock.train_exp_iterations}; the weights were put back to the last ones with a finite loss. Lower the "
            "learning rate, set clamp_gradients=10 (--clamp-gradients 10), or look for damaged images"
        )


class OutputsPlugin(StatefulPlugin):
    """Records the outputs of the latest evaluation: of each batch, ``(B, classes)`` float32 on the CPU."""

    def __init__(self):
        super().__init__()
        self.outputs: list[Tensor] = []

    def before_eval(self, strategy, **kwargs):
        self.outputs = []

    def after_eval_iteration(self, strategy, **kwargs):
        self.outputs.append(strategy.mb_output.float().cpu())


class TaskIncrementalPlugin(StatefulPlugin):
    """Restricts answers in evaluation to the classes of the tested experience; training does not change.

    A test stream of one experience with all classes restricts nothing.
    """

    def __init__(self):
        super().__init__()
        self._classes: list[int] = []

    def before_eval_exp(self, strategy, **kwargs):
        self._classes = sorted(set(labels_of(strategy.experience.dataset)))

    def after_eval_forward(self, strategy, **kwargs):
        outside = torch.ones(
            strategy.mb_output.shape[1],
            dtype=torch.bool,
            device=strategy.mb_output.device,
        )
        outside[self._classes] = False
        # Below the logit of classes not seen in training, which this experience may
        # have.
        answers = strategy.mb_output.masked_fill(outside, 2 * UNSEEN_LOGIT)
        unseen = strategy.seen_classes.unseen(answers.shape[1]).to(outside.device)
        if bool((unseen & ~outside).any()) and not bool((unseen | outside).all()):
            answers = give_unseen_probability(
                answers, unseen & ~outside
            )  # before, relative to other experiences
        strategy.mb_output = answers
