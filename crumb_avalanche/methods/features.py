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
        """Compute the layers whose moments are the features, of ``(B, C, H, W)`` maps.

        Args:
            model: its plastic layers run on the maps, in evaluation mode.
            maps: feature maps, which enter these layers.

        Returns:
            The maps themselves, if ``maps`` is set, and the head's input: ``(B, C')``,
            or with a ``window`` ``(B, C', H', W')``, before the network averages it.
        """
        with evaluating(model):
            if self.window:
                # And whether the network averages it, which its axes tell, too.
                before_head, _ = unpooled_head_input(model, maps)
            else:
                before_head = head_input(model, maps)
        if self.maps:
            return [model.patch_grid(maps), before_head]
        return [before_head]

    def of_layers(
        self, layers: list[Tensor], no_deviation: bool = False, tiny: float = 0.0
    ) -> Tensor:
        """Compute ``(B, D)`` features: moments over locations of one or two layers.

        The moments are raised to ``power`` and scaled to equal lengths, if that is set,
        and concatenated.

        Args:
            layers: what ``layers`` returned: maybe the feature map, then the head's
                input; ``(B, C, H, W)`` each, or ``(B, C)`` if the network averages the
                head's input.
            no_deviation: leave out deviations of the head's input even if it has
                locations.
            tiny: added to variances and absolute values, so that roots and powers have
                a derivative at 0.
        """
        moments: list[Tensor] = []  # (B, K) each: means or deviations of a layer
        for index, layer in enumerate(layers):
            is_averaged = layer.dim() == 2
            if is_averaged:
                moments.append(layer)
                continue
            # With ``maps`` the feature map is first; the head's input is last.
            is_map = self.maps and index == 0
            has_deviations = self.deviations
            if no_deviation and not is_map:
                has_deviations = False
            moments += self._layer_moments(
                layer, is_map=is_map, deviates=has_deviations, tiny=tiny
            )
        if self.power != 1:
            moments = [self._to_power(features, tiny) for features in moments]
        if self.equal_lengths:
            # To the length of a vector of ones.
            moments = [
                functional.normalize(features) * features.shape[1] ** 0.5
                for features in moments
            ]
        return torch.cat(moments, 1)

    def _layer_moments(
        self, layer: Tensor, is_map: bool, deviates: bool, tiny: float
    ) -> list[Tensor]:
        """Return the means of a layer with locations, and its deviations if wanted.

        Args:
            layer: ``(B, C, H, W)``.
            is_map: whether it is the map that enters the plastic layers, of which the
                middle counts; else the head's input.
            deviates: whether deviations are wanted.
            tiny: added to variances, so that their root has a derivative at 0.

        Returns:
            ``(B, K)`` means, and ``(B, C)`` deviations if wanted.
        """
        # Over cells of a grid, or with Gaussian weights; None for plain means.
        means = self._weighted_means(layer, is_map)
        if means is not None and not deviates:
            return [means]
        if is_map:
            layer = self._middle(layer)
        moments = mean_and_deviation(layer, tiny)
        if means is None:
            means = moments.means
        if deviates:
            return [means, moments.deviations]
        return [means]

    def _to_power(self, features: Tensor, tiny: float) -> Tensor:
        """Raise the absolute values of ``(B, K)`` features to the power."""
        return features.sign() * (features.abs() + tiny) ** self.power

    def _weighted_means(self, layer: Tensor, is_map: bool) -> Tensor | None:
        """Compute means of a layer over cells of a grid, or with Gaussian weights.

        Cells are those of the feature map's middle. Gaussian weights are those of the
        head's input: the further from the middle of the image, the smaller.

        Args:
            layer: ``(B, C, H, W)``.
            is_map: whether it is the map that enters the plastic layers.

        Returns:
            ``(B, K)``; ``None`` where plain means are wanted.
        """
        if is_map:
            if self.cells == 1:
                return None
            return cell_means(self._middle(layer), self.cells)
        if not self.window:
            return None
        height, width = layer.shape[2:]
        row_weights = _gaussian_weights(height, self.window).to(layer)  # sum 1
        column_weights = _gaussian_weights(width, self.window).to(layer)
        # Not a product of matrices, which copies channels-last maps first and takes 20
        # times as long.
        return (layer * (row_weights.unsqueeze(1) * column_weights)).sum((2, 3))

    def _middle(self, layer: Tensor) -> Tensor:
        """Return the locations of ``(B, C, H, W)`` that count; see ``inner``."""
        height, width = layer.shape[2:]
        top, bottom = middle_of(height, self.inner)
        left, right = middle_of(width, self.inner)
        return layer[:, :, top:bottom, left:right]


