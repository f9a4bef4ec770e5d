"""Feature vectors of images: averages or moments of feature maps over locations."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any

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
    return head.in_channels if hasattr(head, "in_channels") else head.in_features


@torch.no_grad()
def pooled_features(model: SplitModel, images: Tensor) -> Tensor:
    """Compute the input of the head, in evaluation mode, averaged over locations: ``(B, D)`` float32.

    Args:
        model: a model in any mode, which is restored.
        images: as for ``SplitModel.features``.
    """
    with evaluating(model):
        return penultimate(model, model.features(images))


@dataclass(frozen=True)
class FeatureMoments(InRange):
    """Compute means and deviations over locations, of the feature map and of the head's input; default its means.

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
        """Compute ``(B, D)`` float32 features of images as for ``SplitModel.features``, with P in evaluation mode."""
        return self.of_maps(model, model.features(images))

    def length(self, model: SplitModel) -> int:
        """Return ``D``, the number of features."""
        return self.of_maps(
            model, model.pixel_mean.new_zeros(1, *model.map_shape)
        ).shape[1]

    def of_head(self) -> "FeatureMoments":
        """Return the moments of the head's input alone: the last ones of these."""
        return replace(self, maps=False, cells=1, inner=1.0)

    @torch.no_grad()
    def of_maps(self, model: SplitModel, maps: Tensor) -> Tensor:
        """Compute ``(B, D)`` float32 features of ``(B, C, H, W)`` maps, with P in evaluation mode."""
        return self.of_layers(self.layers(model, maps))

    @torch.no_grad()
    def layers(self, model: SplitModel, maps: Tensor) -> list[Tensor]:
        """Compute what ``of_layers`` takes of ``(B, C, H, W)`` maps, with P in evaluation mode."""
        with evaluating(model):
            before_head = (
                unpooled_head_input(model, maps)[0]
                if self.window
                else head_input(model, maps)
            )
        return [model.places(maps), before_head] if self.maps else [before_head]

    def of_layers(
        self, layers: list[Tensor], no_deviation: bool = False, tiny: float = 0.0
    ) -> Tensor:
        """Compute ``(B, D)`` features of the feature map, if ``maps``, and of the head's input.

        Args:
            layers: ``(B, C, H, W)`` each, or ``(B, C)`` if the network averages the
                head's input.
            no_deviation: leave out deviations of the head's input even if it has
                locations.
            tiny: added to variances and absolute values, so that roots and powers have
                a derivative at 0.
        """
        kinds: list[Tensor] = []
        for place, values in enumerate(layers):
            if values.dim() == 2:
                kinds.append(values)
                continue
            of_map = place == 0 and self.maps
            deviates = self.deviations and (of_map or not no_deviation)
            mean = self.means(values, of_map)
            if deviates or mean is None:
                plain, deviation = mean_and_deviation(
                    self.middle(values) if of_map else values, tiny
                )
                mean = plain if mean is None else mean
            kinds += [mean, deviation] if deviates else [mean]
        if self.power != 1:
            kinds = [
                values.sign() * (values.abs() + tiny) ** self.power for values in kinds
            ]
        if self.equal_lengths:
            kinds = [
                functional.normalize(values) * values.shape[1] ** 0.5
                for values in kinds
            ]
        return torch.cat(kinds, 1)

    def means(self, values: Tensor, of_map: bool) -> Tensor | None:
        """Compute means of ``(B, C, H, W)`` over cells, or weighted by the window; ``None`` for plain means."""
        if of_map:
            return (
                cell_means(self.middle(values), self.cells) if self.cells > 1 else None
            )
        if not self.window:
            return None
        rows, columns = (
            _gaussian(length, self.window).to(values) for length in values.shape[2:]
        )
        # Not a product of matrices, which copies channels-last maps first and takes 20
        # times as long.
        return (values * (rows.unsqueeze(1) * columns)).sum((2, 3))

    def middle(self, values: Tensor) -> Tensor:
        """Return the locations of ``(B, C, H, W)`` that count."""
        (top, bottom), (left, right) = (
            middle_of(length, self.inner) for length in values.shape[2:]
        )
        return values[:, :, top:bottom, left:right]


def middle_of(length: int, share: float) -> tuple[int, int]:
    """Return where the middle of an axis begins and ends, at least one place of it."""
    places = int(length)  # a tensor where an exporter traces
    margin = min(int(places * ((1 - share) / 2) + 0.5), (places - 1) // 2)
    return margin, places - margin


def _gaussian(length: int, deviation: float) -> Tensor:
    """Compute Gaussian weights of the places of an axis, ``(length,)`` float32 with the sum 1."""
    places = (torch.arange(int(length)) + 0.5) / int(
        length
    ) - 0.5  # a tensor where an exporter traces
    return (-(places**2) / (2 * deviation**2)).softmax(0)


def parts_of(settings: Any) -> tuple[FeatureMoments, dict[str, Any]]:
    """Divide the settings of a closed form into its features and the arguments of its constructor."""
    of_features = {
        item.name: getattr(settings, item.name) for item in fields(FeatureMoments)
    }
    return FeatureMoments(**of_features), {
        k: v for k, v in asdict(settings).items() if k not in of_features
    }


def cell_means(maps: Tensor, cells: int) -> Tensor:
    """Compute means over the cells of a grid, ``(B, C * cells**2)``, as ``adaptive_avg_pool2d`` does.

    The exporter to ONNX has no ``adaptive_avg_pool2d`` of cells that share rows, as
    those of a 13 x 13 map do.
    """
    rows, columns = cell_places(maps.shape[2], cells), cell_places(maps.shape[3], cells)
    means = [maps[:, :, row, column].mean((2, 3)) for row in rows for column in columns]
    return torch.stack(means, 2).flatten(1)


def cell_places(length: int, cells: int) -> list[slice]:
    """Return the places of each of ``cells`` parts of an axis; neighbours share one if the length is not divisible."""
    # Without negative numbers, whose quotients ONNX rounds otherwise.
    return [
        slice(cell * length // cells, ((cell + 1) * length + cells - 1) // cells)
        for cell in range(cells)
    ]


def mean_and_deviation(maps: Tensor, tiny: float = 0.0) -> tuple[Tensor, Tensor]:
    """Compute mean and deviation over locations, ``(B, C)`` each, of ``(B, C, ...)`` maps; see ``of_layers``."""
    # One image at a time fits the CPU's cache: eight times faster. An exporter to ONNX
    # traces one batch for all.
    parts = (
        maps.split(1)
        if maps.device.type == "cpu" and not torch.jit.is_tracing()
        else [maps]
    )
    means, deviations = [], []
    for part in parts:
        places = part.movedim(1, -1).flatten(1, -2)
        means.append(places.mean(1))
        deviations.append(
            (places - means[-1].unsqueeze(1)).square_().mean(1).add_(tiny).sqrt_()
        )
    return torch.cat(means), torch.cat(deviations)
