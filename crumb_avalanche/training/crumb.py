"""CRUMB as an Avalanche plugin and as a strategy (paper, algorithm 1)."""

from collections.abc import Sequence

import torch
from avalanche.training.plugins import (
    FromScratchTrainingPlugin,
    GDumbPlugin,
    SupervisedPlugin,
)
from avalanche.training.plugins.evaluation import default_evaluator
from avalanche.training.utils import trigger_plugins
from torch import Tensor, nn

from crumb_avalanche.memory.buffers import CodeBuffer, MemoryBuffer, StreamBatch
from crumb_avalanche.models.calibration import calibrate
from crumb_avalanche.models.layers import step_flops
from crumb_avalanche.models.split_model import SplitModel, check_split_model
from crumb_avalanche.system.process import preserve_rng_state
from crumb_avalanche.training.batch_plugin import StoringPlugin
from crumb_avalanche.training.plugins import SeenClassesPlugin
from crumb_avalanche.training.replay_settings import ReplaySettings
from crumb_avalanche.training.stream_strategy import StreamStrategy

DEFAULTS = ReplaySettings()
# images of a balanced replay batch: many small steps learn more than few large ones of
# the same cost
REPLAYED = 8


class BalancedReplay:
    """Draws replay batches in which every class has the same chance, however many images it has.

    Classes of the new batch are drawn from it, all others from the memories. The number
    of images follows from the cost of the model: a step of the stream costs ``1 +
    compute`` times as much as without replay. A new image passes F and trains P; a
    memory trains P only, and passes F as well if the buffer holds images.

    Args:
        compute: cost of replay, in units of the training step without it; above 0.
    """

    def __init__(self, compute: float):
        self.compute = compute
        self.due = 0.0  # images to replay that do not fill a batch yet
        self._each: float | None = None

    def images_for_each(self, model: SplitModel, memories: MemoryBuffer) -> float:
        """How many images are replayed for each new one."""
        if self._each is None:
            extraction, training = step_flops(model)
            self._each = (
                self.compute
                * (extraction + training)
                / (training + memories.extracts * extraction)
            )
        return self._each

    def steps(self, new_images: int, model: SplitModel, memories: MemoryBuffer) -> int:
        """Return the number of replay batches after a batch of ``new_images``; the rest stays due."""
        steps, self.due = divmod(
            self.due + new_images * self.images_for_each(model, memories), REPLAYED
        )
        return int(steps)

    def draw(
        self, batch: StreamBatch, memories: MemoryBuffer, model: SplitModel
    ) -> tuple[Tensor, Tensor]:
        """Draw feature maps ``(REPLAYED, C, H, W)`` and labels ``(REPLAYED,)`` int64, on the model's device.

        Maps of a batch that has codes are decoded from them. Random numbers are those
        of the buffer.
        """
        random = memories.slots.random
        positions: dict[int, list[int]] = {}
        for position, label in enumerate(batch.numbers):
            positions.setdefault(label, []).append(position)
        classes = list(dict.fromkeys([*memories.classes, *positions]))
        drawn: list[int] = []
        while len(drawn) < REPLAYED:
            drawn += [
                classes[place]
                for place in random.permutation(len(classes))[: REPLAYED - len(drawn)]
            ]
        new = [_any(positions[label], random) for label in drawn if label in positions]
        old = [
            _any(memories.slots.by_class[label], random)
            for label in drawn
            if label not in positions
        ]
        # none without an image, which would turn channels-last maps into others
        parts = []
        if new:
            maps = (
                batch.feature_map[new]
                if batch.codes is None
                else model.codebook.decode(batch.codes[new])
            )
            parts.append((maps, batch.labels[new]))
        if old:
            parts.append(memories.replay(torch.tensor(old), model))
        maps, labels = zip(*parts)
        return torch.cat(maps), torch.cat(labels)


def _any(items: list[int], random) -> int:
    return items[int(random.integers(len(items)))]


def memory_step(strategy, loss: Tensor, **kwargs) -> None:
    """Take an optimiser step on a loss of memories alone, with the events that ``CRUMBPlugin`` lists."""
    strategy.replay_loss = loss
    strategy.optimizer.zero_grad()
    trigger_plugins(strategy, "on_replay_loss", **kwargs)
    loss_of_batch, strategy.loss = strategy.loss, loss
    strategy.backward()  # not loss.backward(): a strategy may scale its loss there
    strategy.loss = loss_of_batch
    trigger_plugins(strategy, "on_replay_update", **kwargs)
    strategy.optimizer_step()
    strategy.replay_loss = loss.detach()
    trigger_plugins(strategy, "after_replay_step", **kwargs)


