"""Base of all strategies: frame order, mask over seen classes, epochs, clamped gradients."""

from collections.abc import Sequence

import torch
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.plugins.evaluation import default_evaluator
from avalanche.training.templates import SupervisedTemplate
from torch import nn

from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.training.avalanche_fixes import StopAfterEpoch
from crumb_avalanche.training.batch_plugin import StoringPlugin
from crumb_avalanche.training.plugins import ClampGradients, DivergenceGuard, EpochSchedule, SeenClassesPlugin
from crumb_avalanche.training.storage_policies import CompactBuffer


class StreamStrategy(StopAfterEpoch, SupervisedTemplate):
    """Trains on a stream in its own order, with losses over the classes seen so far; by itself it fine-tunes P.

    ``train`` keeps the order of the frames unless called with ``shuffle=True``; Avalanche's default shuffles.

    Args:
        model: a ``SplitModel``; without a codebook, or with ``quantized_training = False``, it trains on maps as they
            are.
        optimizer: over the model's parameters; the paper's is SGD with learning rate 1e-3 and momentum 0.9.
        criterion: loss of ``(logits, labels)``; default cross-entropy.
        clamp_gradients: see ``ClampGradients``; ``None`` clamps nothing.
        first_epochs: epochs on the first experience.
        train_epochs: epochs on each later one.
        memory: the plugin that stores memories; it runs after ``plugins``.
        train_mb_size, eval_mb_size, device, plugins, evaluator, eval_every: as for every Avalanche strategy.
        base_kwargs: all others, as for Avalanche's ``SupervisedTemplate``.

    Attributes:
        frames_in_order: whether batches come in the order of the experience's data set.
        seen_classes: the ``SeenClassesPlugin``.
    """

    # What an experience or a step makes anew; a checkpoint does not need it.
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
        memory: StoringPlugin | None = None,
        **base_kwargs,
    ):
        self.seen_classes = SeenClassesPlugin()
        self.memory = memory
        self.frames_in_order = False
        # Seen classes first, since every loss needs them; guard and clamp after all losses are added up.
        own = [] if memory is None else [memory]
        last = [DivergenceGuard()] + ([] if clamp_gradients is None else [ClampGradients(clamp_gradients)])
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=nn.CrossEntropyLoss() if criterion is None else criterion,
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=[self.seen_classes, EpochSchedule(first_epochs, train_epochs), *plugins, *own, *last],
            evaluator=evaluator,
            eval_every=eval_every,
            **base_kwargs,
        )

    @property
    def storage_policy(self) -> CompactBuffer | None:
        """The buffer of the plugin that stores memories; ``None`` if there is no such plugin."""
        return None if self.memory is None else self.memory.storage_policy

    def make_train_dataloader(self, shuffle: bool = False, **kwargs):
        """Make Avalanche's data loader, in the order of the stream unless ``train(..., shuffle=True)`` was called."""
        self.frames_in_order = not shuffle
        super().make_train_dataloader(shuffle=shuffle, **kwargs)

    def backward(self):
        with self.model.stopwatch.measure("plastic"):
            super().backward()

    def optimizer_step(self):
        with self.model.stopwatch.measure("plastic"):
            super().optimizer_step()
