"""The codebook of memory blocks, and the functions that set its rows before a stream.

Paper: "Reconstructing feature maps from memory", eq. 1-2; "Initializing the codebook
matrix and CNN" and the rows of Table 4, for which scale and sparsity are measured on
feature maps.

Axes, which names of tensors list: ``B`` images, ``C`` channels, ``H, W`` locations,
``d = codebook_dim``, ``G = C / d`` groups of consecutive channels, ``n`` rows of the
codebook. A slice is the ``d`` values of one group at one location, the paper's
``Z_{f, x, y}``. Slices are ordered location by location, ``(B, H, W, G)``, so that
channels-last maps are not copied.
"""

from collections.abc import Callable
from dataclasses import dataclass

import faiss
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from crumb_avalanche.models.search import most_similar_rows

LARGEST_CODEBOOK = 2**15  # codes are uint8 or int16
LARGEST_OF_BYTES = 2**8  # rows whose codes are uint8


def largest_divisor(channels: int, limit: int) -> int:
    """Return the largest divisor of ``channels`` up to ``limit``."""
    return next(
        number
        for number in range(min(limit, channels), 0, -1)
        if channels % number == 0
    )


class RowLookup(torch.autograd.Function):
    """``functional.embedding``, with a gradient that is quicker on a CPU.

    The gradient has the same bits and takes a quarter of the time.
    """

    @staticmethod
    def forward(ctx, rows: Tensor, codes: Tensor) -> Tensor:
        """Look up ``(..., d)`` rows of an ``(n, d)`` table for ``(...)`` integers."""
        ctx.save_for_backward(codes)
        ctx.n_rows = len(rows)
        return functional.embedding(codes.int(), rows)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        """Sum the gradients of each row, in the order of its places: ``(n, d)``."""
        (codes,) = ctx.saved_tensors
        sorted_codes, positions = codes.flatten().sort(stable=True)
        row_numbers = torch.arange(ctx.n_rows, dtype=codes.dtype)
        first_positions = torch.searchsorted(sorted_codes, row_numbers)
        slice_gradients = gradient.reshape(-1, gradient.shape[-1])
        row_gradients = functional.embedding_bag(
            positions, slice_gradients, first_positions, mode="sum"
        )
        return row_gradients, None


