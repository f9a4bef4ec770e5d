"""CRUMB as an Avalanche plugin and as a strategy (paper, algorithm 1)."""

from collections.abc import Sequence

import torch
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.utils import trigger_plugins
from torch import Tensor
from torch.utils.data import DataLoader

from crumb_avalanche.memory.buffers import StreamBatch
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.training.plugins import SeenClassesPlugin
from crumb_avalanche.training.stateful import StatefulPlugin
from crumb_avalanche.training.storage_policies import CompactBuffer
from crumb_avalanche.training.stream_strategy import StreamStrategy


def memory_step(strategy, loss: Tensor, **kwargs) -> None:
    """An optimiser step of its own on a loss of memories, with the events that ``CRUMBPlugin`` tells of."""
    strategy.replay_loss = loss
    strategy.optimizer.zero_grad()
    trigger_plugins(strategy, "on_replay_loss", **kwargs)
    loss.backward()
    trigger_plugins(strategy, "on_replay_update", **kwargs)
    strategy.optimizer_step()
    strategy.replay_loss = loss.detach()
    trigger_plugins(strategy, "after_replay_step", **kwargs)


class CRUMBPlugin(StatefulPlugin):
    """Losses, replay and storing of CRUMB, for any strategy whose model is a ``SplitModel``.

    With another buffer it is that buffer's plain replay: ``CRUMBPlugin(ImageBuffer(15), direct_weight=1,
    codebook_weight=0)`` replays raw images. Losses are over the classes seen so far where a ``SeenClassesPlugin``
    stands before it in the plugin list (``StreamStrategy`` has one).

    Args:
        storage_policy: the buffer, with its rule.
        direct_weight: alpha of eq. 3, the weight of the loss of ``P(Z)``.
        codebook_weight: beta of eq. 3, the weight of the loss of ``P(Z~)``.
        replay_weight: factor of the replay loss (the reference code has 5).
        replay_steps: replay batches after each new batch; 0 stores but never replays.
        fused: new and replayed batch in one optimiser step instead of two.

    Events ``before_replay_step``, ``on_replay_loss`` (before its backward pass), ``on_replay_update`` (before its
    optimiser step) and ``after_replay_step`` are triggered on the strategy's plugins; ``strategy.replay_loss`` holds
    the latest replay loss.

    Raises:
        ValueError: both loss weights are zero, or a negative weight.
    """

    def __init__(
        self,
        storage_policy: CompactBuffer,
        direct_weight: float = 0.0,
        codebook_weight: float = 1.0,
        replay_weight: float = 1.0,
        replay_steps: int = 1,
        fused: bool = False,
    ):
        super().__init__()
        if min(direct_weight, codebook_weight, replay_weight) < 0 or direct_weight + codebook_weight == 0:
            raise ValueError(
                f"direct_weight={direct_weight}, codebook_weight={codebook_weight}, replay_weight={replay_weight}: "
                "weights are not negative, and direct and codebook-out loss cannot both be off"
            )
        self.storage_policy = storage_policy
        self.direct_weight = direct_weight
        self.codebook_weight = codebook_weight
        self.replay_weight = replay_weight
        self.replay_steps = replay_steps
        self.fused = fused
        self._position = 0
        self._offered = False  # this experience's images to the rule
        self._mask = None

    def before_training_exp(self, strategy, **kwargs):
        if not isinstance(strategy.model, SplitModel):
            raise TypeError(
                f"CRUMB trains a SplitModel, not a {type(strategy.model).__name__}: build one with split_backbone(...) "
                "or split_at(network, node)"
            )
        if self.codebook_weight and strategy.model.codebook is None:
            raise ValueError("the codebook-out loss needs a codebook: build the model with codebook=Codebook()")
        seen = [plugin for plugin in strategy.plugins if isinstance(plugin, SeenClassesPlugin)]
        self._mask = seen[0].mask if seen else None
        strategy.model.quantized_training = self.codebook_weight > 0
        self.storage_policy.begin_experience(strategy.experience.dataset.targets, strategy.train_mb_size)
        self._offered = False

    def before_training_epoch(self, strategy, **kwargs):
        self._position = 0

    def before_backward(self, strategy, **kwargs):
        model = strategy.model
        if self.codebook_weight == 0:
            strategy.loss = self.direct_weight * strategy.loss
        else:
            strategy.loss = self.codebook_weight * strategy.loss
            if self.direct_weight:
                direct = self._logits(model, model.last_map)
                strategy.loss = strategy.loss + self.direct_weight * strategy._criterion(direct, strategy.mb_y)
        if self.fused:
            for _ in range(self.replay_steps):
                with model.stopwatch.measure("replay"):
                    replay_loss = self._replay_loss(strategy)
                if replay_loss is not None:
                    strategy.loss = strategy.loss + replay_loss

    def after_update(self, strategy, **kwargs):
        if self.fused:
            return
        for _ in range(self.replay_steps):
            with strategy.model.stopwatch.measure("replay"):
                self._replay_step(strategy, **kwargs)

    def _replay_step(self, strategy, **kwargs) -> None:
        replay_loss = self._replay_loss(strategy, **kwargs)
        if replay_loss is not None:
            memory_step(strategy, replay_loss, **kwargs)

    def _logits(self, model: SplitModel, maps: Tensor) -> Tensor:
        logits = model.classify(maps)
        return logits if self._mask is None else self._mask(logits)

    def _replay_loss(self, strategy, **kwargs) -> Tensor | None:
        """The weighted loss of a replay batch, or ``None`` where there is nothing to replay (all of experience 1)."""
        if strategy.clock.train_exp_counter == 0:
            return None
        slots = self.storage_policy.sample(set(strategy.mb_y.tolist()), at_least=len(strategy.mb_y))
        if len(slots) == 0:
            return None
        if not self.fused:
            trigger_plugins(strategy, "before_replay_step", **kwargs)
        maps, labels = self.storage_policy.replay(slots, strategy.model)
        logits = self._logits(strategy.model, maps)
        return self.replay_weight * strategy._criterion(logits, labels)

    def after_training_iteration(self, strategy, **kwargs):
        last_epoch = strategy.clock.train_exp_epochs == strategy.train_epochs - 1
        if last_epoch and not self.storage_policy.rule.second_pass:
            model = strategy.model
            batch = StreamBatch(strategy.mb_y, model.last_map, model.last_codes, self._pixels(strategy, self._position))
            self.storage_policy.store(batch, model)
            self._offered = True
        strategy.model.forget_batch()
        self._position += len(strategy.mb_y)

    def after_training_exp(self, strategy, **kwargs):
        # A strategy that was stopped before its last epoch has not offered them yet.
        if self._offered and not self.storage_policy.rule.second_pass:
            return
        model = strategy.model
        loader = DataLoader(strategy.adapted_dataset, batch_size=strategy.train_mb_size)
        position = 0
        for images, labels, *_ in loader:
            images, labels = images.to(strategy.device), labels.to(strategy.device)
            pixels = self._pixels(strategy, position, images, in_order=True)
            self.storage_policy.store(StreamBatch(labels, model.features(images), None, pixels), model)
            position += len(labels)
            if self.storage_policy.rule.finished:
                break

    def _pixels(self, strategy, start: int, images: Tensor | None = None, in_order: bool = False):
        """The pixels of a batch: from the batch, or from the experience where a cache put maps in their place."""
        images = strategy.mb_x if images is None else images
        in_order = in_order or getattr(strategy, "frames_in_order", False)

        def pixels(positions: Sequence[int]) -> Tensor:
            if images.shape[1] == 3:
                return strategy.model.pixels(images[list(positions)])
            if not in_order:
                raise ValueError(
                    "images can be stored beside a feature cache only in frame order: train with shuffle=False, or "
                    "without the cache"
                )
            raw = [strategy.experience.dataset[start + position][0] for position in positions]
            return strategy.model.pixels(torch.stack(raw).to(strategy.device))

        return pixels

    def state_dict(self):
        return {"position": self._position, "offered": self._offered}

    def load_state_dict(self, state):
        self._position, self._offered = state["position"], state["offered"]


