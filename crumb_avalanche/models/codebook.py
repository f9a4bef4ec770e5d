"""The codebook of memory blocks, and the functions that set its rows before a stream.

Paper: "Reconstructing feature maps from memory", eq. 1-2; "Initializing the codebook
matrix and CNN" and the rows of Table 4, for which scale and sparsity are measured on
feature maps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import faiss
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from crumb_avalanche.models.search import most_similar_rows

LARGEST_CODEBOOK = 2**15  # codes are uint8 or int16


def largest_divisor(channels: int, limit: int) -> int:
    """Return the largest divisor of ``channels`` up to ``limit``."""
    return next(
        number
        for number in range(min(limit, channels), 0, -1)
        if channels % number == 0
    )


class RowsByNumber(torch.autograd.Function):
    """``functional.embedding`` with a gradient of the same bits that takes a quarter of the time on a CPU."""

    @staticmethod
    def forward(ctx, rows: Tensor, numbers: Tensor) -> Tensor:
        """Look up ``(..., d)`` rows of an ``(n, d)`` table for ``(...)`` integers."""
        ctx.save_for_backward(numbers)
        ctx.count = len(rows)
        return functional.embedding(numbers.int(), rows)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        """Sum the gradients of all places of each row, in the order of the places: ``(n, d)``."""
        numbers, places = ctx.saved_tensors[0].flatten().sort(stable=True)
        starts = torch.searchsorted(
            numbers, torch.arange(ctx.count, dtype=numbers.dtype)
        )
        slices = gradient.reshape(-1, gradient.shape[-1])
        return functional.embedding_bag(places, slices, starts, mode="sum"), None


class Codebook(nn.Module):
    """A trainable table of memory blocks, and the map between feature maps and row numbers.

    Axes: ``B`` images, ``C`` channels, ``H, W`` locations, ``d = codebook_dim``, ``G =
    C / d`` groups of consecutive channels. Slices and codes are ordered location by
    location, so channels-last maps are not copied.

    Args:
        codebook_size: number ``n`` of rows, at most 32,768.
        codebook_dim: length ``d`` of a row.

    Raises:
        ValueError: ``codebook_size`` is not from 1 to 32,768, or ``codebook_dim`` is
            below 1.

    Attributes:
        blocks: ``(n, d)`` float32 parameter, ``4 * n * d`` bytes; zeros until one of
            ``INITIALISERS`` or a state dict fills it.
    """

    def __init__(self, codebook_size: int = 256, codebook_dim: int = 16):
        super().__init__()
        if not 1 <= codebook_size <= LARGEST_CODEBOOK:
            raise ValueError(
                f"codebook_size is {codebook_size}; a code has at most 15 bits, so give 1 to {LARGEST_CODEBOOK}"
            )
        if codebook_dim < 1:
            raise ValueError(
                f"codebook_dim is {codebook_dim}; a memory block needs at least 1 value"
            )
        self.blocks = nn.Parameter(
            torch.zeros(codebook_size, codebook_dim, dtype=torch.float32)
        )

    @property
    def codebook_size(self) -> int:
        """Number ``n`` of rows."""
        return self.blocks.shape[0]

    @property
    def codebook_dim(self) -> int:
        """Length ``d`` of a row."""
        return self.blocks.shape[1]

    def extra_repr(self) -> str:
        """Describe the size for ``repr``."""
        return f"codebook_size={self.codebook_size}, codebook_dim={self.codebook_dim}"

    def groups(self, channels: int) -> int:
        """Return the number of codes per location of a map with ``channels`` channels.

        Raises:
            ValueError: ``codebook_dim`` does not divide ``channels``.
        """
        if channels % self.codebook_dim:
            raise ValueError(
                f"the feature map has {channels} channels, which codebook_dim={self.codebook_dim} does not divide; "
                f"choose another codebook_dim, such as {largest_divisor(channels, self.codebook_dim)}, or a cut_layer "
                "whose channel count it divides"
            )
        return channels // self.codebook_dim

    @torch.no_grad()
    def encode(self, feature_map: Tensor, usable: Tensor | None = None) -> Tensor:
        """Replace every slice by the index of the unit-length row with the largest dot product (eq. 1-2).

        All-zero rows are never chosen. Ties go to the lowest index; an all-zero slice
        ties everywhere, so it gets the lowest row that is not zero. No gradient passes.

        Args:
            feature_map: ``(B, C, H, W)`` float; ``C`` is a multiple of
                ``codebook_dim``.
            usable: whether the map is (see ``extraction.usable``), a bool on its
                device; default it is checked here, for which a GPU is waited for once
                more.

        Returns:
            ``(B, G, H, W)`` codes, ``uint8`` up to 256 rows and ``int16`` above; ``(B,
            H, W, G)`` in memory.

        Raises:
            ValueError: ``C`` is not a multiple of ``codebook_dim``, all rows are zero,
                or the codebook or the map is not finite.
        """
        batch, channels, height, width = feature_map.shape
        groups = self.groups(channels)
        rows = self.blocks.detach().float()
        filled = rows.any(dim=1)
        checks = [
            filled.any(),
            filled.all(),
            rows.isfinite().all(),
            *([] if usable is None else [usable]),
        ]
        some_filled, all_filled, finite, *sound = torch.stack(checks).tolist()
        if not some_filled:
            raise ValueError(
                "all rows of the codebook are zero; fill it with calibrate(model, images), or load its weights"
            )
        if not finite:
            raise ValueError(
                "the codebook holds NaN or infinite values: the weights it was loaded from are damaged, or a learning "
                "rate was too high; load or initialise it again"
            )
        slices = feature_map.permute(0, 2, 3, 1).reshape(-1, self.codebook_dim).float()
        candidates = None if all_filled else filled.nonzero().squeeze(1)
        unit_rows = functional.normalize(
            rows if candidates is None else rows[candidates], dim=1
        )
        indices = most_similar_rows(slices, unit_rows)
        if not all(sound) or (usable is None and indices.numel() and indices.min() < 0):
            raise ValueError(
                "the feature map holds NaN or infinite values; look for them in the images or weights"
            )
        if candidates is not None:
            indices = candidates.index_select(0, indices)
        codes = indices.to(torch.uint8 if self.codebook_size <= 256 else torch.int16)
        return codes.view(batch, height, width, groups).permute(0, 3, 1, 2)

    def decode(self, codes: Tensor) -> Tensor:
        """Concatenate the rows of the codes (the raw rows, not those at unit length).

        Only these rows get a gradient.

        Args:
            codes: ``(B, G, H, W)`` integers in ``[0, n)``.

        Returns:
            ``(B, G * d, H, W)`` float32, channels-last in memory.

        Raises:
            IndexError: a code is outside ``[0, n)``.
        """
        batch, groups, height, width = codes.shape
        numbers = codes.permute(0, 2, 3, 1)
        if numbers.device.type == "cpu":
            slices = RowsByNumber.apply(self.blocks, numbers)
        else:
            slices = functional.embedding(numbers.int(), self.blocks)
        return slices.reshape(batch, height, width, groups * self.codebook_dim).permute(
            0, 3, 1, 2
        )

    def quantize(self, feature_map: Tensor) -> tuple[Tensor, Tensor]:
        """Encode and decode ``feature_map`` as ``encode`` does: ``(B, C, H, W)`` float32, ``(B, G, H, W)`` codes."""
        codes = self.encode(feature_map)
        return self.decode(codes), codes

    def forward(self, feature_map: Tensor) -> Tensor:
        """Return ``feature_map``, as for ``encode``, after quantisation: ``(B, C, H, W)`` float32."""
        return self.quantize(feature_map)[0]

    @torch.no_grad()
    def usage(self, codes: Tensor) -> Tensor:
        """Count how often each row was used in ``codes`` of any shape: ``(n,)`` int64 (paper, Fig. 5b)."""
        return torch.bincount(codes.reshape(-1).long(), minlength=self.codebook_size)


def check_codebook(codebook: Codebook | None, channels: int) -> None:
    """Raise TypeError or ValueError for a codebook that is none, or does not fit maps with ``channels`` channels."""
    if not isinstance(codebook, Codebook | None):
        raise TypeError(
            f"codebook is {codebook!r}; give a Codebook, such as Codebook(256, 16), or None"
        )
    if codebook is not None:
        codebook.groups(channels)


# The half-normal distribution with this multiple of the measured spread matched real
# activations best in the paper.
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
        """Measure ``(B, C, H, W)`` maps; raise ValueError if all values are equal, so that no scale can be measured."""
        values = maps.detach().float().flatten()
        signed = bool((values < 0).any())
        counted = values if signed else values[values > 0]
        scale = float(counted.std()) if len(counted) > 1 else 0.0
        if not scale > 0:
            raise ValueError(
                "the feature maps are constant, so no scale can be measured; check weights and images"
            )
        return MapStatistics(scale, float((values == 0).float().mean()), signed)


@torch.no_grad()
def init_dense_matched_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw entries from ``|N(0, 5/3 s)|``, ``s`` measured on ``(B, C, H, W)`` maps; ``N(0, s)`` for signed maps."""
    statistics = MapStatistics.measure(maps)
    values = torch.randn(
        codebook.blocks.shape, generator=generator, dtype=torch.float32
    )
    if statistics.signed:
        values = values * statistics.scale
    else:
        values = values.abs() * SPREAD * statistics.scale
    codebook.blocks.copy_(values)