class CRUMBPlugin(StoringPlugin):
    """Losses, replay and storage of CRUMB, for any strategy whose model is a ``SplitModel``.

    Paper: "Training", eq. 3, and "Replay to mitigate catastrophic forgetting".

    With another buffer it is plain replay from that buffer:
    ``CRUMBPlugin(ImageBuffer(15), direct_weight=1, codebook_weight=0)`` replays raw
    images. With a codebook-out loss, it calibrates the model on the first experience
    unless that was done.

    Losses of new images and of memories are over the same classes. ``StreamStrategy`` masks the classes not seen yet
    and hands its mask over. In another strategy, hand it over yourself, and put it first::

        seen = SeenClassesPlugin() Naive(model=model, optimizer=optimizer,
        plugins=[seen, CRUMBPlugin(CodeBuffer(417), seen=seen)])

    Without any ``SeenClassesPlugin``, losses are over all outputs of the model.

    A replay batch has no memories of the batch's own classes, as in the paper. If
    classes return in later experiences (domain-incremental and online streams),
    memories of those are replayed, too; a warning says so once.

    Events ``before_replay_step``, ``on_replay_loss`` (before its backward pass),
    ``on_replay_update`` (before its optimiser step) and ``after_replay_step`` are
    triggered on the strategy's plugins; ``strategy.replay_loss`` holds the latest
    replay loss.

    Args:
        storage_policy: the buffer, with its selection rule.
        direct_weight: alpha of eq. 3, the weight of the loss of ``P(Z)``.
        codebook_weight: beta of eq. 3, the weight of the loss of ``P(Z~)``.
        replay_weight: factor of the replay loss; default 5 as in all published scripts,
            and 1 with ``replay_compute``.
        replay_steps: replay batches after each new batch; 0 stores but never replays.
        fused: new and replayed batch in one optimiser step instead of two.
        replay_compute: cost of replay in units of the training step without it, instead
            of ``replay_steps``. Replay batches then have all classes, those of the new
            batch too, with the same chance (see ``BalancedReplay``), and the loss of
            the new batch is multiplied by its share of the classes.
        seen: the mask over the classes seen; default the one of the strategy.

    Raises:
        TypeError: when training starts, the model is not a ``SplitModel``.
        ValueError: both loss weights are zero, a value is out of its range, or
            ``replay_compute`` comes with ``fused``; when training starts, the plugins
            do not fit together, or the model lacks the codebook that it needs.
    """

    def __init__(
        self,
        storage_policy: MemoryBuffer,
        direct_weight: float = DEFAULTS.direct_weight,
        codebook_weight: float = DEFAULTS.codebook_weight,
        replay_weight: float | None = DEFAULTS.replay_weight,
        replay_steps: int = DEFAULTS.replay_steps,
        fused: bool = DEFAULTS.fused,
        replay_compute: float | None = DEFAULTS.replay_compute,
        seen: SeenClassesPlugin | None = None,
    ):
        super().__init__(storage_policy, seen)
        settings = ReplaySettings(
            *(replay_weight, replay_steps, replay_compute, fused),
            direct_weight=direct_weight,
            codebook_weight=codebook_weight,
        )
        if direct_weight + codebook_weight == 0:
            raise ValueError(
                "direct_weight and codebook_weight are both 0; one of the losses must be on"
            )
        self.direct_weight = direct_weight
        self.codebook_weight = codebook_weight
        self.replay_weight = settings.factor
        self.replay_steps = replay_steps
        self.fused = fused
        if fused and replay_compute is not None:
            raise ValueError(
                "fused replay has one batch for each new one: leave out fused, or replay_compute"
            )
        self.balanced = (
            None if replay_compute is None else BalancedReplay(replay_compute)
        )

    def before_training(self, strategy, **kwargs):
        super().before_training(strategy, **kwargs)
        resetting = [
            one
            for one in strategy.plugins
            if isinstance(one, GDumbPlugin | FromScratchTrainingPlugin)
        ]
        for plugin in resetting:
            if isinstance(self.storage_policy, CodeBuffer):
                raise ValueError(
                    f"{type(plugin).__name__} puts the model back to its first weights before each experience, and the "
                    "codebook with it, so that memories could not be decoded: use CRUMBPlugin in a strategy that goes "
                    "on learning, such as Naive or CRUMBStrategy, or give it an ImageBuffer"
                )

    def before_training_exp(self, strategy, **kwargs):
        model = strategy.model
        check_split_model(model, "CRUMB")
        if (
            listed := sum(
                isinstance(plugin, CRUMBPlugin) for plugin in strategy.plugins
            )
        ) > 1:
            raise ValueError(
                f"the plugin list has {listed} of CRUMBPlugin, which would replay twice; CRUMBStrategy has its own, so "
                "give it none, or use CRUMBPlugin in another strategy"
            )
        if self.codebook_weight and model.codebook is None:
            raise ValueError(
                "the codebook-out loss needs a codebook: build the model with codebook=Codebook()"
            )
        super().before_training_exp(strategy, **kwargs)
        if self.codebook_weight and not model.is_calibrated:
            with preserve_rng_state():
                calibrate(model, strategy.experience.dataset)
        model.quantized_training = self.codebook_weight > 0

    def consequences_of_returning(self):
        found = super().consequences_of_returning()
        return (
            found
            if self.balanced
            else [*found, "its memories are replayed beside its own new images, too"]
        )

    def state_dict(self):
        return super().state_dict() | (
            {} if self.balanced is None else {"due": self.balanced.due}
        )

    def load_state_dict(self, state):
        super().load_state_dict(state)
        if self.balanced is not None:
            self.balanced.due = state["due"]

    def before_backward(self, strategy, **kwargs):
        if self.codebook_weight == 0:
            strategy.loss = self.direct_weight * strategy.loss
        else:
            strategy.loss = self.codebook_weight * strategy.loss
            if self.direct_weight:
                direct = self.logits(strategy.model, self.batch.feature_map)
                strategy.loss = (
                    strategy.loss
                    + self.direct_weight
                    * strategy._criterion(direct, self.batch.labels)
                )
        if self.balanced is not None and strategy.clock.train_exp_counter > 0:
            new = set(self.batch.numbers)
            strategy.loss = strategy.loss * (
                len(new) / len(new.union(self.storage_policy.classes))
            )
        if self.fused:
            for _ in range(self._steps(strategy)):
                with strategy.model.stopwatch.measure("replay"):
                    replay_loss = self._replay_loss(strategy)
                if replay_loss is not None:
                    strategy.loss = strategy.loss + replay_loss

    def after_update(self, strategy, **kwargs):
        for _ in range(0 if self.fused else self._steps(strategy)):
            with strategy.model.stopwatch.measure("replay"):
                replay_loss = self._replay_loss(strategy, **kwargs)
                if replay_loss is not None:
                    memory_step(strategy, replay_loss, **kwargs)

    def _steps(self, strategy) -> int:
        """Return the number of replay batches: none in the first experience."""
        if strategy.clock.train_exp_counter == 0:
            return 0
        if self.balanced is None:
            return self.replay_steps
        return self.balanced.steps(
            len(self.batch.labels), strategy.model, self.storage_policy
        )

    def _replay_loss(self, strategy, **kwargs) -> Tensor | None:
        """Compute the weighted loss of a replay batch; ``None`` if no memory may be replayed."""
        labels = self.batch.numbers
        slots = None
        if self.balanced is None:
            slots = self.storage_policy.sample(
                set(labels) - self.returning, at_least=len(labels)
            )
            if len(slots) == 0:
                return None
        if not self.fused:
            trigger_plugins(strategy, "before_replay_step", **kwargs)
        if slots is None:
            maps, targets = self.balanced.draw(
                self.batch, self.storage_policy, strategy.model
            )
        else:
            maps, targets = self.storage_policy.replay(slots, strategy.model)
        return self.replay_weight * strategy._criterion(
            self.logits(strategy.model, maps), targets
        )


