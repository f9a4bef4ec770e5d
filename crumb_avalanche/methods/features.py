"""Feature vectors of images: averages or moments of feature maps over locations."""

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.models.penultimate import (
    evaluating,
    head_input,
    penultimate,
    unpooled_head_input,
)
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import Factor, InRange, Range


def feature_length(model: SplitModel) -> int:
    """Return ``D``, the number of features of ``pooled_features``."""
    head = model.plastic_layers.get_submodule(model.head)
    if hasattr(head, "in_channels"):
        return head.in_channels
    return head.in_features


@torch.no_grad()
def pooled_features(model: SplitModel, images: Tensor) -> Tensor:
    """Compute the input of the head, averaged over locations: ``(B, D)`` float32.

    Args:
        model: a model in any mode, which is restored; it runs in evaluation mode.
        images: as for ``SplitModel.features``.
    """
    with evaluating(model):
        return penultimate(model, model.features(images))


class Moments(NamedTuple):
    """Means over locations, ``(B, K)``, and deviations, ``(B, C)``, of maps."""

    means: Tensor
    deviations: Tensor


@dataclass(frozen=True)
class FeatureMoments(InRange):
    """Computes means and deviations over locations, of two maps.

    They are of the feature map that enters the plastic layers, and of the head's input;
    by default means of the latter.
    Of a transformer's map, class token and registers do not count; its class token is
    the head's input, if the network has one.

    Attributes:
        maps: include moments of the feature map that enters the plastic layers.
        deviations: include deviations besides means.
        power: exponent of the features' absolute values, which makes skewed activations
            more Gaussian; 1 leaves them unchanged.
        equal_lengths: scale the features of each kind (means or deviations of one of
            the maps) to the length that features of size 1 have, so that no kind and no
            bright image outweighs the others.
        cells: take the means of the feature map over each cell of a grid of ``cells x
            cells``, which tells where in the image something is. The head's input has
            one mean.
        inner: share of the side of the feature map whose middle counts, because an
            object that is shown is there, and its surroundings are not.
        window: deviation of Gaussian weights of the locations of the head's input, in
            units of its side, for the same reason; 0 weights all alike. Without effect
            where the network does not average its last map.
    """

    maps: bool = False
    deviations: bool = False
    power: Factor = 1.0
    equal_lengths: bool = False
    cells: Annotated[int, Range(1, 8)] = 1
    inner: Annotated[float, Range(0.1, 1)] = 1.0
    window: Annotated[float, Range(0, 1)] = 0.0

    @torch.no_grad()
    def __call__(self, model: SplitModel, images: Tensor) -> Tensor:
        """Compute ``(B, D)`` float32 features, with P in evaluation mode.

        Args:
            model: a model in any mode, which is restored.
            images: as for ``SplitModel.features``.
        """
        return self.of_maps(model, model.features(images))

    def length(self, model: SplitModel) -> int:
        """Return ``D``, the number of features."""
        maps = model.pixel_mean.new_zeros(1, *model.map_shape)
        return self.of_maps(model, maps).shape[1]

    def of_head(self) -> "FeatureMoments":
        """Return the moments of the head's input alone: the last ones of these."""
        return replace(self, maps=False, cells=1, inner=1.0)

    @torch.no_grad()
    def of_maps(self, model: SplitModel, maps: Tensor) -> Tensor:
        """Compute ``(B, D)`` float32 features of ``(B, C, H, W)`` maps.

        P is in evaluation mode.
        """
        return self.of_layers(self.layers(model, maps))

    @torch.no_grad()
    def layers(self, model: SplitModel, maps: Tensor) -> list[Tensor]:
        """Compute what ``of_layers`` takes of ``(B, C, H, W)`` maps.

        P is in evaluation mode.
        """
        with evaluating(model):
            if self.window:
                before_head, _ = unpooled_head_input(model, maps)
            else:
                before_head = head_input(model, maps)
        if self.maps:
            return [model.patch_grid(maps), before_head]
        return [before_head]

    def of_layers(
        self, layers: list[Tensor], no_deviation: bool = False, tiny: float = 0.0
    ) -> Tensor:
        """Compute ``(B, D)`` features of the layers, which are one or two.

        Args:
            layers: ``(B, C, H, W)`` each, or ``(B, C)`` if the network averages the
                head's input.
            no_deviation: leave out deviations of the head's input even if it has
                locations.
            tiny: added to variances and absolute values, so that roots and powers have
                a derivative at 0.
        """
        kinds: list[Tensor] = []
        for index, values in enumerate(layers):
            if values.dim() == 2:
                kinds.append(values)
                continue
            of_map = self.maps and index == 0
            deviates = self.deviations and (of_map or not no_deviation)
            kinds += self._kinds(values, of_map, deviates, tiny)
        if self.power != 1:
            kinds = [self._raised(values, tiny) for values in kinds]
        if self.equal_lengths:
            kinds = [
                functional.normalize(values) * values.shape[1] ** 0.5
                for values in kinds
            ]
        return torch.cat(kinds, 1)

    def _kinds(
        self, values: Tensor, of_map: bool, deviates: bool, tiny: float
    ) -> list[Tensor]:
        """Return the means of a layer with locations, and its deviations if wanted."""
        means = self.means(values, of_map)
        if means is not None and not deviates:
            return [means]
        if of_map:
            values = self.middle(values)
        moments = mean_and_deviation(values, tiny)
        if means is None:
            means = moments.means
        if deviates:
            return [means, moments.deviations]
        return [means]

    def _raised(self, values: Tensor, tiny: float) -> Tensor:
        return values.sign() * (values.abs() + tiny) ** self.power

    def means(self, values: Tensor, of_map: bool) -> Tensor | None:
        """Compute means of ``(B, C, H, W)`` over cells, or weighted by the window.

        Returns:
            ``(B, K)``; ``None`` where plain means are wanted.
        """
        if of_map:
            if self.cells == 1:
                return None
            return cell_means(self.middle(values), self.cells)
        if not self.window:
            return None
        height, width = values.shape[2:]
        rows = _gaussian(height, self.window).to(values)
        columns = _gaussian(width, self.window).to(values)
        # Not a product of matrices, which copies channels-last maps first and takes 20
        # times as long.
        return (values * (rows.unsqueeze(1) * columns)).sum((2, 3))

    def middle(self, values: Tensor) -> Tensor:
        """Return the locations of ``(B, C, H, W)`` that count."""
        height, width = values.shape[2:]
        top, bottom = middle_of(height, self.inner)
        left, right = middle_of(width, self.inner)
        return values[:, :, top:bottom, left:right]