@torch.no_grad()
def init_matched_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw entries as ``init_dense_matched_`` does and set the measured fraction, at random places, to zero.

    With a small ``d`` a few rows are all zero; no search returns them. At least one
    value is kept.
    """
    init_dense_matched_(codebook, maps, generator)
    blocks = codebook.blocks
    zeros = min(
        round(MapStatistics.measure(maps).sparsity * blocks.numel()), blocks.numel() - 1
    )
    places = torch.randperm(blocks.numel(), generator=generator)[:zeros]
    blocks.view(-1)[places.to(blocks.device)] = 0


@torch.no_grad()
def init_normal_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw entries from ``N(0, 1)``, independent of the maps (Table 4, "Normal init.")."""
    codebook.blocks.copy_(
        torch.randn(codebook.blocks.shape, generator=generator, dtype=torch.float32)
    )


@torch.no_grad()
def init_uniform_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw entries from ``U[0, 1)``, independent of the maps (Table 4, "Uniform init.")."""
    codebook.blocks.copy_(
        torch.rand(codebook.blocks.shape, generator=generator, dtype=torch.float32)
    )


@torch.no_grad()
def init_sampled_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw entries from the activations of the maps, with replacement."""
    values = maps.detach().float().reshape(-1).cpu()
    places = torch.randint(len(values), (codebook.blocks.numel(),), generator=generator)
    codebook.blocks.copy_(values[places].view_as(codebook.blocks))


