"""The functions that set the rows of a codebook before a stream.

Paper: "Initializing the codebook matrix and CNN" and the rows of Table 4. It says "a
simple univariate distribution" that matches feature maps, with 64 % zeros; which one,
``|N(0, 5/3 s)|``, is from the published code. Scale and sparsity are measured here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.codebook_kmeans import init_kmeans_, init_spherical_

# The published code draws from the half-normal distribution with this multiple of the
# standard deviation of activations. The paper names neither.
SPREAD = 5 / 3
# Times that rows are drawn again. Rows of length 1 never differ in their directions.
MOST_DRAWS = 100


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
def init_distinct_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw rows as ``init_matched_`` does, and those of an earlier direction again.

    Of rows with a single value that is not zero, those with it at the same position
    have the same direction, and lengths that differ up to a hundredfold. A search by
    direction returns one of them, until training changes their directions a
    little; then it returns another one, and new images are rebuilt at another length
    than the stored codes of old ones. All-zero rows, which no search returns, are drawn
    again, too.

    Args:
        codebook: its rows are changed.
        maps: ``(B, C, H, W)``, on which scale and sparsity are measured.
        generator: of the draws.
    """
    init_matched_(codebook, maps, generator)
    rows = codebook.blocks.clone()
    for _ in range(MOST_DRAWS):
        repeated = _repeats_direction(rows)
        if not repeated.any():
            break
        init_matched_(codebook, maps, generator)  # all rows, of which some are used
        rows[repeated] = codebook.blocks[repeated]
    codebook.blocks.copy_(rows)


def _repeats_direction(rows: Tensor) -> Tensor:
    """Return which rows are all zero or have the direction of an earlier row.

    Args:
        rows: ``(n, d)``.

    Returns:
        ``(n,)`` bool.
    """
    unit_rows = functional.normalize(rows, dim=1)
    is_parallel = unit_rows @ unit_rows.T >= 1
    is_of_earlier = is_parallel.tril(diagonal=-1).any(dim=1)
    return is_of_earlier | ~rows.any(dim=1)


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
    "distinct": init_distinct_,
    "normal": init_normal_,
    "uniform": init_uniform_,
    "sampled": init_sampled_,
    "kmeans": init_kmeans_,
    "spherical": init_spherical_,
}
