"""A linear filter of decoded feature maps, fitted by least squares (Wiener filter).

Neighbouring locations of a feature map resemble each other, but their codes are chosen
apart, so the errors of the codes do not. A weighted sum of a location and its
neighbours has a smaller error. Video codecs filter decoded pictures for the same reason
(Chen et al., "Adaptive Loop Filtering", 2012).

Axes: ``B`` images, ``C`` channels, ``H, W`` locations.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from crumb_avalanche.models.extraction import without_autocast

SIDE = 3  # locations of the window
TAPS = SIDE**2  # weights of a channel
# Added to the diagonal of the normal equations, in units of its mean: keeps them
# solvable for channels that are always zero.
RIDGE = 1e-5
SMALLEST_RIDGE = 1e-12  # of a channel that is always zero


class MapFilter(nn.Module):
    """Replace each value by a weighted sum of the 3 x 3 locations around it.

    Each channel has weights of its own, and a constant. Locations outside the map count
    as zeros. The filter is not trained by gradients: stored codes keep their meaning.

    Args:
        n_channels: number of channels ``C``.

    Attributes:
        weights: ``(C, 1, 3, 3)`` float32 buffer, ``36 * C`` bytes; until ``solve``
            those that leave a map as it is.
        constants: ``(C,)`` float32 buffer, ``4 * C`` bytes.
    """

    weights: Tensor
    constants: Tensor

    def __init__(self, n_channels: int):
        super().__init__()
        weights = torch.zeros(n_channels, 1, SIDE, SIDE, dtype=torch.float32)
        weights[:, 0, SIDE // 2, SIDE // 2] = 1
        self.register_buffer("weights", weights)
        constants = torch.zeros(n_channels, dtype=torch.float32)
        self.register_buffer("constants", constants)

    def forward(self, maps: Tensor) -> Tensor:
        """Filter ``(B, C, H, W)`` maps; gradients pass to the maps."""
        with without_autocast(maps.device):
            return functional.conv2d(
                maps,
                self.weights,
                self.constants,
                padding=SIDE // 2,
                groups=len(self.weights),
            )


class FilterEquations:
    """Sums from which the filter with the least squared error follows.

    Args:
        n_channels: number of channels ``C``.

    Attributes:
        products: ``(C, 10, 10)`` float64, sums of products of the inputs of a value:
            the nine locations of its window, and 1.
        targets: ``(C, 10)`` float64, sums of products of inputs and values.
    """

    def __init__(self, n_channels: int):
        n_inputs = TAPS + 1
        self.products = torch.zeros(n_channels, n_inputs, n_inputs, dtype=torch.float64)
        self.targets = torch.zeros(n_channels, n_inputs, dtype=torch.float64)

    def add(self, decoded: Tensor, maps: Tensor) -> None:
        """Add the sums over some maps.

        Args:
            decoded: what codes make of the maps, ``(B, C, H, W)``.
            maps: that the filter is to restore, ``(B, C, H, W)``.
        """
        inputs_cln = _filter_inputs(decoded)
        values_cl = maps.transpose(0, 1).flatten(1)
        products = inputs_cln.mT @ inputs_cln
        targets = inputs_cln.mT @ values_cl.unsqueeze(2)
        self.products += products.double().cpu()
        self.targets += targets.squeeze(2).double().cpu()

    def solve(self, map_filter: MapFilter) -> None:
        """Set the weights and constants of a filter to the least-squares solution.

        Of each channel it solves ``(products + ridge I) w = targets + ridge w0``: nine
        weights of the locations of a 3 x 3 window, and a constant. ``products`` and
        ``targets`` are sums over all locations: of products of these ten inputs with
        each other, and with the value that the filter is to give. ``w0`` is the filter
        that leaves a map as it is, to which the ridge pulls.

        Args:
            map_filter: changed in place.
        """
        diagonals = self.products.diagonal(dim1=1, dim2=2)  # (C, 10)
        ridges = RIDGE * diagonals.mean(dim=1, keepdim=True) + SMALLEST_RIDGE
        products = self.products + torch.diag_embed(ridges.expand_as(diagonals))
        identity_filter = torch.zeros_like(self.targets)
        identity_filter[:, TAPS // 2] = 1  # the middle of the window
        targets = self.targets + ridges * identity_filter
        solution = torch.linalg.solve(products, targets)
        weights = solution[:, :TAPS].view(-1, 1, SIDE, SIDE)
        map_filter.weights.copy_(weights)
        map_filter.constants.copy_(solution[:, TAPS])


def _filter_inputs(maps: Tensor) -> Tensor:
    """Return the window around each value of maps, and a 1: ``(C, B * H * W, 10)``."""
    batch, n_channels, height, width = maps.shape
    # In names: n the taps of a window, l the locations.
    windows = functional.unfold(maps, SIDE, padding=SIDE // 2)
    windows_bcnl = windows.view(batch, n_channels, TAPS, height * width)
    windows_cbln = windows_bcnl.permute(1, 0, 3, 2)
    windows_cln = windows_cbln.reshape(n_channels, -1, TAPS)
    ones = windows_cln.new_ones(*windows_cln.shape[:2], 1)
    return torch.cat([windows_cln, ones], dim=2)
