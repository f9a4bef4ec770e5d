"""Plugins that hold the batch a strategy trains on, and store images of it.

A batch has the feature map and codes of its forward pass.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from torch.utils.hooks import RemovableHandle

from crumb_avalanche.memory.buffers import MemoryBuffer, StreamBatch
from crumb_avalanche.models.extraction import ForwardRecord
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.training.avalanche_fixes import (
    check_strategy,
    classes_announced,
    group_frozen_weights,
    keep_training_mode,
    labels_of,
    use_int64_labels,
)
from crumb_avalanche.training.plugins import SeenClassesPlugin
from crumb_avalanche.training.stateful import StatefulPlugin


def in_last_epoch(strategy: Any) -> bool:
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

    state_names: ClassVar[tuple[str, ...]] = ("_position",)

    def __init__(self) -> None:
        super().__init__()
        self.batch: StreamBatch | None = None
        self._forward_records: list[ForwardRecord] = []
        self._map_hook: RemovableHandle | None = None  # of the model, while recording
        self._position = 0  # of the batch in the epoch, in images

    @property
    def current(self) -> StreamBatch:
        """The batch of the iteration, in hooks where there must be one."""
        assert self.batch is not None, "only from after_forward on"
        return self.batch

    def before_training_epoch(self, strategy, **kwargs):
        """Begin to count the images of the epoch."""
        self._position = 0

    def before_training_iteration(self, strategy, **kwargs):
        """Convert the labels of the batch to int64."""
        use_int64_labels(strategy)

    before_eval_iteration = before_training_iteration

    def before_forward(self, strategy, **kwargs):
        """Record the maps that the model computes from here to ``after_forward``."""
        keep_training_mode(strategy)
        self._stop_recording()  # an earlier forward pass may have raised
        self._map_hook = strategy.model.register_map_hook(self._forward_records.append)

    def after_forward(self, strategy, **kwargs):
        """Put labels, maps, codes and pixels of the batch into ``self.batch``.

        Maps and codes are those that the model computed in this forward pass, which a
        hook recorded.
        """
        forward_record = self._forward_record_of_batch(strategy)
        self._stop_recording()  # removes the hook
        _check_map_shape(forward_record, strategy.model)
        # ``_position`` images of the experience came in earlier batches.
        end = self._position + len(strategy.mb_y)
        positions = range(self._position, end)  # of the images in the experience
        self.batch = StreamBatch(
            labels=strategy.mb_y,
            feature_map=forward_record.feature_map,
            codes=forward_record.codes,
            pixels=pixel_reader(strategy, forward_record.images, positions),
        )
        # The labels as Python numbers, where the strategy has read them already.
        label_numbers = getattr(strategy, "label_numbers", None)
        if label_numbers is not None:
            self.batch.label_numbers = label_numbers

    def after_training_iteration(self, strategy, **kwargs):
        """Count the images of the batch, and drop it."""
        self._position += len(strategy.mb_y)
        self.batch = None

    def _forward_record_of_batch(self, strategy) -> ForwardRecord:
        """Return images, maps and codes of the latest forward pass on the new batch.

        If the strategy passed other images than ``mb_x``, the maps are computed here.
        """
        for forward_record in reversed(self._forward_records):
            if forward_record.images is strategy.mb_x:
                return forward_record
        feature_map = strategy.model.features(strategy.mb_x)
        return ForwardRecord(strategy.mb_x, feature_map, None)

    def _stop_recording(self) -> None:
        """Remove the hook of the model, and what it recorded."""
        if self._map_hook is not None:
            self._map_hook.remove()
        self._map_hook = None
        self._forward_records = []


def _check_map_shape(forward_record: ForwardRecord, model: SplitModel) -> None:
    """Raise ValueError if images are of another size than the model was built for.

    Args:
        forward_record: of a pass: images ``(B, 3, h, w)``, or maps from a cache, and
            their feature maps ``(B, C, H, W)``.
        model: has the ``map_shape`` that it was built for.
    """
    map_shape = tuple(forward_record.feature_map.shape[1:])
    if map_shape == model.map_shape:
        return
    channels, height, width = forward_record.images.shape[1:]
    images = "the cached images"
    if channels == 3:  # else they are maps, whose size is not that of the images
        images = f"images of {height} x {width} pixels"
    side = model.image_size
    raise ValueError(
        f"the maps of {images} are {map_shape}, but the model was built with "
        f"image_size={side}, for maps of {model.map_shape}; resize the images to "
        f"{side} x {side} pixels in the transform, or build the model with their "
        "image_size"
    )


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
        ValueError: before an experience is trained on, there are more classes than
            slots, counting those that the benchmark announces; nothing has changed.

    Attributes:
        returning_expected: whether nothing more is warned of classes that return.
    """

    # Entries of ``state_dict``, named as the attributes are: privately, so that no
    # subclass has others of these names.
    class_numbers: ClassVar[tuple[str, ...]] = (
        "_offered_counts",
        "_label_counts",
        "_earlier_classes",
    )

    def __init__(
        self, storage_policy: MemoryBuffer, seen: SeenClassesPlugin | None = None
    ):
        super().__init__()
        if not isinstance(storage_policy, MemoryBuffer):
            raise TypeError(
                f"storage_policy is of type {type(storage_policy).__name__}; give a "
                "buffer of this package, such as CodeBuffer(417): Avalanche's own do "
                "not store batch by batch, and work in its ReplayPlugin"
            )
        self.storage_policy = storage_policy
        self.seen = seen
        # The mask of the strategy, if it has one.
        self._mask_plugin: SeenClassesPlugin | None = None
        # Images of each class offered during training in this experience.
        self._offered_counts: Counter[int] = Counter()
        # Images of each class in this experience, and its classes.
        self._label_counts: Counter[int] = Counter()
        self._classes: set[int] = set()
        self._earlier_classes: set[int] = set()  # of earlier experiences
        self._experience: int | None = None  # its number
        self.returning_expected = False

    def before_training(self, strategy, **kwargs):
        """Refuse what the strategy cannot train with, before its first step."""
        check_strategy(strategy)
        group_frozen_weights(strategy)

    def after_train_dataset_adaptation(self, strategy, **kwargs):
        """Raise ValueError for classes without room, before anything is changed.

        The buffer needs room for the classes that it holds, those of the experience and
        those that the benchmark announces for later ones.
        """
        buffer = self.storage_policy
        coming = set(labels_of(strategy.adapted_dataset))
        stored_or_coming = coming.union(buffer.classes)
        in_all = stored_or_coming.union(classes_announced(strategy.experience))
        # The larger number, so that a mem_size that is raised to it is enough.
        if len(in_all) > len(stored_or_coming):
            buffer.rule.check_room(buffer.max_size, len(in_all), "that come in all")
        buffer.rule.check_room(buffer.max_size, len(stored_or_coming))

    def before_training_exp(self, strategy, **kwargs):
        """Begin an experience in the buffer, and warn of classes that return.

        Classes return if an earlier experience had them. The warning comes once.
        """
        self._mask_plugin = seen_classes_of(strategy, self.seen)
        labels = labels_of(strategy.adapted_dataset)  # of all that are trained on
        # The selection rule plans with the number of images of each class.
        self.storage_policy.begin_experience(labels, strategy.train_mb_size)
        self._offered_counts = Counter()
        experience = strategy.clock.train_exp_counter  # its number
        label_counts = Counter(labels)
        # An experience that was interrupted has not moved the clock: the same one
        # begins again, as from a checkpoint, and another one is the next.
        has_same_number = experience == self._experience
        is_resumed = has_same_number and label_counts == self._label_counts
        if not is_resumed:
            self._earlier_classes |= self._classes
        self._experience = experience
        self._label_counts = label_counts
        self._classes = set(labels)
        # ``returning`` are those of them that are among the earlier classes.
        if self.returning and not self.returning_expected:
            self.returning_expected = True
            for consequence in self.consequences_of_returning():
                warnings.warn(
                    f"class {min(self.returning)} returns in experience {experience}: "
                    f"{consequence}",
                    stacklevel=2,
                )

    def after_training_iteration(self, strategy, **kwargs):
        """Offer the batch to the buffer, in the epoch that is stored.

        Images of other classes than the experience has were mixed in by another plugin:
        they are memories of its own, not new images.
        """
        if self.offers(strategy):
            new_images = self.current.of_classes(self._classes)
            if new_images.label_numbers:
                self.offer(strategy, new_images)
                self._offered_counts.update(new_images.label_numbers)
        super().after_training_iteration(strategy, **kwargs)

    def after_training_exp(self, strategy, **kwargs):
        """Offer the images that a stop of the training left out."""
        positions = self._positions_left_out(labels_of(strategy.adapted_dataset))
        if not positions:
            return  # a loader would draw a seed from the global RNG
        for batch in batches_at(positions, strategy):
            self.offer(strategy, batch)
            if self.storage_policy.rule.finished:
                break

    def _positions_left_out(self, labels: list[int]) -> list[int]:
        """Return the positions of images that were not offered to the buffer.

        Training may stop before all were. How many of each class were offered is known,
        but not which: the last ones of each class in the experience are returned.

        Args:
            labels: of all images of the experience.

        Returns:
            Positions in the experience, ascending.
        """
        # Counts above 0 alone: none is missing of a class offered more often.
        missing_of_class = Counter(labels) - self._offered_counts
        last_first = []
        for position in reversed(range(len(labels))):
            label = labels[position]
            if missing_of_class[label]:
                missing_of_class[label] -= 1
                last_first.append(position)
        return last_first[::-1]

    def offers(self, strategy: Any) -> bool:
        """Return whether the batch that was trained on is offered to the buffer."""
        return in_last_epoch(strategy) and not self.storage_policy.rule.second_pass

    def offer(self, strategy: Any, batch: StreamBatch) -> None:
        """Offer a batch to the buffer.

        Meanwhile ``self.batch`` is ``None`` if it was not trained on in the last epoch.
        """
        self.storage_policy.store(batch, strategy.model)

    @property
    def returning(self) -> set[int]:
        """The classes of this experience that an earlier one had, too."""
        return self._classes & self._earlier_classes

    def consequences_of_returning(self) -> list[str]:
        """Return what a user may not expect of classes that return, a sentence each."""
        rule = self.storage_policy.rule
        if rule.evenly_spread:
            return []
        return [
            f"{type(rule).__name__} does not spread the memories of a class evenly "
            "over its experiences; EveryJth and ClassBalancedReservoir do"
        ]

    def state_dict(self):
        """Return the classes so far and what was offered, besides the position."""
        return {
            **super().state_dict(),
            "_offered_counts": dict(self._offered_counts),
            "_label_counts": dict(self._label_counts),
            "_earlier_classes": sorted(self._earlier_classes),
            "_experience": self._experience,
        }

    def load_state_dict(self, state):
        """Load what ``state_dict`` returned."""
        super().load_state_dict(state)
        self._offered_counts = Counter(state["_offered_counts"])
        self._label_counts = Counter(state["_label_counts"])
        self._classes = set(self._label_counts)
        self._earlier_classes = set(state["_earlier_classes"])
        self._experience = state["_experience"]

    def mask(self, logits: Tensor) -> Tensor:
        """Mask the unseen classes of ``(B, classes)`` logits, if there is a mask."""
        return logits if self._mask_plugin is None else self._mask_plugin.mask(logits)

    def logits(self, model: SplitModel, maps: Tensor) -> Tensor:
        """Compute masked logits ``(B, classes)`` of feature maps ``(B, C, H, W)``."""
        return self.mask(model.classify(maps))


