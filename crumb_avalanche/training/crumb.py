"""CRUMB as an Avalanche plugin and as a strategy (paper, algorithm 1).

Where each line of algorithm 1 stands, for the images of task t::

    for batch (x, y) in I_t:
        Z = F(x), Z~ = decode(encode(Z))    SplitModel.forward, eq. 1 and 2
        L = a CE(P(Z), y) + b CE(P(Z~), y)  CRUMBPlugin.before_backward, eq. 3
        train P and the blocks in Z~        the strategy's own step on L
        if t > 1:                           CRUMBPlugin._replay
            draw memories out of X          CRUMBPlugin._draw_memories
            Z~ = decode(memories)           MemoryBuffer.replay
            L = CE(P(Z~), y)                CRUMBPlugin._replay_loss
            train P and the blocks in Z~    replay_step.memory_step
        store every j-th encode(Z) in X     StoringPlugin, selection.EveryJth

    test: P(F(x))                           SplitModel.forward in evaluation mode

In the paper's algorithm, storing comes behind the loop over the batches. Only its text
says that the buffer "is filled near the end of the current task's training epoch": here
images are stored batch by batch, in the last epoch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from avalanche.training.plugins import (
    BiCPlugin,
    FromScratchTrainingPlugin,
    GDumbPlugin,
    ReplayPlugin,
    SupervisedPlugin,
)
from avalanche.training.plugins.evaluation import default_evaluator
from avalanche.training.utils import trigger_plugins
from torch import Tensor, nn

from crumb_avalanche.memory.buffers import CodeBuffer, MemoryBuffer
from crumb_avalanche.models.split_model import SplitModel, check_split_model
from crumb_avalanche.training.balanced_replay import BalancedReplay
from crumb_avalanche.training.batch_plugin import StoringPlugin
from crumb_avalanche.training.first_experience import FirstExperience
from crumb_avalanche.training.plugins import SeenClassesPlugin
from crumb_avalanche.training.replay_settings import ReplaySettings
from crumb_avalanche.training.replay_step import AfterUpdate, memory_step
from crumb_avalanche.training.stream_strategy import (
    StreamStrategy,
    calibrate_on_experience,
)


class CRUMBPlugin(StoringPlugin):
    """Losses, replay and storage of CRUMB, for any strategy on a ``SplitModel``.

    Paper: "Training", eq. 3, and "Replay to mitigate catastrophic forgetting".

    With another buffer it is plain replay from that buffer:
    ``CRUMBPlugin(ImageBuffer(15), direct_weight=1, codebook_weight=0)`` replays raw
    images. The model is calibrated on the first experience that has images, unless that
    was done.

    Losses of new images and of memories are over the same classes. ``StreamStrategy``
    masks the classes not seen yet and hands its mask over. In another strategy, hand it
    over yourself, and put it first::

        seen = SeenClassesPlugin()
        replay = CRUMBPlugin(CodeBuffer(417), seen=seen)
        Naive(model=model, optimizer=optimizer, plugins=[seen, replay])

    Without any ``SeenClassesPlugin``, losses are over all outputs of the model.

    A replay batch has no memories of the batch's own classes, as in the paper. If
    classes return in later experiences (domain-incremental and online streams),
    memories of those are replayed, too; a warning says so once. Images of classes that
    the experience does not have, which Avalanche's ``ReplayPlugin`` mixes in, are
    trained on with the new ones; their classes are replayed all the same, and they are
    not offered to the buffer.

    Another warning comes after the first experience, if the network names its images
    hardly better than by chance.

    Example:
        >>> import torch
        >>> from avalanche.training.plugins import EvaluationPlugin
        >>> from avalanche.training.supervised import Naive
        >>> from benchmarks_toybox_ilab import ToyShapes
        >>> from crumb_avalanche import CodeBuffer, CRUMBPlugin, split_backbone
        >>> shapes = {"classes": ("fish", "star"), "frames_per_clip": 1, "size": 32}
        >>> benchmark = ToyShapes(n_experiences=2, **shapes)
        >>> model = split_backbone("small_cnn", None, n_classes=2, image_size=32)
        >>> replay = CRUMBPlugin(CodeBuffer(mem_size=4))
        >>> strategy = Naive(
        ...     model=model,
        ...     optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        ...     plugins=[replay],
        ...     evaluator=EvaluationPlugin(loggers=[]),
        ... )
        >>> for experience in benchmark.train_stream:
        ...     _ = strategy.train(experience, shuffle=False)
        >>> sorted(replay.storage_policy.classes)
        [0, 1]

    A replay step comes when all plugins have seen ``after_update`` of the new batch. It
    triggers Avalanche's ``after_backward``, ``before_update`` and ``after_update``
    again, so that a plugin that clips gradients sees all of them; what is for new
    batches alone asks ``in_replay_step(strategy)``. Its own events are
    ``before_replay_step``, ``on_replay_loss`` (before its backward pass),
    ``on_replay_update`` (before its optimiser step) and ``after_replay_step``;
    ``strategy.replay_loss`` holds the latest replay loss.

    Args:
        storage_policy: the buffer X, with its selection rule.
        direct_weight: alpha of eq. 3, the weight of the loss of ``P(Z)``.
        codebook_weight: beta of eq. 3, the weight of the loss of ``P(Z~)``.
        replay_weight: factor of the replay loss; default 5 as in all published scripts,
            and 1 with ``replay_compute``.
        replay_steps: replay batches after each new batch; 0 stores but never replays.
        replay_limit: largest number of memories in a replay batch; default none: each
            has at least one memory of every old class, as in the paper, and its cost
            grows with their number. With more classes than the limit, so many are drawn
            for each batch.
        fused: new and replayed batch in one optimiser step instead of two.
        replay_compute: cost of replay in units of the training step without it, instead
            of ``replay_steps``. Replay batches then have all classes, those of the new
            batch too, with the same chance (see ``BalancedReplay``), and the loss of
            the new batch is multiplied by its share of the classes.
        seen: the mask over the classes seen; default the one of the strategy.

    Raises:
        TypeError: when training starts, the model is not a ``SplitModel``.
        ValueError: both loss weights are zero, a value is out of its range, or
            ``replay_compute`` comes with ``fused`` or ``replay_limit``; when training
            starts, the plugins do not fit together, the model lacks the codebook that
            it needs, or the buffer has less room than classes come.
    """

    def __init__(
        self,
        storage_policy: MemoryBuffer,
        direct_weight: float = ReplaySettings.direct_weight,
        codebook_weight: float = ReplaySettings.codebook_weight,
        replay_weight: float | None = ReplaySettings.replay_weight,
        replay_steps: int = ReplaySettings.replay_steps,
        replay_limit: int | None = ReplaySettings.replay_limit,
        fused: bool = ReplaySettings.fused,
        replay_compute: float | None = ReplaySettings.replay_compute,
        seen: SeenClassesPlugin | None = None,
    ):
        super().__init__(storage_policy, seen)
        settings = ReplaySettings(
            direct_weight=direct_weight,
            codebook_weight=codebook_weight,
            replay_weight=replay_weight,
            replay_steps=replay_steps,
            replay_limit=replay_limit,
            fused=fused,
            replay_compute=replay_compute,
        )
        self.direct_weight = settings.direct_weight
        self.codebook_weight = settings.codebook_weight
        self.replay_weight = settings.factor
        self.replay_steps = settings.replay_steps
        self.replay_limit = settings.replay_limit
        self.fused = settings.fused
        self.balanced: BalancedReplay | None = None
        if settings.replay_compute is not None:
            self.balanced = BalancedReplay(settings.replay_compute)
        self._after_update = AfterUpdate(self, self._replay)
        self._first_experience = FirstExperience()

    def before_training(self, strategy, **kwargs):
        """Check the model and the plugins beside this one, and go after all of them.

        Raises:
            ValueError: the model has no codebook for the codebook-out loss or for the
                codes that are stored.
        """
        _check_plugins_beside(strategy, self.storage_policy)
        if self._needs_codes and strategy.model.codebook is None:
            raise ValueError(self._codebook_needed())
        if not self._needs_codes:
            # Before the strategy calibrates the model, which would measure its codes.
            strategy.model.quantized_training = False
        super().before_training(strategy, **kwargs)
        if not self.fused:
            self._after_update.follow(strategy)

    def before_training_exp(self, strategy, **kwargs):
        """Calibrate the model on the first images, if it needs that.

        If ``codebook_weight``, beta of eq. 3, is not 0, the network trains on maps
        decoded from codes.
        """
        super().before_training_exp(strategy, **kwargs)
        calibrate_on_experience(strategy)  # where the strategy did not
        strategy.model.quantized_training = self.codebook_weight > 0

    @property
    def _in_first_task(self) -> bool:
        """Whether t = 1: the first experience with images; replay begins after it."""
        return not self._earlier_classes

    @property
    def _needs_codes(self) -> bool:
        """Whether the loss, or the buffer, is of codes."""
        return self.codebook_weight > 0 or isinstance(self.storage_policy, CodeBuffer)

    def _codebook_needed(self) -> str:
        """Return the error of a model without the codebook that makes these codes."""
        if self.codebook_weight > 0:
            return (
                "the codebook-out loss needs a codebook: build the model with "
                "codebook=Codebook()"
            )
        return (
            f"a {type(self.storage_policy).__name__} needs a codebook: build the model "
            "with codebook=Codebook(), or store images: storage_policy=ImageBuffer(15)"
        )

    def before_backward(self, strategy, **kwargs):
        """Set ``strategy.loss`` to the weighted losses of the new batch, eq. 3.

        L = alpha CE(P(Z), y) + beta CE(P(Z~), y)

        ``Z`` are the feature maps, ``Z~`` those decoded from codes, and P the plastic
        layers. Before, ``strategy.loss`` is that of ``P(Z~)``, or of ``P(Z)`` if beta
        is 0. What other plugins have added to it, such as a penalty, is not weighted.
        """
        self._observe_first_experience(strategy)  # to test it on these later
        loss_of_others = self._loss_of_others(strategy)
        if loss_of_others is not None:
            strategy.loss = strategy.loss - loss_of_others
        if self.codebook_weight == 0:
            strategy.loss = self.direct_weight * strategy.loss
        else:
            strategy.loss = self.codebook_weight * strategy.loss
            if self.direct_weight:
                direct_logits = self.logits(strategy.model, self.current.feature_map)
                direct_loss = strategy._criterion(direct_logits, self.current.labels)
                strategy.loss = strategy.loss + self.direct_weight * direct_loss
        if self.balanced is not None and not self._in_first_task:
            # Balanced replay has all classes, so new ones weigh by their share.
            strategy.loss = strategy.loss * self.balanced.share_of_new(
                self.current, self.storage_policy
            )
        if loss_of_others is not None:
            strategy.loss = strategy.loss + loss_of_others
        if self.fused:  # one step for new images and memories
            self._add_replay_losses(strategy)

    def _loss_of_others(self, strategy: Any) -> Tensor | None:
        """Return what earlier plugins added to the loss; ``None`` if none can have."""
        plugins = strategy.plugins
        earlier_plugins = plugins[: plugins.index(self)]
        if not any(map(_may_change_loss, earlier_plugins)):
            return None
        own_loss = strategy._criterion(strategy.mb_output, strategy.mb_y)
        return strategy.loss - own_loss

    def _observe_first_experience(self, strategy: Any) -> None:
        """Keep maps of the first experience, on which the network is tested after it.

        Not if nothing is trained on it.
        """
        is_first_epoch = strategy.clock.train_exp_epochs == 0
        is_trained = strategy.loss.requires_grad
        if self._in_first_task and is_first_epoch and is_trained:
            n_images = len(strategy.adapted_dataset)
            self._first_experience.observe(self.current, self._position, n_images)

    def after_training_exp(self, strategy, **kwargs):
        """Store what was left out; test the network after the first experience."""
        super().after_training_exp(strategy, **kwargs)
        if self._in_first_task:
            n_classes = len(self._classes)
            self._first_experience.finish(strategy.model, n_classes, self.mask)

    def _replay(self, strategy: Any, **kwargs: Any) -> None:
        """Take the replay steps after a new batch of task t > 1 (algorithm 1)."""
        for _ in range(self._n_replay_batches(strategy)):
            with strategy.model.stopwatch.measure("replay"):
                if self._has_nothing_to_replay():
                    continue
                trigger_plugins(strategy, "before_replay_step", **kwargs)
                loss = self._replay_loss(strategy)
                memory_step(strategy, loss, **kwargs)

    def _add_replay_losses(self, strategy) -> None:
        """Add the losses of the replay batches to that of the new batch (``fused``)."""
        for _ in range(self._n_replay_batches(strategy)):
            if self._has_nothing_to_replay():
                continue
            with strategy.model.stopwatch.measure("replay"):
                replay_loss = self._replay_loss(strategy)
            strategy.loss = strategy.loss + replay_loss
            strategy.replay_loss = replay_loss.detach()

    def _n_replay_batches(self, strategy: Any) -> int:
        """Return the number of replay batches after the new one: none in task 1."""
        if self._in_first_task:
            return 0
        if self.balanced is None:
            return self.replay_steps
        n_new_images = len(self.current.labels)
        return self.balanced.n_batches(
            n_new_images, strategy.model, self.storage_policy
        )

    def _replay_loss(self, strategy: Any) -> Tensor:
        """Compute the weighted loss CE(P(Z~), y) of a replay batch."""
        maps, labels = self._draw_memories(strategy.model)
        logits = self.logits(strategy.model, maps)
        return self.replay_weight * strategy._criterion(logits, labels)

    def _draw_memories(self, model: SplitModel) -> tuple[Tensor, Tensor]:
        """Draw a replay batch: maps ``(n, C, H, W)``, decoded, and labels ``(n,)``.

        As many memories as the new batch has images, or a few more, so that each class
        has the same number; and no more than ``replay_limit``.
        """
        if self.balanced is not None:
            return self.balanced.draw(self.current, self.storage_policy, model)
        slots = self.storage_policy.sample(
            without=self._classes_not_replayed(),
            at_least=len(self.current.labels),
            at_most=self.replay_limit,
        )
        return self.storage_policy.replay(slots, model)

    def _classes_not_replayed(self) -> set[int]:
        """Return the new classes of the new batch.

        Classes that have returned are replayed, and so are those whose images another
        plugin, such as Avalanche's ``ReplayPlugin``, mixed into the batch.
        """
        classes_of_batch = set(self.current.label_numbers)
        return (classes_of_batch & self._classes) - self.returning

    def _has_nothing_to_replay(self) -> bool:
        """Return whether the buffer holds no memory that may be replayed now.

        Balanced replay draws images of the new batch, too, and always has some.
        """
        if self.balanced is not None:
            return False
        return self._classes_not_replayed().issuperset(self.storage_policy.classes)

    def consequences_of_returning(self):
        """Say, too, that memories of returning classes are replayed."""
        consequences = super().consequences_of_returning()
        if self.balanced is None:
            consequences.append(
                "its memories are replayed beside its own new images, too"
            )
        return consequences

    def state_dict(self):
        """Return the state of the plugin, with the images that are due for replay."""
        state = super().state_dict()
        if self.balanced is not None:
            state["due"] = self.balanced.due
        return state

    def load_state_dict(self, state):
        """Load what ``state_dict`` returned."""
        super().load_state_dict(state)
        if self.balanced is not None:
            self.balanced.due = state["due"]


def _may_change_loss(plugin: Any) -> bool:
    """Return whether a plugin does anything before the backward pass."""
    method = getattr(plugin.before_backward, "__func__", None)
    return method is not SupervisedPlugin.before_backward


def _check_plugins_beside(strategy, buffer: MemoryBuffer) -> None:
    """Refuse a model or plugins that do not fit beside a ``CRUMBPlugin``.

    Args:
        strategy: its model and plugin list are looked at.
        buffer: of the ``CRUMBPlugin``; codes need the codebook that made them.

    Raises:
        TypeError: the model is not a ``SplitModel`` as it is.
        ValueError: a plugin would replay again, or mix in memories of its own of which
            the buffer's rule is not told, or put the codebook back.
    """
    check_split_model(strategy.model, "CRUMB")
    crumb_plugins = [
        plugin for plugin in strategy.plugins if isinstance(plugin, CRUMBPlugin)
    ]
    if len(crumb_plugins) > 1:
        raise ValueError(
            f"the plugin list has {len(crumb_plugins)} of CRUMBPlugin, which would "
            "replay twice; CRUMBStrategy has its own, so give it none, or use "
            "CRUMBPlugin in another strategy"
        )
    if buffer.rule.needs_image_counts:
        for plugin in strategy.plugins:
            if isinstance(plugin, ReplayPlugin | BiCPlugin):
                rule = type(buffer.rule).__name__
                raise ValueError(
                    f"{type(plugin).__name__} mixes images of earlier experiences into "
                    f"the batches, and {rule} has to know how many images come: leave "
                    "the plugin out, as CRUMB replays its own memories; or give "
                    f"{type(buffer).__name__}({buffer.max_size}, "
                    "ClassBalancedReservoir()) as storage_policy"
                )
    if not isinstance(buffer, CodeBuffer):
        return
    for plugin in strategy.plugins:
        if isinstance(plugin, GDumbPlugin | FromScratchTrainingPlugin):
            raise ValueError(
                f"{type(plugin).__name__} puts the model back to its first weights "
                "before each experience, and the codebook with it, so that memories "
                "could not be decoded: use CRUMBPlugin in a strategy that goes on "
                "learning, such as Naive or CRUMBStrategy, or give it an ImageBuffer"
            )


class CRUMBStrategy(StreamStrategy):
    """CRUMB as a ready Avalanche strategy; keeps the frame order of the stream.

    Paper: algorithm 1.

    ::

        model = split_backbone("squeezenet1_0", n_classes=10)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        strategy = CRUMBStrategy(model=model, optimizer=optimizer, mem_size=417)

    Example:
        >>> import torch
        >>> from avalanche.training.plugins import EvaluationPlugin
        >>> from benchmarks_toybox_ilab import ToyShapes
        >>> from crumb_avalanche import CRUMBStrategy, split_backbone
        >>> shapes = {"classes": ("fish", "star"), "frames_per_clip": 1, "size": 32}
        >>> benchmark = ToyShapes(n_experiences=2, **shapes)
        >>> model = split_backbone("small_cnn", None, n_classes=2, image_size=32)
        >>> strategy = CRUMBStrategy(
        ...     model=model,
        ...     optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        ...     mem_size=4,
        ...     evaluator=EvaluationPlugin(loggers=[]),
        ... )
        >>> for experience in benchmark.train_stream:
        ...     _ = strategy.train(experience)
        >>> len(strategy.storage_policy), sorted(strategy.storage_policy.classes)
        (4, [0, 1])

    Args:
        model: a ``SplitModel``; with a codebook, unless ``codebook_weight`` is 0 and
            the buffer stores no codes.
        optimizer, criterion, train_mb_size, train_epochs: see ``StreamStrategy``.
        eval_mb_size, device, evaluator, eval_every: see ``StreamStrategy``.
        plugins: run before CRUMB's own losses and replay.
        mem_size: memories of a new ``CodeBuffer``; or give ``storage_policy``.
        storage_policy: the buffer; or give ``mem_size``.
        direct_weight, codebook_weight, replay_weight: see ``CRUMBPlugin``.
        replay_steps, replay_limit, fused, replay_compute: see ``CRUMBPlugin``.
        stream_arguments: all others, such as ``first_epochs``; see ``StreamStrategy``.

    Raises:
        TypeError: see ``CRUMBPlugin``.
        ValueError: see ``CRUMBPlugin``; or both or neither of ``storage_policy`` and
            ``mem_size`` are given.

    Attributes:
        replay_loss: the latest loss of a replay batch, a scalar; ``None`` before the
            first one.
    """

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
        mem_size: int | None = None,
        storage_policy: MemoryBuffer | None = None,
        direct_weight: float = ReplaySettings.direct_weight,
        codebook_weight: float = ReplaySettings.codebook_weight,
        replay_weight: float | None = ReplaySettings.replay_weight,
        replay_steps: int = ReplaySettings.replay_steps,
        replay_limit: int | None = ReplaySettings.replay_limit,
        fused: bool = ReplaySettings.fused,
        replay_compute: float | None = ReplaySettings.replay_compute,
        **stream_arguments,
    ):
        self.replay_loss: Tensor | None = None
        memory = CRUMBPlugin(
            _buffer_of(mem_size, storage_policy),
            direct_weight=direct_weight,
            codebook_weight=codebook_weight,
            replay_weight=replay_weight,
            replay_steps=replay_steps,
            replay_limit=replay_limit,
            fused=fused,
            replay_compute=replay_compute,
        )
        super().__init__(
            model=model,
            optimizer=optimizer,
            criterion=criterion,
            train_mb_size=train_mb_size,
            train_epochs=train_epochs,
            eval_mb_size=eval_mb_size,
            device=device,
            plugins=plugins,
            evaluator=evaluator,
            eval_every=eval_every,
            memory=memory,
            **stream_arguments,
        )


def _buffer_of(
    mem_size: int | None, storage_policy: MemoryBuffer | None
) -> MemoryBuffer:
    """Return the buffer that was given, or a new one of the given size.

    Args:
        mem_size: number of memories of a new ``CodeBuffer``.
        storage_policy: a buffer.

    Raises:
        ValueError: both or neither is given.
    """
    if storage_policy is not None and mem_size is None:
        return storage_policy
    if storage_policy is None and mem_size is not None:
        return CodeBuffer(mem_size)
    problem = "neither is given"
    if mem_size is not None:
        problem = f"both are given (mem_size={mem_size})"
    raise ValueError(
        f"give mem_size or storage_policy; {problem}: mem_size=417 makes a CodeBuffer "
        "of 417 memories, storage_policy takes a buffer of your own"
    )
