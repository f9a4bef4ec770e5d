"""Plugins of stream strategies.

Classes seen, epochs, clamped gradients, a guard against NaN, answers by experience.
"""

import math

import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import Tensor, nn

from crumb_avalanche.models.layers import trainable
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import Epochs, check_count
from crumb_avalanche.training.avalanche_fixes import labels_of, use_int64_labels
from crumb_avalanche.training.criterion import UNSEEN_LOGIT, SeenClassesLoss
from crumb_avalanche.training.stateful import StatefulPlugin

# Probability of each class not seen yet in evaluation: the loss of its image is 13.8
# instead of 10,000.
UNSEEN_PROBABILITY = 1e-6


def give_unseen_probability(logits: Tensor, unseen: Tensor) -> Tensor:
    """Give unseen classes a probability of ``UNSEEN_PROBABILITY`` each.

    It is relative to all others together. The highest of the classes seen stays the
    highest.

    Args:
        logits: ``(B, classes)``.
        unseen: ``(classes,)`` bool; not all may be true.

    Returns:
        ``(B, classes)`` logits.
    """
    unseen = unseen.to(logits.device)
    seen_logits = logits.float().masked_fill(unseen, -torch.inf)
    floor = seen_logits.logsumexp(1, keepdim=True) + math.log(UNSEEN_PROBABILITY)
    # Logits above 1e8 are so far apart that the sum would be rounded to the highest
    # one.
    highest = seen_logits.amax(1, keepdim=True)
    below_highest = highest.nextafter(floor.new_tensor(-torch.inf))
    unseen_logits = floor.minimum(below_highest).to(logits.dtype)
    return torch.where(unseen, unseen_logits, logits)


def check_outputs(labels: list[int], outputs: int) -> None:
    """Raise ``ValueError`` unless a head has an output for every class."""
    lowest = min(labels, default=0)
    if lowest < 0:
        raise ValueError(
            f"the labels hold {lowest}; classes count from 0: remove such images, or "
            "number them anew"
        )
    highest = max(labels, default=-1)
    if highest >= outputs:
        raise ValueError(
            f"class {highest} was seen, but the head has {outputs} outputs (0 to "
            f"{outputs - 1}); build the model with n_classes={highest + 1} or more"
        )