def middle_of(length: int, share: float) -> tuple[int, int]:
    """Return where the middle of an axis begins and ends, at least one location.

    Args:
        length: number of locations of the axis.
        share: of the axis that is the middle, 0 to 1.
    """
    n_locations = int(length)  # a tensor where an exporter traces
    margin = int(n_locations * ((1 - share) / 2) + 0.5)  # rounded
    margin = min(margin, (n_locations - 1) // 2)
    return margin, n_locations - margin


def _gaussian_weights(length: int, deviation: float) -> Tensor:
    """Compute Gaussian weights of the locations of an axis, around its middle.

    Args:
        length: number of locations.
        deviation: in units of the length.

    Returns:
        ``(length,)`` float32 with the sum 1.
    """
    n_locations = int(length)  # a tensor where an exporter traces
    middles = torch.arange(n_locations, dtype=torch.float32) + 0.5
    distances = middles / n_locations - 0.5  # from the middle of the axis
    return (-(distances**2) / (2 * deviation**2)).softmax(0)


def cell_means(maps: Tensor, n_cells: int) -> Tensor:
    """Compute means over the cells of a square grid, as ``adaptive_avg_pool2d`` does.

    The exporter to ONNX has no ``adaptive_avg_pool2d`` of cells that share rows, as
    those of a 13 x 13 map do.

    Args:
        maps: ``(B, C, H, W)``.
        n_cells: number of rows and of columns of the grid.

    Returns:
        ``(B, C * cells**2)``; the cells of a channel stand together, row by row.
    """
    height, width = maps.shape[2:]
    means = [
        maps[:, :, rows, columns].mean((2, 3))
        for rows in cell_slices(height, n_cells)
        for columns in cell_slices(width, n_cells)
    ]
    return torch.stack(means, 2).flatten(1)


def cell_slices(length: int, n_cells: int) -> list[slice]:
    """Return the locations of each of ``n_cells`` parts of an axis.

    Neighbours share one if the length is not divisible.
    """
    slices = []
    for cell in range(n_cells):
        start = cell * length // n_cells
        # Rounded up, without negative numbers, whose quotients ONNX rounds otherwise.
        stop = ((cell + 1) * length + n_cells - 1) // n_cells
        slices.append(slice(start, stop))
    return slices


def mean_and_deviation(maps: Tensor, tiny: float = 0.0) -> Moments:
    """Compute mean and standard deviation over the locations of each channel.

    Args:
        maps: ``(B, C, ...)``, such as ``(B, C, H, W)``.
        tiny: added to variances, so that their root has a derivative at 0.

    Returns:
        ``means`` and ``deviations``, ``(B, C)`` each.
    """
    batches = [maps]
    if maps.device.type == "cpu" and not torch.jit.is_tracing():
        # One image at a time fits the CPU's cache: eight times faster. An exporter to
        # ONNX traces one batch for all.
        batches = list(maps.split(1))
    means = []
    deviations = []
    for batch in batches:
        locations = batch.movedim(1, -1).flatten(1, -2)  # (b, H * W, C)
        mean = locations.mean(1)
        squares = (locations - mean.unsqueeze(1)).square_()
        means.append(mean)
        deviations.append(squares.mean(1).add_(tiny).sqrt_())
    return Moments(means=torch.cat(means), deviations=torch.cat(deviations))