class CRUMBStrategy(StreamStrategy):
    """CRUMB as a ready Avalanche strategy (paper, algorithm 1); keeps the frame order of the stream.

    ::

        model = split_backbone("squeezenet1_0", n_classes=10)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        strategy = CRUMBStrategy(model=model, optimizer=optimizer, mem_size=417)

    Args:
        model: a ``SplitModel``; unless ``codebook_weight`` is 0 with a codebook, and
            calibrated on the first experience if that was not done.
        optimizer, criterion, train_mb_size, train_epochs: see ``StreamStrategy``.
        eval_mb_size, device, evaluator, eval_every: see ``StreamStrategy``.
        plugins: run before CRUMB's own replay step.
        mem_size: memories of a new ``CodeBuffer``; or give ``storage_policy``.
        storage_policy: the buffer; or give ``mem_size``.
        direct_weight, codebook_weight, replay_weight: see ``CRUMBPlugin``.
        replay_steps, fused, replay_compute: see ``CRUMBPlugin``.
        stream_arguments: all others, such as ``first_epochs``; see ``StreamStrategy``.

    Raises:
        TypeError: see ``CRUMBPlugin``.
        ValueError: see ``CRUMBPlugin``; or both or neither of ``storage_policy`` and
            ``mem_size`` are given.
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
        direct_weight: float = DEFAULTS.direct_weight,
        codebook_weight: float = DEFAULTS.codebook_weight,
        replay_weight: float | None = DEFAULTS.replay_weight,
        replay_steps: int = DEFAULTS.replay_steps,
        fused: bool = DEFAULTS.fused,
        replay_compute: float | None = DEFAULTS.replay_compute,
        **stream_arguments,
    ):
        if (storage_policy is None) == (mem_size is None):
            given = (
                "neither is given"
                if mem_size is None
                else f"both are given (mem_size={mem_size})"
            )
            raise ValueError(
                f"give mem_size or storage_policy; {given}: mem_size=417 makes a CodeBuffer of 417 memories, "
                "storage_policy takes a buffer of your own"
            )
        buffer = CodeBuffer(mem_size) if storage_policy is None else storage_policy
        self.replay_loss: Tensor | None = None
        replay = (
            direct_weight,
            codebook_weight,
            replay_weight,
            replay_steps,
            fused,
            replay_compute,
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
            memory=CRUMBPlugin(buffer, *replay),
            **stream_arguments,
        )