class Codebook(nn.Module):
    """A trainable table of memory blocks, and the map between feature maps and codes.

    For the axes see the module.

    Args:
        codebook_size: number ``n`` of rows, at most 32,768.
        codebook_dim: length ``d`` of a row.

    Raises:
        ValueError: ``codebook_size`` is not from 1 to 32,768, or ``codebook_dim`` is
            below 1.

    Attributes:
        blocks: the paper's ``B``, ``(n, d)`` float32 parameter, ``4 * n * d`` bytes;
            zeros until one of ``INITIALISERS`` or a state dict fills it.
    """

    def __init__(self, codebook_size: int = 256, codebook_dim: int = 16):
        super().__init__()
        if not 1 <= codebook_size <= LARGEST_CODEBOOK:
            raise ValueError(
                f"codebook_size is {codebook_size}; a code has at most 15 bits, so "
                f"give 1 to {LARGEST_CODEBOOK}"
            )
        if codebook_dim < 1:
            raise ValueError(
                f"codebook_dim is {codebook_dim}; a memory block needs at least 1 value"
            )
        zeros = torch.zeros(codebook_size, codebook_dim, dtype=torch.float32)
        self.blocks = nn.Parameter(zeros)

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
        """Return the number ``G`` of codes per location of a map with ``channels``.

        Raises:
            ValueError: ``codebook_dim`` does not divide ``channels``.
        """
        if channels % self.codebook_dim:
            divisor = largest_divisor(channels, self.codebook_dim)
            raise ValueError(
                f"the feature map has {channels} channels, which "
                f"codebook_dim={self.codebook_dim} does not divide; choose another "
                f"codebook_dim, such as {divisor}, or a cut_layer whose channel count "
                "it divides"
            )
        return channels // self.codebook_dim

    @torch.no_grad()
    def encode(self, feature_map: Tensor, usable: Tensor | None = None) -> Tensor:
        """Replace every slice by the index of the most similar row (eq. 1-2).

        That is the row which, scaled to unit length, has the largest dot product with
        the slice. All-zero rows are never chosen. Ties go to the lowest index; an
        all-zero slice ties everywhere, so it gets the lowest row that is not zero. No
        gradient passes.

        Args:
            feature_map: ``(B, C, H, W)`` float; ``C`` is a multiple of
                ``codebook_dim``.
            usable: whether the map is finite (see ``extraction.usable``), a bool on its
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
        is_filled = rows.any(dim=1)
        all_filled, is_usable = self._check_rows(rows, is_filled, usable)

        slices = self._slices(feature_map)
        if all_filled:
            indices = most_similar_rows(slices, functional.normalize(rows, dim=1))
        else:
            candidates = is_filled.nonzero().squeeze(1)
            unit_rows = functional.normalize(rows[candidates], dim=1)
            indices = most_similar_rows(slices, unit_rows)
        if is_usable is None:
            # -1 stands for a slice that is not finite.
            is_usable = not indices.numel() or bool(indices.min() >= 0)
        if not is_usable:
            raise ValueError(
                "the feature map holds NaN or infinite values; look for them in the "
                "images or weights"
            )
        if not all_filled:
            indices = candidates.index_select(0, indices)

        codes_bhwg = indices.to(self._code_dtype).view(batch, height, width, groups)
        return codes_bhwg.permute(0, 3, 1, 2)

    def decode(self, codes: Tensor) -> Tensor:
        """Concatenate the rows of the codes, not those at unit length (eq. 2).

        Only these rows get a gradient.

        Args:
            codes: ``(B, G, H, W)`` integers in ``[0, n)``.

        Returns:
            ``(B, G * d, H, W)`` float32, channels-last in memory.

        Raises:
            IndexError: a code is outside ``[0, n)``.
        """
        batch, groups, height, width = codes.shape
        channels = groups * self.codebook_dim
        codes_bhwg = codes.permute(0, 2, 3, 1)
        if codes.device.type == "cpu":
            slices_bhwgd = RowLookup.apply(self.blocks, codes_bhwg)
        else:
            slices_bhwgd = functional.embedding(codes_bhwg.int(), self.blocks)
        map_bhwc = slices_bhwgd.reshape(batch, height, width, channels)
        return map_bhwc.permute(0, 3, 1, 2)

    def quantize(self, feature_map: Tensor) -> tuple[Tensor, Tensor]:
        """Encode and decode a ``feature_map`` as for ``encode``.

        Returns:
            The paper's ``Z~``, ``(B, C, H, W)`` float32, and its codes, ``(B, G, H,
            W)``.
        """
        codes = self.encode(feature_map)
        return self.decode(codes), codes

    def forward(self, feature_map: Tensor) -> Tensor:
        """Return a ``feature_map``, as for ``encode``, quantised.

        It is ``(B, C, H, W)`` float32.
        """
        quantized, _ = self.quantize(feature_map)
        return quantized

    @torch.no_grad()
    def usage(self, codes: Tensor) -> Tensor:
        """Count how often each row was used in ``codes`` of any shape, ``(n,)``.

        Paper, Fig. 5b.
        """
        return torch.bincount(codes.reshape(-1).long(), minlength=self.codebook_size)

    @property
    def _code_dtype(self) -> torch.dtype:
        if self.codebook_size <= LARGEST_OF_BYTES:
            return torch.uint8
        return torch.int16

    def _slices(self, maps_bchw: Tensor) -> Tensor:
        """Return the slices of maps, ``(B * H * W * G, d)`` float32."""
        maps_bhwc = maps_bchw.permute(0, 2, 3, 1)
        return maps_bhwc.reshape(-1, self.codebook_dim).float()

    def _check_rows(
        self, rows: Tensor, is_filled: Tensor, usable: Tensor | None
    ) -> tuple[bool, bool | None]:
        """Return whether all rows are filled, and whether the map is usable.

        A GPU is waited for once, for all that is asked.

        Args:
            rows: ``(n, d)`` float32.
            is_filled: ``(n,)`` bool, which of them are not all zero.
            usable: as for ``encode``; ``None`` is returned as it is.

        Raises:
            ValueError: all rows are zero, or one is not finite.
        """
        questions = [is_filled.any(), is_filled.all(), rows.isfinite().all()]
        if usable is not None:
            questions.append(usable)
        any_filled, all_filled, is_finite, *is_usable = torch.stack(questions).tolist()
        if not any_filled:
            raise ValueError(
                "all rows of the codebook are zero; fill it with calibrate(model, "
                "images), or load its weights"
            )
        if not is_finite:
            raise ValueError(
                "the codebook holds NaN or infinite values: the weights it was loaded "
                "from are damaged, or a learning rate was too high; load or initialise "
                "it again"
            )
        if not is_usable:
            return all_filled, None
        return all_filled, is_usable[0]


def check_codebook(codebook: Codebook | None, channels: int) -> None:
    """Raise for a codebook that is none, or does not fit maps with ``channels``.

    Raises:
        TypeError: it is neither a ``Codebook`` nor ``None``.
        ValueError: its ``codebook_dim`` does not divide ``channels``.
    """
    if not isinstance(codebook, Codebook | None):
        raise TypeError(
            f"codebook is {codebook!r}; give a Codebook, such as Codebook(256, 16), or "
            "None"
        )
    if codebook is not None:
        codebook.groups(channels)


# The half-normal distribution with this multiple of the measured spread matched real
# activations best in the paper.
SPREAD = 5 / 3
# Slices for each centre, above which faiss itself takes a sample.
MOST_SLICES_PER_CENTRE = 256
# Slices whose products with all centres are in memory at once.
NEAREST_TILE = 8192


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
        """Measure ``(B, C, H, W)`` maps.

        Raises:
            ValueError: all values are equal, so that no scale can be measured.
        """
        values = maps.detach().float().flatten()
        is_signed = bool((values < 0).any())
        counted = values if is_signed else values[values > 0]
        scale = float(counted.std()) if len(counted) > 1 else 0.0
        if not scale > 0:
            raise ValueError(
                "the feature maps are constant, so no scale can be measured; check "
                "weights and images"
            )
        sparsity = float((values == 0).float().mean())
        return MapStatistics(scale=scale, sparsity=sparsity, signed=is_signed)


@torch.no_grad()
def init_dense_matched_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Draw entries from ``|N(0, 5/3 s)|``, or from ``N(0, s)`` for signed maps.

    The scale ``s`` is measured on ``(B, C, H, W)`` maps (Table 4, "Dense matched
    init.").
    """
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
    """Draw entries as ``init_dense_matched_`` does, and set some to zero.

    They are as many as the measured fraction of zeros, at random positions (Table 4,
    "Ours"). With a small ``d`` a few rows are all zero; no search returns them. At
    least one value is kept.
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


@torch.no_grad()
def init_kmeans_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Set the rows to k-means centres of the slices of the maps.

    All-zero slices do not count.

    Raises:
        ValueError: there are fewer other slices than rows.
    """
    slices = _sampled_slices(codebook, maps, generator)
    codebook.blocks.copy_(_centres(codebook, slices, generator))