def batches_at(
    positions: list[int], strategy: Any, generator: torch.Generator | None = None
) -> Iterator[StreamBatch]:
    """Yield some images of the experience, in batches as large as those of training.

    Their feature maps are computed here; they have no codes.

    Args:
        positions: of the images in the experience, in order.
        strategy: gives experience, model and size of the batches.
        generator: of the seed that the loader draws; default torch's global one.
    """
    model = strategy.model
    batch_size = strategy.train_mb_size
    images_at_positions = Subset(strategy.adapted_dataset, positions)
    loader = DataLoader(images_at_positions, batch_size=batch_size, generator=generator)
    for batch_number, (images, labels, *_) in enumerate(loader):
        images = images.to(strategy.device)
        start = batch_number * batch_size
        positions_of_batch = positions[start : start + batch_size]
        yield StreamBatch(
            labels=labels.long().to(strategy.device),
            feature_map=model.features(images),
            codes=None,
            pixels=pixel_reader(strategy, images, positions_of_batch, in_order=True),
        )


def seen_classes_of(
    strategy: Any, handed_over: SeenClassesPlugin | None
) -> SeenClassesPlugin | None:
    """Return the plugin that masks the logits of classes not seen, after a check.

    A plugin that stores memories masks their logits by it. It is the one that was
    handed over to the storing plugin, else the strategy's.

    Args:
        strategy: of both plugins.
        handed_over: argument ``seen`` of the storing plugin, or ``None``.

    Returns:
        The plugin; ``None`` if nothing was handed over and the strategy has none.

    Raises:
        ValueError: losses would be over different classes: the plugin list has another
            mask, or lacks the one that was given.
    """
    mask_plugin = handed_over
    if mask_plugin is None:
        mask_plugin = getattr(strategy, "seen_classes", None)
    listed = [
        plugin for plugin in strategy.plugins if isinstance(plugin, SeenClassesPlugin)
    ]
    if any(plugin is not mask_plugin for plugin in listed):
        raise ValueError(
            "the plugin list has a SeenClassesPlugin that was not handed to the "
            "storing plugin: losses of new images and of memories would be over "
            "different classes; write CRUMBPlugin(..., seen=that_plugin)"
        )
    if handed_over is not None and handed_over not in listed:
        raise ValueError(
            "the SeenClassesPlugin that was handed over is not in the strategy's "
            "plugin list, so it knows no class and would mask all of them: write "
            "plugins=[seen, CRUMBPlugin(..., seen=seen)]"
        )
    return mask_plugin


