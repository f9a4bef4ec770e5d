"""Base of all strategies.

Frame order, mask over seen classes, epochs, clamped gradients.
"""

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import Any, ClassVar

import torch
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.plugins.evaluation import default_evaluator
from avalanche.training.templates import SupervisedTemplate
from torch import Tensor, nn

from crumb_avalanche.memory.buffers import MemoryBuffer
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.split_model import SplitModel, check_split_model
from crumb_avalanche.system.process import preserve_rng_state
from crumb_avalanche.system.setting_ranges import EvalEvery, Number, check_count
from crumb_avalanche.training.avalanche_fixes import (
    check_strategy,
    group_frozen_weights,
    keep_training_mode,
    labels_of,
)
from crumb_avalanche.training.batch_plugin import StoringPlugin
from crumb_avalanche.training.plugins import (
    ClampGradients,
    DivergenceGuard,
    EpochSchedule,
    SeenClassesPlugin,
)
from crumb_avalanche.training.stateful import (
    answer_state,
    load_answer_state,
    load_strategy_state,
    strategy_state,
)


def _cpu_by_default() -> AbstractContextManager:
    """Return a context in which new tensors are in CPU memory, as storage is.

    Whatever ``torch.set_default_device`` says.
    """
    if torch.get_default_device().type == "cpu":
        return nullcontext()
    return torch.device("cpu")