@torch.no_grad()
def init_spherical_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Set the rows to means of slices of one direction.

    Directions are grouped by a spherical k-means, and each row is the mean of the
    slices in a group. The search compares directions alone (eq. 1), so centres of
    directions make it choose better rows than those of ``init_kmeans_``, and the mean
    of the chosen slices is the row with the least squared error.

    Raises:
        ValueError: see ``init_kmeans_``.
    """
    slices = _sampled_slices(codebook, maps, generator)
    directions = functional.normalize(slices)
    centres = functional.normalize(
        _centres(codebook, directions, generator, spherical=True)
    )
    nearest = torch.cat(
        [(tile @ centres.mT).argmax(dim=1) for tile in directions.split(NEAREST_TILE)]
    )
    counts = torch.bincount(nearest, minlength=len(centres)).unsqueeze(1)
    sums = torch.zeros_like(centres).index_add_(0, nearest, slices)
    means = sums / counts.clamp_min(1)
    # A centre that no slice is nearest to is never chosen for these slices: any length
    # will do.
    codebook.blocks.copy_(torch.where(counts > 0, means, centres))


def _sampled_slices(codebook: Codebook, maps: Tensor, generator: Generator) -> Tensor:
    """Return a random sample of the slices of maps that are not all zero: ``(N, d)``.

    Raises:
        ValueError: they are fewer than the rows.
    """
    codebook.groups(maps.shape[1])
    slices = codebook._slices(maps.detach().float().cpu())
    slices = slices[slices.any(dim=1)]
    if len(slices) < codebook.codebook_size:
        raise ValueError(
            f"{len(slices)} slices that are not zero cannot make "
            f"{codebook.codebook_size} k-means centres; give more feature maps"
        )
    limit = MOST_SLICES_PER_CENTRE * codebook.codebook_size
    if len(slices) > limit:
        slices = slices[torch.randperm(len(slices), generator=generator)[:limit]]
    return slices.contiguous()


def _centres(
    codebook: Codebook, slices: Tensor, generator: Generator, spherical: bool = False
) -> Tensor:
    """Return k-means centres of ``(N, d)`` slices, one for each row: ``(n, d)``."""
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    faiss.omp_set_num_threads(torch.get_num_threads())
    kmeans = faiss.Kmeans(
        d=codebook.codebook_dim,
        k=codebook.codebook_size,
        niter=25,
        seed=seed,
        min_points_per_centroid=1,
        spherical=spherical,
    )
    kmeans.train(slices.numpy())
    return torch.from_numpy(kmeans.centroids)


INITIALISERS: dict[str, Callable[[Codebook, Tensor, Generator], None]] = {
    "matched": init_matched_,
    "dense_matched": init_dense_matched_,
    "normal": init_normal_,
    "uniform": init_uniform_,
    "sampled": init_sampled_,
    "kmeans": init_kmeans_,
    "spherical": init_spherical_,
}
