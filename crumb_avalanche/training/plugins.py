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

    It is relative to that of all seen classes together, so that the loss of an image of
    an unseen class is finite. The highest of the classes seen stays the highest.

    Args:
        logits: ``(B, classes)``.
        unseen: ``(classes,)`` bool, whose logits are replaced; not all may be true.

    Returns:
        ``(B, classes)`` logits of the same dtype.
    """
    unseen = unseen.to(logits.device)
    seen_logits = logits.float().masked_fill(unseen, -torch.inf)
    log_sum = seen_logits.logsumexp(1, keepdim=True)  # (B, 1)
    logits_of_share = log_sum + math.log(UNSEEN_PROBABILITY)
    # Above 1e8, float32 rounds the sum to the highest logit: the next number below that
    # is taken.
    highest = seen_logits.amax(1, keepdim=True)
    below_highest = highest.nextafter(log_sum.new_tensor(-torch.inf))
    unseen_logits = logits_of_share.minimum(below_highest).to(logits.dtype)
    return torch.where(unseen, unseen_logits, logits)


def check_outputs(labels: list[int], n_outputs: int) -> None:
    """Raise ``ValueError`` unless a head has an output for every class."""
    lowest = min(labels, default=0)
    if lowest < 0:
        raise ValueError(
            f"the labels hold {lowest}; classes count from 0: remove such images, or "
            "number them anew"
        )
    highest = max(labels, default=-1)
    if highest >= n_outputs:
        raise ValueError(
            f"an image has class {highest}, but the head has {n_outputs} outputs (0 to "
            f"{n_outputs - 1}); build the model with n_classes={highest + 1} or more"
        )


def _check_head(model: nn.Module, labels: list[int]) -> None:
    """Raise ValueError unless a ``SplitModel`` has an output for each class."""
    if isinstance(model, SplitModel):
        check_outputs(labels, model.n_classes)


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
        ValueError: before an experience is trained or evaluated on, the head of a
            ``SplitModel`` has no output for a class, or a label is below 0.
    """

    class_numbers = ("seen",)

    def __init__(self):
        super().__init__()
        self.seen: list[int] = []
        # What ``unseen_mask`` returned last; None after a class came.
        self._cached_mask: Tensor | None = None

    def before_training(self, strategy, **kwargs):
        """Put the criterion over the classes seen in the place of the strategy's."""
        self._set_criterion(strategy, in_evaluation=False)

    def before_eval(self, strategy, **kwargs):
        """Put the criterion in the place of the strategy's, for answers."""
        self._set_criterion(strategy, in_evaluation=True)

    def after_eval(self, strategy, **kwargs):
        """Put the criterion back to training, which may go on."""
        self._set_criterion(strategy, in_evaluation=False)

    def _set_criterion(self, strategy, in_evaluation: bool) -> None:
        """Let the strategy have a criterion over the classes seen.

        Not if its criterion is a method of its own, such as iCaRL's of Avalanche.

        Args:
            strategy: its ``_criterion`` is replaced, unless that was done.
            in_evaluation: whether it gets the answers of an evaluation.
        """
        if isinstance(strategy._criterion, SupervisedPlugin):
            return
        if not isinstance(strategy._criterion, SeenClassesLoss):
            strategy._criterion = SeenClassesLoss(strategy._criterion, self.unseen_mask)
        strategy._criterion.in_evaluation = in_evaluation

    def before_training_iteration(self, strategy, **kwargs):
        """Convert the labels of the batch to int64; soft targets stay."""
        use_int64_labels(strategy, targets=True)

    before_eval_iteration = before_training_iteration

    def before_training_exp(self, strategy, **kwargs):
        """Add the classes of the experience to those seen."""
        # The adapted data set may have the images of all experiences so far.
        coming = {
            *labels_of(strategy.experience.dataset),
            *labels_of(strategy.adapted_dataset),
        }
        # Before a method indexes tables with an entry for each output.
        _check_head(strategy.model, sorted(coming))
        self.seen += sorted(coming.difference(self.seen))
        self._cached_mask = None

    def before_eval_exp(self, strategy, **kwargs):
        """Refuse an experience that has a class without an output, before its loss.

        Where its data set does not say the labels, nothing is checked.
        """
        dataset = strategy.experience.dataset
        if hasattr(dataset, "targets"):
            _check_head(strategy.model, labels_of(dataset))

    def mask(self, logits: Tensor) -> Tensor:
        """Mask the unseen classes of ``(B, classes)`` ``logits`` in training.

        Raises as ``unseen_mask``.
        """
        unseen = self.unseen_mask(logits.shape[1], logits.device)
        return logits.masked_fill(unseen, UNSEEN_LOGIT)

    def mask_answers(self, logits: Tensor) -> Tensor:
        """Mask unseen classes of ``(B, classes)`` ``logits`` in evaluation.

        See ``give_unseen_probability``; before training nothing is masked.
        """
        if not self.seen:
            return logits
        unseen = self.unseen_mask(logits.shape[1], logits.device)
        return give_unseen_probability(logits, unseen)

    def unseen_mask(self, n_classes: int, device: torch.device | str = "cpu") -> Tensor:
        """Return the mask of the outputs whose classes were not seen yet.

        It is made once for a set of classes and a device: a new class empties the
        cache.

        Args:
            n_classes: number of outputs of the head.
            device: of the mask.

        Returns:
            ``(n_classes,)`` bool, true where a class was not seen.

        Raises:
            ValueError: the head has no output for a class seen.
        """
        check_outputs(self.seen, n_classes)  # raises if a class has none
        cached = self._cached_mask
        if cached is not None:
            is_of_head = len(cached) == n_classes
            if is_of_head and cached.device == torch.device(device):
                return cached
        mask = torch.ones(n_classes, dtype=torch.bool)
        mask[self.seen] = False
        self._cached_mask = mask.to(device)
        return self._cached_mask

    def after_forward(self, strategy, **kwargs):
        """Mask the classes that were not seen yet, in training."""
        strategy.mb_output = self.mask(strategy.mb_output)

    def after_eval_forward(self, strategy, **kwargs):
        """Mask the classes that were not seen yet, in evaluation."""
        strategy.mb_output = self.mask_answers(strategy.mb_output)

    def state_dict(self):
        """Return the classes seen, in order of arrival."""
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        """Load what ``state_dict`` returned."""
        self.seen = list(state["seen"])
        self._cached_mask = None

    def answer_state(self, strategy):
        return self.state_dict()

    load_answer_state = load_state_dict


