"""What every stream learner here shares: frame order, seen classes, epochs, clamped gradients, a guard against NaN."""

from collections.abc import Iterable, Sequence

import torch
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.plugins.evaluation import default_evaluator
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn

from crumb_avalanche.models.split_model import SplitModel

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


class SeenClassesPlugin(SupervisedPlugin):
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


class EpochSchedule(SupervisedPlugin):
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


class ClampGradients(SupervisedPlugin):
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


class DivergenceGuard(SupervisedPlugin):
    """Stop at a loss that is not finite, with the weights that last gave a finite one.

    Keeps one copy of the trainable weights, and of the plastic layers' running statistics, taken before each step.
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


class StreamStrategy(SupervisedTemplate):
    """Learns a stream in its own order, with losses over the classes seen so far; alone it is plain fine-tuning of P.

    ``train`` does not shuffle unless told to. Avalanche's default would destroy the frame order.

    Args:
        model: a ``SplitModel``; without a codebook, or with ``quantized_training = False``, its direct path learns.
        optimizer: over the model's parameters; the paper's is SGD with learning rate 1e-3 and momentum 0.9.
        criterion: loss of ``(logits, labels)``; default cross-entropy.
        clamp_gradients: see ``ClampGradients``; ``None`` clamps nothing.
        first_epochs: epochs on the first experience.
        train_epochs: epochs on each later one.
        train_mb_size, eval_mb_size, device, plugins, evaluator, eval_every: as for every Avalanche strategy.

    Attributes:
        frames_in_order: whether batches come in the order of the experience's data set.
        seen_classes: the ``SeenClassesPlugin``.
    """

    # What an experience or a step brings along, and no checkpoint needs.
    unsaved = (
        *("experience", "adapted_dataset", "dataloader", "mbatch", "mb_output", "loss", "_eval_streams"),
        *("current_eval_stream", "_stop_training", "is_training", "_criterion", "device"),
    )

    def __init__(
        self,
        *,
        model: SplitModel,
        optimizer: torch.optim.Optimizer,
        criterion: nn.Module | None = None,
        clamp_gradients: float | None = None,
        first_epochs: int = 10,
        train_epochs: int = 1,
        train_mb_size: int = 21,
        eval_mb_size: int = 128,
        device: str | torch.device = "cpu",
        plugins: Sequence[SupervisedPlugin] = (),
        evaluator=default_evaluator,
        eval_every: int = -1,
        **base_kwargs,
    ):
        self.seen_classes = SeenClassesPlugin()
        self.frames_in_order = False
        self._in_epoch = False
        # Seen classes first, for every loss needs them; the guard and the clamp after all losses are added up.
        last = [DivergenceGuard()] + ([] if clamp_gradients is None else [ClampGradients(clamp_gradients)])
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=nn.CrossEntropyLoss() if criterion is None else criterion,
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=[self.seen_classes, EpochSchedule(first_epochs, train_epochs), *plugins, *last],
            evaluator=evaluator,
            eval_every=eval_every,
            **base_kwargs,
        )

    def stop_training(self) -> None:
        """Let one more epoch of this experience be the last, the one in which memories are stored.

        For plugins such as Avalanche's ``EarlyStoppingPlugin``. Called before an epoch, that is the coming one; within
        an epoch or right after it, the next.
        """
        self.train_epochs = min(self.train_epochs, self.clock.train_exp_epochs + 1 + self._in_epoch)

    def _before_training_epoch(self, **kwargs):
        super()._before_training_epoch(**kwargs)
        # The host's loop over epochs was begun with the number that there were before.
        self._stop_training = self.clock.train_exp_epochs >= self.train_epochs
        self._in_epoch = not self._stop_training

    def _after_training_epoch(self, **kwargs):
        super()._after_training_epoch(**kwargs)
        self._in_epoch = False  # not before: the clock, too, counts the epoch among the last

    def make_train_dataloader(self, shuffle: bool = False, **kwargs):
        """As Avalanche's, but in the order of the stream unless ``train(..., shuffle=True)`` asks otherwise."""
        self.frames_in_order = not shuffle
        super().make_train_dataloader(shuffle=shuffle, **kwargs)

    def backward(self):
        with self.model.stopwatch.measure("plastic"):
            super().backward()

    def optimizer_step(self):
        with self.model.stopwatch.measure("plastic"):
            super().optimizer_step()
