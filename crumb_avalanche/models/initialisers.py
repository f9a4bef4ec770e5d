"""The functions that set the rows of a codebook before a stream.

Paper: "Initializing the codebook matrix and CNN" and the rows of Table 4. It says "a
simple univariate distribution" that matches feature maps, with 64 % zeros; which one,
``|N(0, 5/3 s)|``, is from the published code. Scale and sparsity are measured here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.codebook_kmeans import init_kmeans_, init_spherical_

# The published code draws from the half-normal distribution with this multiple of the
# standard deviation of activations. The paper names neither.
SPREAD = 5 / 3


@dataclass(frozen=True)
class MapStatistics:
    """Statistics of a batch of feature maps.

    Attributes:
        scale: standard deviation of the positive values (of all values, for signed
            maps).
        sparsity: fraction of exact zeros.
        signed: whether any value is negative.
    """

    scale: float
    sparsity: float
    signed: bool

    @staticmethod
    def measure(maps: Tensor) -> "MapStatistics":
        """Measure the values of feature maps, to draw a codebook like them.

        Args:
            maps: ``(B, C, H, W)``.

        Returns:
            ``scale``, the standard deviation of all values, or of the positive ones
            where none is negative; ``sparsity``, the share of zeros; and ``signed``,
            whether some are negative.

        Raises:
            ValueError: all values are equal, so that no scale can be measured.
        """
        values = maps.detach().float().flatten()
        is_signed = bool((values < 0).any())
        counted_values = values if is_signed else values[values > 0]
        scale = 0.0
        if len(counted_values) > 1:
            scale = float(counted_values.std())
        if not scale > 0:
            raise ValueError(
                "the feature maps are constant, so no scale can be measured; check "
                "weights and images"
            )
        sparsity = float((values == 0).float().mean())
        return MapStatistics(scale=scale, sparsity=sparsity, signed=is_signed)


@torch.no_grad()
def init_dense_matched_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw the rows of a codebook from ``|N(0, 5/3 s)|``, or ``N(0, s)``.

    The scale ``s`` is that of the maps (Table 4, "Dense matched init."). The former is
    the published code's; the latter, for maps with negative values, is ours.

    Args:
        codebook: its rows are changed.
        maps: ``(B, C, H, W)``, on which the scale is measured.
        generator: of the draws.
    """
    statistics = MapStatistics.measure(maps)
    values = torch.randn(
        codebook.blocks.shape, generator=generator, dtype=torch.float32
    )
    if statistics.signed:  # maps have negative values
        values = values * statistics.scale
    else:
        values = values.abs() * SPREAD * statistics.scale  # 5/3 s
    codebook.blocks.copy_(values)


@torch.no_grad()
def init_matched_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw entries as ``init_dense_matched_`` does, and set a share of them to zero.

    The share is that of zeros in the ``(B, C, H, W)`` maps, at random positions of the
    codebook (Table 4, "Ours"). With a small ``d`` a few rows are all zero; no search
    returns them. At least one value stays as it was drawn.
    """
    init_dense_matched_(codebook, maps, generator)
    values = codebook.blocks.view(-1)
    sparsity = MapStatistics.measure(maps).sparsity
    n_zeros = min(round(sparsity * len(values)), len(values) - 1)
    positions = torch.randperm(len(values), generator=generator)[:n_zeros]
    values[positions.to(values.device)] = 0


@torch.no_grad()
def init_normal_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw entries from ``N(0, 1)``, whatever the maps (Table 4, "Normal init.")."""
    values = torch.randn(
        codebook.blocks.shape, generator=generator, dtype=torch.float32
    )
    codebook.blocks.copy_(values)


@torch.no_grad()
def init_uniform_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw entries from ``U[0, 1)``, whatever the maps (Table 4, "Uniform init.")."""
    values = torch.rand(codebook.blocks.shape, generator=generator, dtype=torch.float32)
    codebook.blocks.copy_(values)


@torch.no_grad()
def init_sampled_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw entries from the activations of the maps, with replacement.

    Paper: "Initialization of the memory blocks matters", its simple alternative.
    """
    values = maps.detach().float().reshape(-1).cpu()
    count = codebook.blocks.numel()
    positions = torch.randint(len(values), (count,), generator=generator)
    codebook.blocks.copy_(values[positions].view_as(codebook.blocks))


INITIALISERS: dict[str, Callable[[Codebook, Tensor, Generator], None]] = {
    "matched": init_matched_,
    "dense_matched": init_dense_matched_,
    "normal": init_normal_,
    "uniform": init_uniform_,
    "sampled": init_sampled_,
    "kmeans": init_kmeans_,
    "spherical": init_spherical_,
}