class EpochSchedule(StatefulPlugin):
    """Trains another number of epochs on the first experience than on later ones.

    For any strategy. The paper trains 10 epochs, then 1 ("Training protocols").
    Experiences without images before the first one do not count.

    Args:
        first: epochs on the first experience, at least 1.
    """

    state_names = ("_later",)

    def __init__(self, first: int):
        super().__init__()
        check_count("first_epochs", first, Epochs)
        self.first = first
        # Epochs of later experiences, the strategy's own number, during the first one.
        self._later: int | None = None

    def before_training_exp(self, strategy, **kwargs):
        """Set the number of epochs of the first experience.

        It is the first one of which images are trained on.
        """
        was_interrupted = self._later is not None  # within the first experience
        if strategy.clock.train_iterations > 0 and not was_interrupted:
            return
        begins_again = was_interrupted and strategy.train_epochs == self.first
        if not begins_again:
            self._later = strategy.train_epochs
        strategy.train_epochs = self.first

    def after_training_exp(self, strategy, **kwargs):
        """Set the number of epochs of later experiences."""
        user_set_epochs = strategy.train_epochs != self.first
        if self._later is not None and not user_set_epochs:
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
        """Clamp the gradients of all weights of the optimiser, in place."""
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
        """Begin a list of the losses that this iteration has."""
        self._unread_losses = []

    def after_training_iteration(self, strategy, **kwargs):
        """Stop if a loss of the iteration is not finite; else its weights are good.

        On a GPU, all losses are read here, since each reading waits for it. The copy of
        the weights from before the iteration then becomes the one to go back to.

        Raises:
            TrainingDivergedError: a loss is not finite; the weights are put back.
        """
        losses = self._unread_losses
        self._unread_losses = None
        if not losses:  # on a CPU they were read at once
            return
        # One bool for each loss, still on the GPU.
        are_finite = torch.stack([loss.isfinite().all() for loss in losses])
        if not are_finite.all():
            first_wrong = are_finite.tolist().index(False)
            self._restore_and_raise(strategy, losses[first_wrong])
        # The copies change places: the memory of the older one is used again.
        good_weights = self._latest_weights
        self._latest_weights = self._good_weights
        self._good_weights = good_weights

    def before_backward(self, strategy, **kwargs):
        """Check the loss of the new batch."""
        self.check_loss(strategy, strategy.loss)

    def on_replay_loss(self, strategy, **kwargs):
        """Check the loss of a replay batch.

        Args:
            strategy: it takes a replay step.
        """
        self.check_loss(strategy, strategy.replay_loss)

    def check_loss(self, strategy, loss: Tensor) -> None:
        """Copy the weights if a loss is finite; else restore the last copy and raise.

        On a GPU, whose losses are read at the end of an iteration, the loss is noted,
        and the weights before the first step of the iteration are copied.

        Args:
            strategy: its trained weights are copied, or restored.
            loss: a scalar, before its step.

        Raises:
            TrainingDivergedError: the loss is not finite.
        """
        weights = _changing_tensors(strategy.model)  # running statistics, too
        if not weights:
            return
        if self._unread_losses is not None and loss.device.type != "cpu":
            is_first_of_iteration = not self._unread_losses
            if is_first_of_iteration:
                # Into the memory of an older copy, as below.
                self._latest_weights = _copy_tensors(weights, self._latest_weights)
            self._unread_losses.append(loss.detach())
        elif bool(torch.isfinite(loss)):
            self._good_weights = _copy_tensors(weights, self._good_weights)
        else:
            self._restore_and_raise(strategy, loss)

    @torch.no_grad()
    def _restore_and_raise(self, strategy, loss: Tensor) -> None:
        """Put the weights back to those with a finite loss; raise for this loss.

        Momenta that are not finite are cleared: a step may have been taken with this
        loss, or with an earlier one whose gradients were infinite.

        Args:
            strategy: its weights are changed, if there is a copy of them.
            loss: the scalar that is NaN or infinite, for the message.

        Raises:
            TrainingDivergedError: always.
        """
        weights = _changing_tensors(strategy.model)
        # In the first iteration on a GPU, the copy from before it is the only one.
        last_copy = self._good_weights or self._latest_weights
        if len(last_copy) == len(weights):
            torch._foreach_copy_(weights, last_copy)
        _clear_nonfinite_state(strategy.optimizer)
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
def _copy_tensors(tensors: list[Tensor], earlier_copy: list[Tensor]) -> list[Tensor]:
    """Copy tensors into the memory of an earlier copy of them, and return it.

    The first time, when the earlier copy is empty, it is allocated.
    """
    copied = earlier_copy
    if len(earlier_copy) != len(tensors):
        copied = [torch.empty_like(tensor) for tensor in tensors]
    torch._foreach_copy_(copied, tensors)
    return copied