class SeenClassesPlugin(StatefulPlugin):
    """Restricts losses and predictions to the classes seen so far.

    Paper: "Training", the outputs ``C_t``.

    In training the logits of all other classes are -10,000. In evaluation each of them
    has a probability of 1e-6, so that an image of a class not seen yet has a
    cross-entropy of 13.8. The criterion of the strategy gets the outputs of the classes
    seen alone; see ``SeenClassesLoss``.

    Put it first in the plugin list. It works with any strategy whose model returns
    ``(B, classes)`` logits.

    Example:
        >>> import torch
        >>> from crumb_avalanche import SeenClassesPlugin
        >>> plugin = SeenClassesPlugin()
        >>> plugin.seen = [0, 2]
        >>> plugin.mask(torch.zeros(1, 3)).tolist()
        [[0.0, -10000.0, 0.0]]

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
        # The adapted data set may have the images of all experiences so far.
        labels = {
            *labels_of(strategy.experience.dataset),
            *labels_of(strategy.adapted_dataset),
        }
        # Before a method indexes tables with an entry for each output.
        if isinstance(strategy.model, SplitModel):
            check_outputs(sorted(labels), strategy.model.n_classes)
        self.seen += sorted(labels.difference(self.seen))
        self._unseen = None

    def mask(self, logits: Tensor) -> Tensor:
        """Mask the unseen classes of ``(B, classes)`` ``logits`` in training.

        Raises as ``unseen``.
        """
        unseen = self.unseen(logits.shape[1], logits.device)
        return logits.masked_fill(unseen, UNSEEN_LOGIT)

    def mask_answers(self, logits: Tensor) -> Tensor:
        """Mask unseen classes of ``(B, classes)`` ``logits`` in evaluation.

        See ``give_unseen_probability``; before training nothing is masked.
        """
        if not self.seen:
            return logits
        unseen = self.unseen(logits.shape[1], logits.device)
        return give_unseen_probability(logits, unseen)

    def unseen(self, classes: int, device: torch.device | str = "cpu") -> Tensor:
        """Return which outputs of a head were not seen yet.

        Args:
            classes: number of outputs.
            device: where the result lies.

        Returns:
            ``(classes,)`` bool.

        Raises:
            ValueError: the head has no output for a class seen.
        """
        check_outputs(self.seen, classes)
        cached = self._unseen
        if (
            cached is None
            or len(cached) != classes
            or cached.device != torch.device(device)
        ):
            unseen = torch.ones(classes, dtype=torch.bool)
            unseen[self.seen] = False
            cached = unseen.to(device)
            self._unseen = cached
        return cached

    def after_forward(self, strategy, **kwargs):
        strategy.mb_output = self.mask(strategy.mb_output)

    def after_eval_forward(self, strategy, **kwargs):
        strategy.mb_output = self.mask_answers(strategy.mb_output)

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = list(state["seen"])
        self._unseen = None

    def answer_state(self, strategy):
        return self.state_dict()

    load_answer_state = load_state_dict


class EpochSchedule(StatefulPlugin):
    """Trains another number of epochs on the first experience than on later ones.

    For any strategy. The paper trains 10 epochs, then 1 ("Training protocols").

    Args:
        first: epochs on the first experience, at least 1.
    """

    state_names = ("_later",)

    def __init__(self, first: int):
        super().__init__()
        check_count("first_epochs", first, Epochs)
        self.first = first
        # The strategy's own number, during the first experience.
        self._later: int | None = None

    def before_training_exp(self, strategy, **kwargs):
        if strategy.clock.train_exp_counter > 0:
            return
        # Otherwise an interrupted first experience begins again.
        if self._later is None or strategy.train_epochs != self.first:
            self._later = strategy.train_epochs
        strategy.train_epochs = self.first

    def after_training_exp(self, strategy, **kwargs):
        # Otherwise the number was set by the user meanwhile.
        if self._later is not None and strategy.train_epochs == self.first:
            strategy.train_epochs = self._later
        self._later = None


class ClampGradients(StatefulPlugin):
    """Clamps every gradient element to ``[-limit, limit]`` before each step.

    Replay steps are steps, too. The published code clamps to 10.

    Args:
        limit: largest absolute value of an element.

    Raises:
        ValueError: ``limit`` is not above 0.
    """

    def __init__(self, limit: float):
        super().__init__()
        if not limit > 0:
            raise ValueError(
                f"clamp_gradients is {limit}; give a number above 0, or None to clamp "
                "nothing"
            )
        self.limit = limit

    def before_update(self, strategy, **kwargs):
        gradients = []
        for group in strategy.optimizer.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    gradients.append(weight.grad)
        if gradients:
            torch._foreach_clamp_min_(gradients, -self.limit)
            torch._foreach_clamp_max_(gradients, self.limit)


class TrainingDivergedError(RuntimeError):
    """The loss became NaN or infinite.

    The last weights with a finite loss were restored.
    """


class DivergenceGuard(StatefulPlugin):
    """Stops at a loss that is not finite and restores the last good weights.

    Keeps a copy of the trainable weights and of the running statistics of the plastic
    layers, taken before each step; on a GPU two, since losses are read at the end of an
    iteration: each reading waits for it.

    Raises:
        TrainingDivergedError: in training, a loss is NaN or infinite.
    """

    def __init__(self):
        super().__init__()
        # Copies of the weights: with a finite loss, and of the iteration whose losses
        # were not read yet.
        self._good_weights: list[Tensor] = []
        self._latest_weights: list[Tensor] = []
        # Losses of the iteration that were not read yet; None outside of one.
        self._unread_losses: list[Tensor] | None = None

    def before_training_iteration(self, strategy, **kwargs):
        self._unread_losses = []

    def after_training_iteration(self, strategy, **kwargs):
        """Stop if a loss of the iteration is not finite; else its weights are good.

        All losses are read here, since each reading waits for a GPU.
        """
        losses = self._unread_losses
        self._unread_losses = None
        if not losses:
            return
        finite = torch.stack([loss.isfinite().all() for loss in losses])
        if not finite.all():
            _clear_optimizer(strategy.optimizer)  # the steps were taken
            first_wrong = finite.tolist().index(False)
            self._stop(strategy, losses[first_wrong])
        good = self._latest_weights
        self._latest_weights = self._good_weights
        self._good_weights = good

    def before_backward(self, strategy, **kwargs):
        self.check(strategy, strategy.loss)

    def on_replay_loss(self, strategy, **kwargs):
        self.check(strategy, strategy.replay_loss)

    def check(self, strategy, loss: Tensor) -> None:
        """Copy the weights if a loss is finite; else restore the copy and stop.

        On a GPU this is done after the iteration.

        Args:
            strategy: whose weights are copied.
            loss: a scalar.

        Raises:
            TrainingDivergedError: the loss is not finite.
        """
        weights = _changing_tensors(strategy.model)
        if not weights:
            return
        if self._unread_losses is not None and loss.device.type != "cpu":
            if not self._unread_losses:
                self._latest_weights = _copied(weights, self._latest_weights)
            self._unread_losses.append(loss.detach())
        elif bool(torch.isfinite(loss)):
            self._good_weights = _copied(weights, self._good_weights)
        else:
            self._stop(strategy, loss)

    @torch.no_grad()
    def _stop(self, strategy, loss: Tensor) -> None:
        weights = _changing_tensors(strategy.model)
        if len(self._good_weights) == len(weights):
            torch._foreach_copy_(weights, self._good_weights)
        clock = strategy.clock
        raise TrainingDivergedError(
            f"the loss became {float(loss)} in experience {clock.train_exp_counter}, "
            f"iteration {clock.train_exp_iterations}; the weights were put back to the "
            "last ones with a finite loss. Lower the learning rate, set "
            "clamp_gradients=10 (--clamp-gradients 10), or look for damaged images"
        )


def _changing_tensors(model: nn.Module) -> list[Tensor]:
    """Return the tensors that a step may change: weights and running statistics."""
    modules: list[nn.Module] = [model]
    if isinstance(model, SplitModel):
        # To list the frozen F takes longer than to copy all the rest.
        modules = [model.plastic_layers]
        if model.codebook is not None:
            modules.append(model.codebook)
    changing = nn.ModuleList(modules)
    statistics = filter(torch.is_floating_point, changing.buffers())
    return [*trainable(changing).values(), *statistics]


@torch.no_grad()
def _copied(tensors: list[Tensor], target: list[Tensor]) -> list[Tensor]:
    """Copy tensors to those of an earlier copy, or to new ones; return these."""
    if len(target) != len(tensors):
        target = [torch.empty_like(tensor) for tensor in tensors]
    torch._foreach_copy_(target, tensors)
    return target


def _clear_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Set what is not finite in an optimiser's state to 0."""
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor) and value.is_floating_point():
                value.nan_to_num_(0, 0, 0)