def middle_of(length: int, share: float) -> tuple[int, int]:
    """Return where the middle of an axis begins and ends, at least one location."""
    locations = int(length)  # a tensor where an exporter traces
    margin = int(locations * ((1 - share) / 2) + 0.5)  # rounded
    margin = min(margin, (locations - 1) // 2)
    return margin, locations - margin


def _gaussian(length: int, deviation: float) -> Tensor:
    """Compute Gaussian weights of the locations of an axis.

    Returns:
        ``(length,)`` float32 with the sum 1.
    """
    locations = int(length)  # a tensor where an exporter traces
    middles = torch.arange(locations, dtype=torch.float32) + 0.5
    distances = middles / locations - 0.5  # from the middle of the axis
    return (-(distances**2) / (2 * deviation**2)).softmax(0)


def cell_means(maps: Tensor, cells: int) -> Tensor:
    """Compute means over the cells of a grid, as ``adaptive_avg_pool2d`` does.

    The exporter to ONNX has no ``adaptive_avg_pool2d`` of cells that share rows, as
    those of a 13 x 13 map do.

    Args:
        maps: ``(B, C, H, W)``.
        cells: number of rows and of columns of the grid.

    Returns:
        ``(B, C * cells**2)``.
    """
    height, width = maps.shape[2:]
    means = [
        maps[:, :, rows, columns].mean((2, 3))
        for rows in cell_slices(height, cells)
        for columns in cell_slices(width, cells)
    ]
    return torch.stack(means, 2).flatten(1)


def cell_slices(length: int, cells: int) -> list[slice]:
    """Return the locations of each of ``cells`` parts of an axis.

    Neighbours share one if the length is not divisible.
    """
    slices = []
    for cell in range(cells):
        start = cell * length // cells
        # Rounded up, without negative numbers, whose quotients ONNX rounds otherwise.
        stop = ((cell + 1) * length + cells - 1) // cells
        slices.append(slice(start, stop))
    return slices


def mean_and_deviation(maps: Tensor, tiny: float = 0.0) -> Moments:
    """Compute mean and deviation over locations, ``(B, C)`` each, of ``(B, C, ...)``.

    See ``FeatureMoments.of_layers`` for ``tiny``.
    """
    images = [maps]
    if maps.device.type == "cpu" and not torch.jit.is_tracing():
        # One image at a time fits the CPU's cache: eight times faster. An exporter to
        # ONNX traces one batch for all.
        images = list(maps.split(1))
    means = []
    deviations = []
    for image in images:
        values = image.movedim(1, -1).flatten(1, -2)  # (1, locations, C)
        mean = values.mean(1)
        squares = (values - mean.unsqueeze(1)).square_()
        means.append(mean)
        deviations.append(squares.mean(1).add_(tiny).sqrt_())
    return Moments(means=torch.cat(means), deviations=torch.cat(deviations))