def pixel_reader(
    strategy: Any, images: Tensor, positions: Sequence[int], in_order: bool = False
) -> Callable[[Sequence[int]], Tensor]:
    """Make a function that returns pixels of the images of a batch, to store them.

    If a cache put feature maps in the place of the images, pixels are read from the
    experience.

    Args:
        strategy: the strategy that trains on the batch.
        images: ``(B, 3, h, w)`` images of the batch, or ``(B, C, H, W)`` cached maps.
        positions: of the batch's images in the experience, if they come in order.
        in_order: whether they do, even if the strategy does not say so.

    Returns:
        A function from positions in the batch to ``(n, 3, h, w)`` ``uint8``.
    """
    in_order = in_order or getattr(strategy, "frames_in_order", False)

    def read_pixels(positions_in_batch: Sequence[int]) -> Tensor:
        """Return pixels ``(n, 3, h, w)`` of some images of the batch."""
        are_cached_maps = images.shape[1] != 3
        if not are_cached_maps:
            return strategy.model.pixels(images[list(positions_in_batch)])
        if not in_order:
            raise ValueError(
                "images can be stored beside a feature cache only in frame order: "
                "train a StreamStrategy with shuffle=False, or without the cache"
            )
        return FrameReader(strategy, positions)(positions_in_batch)

    return read_pixels


@dataclass(frozen=True)
class FrameReader:
    """Reads frames of the current experience, by their position in a batch.

    Attributes:
        strategy: its experience has the frames.
        positions: of the batch's frames in the experience.
    """

    strategy: Any
    positions: Sequence[int]

    def __call__(self, positions_in_batch: Sequence[int]) -> Tensor:
        """Return ``(n, 3, h, w)`` ``uint8``."""
        frame_positions = [self.positions[index] for index in positions_in_batch]
        return read_frames(self.strategy, frame_positions)


def read_frames(strategy: Any, positions: Sequence[int]) -> Tensor:
    """Read frames of the current experience as ``(n, 3, h, w)`` ``uint8``."""
    dataset = strategy.experience.dataset
    images = torch.stack([dataset[int(position)][0] for position in positions])
    return strategy.model.pixels(images.to(strategy.device))
