"""REMIND: feature maps as product-quantizer codes, replayed with crops and mixup.

Defaults are those of the authors' ImageNet script and of the CRUMB paper's port to
SqueezeNet's 512x13x13 maps.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Subset

from crumb_avalanche.memory.buffers import MemoryBuffer, StreamBatch
from crumb_avalanche.memory.packing import pack, unpack
from crumb_avalanche.memory.product_quantizer import ProductQuantizer
from crumb_avalanche.memory.selection import SelectionRule
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.models.codebook import largest_divisor
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import (
    NEVER,
    Count,
    Factor,
    NotNegative,
    Range,
)
from crumb_avalanche.training.avalanche_fixes import labels_of
from crumb_avalanche.training.batch_plugin import StoringPlugin
from crumb_avalanche.training.stream_strategy import StreamStrategy

Large = Annotated[int, Range(1, NEVER)]
RATIOS = (3 / 4, 4 / 3)  # of width to height, as usual for images
TRIES = 10


def make_quantizer(
    channels: int, sub_quantizers: int = 32, centroids: int = 256
) -> ProductQuantizer:
    """Make an empty product quantizer; its number of groups is the largest divisor of the channels up to a limit.

    Groups of one channel get at most 16 centroids: 4 bits a value, as with 256
    centroids for two channels.
    """
    groups = largest_divisor(channels, sub_quantizers)
    return ProductQuantizer(
        channels, groups, min(centroids, 16 ** min(channels // groups, 2))
    )


def some_locations(
    maps: Iterable[Tensor], images: int, most: int, random: np.random.Generator
) -> Tensor:
    """Draw about ``most`` locations of the ``(B, C, H, W)`` maps of some images, equally many of each.

    Returns:
        ``(N, C)`` float32, on which the quantizer is fitted.
    """
    vectors, filled = torch.zeros(0), 0
    for some in maps:
        flat = some.permute(0, 2, 3, 1).flatten(1, 2)  # (B, H * W, C)
        each = min(flat.shape[1], -(-most // images))
        places = torch.from_numpy(
            random.random(flat.shape[:2]).argsort(axis=1)[:, :each]
        ).to(flat.device)
        drawn = flat[
            torch.arange(len(flat), device=flat.device).unsqueeze(1), places
        ].flatten(0, 1)
        if not filled:
            vectors = torch.zeros(images * each, some.shape[1])
        vectors[filled : filled + len(drawn)] = drawn.cpu()
        filled += len(drawn)
    return vectors


class EvictLargest(SelectionRule):
    """Stores every image; a full buffer gives up a random memory of the largest class, maybe the new one (REMIND)."""

    evenly_spread = False

    def choose(self, slots, labels):
        chosen = []
        for position, label in enumerate(labels):
            if not slots.free:
                # The new image counts, so its class may be the largest, and it may be
                # the one given up.
                sizes = {
                    other: slots.count(other) + (other == label)
                    for other in {*slots.classes, label}
                }
                largest = max(sizes.values())
                victims = sorted(
                    other for other, size in sizes.items() if size == largest
                )
                victim = victims[int(slots.random.integers(len(victims)))]
                if victim == label and int(slots.random.integers(largest)) == 0:
                    continue
                slots.release(victim)
            chosen.append((position, slots.take(label)))
        return chosen


class PQCodeBuffer(MemoryBuffer):
    """Product-quantizer codes, one byte a code (5,408 for 512x13x13 at 32 sub-quantizers of 256)."""

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
    def item_bytes(model):
        return make_quantizer(model.map_shape[0]).map_bytes(*model.map_shape[1:])

    def to_rows(self, batch, positions, model):
        if batch.codes is None:
            codes = self.quantizer.encode(batch.feature_map[positions])
        else:
            codes = batch.codes[positions]
        return pack(
            codes.permute(0, 2, 3, 1).reshape(len(positions), -1), self.quantizer.bits
        )

    def to_maps(self, rows, model):
        groups, (_, height, width) = self.quantizer.sub_quantizers, model.map_shape
        codes = unpack(rows, self.quantizer.bits, groups * height * width)
        return self.quantizer.decode(
            codes.view(-1, height, width, groups).permute(0, 3, 1, 2)
        )

    def draw(self, count: int) -> Tensor:
        """Draw different slots uniformly, ``(min(count, memories),)`` int64."""
        held = (self.labels >= 0).nonzero().squeeze(1)
        places = self.slots.random.choice(
            len(held), size=min(count, len(held)), replace=False
        )
        return held[torch.from_numpy(places)]

    def state_dict(self):
        return super().state_dict() | {"centroids": self.quantizer.centroids}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.quantizer.load_state_dict({"centroids": state["centroids"]})


def balanced_choice(labels: list[int], count: int, random) -> list[int]:
    """Draw at most ``count`` positions of labels, ascending; the numbers of the classes differ by at most one."""
    order = random.permutation(len(labels)).tolist()
    rank: dict[int, int] = {}
    turns = []
    for position in order:
        turn = rank.get(labels[position], 0)
        rank[labels[position]] = turn + 1
        turns.append((turn, position))
    # The first of each class come before the second of any; the sort is stable, so the
    # order within a turn is random.
    return sorted(
        position for _, position in sorted(turns, key=lambda pair: pair[0])[:count]
    )


def random_boxes(
    count: int, height: int, width: int, scale: float, random: np.random.Generator
) -> np.ndarray:
    """Draw boxes inside a map, ``(count, 4)`` int64: first row, first column, rows, columns.

    The area is uniform between ``scale`` and 1 times that of the map, the ratio
    log-uniform between 3/4 and 4/3. A box that does not fit is drawn again; after ten
    tries it is the whole map.
    """
    area = random.uniform(scale, 1, (count, TRIES)) * height * width
    ratio = np.exp(random.uniform(*np.log(RATIOS), (count, TRIES)))
    rows = np.maximum(np.round(np.sqrt(area / ratio)), 1).astype(np.int64)
    columns = np.maximum(np.round(np.sqrt(area * ratio)), 1).astype(np.int64)
    fits = (rows <= height) & (columns <= width)
    first = fits.argmax(axis=1)
    every = np.arange(count)
    rows = np.where(fits[every, first], rows[every, first], height)
    columns = np.where(fits[every, first], columns[every, first], width)
    top = random.integers(height - rows + 1)
    left = random.integers(width - columns + 1)
    return np.stack([top, left, rows, columns], axis=1)


def _weights(start: Tensor, size: Tensor, length: int) -> Tensor:
    """Compute ``(n, length, length)`` weights of each old row (last axis) in each new one, as ``interpolate`` does."""
    size = size.unsqueeze(1)
    place = (
        (torch.arange(length, device=size.device) + 0.5) * size / length - 0.5
    ).clamp_min(0)
    low = place.floor().long().minimum(size - 1)
    high = (low + 1).minimum(size - 1)
    share = (place - low).unsqueeze(2)
    first = start.unsqueeze(1)
    lower, upper = (
        functional.one_hot(first + low, length),
        functional.one_hot(first + high, length),
    )
    return lower * (1 - share) + upper * share


def crop_and_resize(maps: Tensor, boxes: np.ndarray) -> Tensor:
    """Crop a box of each ``(n, C, H, W)`` map and resize it to the size of the map, bilinearly."""
    count, channels, height, width = maps.shape
    top, left, rows, columns = torch.from_numpy(boxes).to(maps.device).unbind(1)
    values = maps.permute(0, 2, 3, 1).reshape(count, height, width * channels)
    values = torch.bmm(_weights(top, rows, height).to(maps), values).view(
        count, height, width, channels
    )
    values = _weights(left, columns, width).to(maps).unsqueeze(1) @ values
    return values.permute(0, 3, 1, 2)


def random_resized_crops(
    maps: Tensor, scale: float, random: np.random.Generator
) -> Tensor:
    """Crop a random box of each map and resize it to the size of the map."""
    return crop_and_resize(
        maps, random_boxes(len(maps), *maps.shape[2:], scale, random)
    )


class RemindStrategy(StreamStrategy):
    """REMIND as a strategy: trains P on unquantized maps in experience 1, then on new and replayed ones in one step.

    New and replayed maps are decoded codes, cropped; the replayed ones are mixed in
    pairs. Evaluation uses decoded codes as well.
    """

    _replayed: tuple[Tensor, Tensor] | None = (
        None  # logits and soft labels of memories, within a step
    )

    def make_train_dataloader(self, **kwargs):
        """Make the loader of ``StreamStrategy``; with ``samples_at_a_time``, of single images after experience 1."""
        if self.memory.samples_at_a_time and self.clock.train_exp_counter > 0:
            self.train_mb_size = 1
        super().make_train_dataloader(**kwargs)

    def forward(self):
        model, quantizer = self.model, self.storage_policy.quantizer
        if not quantizer.fitted:
            return super().forward()
        maps = model.features(self.mb_x)
        with model.stopwatch.measure("search"):
            codes = quantizer.encode(maps)
        if not self.is_training:
            return model.classify(quantizer.decode(codes))
        with model.stopwatch.measure("replay"):
            new = self._crop(quantizer.decode(codes))
            old, targets = self._mixed_memories(len(new))
        logits = model.classify(torch.cat([new, old]))
        self.memory.batch = StreamBatch(self.mb_y, maps, codes, None)
        self._replayed = self.seen_classes.mask(logits[len(new) :]), targets
        return logits[: len(new)]

    def criterion(self):
        if self._replayed is None:
            return super().criterion()
        logits, targets = self._replayed
        self._replayed = None
        new = functional.one_hot(self.mb_y, logits.shape[1]).to(targets)
        return self._criterion(
            torch.cat([self.mb_output, logits]), torch.cat([new, targets])
        )

    def _crop(self, maps: Tensor) -> Tensor:
        if self.memory.crop_scale == 1:
            return maps
        return random_resized_crops(
            maps, self.memory.crop_scale, self.storage_policy.slots.random
        )

    def _mixed_memories(self, new: int) -> tuple[Tensor, Tensor]:
        """Draw maps ``(R, C, H, W)`` and soft labels ``(R, classes)``; ``R`` is less if there are too few memories."""
        memory, buffer = self.memory, self.storage_policy
        alpha, each = (
            memory.mixup_alpha,
            memory.replays if memory.samples_at_a_time else memory.batch_replays,
        )
        parts = 2 if alpha else 1
        count = min(new * each, len(buffer) // parts)
        maps, labels = buffer.replay(buffer.draw(parts * count), self.model)
        maps, targets = (
            self._crop(maps),
            functional.one_hot(labels, self.model.n_classes).to(maps.dtype),
        )
        if not alpha:
            return maps, targets
        # One weight for the memories of a new image, as with samples_at_a_time.
        weights = buffer.slots.random.beta(alpha, alpha, size=new).repeat(each)[:count]
        weights = torch.from_numpy(weights).to(maps)
        share = weights.view(-1, 1, 1, 1)
        maps = share * maps[:count] + (1 - share) * maps[count:]
        share = weights.view(-1, 1)
        return maps, share * targets[:count] + (1 - share) * targets[count:]


def quantizer_of(model: SplitModel, settings: Any) -> ProductQuantizer:
    """Make an empty product quantizer for the maps of a model, with the settings of REMIND."""
    return make_quantizer(
        model.map_shape[0], settings.sub_quantizers, settings.centroids
    )


@register(
    "remind",
    summary="product-quantizer codes, replayed with crops and mixup",
    source="Hayes et al., REMIND Your Neural Network to Prevent Catastrophic Forgetting, ECCV 2020",
    stores="codes of feature maps, and the tables of centroids",
    item_bytes=lambda model, method: quantizer_of(model, method).map_bytes(
        *model.map_shape[1:]
    ),
    fixed_bytes=lambda model, method, n_classes: (
        quantizer_of(model, method).table_bytes
    ),
)
class RemindPlugin(StoringPlugin):
    """REMIND's memory: fits the tables and stores the first codes after experience 1, then stores every new image.

    Attributes:
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

    sub_quantizers: Count = 32
    centroids: Annotated[int, Range(2, 256)] = 256
    fit_vectors: Large = 65_536
    samples_at_a_time: bool = False
    replays: Count = 50
    batch_replays: Count = 2
    crop_scale: Factor = 4 / 13
    mixup_alpha: NotNegative = 0.1
    weight_decay: NotNegative = 1e-5

    buffer, strategy = PQCodeBuffer, RemindStrategy

    def __init__(self, recipe: Recipe):
        quantizer = quantizer_of(recipe.model, recipe.method).to(recipe.device)
        super().__init__(
            PQCodeBuffer(recipe.mem_size, seed=recipe.seed, quantizer=quantizer)
        )
        self.seed = recipe.seed
        self.sgd = {"weight_decay": recipe.method.weight_decay}

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the centroids."""
        return self.storage_policy.quantizer.table_bytes

    def before_forward(self, strategy, **kwargs):
        if not self.storage_policy.quantizer.fitted:
            super().before_forward(strategy, **kwargs)

    def after_forward(self, strategy, **kwargs):
        if (
            not self.storage_policy.quantizer.fitted
        ):  # else the strategy sets the batch, with its own codes
            super().after_forward(strategy, **kwargs)

    def offers(self, strategy):
        return self.storage_policy.quantizer.fitted

    def after_training_exp(self, strategy, **kwargs):
        buffer, data = self.storage_policy, strategy.adapted_dataset
        if buffer.quantizer.fitted:
            return super().after_training_exp(strategy, **kwargs)

        def batches_of(
            places: list[int], generator: torch.Generator | None = None
        ) -> Iterator[tuple[Tensor, Tensor]]:
            loader = DataLoader(
                Subset(data, places),
                batch_size=strategy.train_mb_size,
                generator=generator,
            )
            for images, targets, *_ in loader:
                yield strategy.model.features(images.to(strategy.device)), targets

        count = min(
            len(data), self.fit_vectors
        )  # images, evenly spread over the experience
        # A loader draws a seed; with a generator of its own, the tables leave the
        # global RNG state unchanged.
        looks = batches_of(
            [place * len(data) // count for place in range(count)], torch.Generator()
        )
        maps = (some for some, _ in looks)
        buffer.quantizer.fit(
            some_locations(maps, count, self.fit_vectors, buffer.slots.random),
            self.seed,
        )
        # As in the authors' code, the buffer size holds for the first classes too; the
        # paper's port keeps all images.
        labels = labels_of(strategy.experience.dataset)
        for some, targets in batches_of(
            balanced_choice(labels, buffer.max_size, buffer.slots.random)
        ):
            buffer.store(StreamBatch(targets, some, None, None), strategy.model)
        strategy.optimizer.state.clear()  # a fresh optimiser for the stream

    def answer_state(self, strategy):
        return self.storage_policy.quantizer.state_dict()

    def load_answer_state(self, state):
        self.storage_policy.quantizer.load_state_dict(state)