@torch.no_grad()
def init_kmeans_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Set the rows to k-means centres of the slices of the maps that are not all zero; ValueError if they are fewer."""
    slices = _some_slices(codebook, maps, generator)
    codebook.blocks.copy_(_centres(codebook, slices, generator))


@torch.no_grad()
def init_spherical_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Set each row to the mean of the slices whose direction is nearest to one centre of a spherical k-means.

    The search compares directions alone (eq. 1), so centres of directions make it
    choose better rows than those of ``init_kmeans_``, and the mean of the chosen slices
    is the row with the least squared error.
    """
    slices = _some_slices(codebook, maps, generator)
    directions = functional.normalize(slices)
    centres = functional.normalize(
        _centres(codebook, directions, generator, spherical=True)
    )
    nearest = torch.cat(
        [(some @ centres.mT).argmax(1) for some in directions.split(8192)]
    )
    counts = torch.bincount(nearest, minlength=len(centres)).unsqueeze(1)
    sums = torch.zeros_like(centres).index_add_(0, nearest, slices)
    # A centre that no slice is nearest to is never chosen for these slices: any length
    # will do.
    codebook.blocks.copy_(torch.where(counts > 0, sums / counts.clamp_min(1), centres))


def _some_slices(codebook: Codebook, maps: Tensor, generator: Generator) -> Tensor:
    """Return the slices of maps that are not all zero, or 256 random ones for each row: ``(N, d)``."""
    codebook.groups(maps.shape[1])
    slices = (
        maps.detach()
        .float()
        .cpu()
        .permute(0, 2, 3, 1)
        .reshape(-1, codebook.codebook_dim)
    )
    slices = slices[slices.any(dim=1)]
    if len(slices) < codebook.codebook_size:
        raise ValueError(
            f"{len(slices)} slices that are not zero cannot make {codebook.codebook_size} k-means centres; "
            "give more feature maps"
        )
    wanted = 256 * codebook.codebook_size  # faiss itself subsamples above this
    if len(slices) > wanted:
        slices = slices[torch.randperm(len(slices), generator=generator)[:wanted]]
    return slices.contiguous()


def _centres(
    codebook: Codebook, slices: Tensor, generator: Generator, spherical: bool = False
) -> Tensor:
    """Return k-means centres of ``(N, d)`` slices, one for each row."""
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    faiss.omp_set_num_threads(torch.get_num_threads())
    size = codebook.codebook_dim, codebook.codebook_size
    means = faiss.Kmeans(
        *size, niter=25, seed=seed, min_points_per_centroid=1, spherical=spherical
    )
    means.train(slices.numpy())
    return torch.from_numpy(means.centroids)


INITIALISERS: dict[str, Callable[[Codebook, Tensor, Generator], None]] = {
    "matched": init_matched_,
    "dense_matched": init_dense_matched_,
    "normal": init_normal_,
    "uniform": init_uniform_,
    "sampled": init_sampled_,
    "kmeans": init_kmeans_,
    "spherical": init_spherical_,
}
