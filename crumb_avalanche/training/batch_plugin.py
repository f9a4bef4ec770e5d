"""Plugins that hold the batch a strategy trains on, with the feature map and codes of its forward pass."""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from crumb_avalanche.memory.buffers import MemoryBuffer, StreamBatch
from crumb_avalanche.models.extraction import ForwardRecord
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.training.avalanche_fixes import (
    check_strategy,
    group_frozen_weights,
    keep_training_mode,
    labels_of,
    use_int64_labels,
)
from crumb_avalanche.training.plugins import SeenClassesPlugin
from crumb_avalanche.training.stateful import StatefulPlugin


def in_last_epoch(strategy) -> bool:
    """Return whether the current epoch is the last one of the experience."""
    return strategy.clock.train_exp_epochs == strategy.train_epochs - 1


class BatchPlugin(StatefulPlugin):
    """Holds the batch of the current iteration.

    The batch is recorded from the forward pass on ``strategy.mb_x``, the very tensor.
    Other forward passes of the model, by a plugin or on a second batch as in
    Avalanche's ``ER_ACE``, have no effect on it. If the strategy does not pass ``mb_x``
    to the model, the feature map is computed again.

    Attributes:
        batch: the images of the iteration, from ``after_forward`` to
            ``after_training_iteration``; else ``None``.
    """

    kept: ClassVar[tuple[str, ...]] = ("_position",)

    def __init__(self):
        super().__init__()
        self.batch: StreamBatch | None = None
        self._records: list[ForwardRecord] = []
        self._handle = None
        self._position = 0  # of the batch in the epoch, in images

    @property
    def current(self) -> StreamBatch:
        """The batch of the iteration, in hooks where there must be one."""
        assert self.batch is not None, "only from after_forward on"
        return self.batch

    def before_training_epoch(self, strategy, **kwargs):
        self._position = 0

    def before_training_iteration(self, strategy, **kwargs):
        use_int64_labels(strategy)

    before_eval_iteration = before_training_iteration

    def before_forward(self, strategy, **kwargs):
        keep_training_mode(strategy)
        self._stop_recording()  # an earlier forward pass may have raised
        self._handle = strategy.model.register_map_hook(self._records.append)

    def after_forward(self, strategy, **kwargs):
        found = [record for record in self._records if record.images is strategy.mb_x]
        self._stop_recording()
        record = (
            found[-1]
            if found
            else ForwardRecord(
                strategy.mb_x, strategy.model.features(strategy.mb_x), None
            )
        )
        side, shape, map_shape = (
            strategy.model.image_size,
            record.images.shape,
            strategy.model.map_shape,
        )
        if record.feature_map.shape[1:] != map_shape:
            given = (
                f"images of {shape[2]} x {shape[3]} pixels"
                if shape[1] == 3
                else "the cached images"
            )
            raise ValueError(
                f"the maps of {given} are {tuple(record.feature_map.shape[1:])}, but the model was built with "
                f"image_size={side}, for maps of {map_shape}; resize the images to {side} x {side} pixels in the "
                "transform, or build the model with their image_size"
            )
        places = range(self._position, self._position + len(strategy.mb_y))
        pixels = pixels_of(strategy, record.images, places)
        self.batch = StreamBatch(
            strategy.mb_y, record.feature_map, record.codes, pixels
        )
        if (numbers := getattr(strategy, "label_numbers", None)) is not None:
            self.batch.numbers = numbers

    def after_training_iteration(self, strategy, **kwargs):
        self._position += len(strategy.mb_y)
        self.batch = None

    def _stop_recording(self) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle, self._records = None, []