class OutputsPlugin(StatefulPlugin):
    """Records the outputs of the latest evaluation.

    Attributes:
        outputs: of each batch, ``(B, classes)`` float32 on the CPU.
    """

    def __init__(self):
        super().__init__()
        self.outputs: list[Tensor] = []

    def before_eval(self, strategy, **kwargs):
        self.outputs = []

    def after_eval_iteration(self, strategy, **kwargs):
        self.outputs.append(strategy.mb_output.float().cpu())


class TaskIncrementalPlugin(StatefulPlugin):
    """Restricts answers in evaluation to the classes of the tested experience.

    Training does not change. A test stream of one experience with all classes restricts
    nothing.
    """

    def __init__(self):
        super().__init__()
        self._classes: list[int] = []

    def before_eval_exp(self, strategy, **kwargs):
        self._classes = sorted(set(labels_of(strategy.experience.dataset)))

    def after_eval_forward(self, strategy, **kwargs):
        """Leave the answers of the classes of the experience under test alone."""
        logits = strategy.mb_output
        of_others = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
        of_others[self._classes] = False
        # Below the logit of classes not seen in training, which this experience may
        # have.
        answers = logits.masked_fill(of_others, 2 * UNSEEN_LOGIT)
        unseen = strategy.seen_classes.unseen(answers.shape[1]).to(of_others.device)
        unseen_here = unseen & ~of_others
        none_seen_here = bool((unseen | of_others).all())
        if bool(unseen_here.any()) and not none_seen_here:
            # Their probability was relative to classes of other experiences.
            answers = give_unseen_probability(answers, unseen_here)
        strategy.mb_output = answers