class StreamStrategy(SupervisedTemplate):
    """Trains on a stream in its own order, with losses over the classes seen so far.

    By itself it fine-tunes P.

    ``train`` keeps the order of the frames unless called with ``shuffle=True``;
    Avalanche's default shuffles. Classes that come one after the other, as in
    Avalanche's class-incremental benchmarks, give a warning: training on one forgets
    the one before, also within an experience.

    The model is calibrated on the first experience that has images, unless that was
    done or its codebook is filled (see ``calibrate``).

    The first ten arguments are those of Avalanche's strategies in their order, with the
    same defaults except for the sizes of batches: new images come in batches of 21, as
    in the paper, and 128 images are evaluated at a time.

    Args:
        model: a ``SplitModel``; without a codebook, or with ``quantized_training =
            False``, it trains on maps as they are.
        optimizer: over the model's parameters; the paper's is SGD with learning rate
            1e-3 and momentum 0.9.
        criterion: loss of ``(logits, labels)``; default cross-entropy.
        train_mb_size, train_epochs, eval_mb_size: as for every Avalanche strategy.
        device, plugins, evaluator, eval_every: as for every Avalanche strategy.
        clamp_gradients: see ``ClampGradients``; ``None`` clamps nothing.
        first_epochs: epochs on the first experience, if not ``train_epochs`` (the paper
            trains 10); see ``EpochSchedule``.
        divergence_guard: whether a loss that is not finite stops the training; see
            ``DivergenceGuard``.
        memory: the plugin that stores memories; it runs after ``plugins``.
        base_kwargs: all others, as for Avalanche's ``SupervisedTemplate``.

    Raises:
        TypeError: the model is not a ``SplitModel``, or a count is no whole number.
        ValueError: a count is out of its range.

    Attributes:
        frames_in_order: whether batches come in the order of the experience's data set.
        seen_classes: the ``SeenClassesPlugin``.
        takes_gradient_steps: whether the network is trained; else it is not calibrated.
    """

    takes_gradient_steps: ClassVar[bool] = True

    def __init__(
        self,
        *,
        model: SplitModel,
        optimizer: torch.optim.Optimizer,
        criterion: nn.Module | None = None,
        train_mb_size: int = 21,
        train_epochs: int = 1,
        eval_mb_size: int | None = 128,
        device: str | torch.device = "cpu",
        plugins: Sequence[SupervisedPlugin] | None = None,
        evaluator=default_evaluator,
        eval_every: int = -1,
        clamp_gradients: float | None = None,
        first_epochs: int | None = None,
        divergence_guard: bool = True,
        memory: StoringPlugin | None = None,
        **base_kwargs,
    ):
        check_split_model(model, type(self).__name__)
        check_count("train_mb_size", train_mb_size)
        check_count("train_epochs", train_epochs, Number)
        check_count("eval_every", eval_every, EvalEvery)
        self.seen_classes = SeenClassesPlugin()
        self.memory = memory
        self.frames_in_order = False
        # Seen classes first, since every loss needs them; guard and clamp after all
        # losses are added up.
        all_plugins: list[SupervisedPlugin] = [self.seen_classes]
        if first_epochs is not None:
            all_plugins.append(EpochSchedule(first_epochs))
        all_plugins += plugins or ()
        if memory is not None:
            all_plugins.append(memory)
        if divergence_guard:
            all_plugins.append(DivergenceGuard())
        if clamp_gradients is not None:
            all_plugins.append(ClampGradients(clamp_gradients))
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=nn.CrossEntropyLoss() if criterion is None else criterion,
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=all_plugins,
            evaluator=evaluator,
            eval_every=eval_every,
            **base_kwargs,
        )

    @property
    def storage_policy(self) -> MemoryBuffer | None:
        """The buffer of the plugin that stores memories; ``None`` without one."""
        return None if self.memory is None else self.memory.storage_policy

    def train(self, *arguments, **keywords):
        """Train as Avalanche's strategies do.

        Raises:
            BadFeaturesError: the feature map of an image is not finite or too large.
            TrainingDivergedError: the loss is NaN or infinite; see ``DivergenceGuard``.
            ValueError: the head has no output for a class of the experience.
        """
        with _cpu_by_default():
            return super().train(*arguments, **keywords)

    def eval(self, *arguments, **keywords):
        """Evaluate as Avalanche's strategies do.

        Raises:
            BadFeaturesError, ValueError: as ``train``.
        """
        with _cpu_by_default():
            return super().eval(*arguments, **keywords)

    def make_train_dataloader(self, shuffle: bool = False, **kwargs):
        """Make Avalanche's data loader.

        Args:
            shuffle: as given to ``train``; otherwise in the order of the stream.
            kwargs: of Avalanche's method.
        """
        self.frames_in_order = not shuffle
        dataset = self.experience.dataset
        # Benchmarks of this package, whose data sets have frame rows, are in the order
        # that their protocol says.
        if self.frames_in_order and not hasattr(dataset, "frame_row"):
            _warn_of_sorted_classes(labels_of(dataset))
        super().make_train_dataloader(shuffle=shuffle, **kwargs)

    def _unpack_minibatch(self):
        """Unpack the batch, and remember its labels as the loader gave them."""
        labels_of_loader = self.mbatch[1]
        super()._unpack_minibatch()
        # What ``label_numbers`` compares to see whether a plugin changed the labels.
        self._labels = self.mb_y
        self._labels_version = _version_of(self.mb_y)
        self._labels_of_loader = labels_of_loader

    @property
    def label_numbers(self) -> list[int] | None:
        """The labels of the batch as the loader gave them, in CPU memory.

        ``None`` if a plugin changed them since.
        """
        were_replaced = self._labels is not self.mb_y
        were_changed_in_place = _version_of(self._labels) != self._labels_version
        if were_replaced or were_changed_in_place:
            return None
        return self._labels_of_loader.tolist()

    def _before_training(self, **kwargs):
        """Refuse what cannot be trained with, before any plugin changes something."""
        check_strategy(self)
        group_frozen_weights(self)
        super()._before_training(**kwargs)

    def _before_training_exp(self, **kwargs):
        """Calibrate a model that needs it, before any plugin begins the experience."""
        if self.takes_gradient_steps:
            calibrate_on_experience(self)
        super()._before_training_exp(**kwargs)

    def _after_training_exp(self, **kwargs):
        """End the experience, and with it a stop of the training."""
        super()._after_training_exp(**kwargs)
        # after a stop in the last epoch, Avalanche would skip the next experience
        self._stop_training = False

    def _before_forward(self, **kwargs):
        """Put the model back in training mode before the forward pass."""
        keep_training_mode(self)
        super()._before_forward(**kwargs)

    def backward(self):
        """Compute the gradients of ``loss``.

        Raises:
            ValueError: no weight is trained.
        """
        if not self.loss.requires_grad:
            raise ValueError(
                "the loss has no gradient: call train outside of torch.no_grad() and "
                "torch.inference_mode(), and leave requires_grad of some weights of "
                "the plastic layers or of the codebook on"
            )
        with self.model.stopwatch.measure("plastic"):
            super().backward()

    def optimizer_step(self):
        """Take a step of the optimiser, measured as time of the plastic layers."""
        with self.model.stopwatch.measure("plastic"):
            super().optimizer_step()

    def state_dict(self) -> dict[str, Any]:
        """Return all that training goes on from, as plain values and live tensors.

        They are not copies.

        Not in it: the frozen F, plugins without a ``state_dict`` (which start anew),
        and the global RNG state.
        """
        return strategy_state(self)

    def load_state_dict(self, state: dict[str, Any], strict: bool = True) -> None:
        """Load a copy of a state of a strategy with the same settings.

        Args:
            state: what ``state_dict`` returned.
            strict: whether the plugins that have a state must be the same; else what
                only one side has is left out.
        """
        load_strategy_state(self, state, strict)

    answer_state = answer_state
    load_answer_state = load_answer_state


def calibrate_on_experience(strategy: Any) -> None:
    """Calibrate a strategy's model on its experience, if it needs that.

    An experience without images is passed over. The state of the RNGs stays.

    Args:
        strategy: of Avalanche, whose model is a ``SplitModel``.
    """
    images = strategy.experience.dataset
    if strategy.model.needs_calibration and len(images):
        with preserve_rng_state():  # training draws as without it
            calibrate(strategy.model, images)


def _warn_of_sorted_classes(labels: list[int]) -> None:
    """Warn of images that come one class after the other.

    Args:
        labels: of the images of an experience, in the order of training.
    """
    n_classes = len(set(labels))
    n_runs_of_equal_labels = len(list(groupby(labels)))
    if n_classes > 1 and n_runs_of_equal_labels == n_classes:
        warnings.warn(
            "the images of this experience come one class after the other, and the "
            "network forgets the first classes while it learns the last: call "
            "train(experience, shuffle=True), unless these are clips whose order is to "
            "be kept",
            stacklevel=3,
        )


def _version_of(tensor: Tensor) -> int:
    """Return the number of changes of a tensor in place.

    0 in inference mode, which counts none.
    """
    return 0 if tensor.is_inference() else tensor._version
