"""The codebook of memory blocks: feature maps <-> codes (paper, "Reconstructing feature maps from memory", eq. 1-2)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from crumb_avalanche.models.search import BlockSearch

LARGEST_CODEBOOK = 2**15  # codes are uint8 or int16


def code_dtype(codebook_size: int) -> torch.dtype:
    """Return the dtype of codes: ``uint8`` up to 256 rows, ``int16`` above."""
    return torch.uint8 if codebook_size <= 256 else torch.int16


def largest_divisor(channels: int, limit: int) -> int:
    """Return the largest divisor of ``channels`` up to ``limit``."""
    return next(number for number in range(min(limit, channels), 0, -1) if channels % number == 0)


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
        starts = torch.searchsorted(numbers, torch.arange(ctx.count, dtype=numbers.dtype))
        slices = gradient.reshape(-1, gradient.shape[-1])
        return functional.embedding_bag(places, slices, starts, mode="sum"), None


class Codebook(nn.Module):
    """A trainable table of memory blocks, and the map between feature maps and row numbers.

    Paper: "Reconstructing feature maps from memory", eq. 1-2.

    Axes: ``B`` images, ``C`` channels, ``H, W`` locations, ``d = codebook_dim``, ``G = C / d`` groups of consecutive
    channels. Slices and codes are ordered location by location, so channels-last maps are not copied.

    Args:
        codebook_size: number ``n`` of rows, at most 32,768.
        codebook_dim: length ``d`` of a row.
        search: module ``(slices, unit_rows) -> indices``, from ``(N, d)`` and ``(n, d)`` float32 to ``(N,)`` int64, as
            ``TiledSearch``; default ``BlockSearch()``.

    Raises:
        ValueError: ``codebook_size`` is not from 1 to 32,768, or ``codebook_dim`` is below 1.

    Attributes:
        blocks: ``(n, d)`` float32 parameter, ``4 * n * d`` bytes; zeros until one of the ``init_`` functions of
            ``codebook_init`` (or a state dict) fills it.
    """

    def __init__(self, codebook_size: int = 256, codebook_dim: int = 16, search: nn.Module | None = None):
        super().__init__()
        if not 1 <= codebook_size <= LARGEST_CODEBOOK:
            raise ValueError(
                f"codebook_size is {codebook_size}; a code has at most 15 bits, so give 1 to {LARGEST_CODEBOOK}"
            )
        if codebook_dim < 1:
            raise ValueError(f"codebook_dim is {codebook_dim}; a memory block needs at least 1 value")
        self.blocks = nn.Parameter(torch.zeros(codebook_size, codebook_dim, dtype=torch.float32))
        self.search = BlockSearch() if search is None else search

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

        Args:
            channels: ``C`` of a map.

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

        All-zero rows are never chosen. Ties go to the lowest index; an all-zero slice ties everywhere, so it gets the
        lowest row that is not zero. No gradient passes.

        Args:
            feature_map: ``(B, C, H, W)`` float; ``C`` is a multiple of ``codebook_dim``.
            usable: whether the map is (see ``models.finite``), a bool on its device; default it is checked here. A GPU
                is then waited for once.

        Returns:
            ``(B, G, H, W)`` codes, ``uint8`` up to 256 rows and ``int16`` above; ``(B, H, W, G)`` in memory.

        Raises:
            ValueError: ``C`` is not a multiple of ``codebook_dim``, all rows are zero, or the codebook or the map is
                not finite.
        """
        batch, channels, height, width = feature_map.shape
        groups = self.groups(channels)
        rows = self.blocks.detach().float()
        filled = rows.any(dim=1)
        checks = [filled.any(), filled.all(), rows.isfinite().all(), *([] if usable is None else [usable])]
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
        unit_rows = functional.normalize(rows if candidates is None else rows[candidates], dim=1)
        indices = self.search(slices, unit_rows)
        if not all(sound) or (usable is None and indices.numel() and indices.min() < 0):
            raise ValueError("the feature map holds NaN or infinite values; look for them in the images or weights")
        if candidates is not None:
            indices = candidates.index_select(0, indices)
        codes = indices.to(code_dtype(self.codebook_size))
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
        return slices.reshape(batch, height, width, groups * self.codebook_dim).permute(0, 3, 1, 2)

    def quantize(self, feature_map: Tensor) -> tuple[Tensor, Tensor]:
        """Encode and decode a map.

        Args:
            feature_map: ``(B, C, H, W)`` float; ``C`` is a multiple of ``codebook_dim``.

        Returns:
            ``(quantized, codes)``: ``(B, C, H, W)`` float32 and ``(B, G, H, W)`` codes.

        Raises:
            ValueError: see ``encode``.
        """
        codes = self.encode(feature_map)
        return self.decode(codes), codes

    def forward(self, feature_map: Tensor) -> Tensor:
        """Return the quantized map, ``(B, C, H, W)`` float32.

        Args:
            feature_map: ``(B, C, H, W)`` float; ``C`` is a multiple of ``codebook_dim``.

        Raises:
            ValueError: see ``encode``.
        """
        return self.quantize(feature_map)[0]

    @torch.no_grad()
    def usage(self, codes: Tensor) -> Tensor:
        """Count how often each row was used: ``(n,)`` int64 (paper, Fig. 5b).

        Args:
            codes: integers of any shape, as ``encode`` returns them.
        """
        return torch.bincount(codes.reshape(-1).long(), minlength=self.codebook_size)

    @torch.no_grad()
    def relative_error(self, feature_map: Tensor) -> float:
        """Compute ``|Z - Z~|^2 / |Z|^2`` of a ``(B, C, H, W)`` map; 0 is a perfect reconstruction.

        Args:
            feature_map: ``(B, C, H, W)`` float; ``C`` is a multiple of ``codebook_dim``.

        Raises:
            ValueError: see ``encode``.
        """
        return float((feature_map - self(feature_map)).square().sum() / feature_map.square().sum())


def check_codebook(codebook: Codebook | None, channels: int) -> None:
    """Check that a codebook fits maps with ``channels`` channels.

    Raises:
        TypeError: it is neither a ``Codebook`` nor ``None``.
        ValueError: see ``Codebook.groups``.
    """
    if not isinstance(codebook, Codebook | None):
        raise TypeError(f"codebook is {codebook!r}; give a Codebook, such as Codebook(256, 16), or None")
    if codebook is not None:
        codebook.groups(channels)