def _clear_nonfinite_state(optimizer: torch.optim.Optimizer) -> None:
    """Set what is not finite in an optimiser's state, such as momenta, to 0."""
    for state_of_weight in optimizer.state.values():
        for value in state_of_weight.values():
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
        """Drop the outputs of the evaluation before."""
        self.outputs = []

    def after_eval_iteration(self, strategy, **kwargs):
        """Record the outputs of a batch."""
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
        """Note the classes of the experience under test."""
        self._classes = sorted(set(labels_of(strategy.experience.dataset)))

    def after_eval_forward(self, strategy, **kwargs):
        """Mask the logits of classes of other experiences than the one under test.

        ``strategy.mb_output``, ``(B, classes)``, is replaced: the answer can only be a
        class of that experience.
        """
        logits = strategy.mb_output
        n_classes = logits.shape[1]
        # (classes,) bool each; "tested" are classes of the experience under test.
        is_tested = torch.zeros(n_classes, dtype=torch.bool, device=logits.device)
        is_tested[self._classes] = True
        # Below the logit of classes not seen in training, which this experience may
        # have.
        masked = logits.masked_fill(~is_tested, 2 * UNSEEN_LOGIT)
        is_unseen = strategy.seen_classes.unseen_mask(n_classes).to(logits.device)
        is_tested_unseen = is_unseen & is_tested
        is_tested_seen = ~is_unseen & is_tested
        if bool(is_tested_unseen.any()) and bool(is_tested_seen.any()):
            # Their probability was relative to classes of other experiences.
            masked = give_unseen_probability(masked, is_tested_unseen)
        strategy.mb_output = masked
