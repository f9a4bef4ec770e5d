"""REMIND: feature maps as product-quantizer codes, replayed with crops and mixup.

Hayes et al., ECCV 2020. Defaults are those of the authors' ImageNet script and of the
CRUMB paper's port to SqueezeNet's 512x13x13 maps.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.memory.buffers import MemoryBuffer, StreamBatch
from crumb_avalanche.memory.packing import pack, unpack
from crumb_avalanche.memory.product_quantizer import ProductQuantizer
from crumb_avalanche.memory.selection import SelectionRule
from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.methods.replay import held_slots
from crumb_avalanche.models.row_length import largest_divisor
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import (
    NEVER,
    Count,
    Factor,
    NotNegative,
    Range,
)
from crumb_avalanche.training.avalanche_fixes import labels_of
from crumb_avalanche.training.batch_plugin import StoringPlugin, batches_at
from crumb_avalanche.training.stream_strategy import StreamStrategy

Large = Annotated[int, Range(1, NEVER)]
Centroids = Annotated[int, Range(2, 256)]
# Of width to height of a crop, as usual for images.
LEAST_RATIO = 3 / 4
LARGEST_RATIO = 4 / 3
TRIES = 10  # of a crop that does not fit

# Codes


def make_quantizer(
    n_channels: int, sub_quantizers: int = 32, centroids: int = 256
) -> ProductQuantizer:
    """Make a product quantizer for maps, whose centroids are not fitted yet.

    It replaces each group of channels by the number of a centroid. The number of groups
    is the largest divisor of the channels up to a limit. Groups of one channel get at
    most 16 centroids: 4 bits a value, as with 256 centroids for two channels.

    Args:
        n_channels: ``C`` of the maps.
        sub_quantizers: largest number of groups of channels.
        centroids: largest number of centroids of each group.
    """
    n_groups = largest_divisor(n_channels, sub_quantizers)
    channels_per_group = n_channels // n_groups
    most_centroids = 16 ** min(channels_per_group, 2)
    return ProductQuantizer(
        n_channels, sub_quantizers=n_groups, centroids=min(centroids, most_centroids)
    )


def quantizer_of(model: SplitModel, settings: Any) -> ProductQuantizer:
    """Make an empty product quantizer for a model, with the settings of REMIND."""
    return make_quantizer(
        model.map_shape[0], settings.sub_quantizers, settings.centroids
    )


def draw_locations(
    maps: Iterable[Tensor], n_images: int, most: int, random: np.random.Generator
) -> Tensor:
    """Draw about ``most`` locations of maps, equally many of each image.

    Args:
        maps: batches of ``(B, C, H, W)``; all maps have the same shape.
        n_images: number of images in all batches.
        most: number of locations, rounded up to one a map.
        random: of the draws.

    Returns:
        ``(N, C)`` float32 on the CPU, on which the quantizer is fitted.
    """
    vectors = torch.zeros(0, dtype=torch.float32)
    n_filled = 0  # rows of the vectors, which are allocated with the first batch
    for batch in maps:
        locations = batch.permute(0, 2, 3, 1).flatten(1, 2)  # (B, H * W, C)
        per_image = min(locations.shape[1], math.ceil(most / n_images))
        # Different locations of each image, (B, per_image), by a random order of all.
        order = random.random(locations.shape[:2]).argsort(axis=1)
        columns = torch.from_numpy(order[:, :per_image]).to(locations.device)
        rows = torch.arange(len(locations), device=locations.device).unsqueeze(1)
        drawn = locations[rows, columns].flatten(0, 1)
        is_first_batch = n_filled == 0
        if is_first_batch:
            shape = (n_images * per_image, batch.shape[1])
            vectors = torch.zeros(shape, dtype=torch.float32)
        vectors[n_filled : n_filled + len(drawn)] = drawn.cpu()
        n_filled += len(drawn)
    return vectors


class EvictLargest(SelectionRule):
    """Stores every image; a full buffer gives up a random memory of the largest class.

    The new image counts, so its class may be the largest, and it may be the one given
    up (REMIND, section 3.3).
    """

    evenly_spread = False

    def choose(self, slots: Slots, labels: Sequence[int]) -> list[tuple[int, int]]:
        """Return position and slot of each image of a batch that is stored."""
        chosen = []
        for position, label in enumerate(labels):
            if slots.free or self._make_room(slots, label):
                chosen.append((position, slots.take(label)))
        return chosen

    @staticmethod
    def _make_room(slots: Slots, label: int) -> bool:
        """Give up a random memory of a largest class for an image of ``label``.

        The image counts to its class. Where that is a largest one, the image itself is
        given up as likely as each of its memories.

        Args:
            slots: of a full buffer; changed in place.
            label: class of the image that may be stored.

        Returns:
            Whether a memory was given up, so that there is a slot for the image.
        """
        counts = {group: slots.count(group) for group in slots.classes}
        counts[label] = counts.get(label, 0) + 1  # with the image
        size_of_largest = max(counts.values())
        largest_classes = sorted(
            group for group, count in counts.items() if count == size_of_largest
        )
        number = int(slots.random.integers(len(largest_classes)))
        class_with_loss = largest_classes[number]
        if class_with_loss == label:  # then the image itself may be the one given up
            number_in_class = int(slots.random.integers(size_of_largest))
            is_image_itself = number_in_class == 0
            if is_image_itself:
                return False
        slots.release(class_with_loss)  # frees the slot of a random memory of the class
        return True


class PQCodeBuffer(MemoryBuffer):
    """Product-quantizer codes, one byte a code.

    5,408 bytes for 512x13x13 at 32 sub-quantizers of 256.

    Args:
        mem_size: capacity in memories.
        rule: selects the images that are stored; default ``EvictLargest``.
        seed: of the draws.
        quantizer: makes the codes; it may be fitted later.
    """

    def __init__(
        self,
        mem_size: int,
        rule: SelectionRule | None = None,
        seed: int = 0,
        *,
        quantizer: ProductQuantizer,
    ):
        super().__init__(mem_size, EvictLargest() if rule is None else rule, seed)
        self.quantizer = quantizer

    @staticmethod
    def item_bytes(model: SplitModel) -> int:
        """Return the bytes of the codes of a map, with default settings."""
        return make_quantizer(model.map_shape[0]).map_bytes(*model.map_shape[1:])

    def to_rows(
        self, batch: StreamBatch, positions: Sequence[int], model: SplitModel
    ) -> Tensor:
        """Return packed codes of images of a batch, ``(n, bytes)`` uint8."""
        if batch.codes is None:
            codes = self.quantizer.encode(batch.feature_map[positions])
        else:
            codes = batch.codes[positions]
        flat = codes.permute(0, 2, 3, 1).reshape(len(positions), -1)
        return pack(flat, self.quantizer.bits)

    def to_maps(self, rows: Tensor, model: SplitModel) -> Tensor:
        """Decode ``(n, bytes)`` uint8 rows to maps ``(n, C, H, W)``."""
        n_groups = self.quantizer.sub_quantizers
        _, height, width = model.map_shape
        flat = unpack(rows, self.quantizer.bits, n_groups * height * width)
        codes = flat.view(-1, height, width, n_groups).permute(0, 3, 1, 2)
        return self.quantizer.decode(codes)

    def draw(self, count: int) -> Tensor:
        """Draw different slots uniformly, ``(min(count, memories),)`` int64."""
        held = torch.tensor(held_slots(self), dtype=torch.int64)
        index = self.slots.random.choice(
            len(held), size=min(count, len(held)), replace=False
        )
        return held[torch.from_numpy(index)]

    def state_dict(self):
        """Return the memories, with the centroids that decode them."""
        return super().state_dict() | {"centroids": self.quantizer.centroids}

    def load_state_dict(self, state):
        """Load what ``state_dict`` returned."""
        super().load_state_dict(state)
        self.quantizer.load_state_dict({"centroids": state["centroids"]})


def balanced_choice(
    labels: Sequence[int], count: int, random: np.random.Generator
) -> list[int]:
    """Draw the positions of at most ``count`` images, balanced over the classes.

    The numbers of images of the classes differ by at most one, where there are enough.

    Args:
        labels: class of each image.
        count: largest number of positions.
        random: of the draws.

    Returns:
        Positions, ascending.
    """
    n_listed: dict[int, int] = {}  # images of each class so far
    turns_and_positions = []  # the turn is the number of an image in its class
    for position in random.permutation(len(labels)).tolist():
        label = labels[position]
        turn = n_listed.get(label, 0)
        turns_and_positions.append((turn, position))
        n_listed[label] = turn + 1
    # The first of each class come before the second of any; the sort is stable, so the
    # order within a turn is random.
    turns_and_positions.sort(key=lambda turn_and_position: turn_and_position[0])
    return sorted(position for _, position in turns_and_positions[:count])


# Augmentation


def random_boxes(
    count: int, height: int, width: int, scale: float, random: np.random.Generator
) -> np.ndarray:
    """Draw boxes inside a map, as torchvision's ``RandomResizedCrop`` does.

    The area is uniform between ``scale`` and 1 times that of the map, the ratio of
    width to height log-uniform between 3/4 and 4/3. A box that does not fit is drawn
    again; after ten tries it is the whole map.

    Args:
        count: number of boxes.
        height, width: of the map, in locations.
        scale: smallest share of its area.
        random: of the draws.

    Returns:
        ``(count, 4)`` int64: first row, first column, rows, columns.
    """
    shape = (count, TRIES)  # all tries of all boxes are drawn at once
    area = random.uniform(scale, 1, shape) * height * width  # in locations
    log_ratio = random.uniform(np.log(LEAST_RATIO), np.log(LARGEST_RATIO), shape)
    ratio = np.exp(log_ratio)
    rows = np.maximum(np.round(np.sqrt(area / ratio)), 1).astype(np.int64)
    columns = np.maximum(np.round(np.sqrt(area * ratio)), 1).astype(np.int64)
    is_inside = (rows <= height) & (columns <= width)  # (count, TRIES)
    boxes = np.arange(count)
    first_fit = is_inside.argmax(axis=1)  # number of the first try that fits, or 0
    has_fit = is_inside[boxes, first_fit]
    rows = np.where(has_fit, rows[boxes, first_fit], height)
    columns = np.where(has_fit, columns[boxes, first_fit], width)
    first_row = random.integers(height - rows + 1)
    first_column = random.integers(width - columns + 1)
    return np.stack([first_row, first_column, rows, columns], axis=1)


def _resizing_weights(start: Tensor, size: Tensor, length: int) -> Tensor:
    """Compute the weights by which the rows of boxes are resized to those of a map.

    Bilinear, as ``interpolate`` does it: each new row is a weighted mean of two rows of
    the box. Columns are resized by the same function.

    Args:
        start, size: ``(n,)`` int64, first row and number of rows of each box.
        length: number of rows of the map.

    Returns:
        ``(n, length, length)``: of each box the weight of each old row, along the last
        axis, in each new row.
    """
    size = size.unsqueeze(1)
    middles = torch.arange(length, device=size.device, dtype=torch.float32) + 0.5
    # Of each new row its location in the box, (n, length), and the rows around it.
    location = (middles * size / length - 0.5).clamp_min(0)
    row_before = location.floor().long().minimum(size - 1)
    row_after = (row_before + 1).minimum(size - 1)
    share_after = (location - row_before).unsqueeze(2)
    first_row = start.unsqueeze(1)
    # Counted from the first row of the map, (n, length, length).
    is_before = functional.one_hot(first_row + row_before, length)
    is_after = functional.one_hot(first_row + row_after, length)
    return is_before * (1 - share_after) + is_after * share_after


def crop_and_resize(maps: Tensor, boxes: np.ndarray) -> Tensor:
    """Crop a box of each map and resize it to the size of the map, bilinearly.

    Args:
        maps: ``(n, C, H, W)``.
        boxes: ``(n, 4)`` int64: first row, first column, rows and columns of each.

    Returns:
        ``(n, C, H, W)``, channels-last in memory.
    """
    count, n_channels, height, width = maps.shape
    first_row, first_column, rows, columns = (
        torch.from_numpy(boxes).to(maps.device).unbind(1)
    )
    # ``interpolate`` takes one box for all maps of a batch. Here rows are resized by a
    # product with weights, then columns.
    rows_nhx = maps.permute(0, 2, 3, 1).reshape(count, height, width * n_channels)
    row_weights = _resizing_weights(first_row, rows, height).to(maps)
    maps_nhwc = torch.bmm(row_weights, rows_nhx).view(count, height, width, n_channels)
    column_weights = _resizing_weights(first_column, columns, width).to(maps)
    maps_nhwc = column_weights.unsqueeze(1) @ maps_nhwc
    return maps_nhwc.permute(0, 3, 1, 2)


def random_resized_crops(
    maps: Tensor, scale: float, random: np.random.Generator
) -> Tensor:
    """Crop a random box of each map and resize it to the size of the map.

    Args:
        maps: ``(n, C, H, W)``.
        scale: smallest share of the area of a map that a box has.
        random: of the draws.
    """
    height, width = maps.shape[2:]
    return crop_and_resize(maps, random_boxes(len(maps), height, width, scale, random))


# Strategy and memory


@dataclass(frozen=True)
class MixedMemories:
    """Memories that are replayed.

    Attributes:
        maps: ``(R, C, H, W)``.
        targets: ``(R, classes)``, soft labels.
    """

    maps: Tensor
    targets: Tensor


@dataclass(frozen=True)
class ReplayedLogits:
    """Answers to the memories of a step.

    Attributes:
        logits: ``(R, classes)``, masked.
        targets: ``(R, classes)``, soft labels.
    """

    logits: Tensor
    targets: Tensor


class RemindStrategy(StreamStrategy):
    """REMIND as a strategy.

    It trains P on unquantized maps in experience 1, then on new and replayed ones in
    one step. These are decoded codes, cropped; the replayed ones are mixed in pairs.
    Evaluation uses decoded codes as well.
    """

    # Within a step.
    _replayed_logits: ReplayedLogits | None = None

    @property
    def remind(self) -> "RemindPlugin":
        """The plugin that stores memories."""
        assert isinstance(self.memory, RemindPlugin), "its memory is REMIND's"
        return self.memory

    def make_train_dataloader(self, shuffle: bool = False, **kwargs):
        """Make the loader of ``StreamStrategy``.

        With ``samples_at_a_time``, it is of single images after experience 1.
        """
        if self.remind.samples_at_a_time and self.clock.train_exp_counter > 0:
            self.train_mb_size = 1
        super().make_train_dataloader(shuffle=shuffle, **kwargs)

    def forward(self):
        """Return the logits ``(B, classes)`` of the batch's images from quantized maps.

        In training, labels, maps and codes are held for the plugin that stores
        memories. Before the quantizer is fitted, in experience 1, maps are not
        quantized.
        """
        model = self.model
        quantizer = self.remind.storage_policy.quantizer
        if not quantizer.fitted:
            return super().forward()
        maps = model.features(self.mb_x)  # (B, C, H, W)
        with model.stopwatch.measure("search"):
            codes = quantizer.encode(maps)
        if not self.is_training:
            return model.classify(quantizer.decode(codes))
        # What is stored is the codes; ``refuse_pixels`` raises ValueError.
        self.remind.batch = StreamBatch(
            labels=self.mb_y, feature_map=maps, codes=codes, pixels=refuse_pixels
        )
        return self._logits_beside_memories(codes)

    def _logits_beside_memories(self, codes: Tensor) -> Tensor:
        """Return the logits of new images, and keep those of memories for the loss.

        Decoded maps of the new images pass the plastic layers together with mixtures of
        memories, whose logits ``criterion`` takes.

        Args:
            codes: of the new images, as the quantizer encodes them.

        Returns:
            ``(B, classes)`` of the new images.
        """
        model = self.model
        with model.stopwatch.measure("replay"):
            decoded = self.remind.storage_policy.quantizer.decode(codes)
            new_maps = self._crop(decoded)
            memories = self._mixed_memories(len(new_maps))
        logits = model.classify(torch.cat([new_maps, memories.maps]))
        self._replayed_logits = ReplayedLogits(
            logits=self.seen_classes.mask(logits[len(new_maps) :]),
            targets=memories.targets,
        )
        return logits[: len(new_maps)]

    def criterion(self):
        """Compute the loss of the new images and the memories of the step."""
        replayed = self._replayed_logits
        if replayed is None:
            return super().criterion()
        self._replayed_logits = None
        n_classes = replayed.logits.shape[1]
        new_targets = functional.one_hot(self.mb_y, n_classes).to(replayed.targets)
        logits = torch.cat([self.mb_output, replayed.logits])
        return self._criterion(logits, torch.cat([new_targets, replayed.targets]))

    def _crop(self, maps: Tensor) -> Tensor:
        """Crop and resize ``(n, C, H, W)`` maps at random, if crops are on."""
        scale = self.remind.crop_scale
        if scale == 1:
            return maps
        random = self.remind.storage_policy.slots.random
        return random_resized_crops(maps, scale, random)

    def _mixed_memories(self, new: int) -> MixedMemories:
        """Draw memories for a step with ``new`` images, and mix them in pairs (mixup).

        Maps and one-hot labels of a pair are ``w * first + (1 - w) * second``, with
        ``w`` of a beta distribution. There are ``replays_per_image`` of them for each
        new image, or fewer if the buffer holds too few.

        Args:
            new: number of new images of the step.

        Returns:
            Maps ``(R, C, H, W)`` and soft labels ``(R, classes)``.
        """
        plugin = self.remind
        buffer = plugin.storage_policy
        per_image = plugin.replays_per_image
        images_in_mixture = 2 if plugin.mixup_alpha else 1
        count = min(new * per_image, len(buffer) // images_in_mixture)  # R
        slots = buffer.draw(images_in_mixture * count)
        maps, labels = buffer.replay(slots, self.model)
        maps = self._crop(maps)
        targets = functional.one_hot(labels, self.model.n_classes).to(maps.dtype)
        if not plugin.mixup_alpha:
            return MixedMemories(maps=maps, targets=targets)
        # The maps that are replayed for a new image have a weight in common.
        alpha = plugin.mixup_alpha
        weights_of_images = buffer.slots.random.beta(alpha, alpha, size=new)
        weights_of_maps = weights_of_images.repeat(per_image)[:count]
        weights = torch.from_numpy(weights_of_maps).to(maps).unsqueeze(1)  # (R, 1)
        map_weights = weights.view(-1, 1, 1, 1)
        # The first half of the memories is mixed with the second.
        mixed_maps = map_weights * maps[:count] + (1 - map_weights) * maps[count:]
        mixed_targets = weights * targets[:count] + (1 - weights) * targets[count:]
        return MixedMemories(maps=mixed_maps, targets=mixed_targets)


def refuse_pixels(positions: Sequence[int]) -> Tensor:
    """Raise ``ValueError``, because codes are stored, not images.

    It stands in batches for the function that reads pixels.
    """
    raise ValueError("REMIND stores codes; its batches have no pixels")


@register(
    "remind",
    summary="product-quantizer codes, replayed with crops and mixup",
    source=(
        "Hayes et al., REMIND Your Neural Network to Prevent Catastrophic Forgetting, "
        "ECCV 2020"
    ),
    stores="codes of feature maps, and the tables of centroids",
    item_bytes=lambda model, method: quantizer_of(model, method).map_bytes(
        *model.map_shape[1:]
    ),
    fixed_bytes=lambda model, method, n_classes: (
        quantizer_of(model, method).table_bytes
    ),
)
class RemindPlugin(StoringPlugin):
    """REMIND's memory.

    Fits the tables and stores the first codes after experience 1, then stores every new
    image.

    Args:
        recipe: what the strategy is built from.
        sub_quantizers: groups of channels, each with a table; the largest divisor of C
            up to this number is used.
        centroids: rows of a table; at most 16 for groups of 1 channel (4 bits per
            value).
        fit_vectors: number of locations of the first experience's maps to fit k-means
            on (256 per centroid, the most that faiss uses), ``4 * C`` bytes each. The
            maps are computed once more after that experience.
        samples_at_a_time: take one optimiser step per new image, with ``replays``
            memories, as the authors do, instead of one per batch of the stream, with
            ``batch_replays`` memories for each new image.
        replays: memories per new image with ``samples_at_a_time``.
        batch_replays: memories per new image without it; with 2, a step costs about as
            much as CRUMB's two. The loss is the mean over all rows in both cases.
        crop_scale: smallest share of a map's area that a crop keeps; 1 turns cropping
            off.
        mixup_alpha: parameter of the Beta distribution of the mixing weight; 0 turns
            mixup off.
        weight_decay: weight decay of SGD.
    """

    buffer = PQCodeBuffer
    strategy = RemindStrategy
    storage_policy: PQCodeBuffer

    def __init__(
        self,
        recipe: Recipe,
        *,
        sub_quantizers: Count = 32,
        centroids: Centroids = 256,
        fit_vectors: Large = 65_536,
        samples_at_a_time: bool = False,
        replays: Count = 50,
        batch_replays: Count = 2,
        crop_scale: Factor = 4 / 13,
        mixup_alpha: NotNegative = 0.1,
        weight_decay: NotNegative = 1e-5,
    ):
        channels = recipe.model.map_shape[0]
        quantizer = make_quantizer(channels, sub_quantizers, centroids)
        buffer = PQCodeBuffer(
            recipe.mem_size, seed=recipe.seed, quantizer=quantizer.to(recipe.device)
        )
        super().__init__(buffer)
        self.seed = recipe.seed
        self.fit_vectors = fit_vectors
        self.samples_at_a_time = samples_at_a_time
        self.replays = replays
        self.batch_replays = batch_replays
        self.crop_scale = crop_scale
        self.mixup_alpha = mixup_alpha
        self.sgd_arguments = {"weight_decay": weight_decay}

    @property
    def replays_per_image(self) -> int:
        """Maps that are replayed for each new image of a step, mixed with mixup."""
        return self.replays if self.samples_at_a_time else self.batch_replays

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the centroids."""
        return self.storage_policy.quantizer.table_bytes

    # Once the quantizer is fitted, the strategy sets the batch, with its own codes.

    def before_forward(self, strategy, **kwargs):
        """Record the maps, until the quantizer is fitted."""
        if not self.storage_policy.quantizer.fitted:
            super().before_forward(strategy, **kwargs)

    def after_forward(self, strategy, **kwargs):
        """Hold the batch, until the quantizer is fitted and the strategy sets it."""
        if not self.storage_policy.quantizer.fitted:
            super().after_forward(strategy, **kwargs)

    def offers(self, strategy: Any) -> bool:
        """Return whether a batch is stored: once the quantizer is fitted.

        Images are stored in the last epoch alone, each once.
        """
        return self.storage_policy.quantizer.fitted and super().offers(strategy)

    def after_training_exp(self, strategy, **kwargs):
        """Fit the quantizer after the first experience, and store images of it.

        An experience without images is none.
        """
        if self.storage_policy.quantizer.fitted:
            super().after_training_exp(strategy, **kwargs)
            return
        if not len(strategy.adapted_dataset):
            return
        self._fit_quantizer(strategy)
        self._store_first_experience(strategy)
        strategy.optimizer.state.clear()  # a fresh optimiser for the stream

    def _fit_quantizer(self, strategy) -> None:
        """Fit the tables on locations of images evenly spread over the experience."""
        buffer = self.storage_policy
        n_images = len(strategy.adapted_dataset)
        n_used = min(n_images, self.fit_vectors)
        positions = [index * n_images // n_used for index in range(n_used)]
        # A loader draws a seed; with a generator of its own, the tables leave the
        # global RNG state unchanged.
        batches = batches_at(positions, strategy, generator=torch.Generator())
        maps = (batch.feature_map for batch in batches)
        vectors = draw_locations(
            maps, n_images=n_used, most=self.fit_vectors, random=buffer.slots.random
        )
        buffer.quantizer.fit(vectors, seed=self.seed)

    def _store_first_experience(self, strategy) -> None:
        """Store images of the first experience, balanced over its classes.

        As in the authors' code, the buffer size holds for the first classes too; the
        paper's port keeps all images.
        """
        buffer = self.storage_policy
        labels = labels_of(strategy.experience.dataset)
        positions = balanced_choice(labels, buffer.max_size, buffer.slots.random)
        for batch in batches_at(positions, strategy):
            buffer.store(batch, strategy.model)

    def answer_state(self, strategy):
        """Return the centroids, which images under test are encoded with."""
        return self.storage_policy.quantizer.state_dict()

    def load_answer_state(self, state):
        """Load what ``answer_state`` returned."""
        self.storage_policy.quantizer.load_state_dict(state)