class StoringPlugin(BatchPlugin):
    """Stores images of the last epoch of each experience in a buffer.

    Images that a stop (``strategy.stop_training``) left out of that epoch are offered
    after the experience: as many of each class as were left out, the last ones of its
    data set. These are the very ones if the batches were in order; of shuffled batches
    some may be offered twice.

    Args:
        storage_policy: the buffer, with its selection rule.
        seen: the mask over the classes seen, for logits of memories; default the
            ``seen_classes`` of the strategy.

    Raises:
        TypeError: the buffer is not one of this package.
    """

    def __init__(
        self, storage_policy: MemoryBuffer, seen: SeenClassesPlugin | None = None
    ):
        super().__init__()
        if not isinstance(storage_policy, MemoryBuffer):
            raise TypeError(
                f"storage_policy is of type {type(storage_policy).__name__}; give a buffer of this package, such as "
                "CodeBuffer(417): Avalanche's own do not store batch by batch, and work in its ReplayPlugin"
            )
        self.storage_policy = storage_policy
        self.seen = seen
        self._seen: SeenClassesPlugin | None = (
            None  # that of the strategy, if it has one
        )
        self._offered: Counter[int] = (
            Counter()
        )  # images of each class offered during training in this experience
        self._classes: set[int] = set()  # of this experience
        self._earlier: set[int] = set()  # of earlier experiences
        self._experience: int | None = None  # its number
        self.returning_expected = False  # no warning of a class that returns

    def before_training(self, strategy, **kwargs):
        check_strategy(strategy)
        group_frozen_weights(strategy)

    def before_training_exp(self, strategy, **kwargs):
        self._seen = seen_classes_of(strategy, self.seen)
        labels = labels_of(
            strategy.adapted_dataset
        )  # of all images that are trained on
        self.storage_policy.begin_experience(labels, strategy.train_mb_size)
        self._offered = Counter()
        if (
            strategy.clock.train_exp_counter != self._experience
        ):  # else it was resumed, and begins again
            self._earlier |= self._classes
        self._experience = strategy.clock.train_exp_counter
        self._classes = set(labels)
        if self.returning and not self.returning_expected:
            self.returning_expected = True
            for consequence in self.consequences_of_returning():
                warnings.warn(
                    f"class {min(self.returning)} returns in experience {strategy.clock.train_exp_counter}: "
                    f"{consequence}",
                    stacklevel=2,
                )

    def after_training_iteration(self, strategy, **kwargs):
        if self.offers(strategy):
            self.offer(strategy, self.batch)
            self._offered.update(self.batch.numbers)
        super().after_training_iteration(strategy, **kwargs)

    def after_training_exp(self, strategy, **kwargs):
        model, size = strategy.model, strategy.train_mb_size
        rest = self._left_out(labels_of(strategy.adapted_dataset))
        if not rest:
            return  # a loader would draw a seed from the global RNG
        for places, (images, labels, *_) in zip(
            (rest[start : start + size] for start in range(0, len(rest), size)),
            DataLoader(Subset(strategy.adapted_dataset, rest), batch_size=size),
        ):
            images, labels = images.to(strategy.device), labels.to(strategy.device)
            pixels = pixels_of(strategy, images, places, in_order=True)
            self.offer(
                strategy, StreamBatch(labels, model.features(images), None, pixels)
            )
            if self.storage_policy.rule.finished:
                break

    def _left_out(self, labels: list[int]) -> list[int]:
        left = Counter(labels) - self._offered  # none where more were offered
        places = []
        for place in reversed(range(len(labels))):
            if left[labels[place]]:
                left[labels[place]] -= 1
                places.append(place)
        return places[::-1]

    def offers(self, strategy) -> bool:
        """Return whether the batch that was trained on is offered to the buffer."""
        return in_last_epoch(strategy) and not self.storage_policy.rule.second_pass

    def offer(self, strategy, batch: StreamBatch) -> None:
        """Offer a batch to the buffer; ``self.batch`` is ``None`` if it was not trained on in the last epoch."""
        self.storage_policy.store(batch, strategy.model)

    @property
    def returning(self) -> set[int]:
        """The classes of this experience that an earlier one had, too."""
        return self._classes & self._earlier

    def consequences_of_returning(self) -> list[str]:
        rule = self.storage_policy.rule
        if rule.evenly_spread:
            return []
        return [
            f"{type(rule).__name__} does not spread the memories of a class evenly over its experiences; EveryJth and "
            "ClassBalancedReservoir do"
        ]

    def state_dict(self):
        classes = {
            "classes": sorted(self._classes),
            "earlier": sorted(self._earlier),
            "experience": self._experience,
        }
        return {**super().state_dict(), "offered": dict(self._offered), **classes}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self._offered = Counter(state["offered"])
        self._classes, self._earlier = set(state["classes"]), set(state["earlier"])
        self._experience = state["experience"]

    def mask(self, logits: Tensor) -> Tensor:
        """Mask the unseen classes of ``(B, classes)`` logits, if there is a mask."""
        return logits if self._seen is None else self._seen.mask(logits)

    def logits(self, model: SplitModel, maps: Tensor) -> Tensor:
        """Compute masked logits ``(B, classes)`` of feature maps ``(B, C, H, W)``."""
        return self.mask(model.classify(maps))


def seen_classes_of(
    strategy, given: SeenClassesPlugin | None
) -> SeenClassesPlugin | None:
    """Return the mask that a plugin was given, else the strategy's; there must be one for all losses, or none."""
    seen = getattr(strategy, "seen_classes", None) if given is None else given
    listed = [
        plugin for plugin in strategy.plugins if isinstance(plugin, SeenClassesPlugin)
    ]
    if any(plugin is not seen for plugin in listed):
        raise ValueError(
            "the plugin list has a SeenClassesPlugin that was not handed to the storing plugin: losses of new images "
            "and of memories would be over different classes; write CRUMBPlugin(..., seen=that_plugin)"
        )
    if given is not None and given not in listed:
        raise ValueError(
            "the SeenClassesPlugin that was handed over is not in the strategy's plugin list, so it knows no class and "
            "would mask all of them: write plugins=[seen, CRUMBPlugin(..., seen=seen)]"
        )
    return seen


def pixels_of(
    strategy, images: Tensor, places: Sequence[int], in_order: bool = False
) -> Callable[[Sequence[int]], Tensor]:
    """Make a function from positions in a batch to their ``(n, 3, h, w)`` ``uint8`` images.

    If a cache put feature maps in the place of the images, they are read from the
    experience, at ``places``, which are right if the strategy does not shuffle, or
    ``in_order`` is true.
    """
    in_order = in_order or getattr(strategy, "frames_in_order", False)

    def pixels(positions: Sequence[int]) -> Tensor:
        if images.shape[1] == 3:
            return strategy.model.pixels(images[list(positions)])
        if not in_order:
            raise ValueError(
                "images can be stored beside a feature cache only in frame order: train with shuffle=False, or "
                "without the cache"
            )
        return frames(strategy, [places[position] for position in positions])

    return pixels


def frames(strategy, positions: Sequence[int]) -> Tensor:
    """Read frames of the current experience from its data set, as ``(n, 3, h, w)`` ``uint8``."""
    images = torch.stack(
        [strategy.experience.dataset[int(position)][0] for position in positions]
    )
    return strategy.model.pixels(images.to(strategy.device))
