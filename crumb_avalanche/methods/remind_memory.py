"""REMIND's memory: product-quantizer codes, the sample they are fitted on, rules that balance them, crops."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.memory.packing import pack, unpack
from crumb_avalanche.memory.product_quantizer import ProductQuantizer
from crumb_avalanche.memory.selection import SelectionRule
from crumb_avalanche.models.codebook import largest_divisor
from crumb_avalanche.training.storage_policies import CompactBuffer

RATIOS = (3 / 4, 4 / 3)  # of width to height, as usual for images
TRIES = 10


def make_quantizer(channels: int, sub_quantizers: int = 32, centroids: int = 256) -> ProductQuantizer:
    """Make an empty product quantizer; its number of groups is the largest divisor of the channels up to a limit.

    Groups of one channel get at most 16 centroids: 4 bits a value, as with 256 centroids for two channels.
    """
    groups = largest_divisor(channels, sub_quantizers)
    return ProductQuantizer(channels, groups, min(centroids, 16 ** min(channels // groups, 2)))


class LocationSample:
    """Random locations of images evenly spread over an experience, on which the quantizer is fitted.

    Of ``images`` images about ``most`` locations are drawn, equally many of each. ``vectors`` are ``(N, C)`` float32.
    """

    def __init__(self, images: int, most: int, random: np.random.Generator):
        self.images, self.most, self.random = images, most, random
        self.vectors: Tensor | None = None
        self._position = self._filled = 0

    def take(self, maps: Tensor) -> None:
        """Sample the next ``(B, C, H, W)`` maps of the experience."""
        wanted = min(self.images, self.most)
        numbers = range(self._position, self._position + len(maps))
        kept = [n - self._position for n in numbers if (n + 1) * wanted // self.images > n * wanted // self.images]
        self._position += len(maps)
        flat = maps[kept].permute(0, 2, 3, 1).flatten(1, 2)  # (n, H * W, C)
        each = min(flat.shape[1], -(-self.most // wanted))
        places = torch.from_numpy(self.random.random(flat.shape[:2]).argsort(axis=1)[:, :each]).to(flat.device)
        drawn = flat[torch.arange(len(flat), device=flat.device).unsqueeze(1), places].flatten(0, 1)
        if self.vectors is None:
            self.vectors = torch.zeros(wanted * each, maps.shape[1])
        self.vectors[self._filled : self._filled + len(drawn)] = drawn.cpu()
        self._filled += len(drawn)

    def state_dict(self) -> dict:
        """The vectors, and the place in the experience; the generator is the buffer's."""
        return {name: value for name, value in vars(self).items() if name not in ("most", "random")}

    def load_state_dict(self, state: dict) -> None:
        """Load what ``state_dict`` returned."""
        vars(self).update({**state, "vectors": None if state["vectors"] is None else state["vectors"].clone()})


class EvictLargest(SelectionRule):
    """Stores every image; a full buffer gives up a random memory of the largest class, maybe the new one (REMIND)."""

    evenly_spread = False

    def choose(self, slots, labels):
        chosen = []
        for position, label in enumerate(labels):
            if not slots.free:
                # The new image counts, so its class may be the largest, and it may be the one given up.
                sizes = {other: slots.count(other) + (other == label) for other in {*slots.classes, label}}
                largest = max(sizes.values())
                victims = sorted(other for other, size in sizes.items() if size == largest)
                victim = victims[int(slots.random.integers(len(victims)))]
                if victim == label and int(slots.random.integers(largest)) == 0:
                    continue
                slots.release(victim)
            chosen.append((position, slots.take(label)))
        return chosen


class PQCodeBuffer(CompactBuffer):
    """Product-quantizer codes, one byte a code (5,408 for 512x13x13 at 32 sub-quantizers of 256)."""

    def __init__(self, mem_size: int, rule: SelectionRule | None = None, seed: int = 0, *, quantizer: ProductQuantizer):
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
        return pack(codes.permute(0, 2, 3, 1).reshape(len(positions), -1), self.quantizer.bits)

    def to_maps(self, rows, model):
        groups, (_, height, width) = self.quantizer.sub_quantizers, model.map_shape
        codes = unpack(rows, self.quantizer.bits, groups * height * width)
        return self.quantizer.decode(codes.view(-1, height, width, groups).permute(0, 3, 1, 2))

    def draw(self, count: int) -> Tensor:
        """Draw different slots uniformly, ``(min(count, memories),)`` int64."""
        held = (self.labels >= 0).nonzero().squeeze(1)
        places = self.slots.random.choice(len(held), size=min(count, len(held)), replace=False)
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
    # The first of each class come before the second of any; the sort is stable, so the order within a turn is random.
    return sorted(position for _, position in sorted(turns, key=lambda pair: pair[0])[:count])


def random_boxes(count: int, height: int, width: int, scale: float, random: np.random.Generator) -> np.ndarray:
    """Draw boxes inside a map, ``(count, 4)`` int64: first row, first column, rows, columns.

    The area is uniform between ``scale`` and 1 times that of the map, the ratio log-uniform between 3/4 and 4/3. A box
    that does not fit is drawn again; after ten tries it is the whole map.
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
    place = ((torch.arange(length, device=size.device) + 0.5) * size / length - 0.5).clamp_min(0)
    low = place.floor().long().minimum(size - 1)
    high = (low + 1).minimum(size - 1)
    share = (place - low).unsqueeze(2)
    first = start.unsqueeze(1)
    lower, upper = functional.one_hot(first + low, length), functional.one_hot(first + high, length)
    return lower * (1 - share) + upper * share


def crop_and_resize(maps: Tensor, boxes: np.ndarray) -> Tensor:
    """Crop a box of each ``(n, C, H, W)`` map and resize it to the size of the map, bilinearly."""
    count, channels, height, width = maps.shape
    top, left, rows, columns = torch.from_numpy(boxes).to(maps.device).unbind(1)
    values = maps.permute(0, 2, 3, 1).reshape(count, height, width * channels)
    values = torch.bmm(_weights(top, rows, height).to(maps), values).view(count, height, width, channels)
    values = _weights(left, columns, width).to(maps).unsqueeze(1) @ values
    return values.permute(0, 3, 1, 2)


def random_resized_crops(maps: Tensor, scale: float, random: np.random.Generator) -> Tensor:
    """Crop a random box of each map and resize it to the size of the map."""
    return crop_and_resize(maps, random_boxes(len(maps), *maps.shape[2:], scale, random))
