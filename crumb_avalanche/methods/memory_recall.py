"""Memory Recall (MeRec): a Gaussian of feature maps for each class, replayed.

Maps are drawn from it for replay, as in the CRUMB paper, where it replaces the memory
blocks at the same layer (table 4, "MeRec replay").
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from crumb_avalanche.memory.buffers import MemoryBuffer, StreamBatch
from crumb_avalanche.memory.selection import make_rule
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import InRange
from crumb_avalanche.training.crumb import CRUMBStrategy
from crumb_avalanche.training.stream_strategy import StreamStrategy


@dataclass(frozen=True)
class MemoryRecallSettings(InRange):
    """Settings of Memory Recall.

    Attributes:
        per_channel: store a mean and a deviation for each channel (4,104 bytes per
            class at 512), instead of for each value of the map as in the paper (692,232
            bytes per class at 512x13x13: 15 images buy 3 classes).
        clamp: set negative draws to 0 if the class never had a negative value (maps
            after a ReLU), instead of keeping them as in the paper.
    """

    per_channel: bool = True
    clamp: bool = True

    def n_means(self, model: SplitModel) -> int:
        """Return the number of means of one class, and of its deviations."""
        n_channels, height, width = model.map_shape
        if self.per_channel:
            return n_channels
        return n_channels * height * width

    def row_length(self, model: SplitModel) -> int:
        """Return the number of float32 of one class; see ``GaussianBuffer``."""
        return 2 * self.n_means(model) + 2


class GaussianRows(NamedTuple):
    """The parts of rows of a ``GaussianBuffer``, which share the memory of the rows.

    Attributes:
        means, deviations: of the values of a map, ``(..., D)``.
        lowest: lowest value of all maps of the class, ``(..., 1)``.
        images: number of images of the class, ``(..., 1)``.
    """

    means: Tensor
    deviations: Tensor
    lowest: Tensor
    images: Tensor

    @classmethod
    def of_rows(cls, rows: Tensor) -> "GaussianRows":
        """Split ``(..., 2 D + 2)`` rows of a ``GaussianBuffer``, or one, into parts."""
        length = (rows.shape[-1] - 2) // 2
        return cls(*rows.split([length, length, 1, 1], dim=-1))


class GaussianBuffer(MemoryBuffer):
    """One row a class: means, deviations, the lowest value and the number of images.

    ``4 * (2 * n_means + 2)`` bytes.

    Args:
        mem_size: number of classes.
        seed: of the draws.
        settings: default ``MemoryRecallSettings()``.

    Attributes:
        rows: ``(mem_size, 2 * n_means + 2)`` float32. Counts are exact up to 2**24
            images a class.
    """

    def __init__(
        self, mem_size: int, seed: int = 0, settings: MemoryRecallSettings | None = None
    ):
        super().__init__(mem_size, seed=seed)
        self.settings = MemoryRecallSettings() if settings is None else settings

    @staticmethod
    def item_bytes(model: SplitModel) -> int:
        """Return the bytes of a class, with the default settings."""
        return 4 * MemoryRecallSettings().row_length(model)

    @torch.no_grad()
    def store(self, batch: StreamBatch, model: SplitModel) -> int:
        """Add a batch to the statistics of its classes; return the number of images."""
        if self.rows is None:
            shape = (self.max_size, self.settings.row_length(model))
            self.rows = torch.zeros(shape, dtype=torch.float32)
        for label in batch.labels.unique().tolist():
            is_new_class = not self.slots.count(label)
            if is_new_class:
                self._write_labels([self.slots.take(label)], [label])
            slot = self.slots.by_class[label][0]
            maps = batch.feature_map[batch.labels == label].cpu()
            self._absorb_maps(self.rows[slot], maps)
        return len(batch.labels)

    def _absorb_maps(self, row: Tensor, maps: Tensor) -> None:
        """Add feature maps to the Gaussian of their class, in float64.

        With the share ``s`` of the new images and the difference ``d`` of both means,
        the merged mean is ``old + s d`` and the merged variance ``(1 - s) old + s new +
        s (1 - s) d^2`` (Chan et al., 1979).

        Args:
            row: means, deviations, lowest value and number of images of the class, one
                after the other, float32; changed in place.
            maps: ``(n, C, H, W)`` of new images.
        """
        samples = maps.permute(0, 2, 3, 1).double()  # (n, H, W, C)
        if self.settings.per_channel:
            samples = samples.flatten(0, 2)  # each location is a sample
        else:
            samples = samples.flatten(1)  # each map is a sample
        gaussian = GaussianRows.of_rows(row)  # views of the row
        old_images = float(gaussian.images)
        # Of the new images among all; every image has as many samples.
        share = len(maps) / (old_images + len(maps))
        difference = samples.mean(0) - gaussian.means
        old_variance = gaussian.deviations.double().square()
        new_variance = samples.var(0, correction=0)
        variance = (1 - share) * old_variance + share * new_variance
        variance = variance + share * (1 - share) * difference.square()
        gaussian.deviations.copy_(variance.sqrt())
        gaussian.means.copy_(gaussian.means + share * difference)
        lowest = float(maps.min())
        if old_images:
            lowest = min(lowest, float(gaussian.lowest))
        gaussian.lowest.fill_(lowest)
        gaussian.images.add_(len(maps))

    def to_rows(
        self, batch: StreamBatch, positions: Sequence[int], model: SplitModel
    ) -> Tensor:
        """Raise NotImplementedError: rows are of classes, not of images."""
        raise NotImplementedError(
            "a row of this buffer is a class, not an image: call store"
        )

    def to_maps(self, rows: Tensor, model: SplitModel) -> Tensor:
        """Draw a new feature map for every row, from the Gaussian of its class.

        Args:
            rows: ``(n, row_length)`` float32: means, deviations, lowest value and
                number of images of a class each.
            model: gives the shape of the maps.

        Returns:
            ``(n, C, H, W)`` float32.
        """
        n_channels, height, width = model.map_shape
        n_maps = len(rows)
        gaussians = GaussianRows.of_rows(rows)
        shape_nhwc = (n_maps, height, width, n_channels)
        shape_of_means = shape_nhwc
        if self.settings.per_channel:  # alike at all locations
            shape_of_means = (n_maps, 1, 1, n_channels)
        noise = self.slots.random.standard_normal(shape_nhwc, dtype=np.float32)
        deviations = gaussians.deviations.view(shape_of_means)
        spread = torch.from_numpy(noise).to(rows.device) * deviations
        maps_nhwc = spread + gaussians.means.view(shape_of_means)
        if self.settings.clamp:
            # Maps behind a ReLU are never negative.
            floor = torch.where(gaussians.lowest >= 0, 0.0, -torch.inf)
            maps_nhwc = maps_nhwc.maximum(floor.view(-1, 1, 1, 1))
        return maps_nhwc.permute(0, 3, 1, 2)


@register(
    "memory_recall",
    summary="maps drawn from a Gaussian of each class, replayed",
    source=(
        "Zhang et al., Memory Recall: A Simple Neural Network Training Framework "
        "Against Catastrophic Forgetting"
    ),
    stores="means and deviations of feature maps, for each class",
    settings=MemoryRecallSettings,
    buffer=GaussianBuffer,
    item_bytes=lambda model, method: 4 * method.row_length(model),
    each_class=True,
)
def build_memory_recall(recipe: Recipe) -> StreamStrategy:
    """Build CRUMB's two steps with maps drawn from class Gaussians in the replay step.

    The plastic layers take feature maps as they are: the loss of maps from a codebook
    has no weight. ``selection_rule`` and ``replay_compute``, which a preset may give to
    all methods, have no effect: every image counts in a Gaussian, and replay has its
    number of steps.

    Args:
        recipe: model, settings, and ``mem_size``, the Gaussians that the budget buys.

    Raises:
        ValueError: the budget does not hold a Gaussian for each class, or there is no
            selection rule of that name.
    """
    if recipe.mem_size < recipe.n_classes:
        advice = "raise the budget"
        if not recipe.method.per_channel:
            advice += ", or leave per_channel on"
        raise ValueError(
            f"the budget buys {recipe.mem_size} class Gaussians, but the stream has "
            f"{recipe.n_classes} classes; {advice}"
        )
    make_rule(recipe.settings.selection_rule)  # refuses an unknown name
    replay = replace(recipe.settings, replay_compute=None).replay
    return CRUMBStrategy(
        optimizer=recipe.optimizer(),
        storage_policy=GaussianBuffer(recipe.n_classes, recipe.seed, recipe.method),
        direct_weight=1.0,
        codebook_weight=0.0,
        **replay,
        **recipe.common(),
    )