class CRUMBStrategy(StreamStrategy):
    """CRUMB as a ready Avalanche strategy (paper, algorithm 1); keeps the frame order of the stream.

    Args:
        model: a ``SplitModel``, with a codebook unless ``codebook_weight`` is 0.
        optimizer: over the model's parameters; the paper's is SGD with learning rate 1e-3 and momentum 0.9.
        storage_policy: the buffer.
        direct_weight, codebook_weight, replay_weight, replay_steps, fused: see ``CRUMBPlugin``.
        plugins: the user's, run before CRUMB's own replay step.
        stream_arguments: all others, see ``StreamStrategy``.
    """

    def __init__(
        self,
        *,
        model: SplitModel,
        optimizer: torch.optim.Optimizer,
        storage_policy: CompactBuffer,
        direct_weight: float = 0.0,
        codebook_weight: float = 1.0,
        replay_weight: float = 1.0,
        replay_steps: int = 1,
        fused: bool = False,
        plugins: Sequence[SupervisedPlugin] = (),
        **stream_arguments,
    ):
        self.storage_policy = storage_policy
        self.replay_loss: Tensor | None = None
        crumb = CRUMBPlugin(storage_policy, direct_weight, codebook_weight, replay_weight, replay_steps, fused)
        super().__init__(model=model, optimizer=optimizer, plugins=[*plugins, crumb], **stream_arguments)
