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

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import faiss
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from crumb_avalanche.models.codebook_ranges import (
    GROUPINGS,
    LARGEST_CODEBOOK,
    MOST_TABLES,
    SEARCHES,
)
from crumb_avalanche.models.map_filter import MapFilter
from crumb_avalanche.models.search import most_similar_rows, nearest_rows

LARGEST_OF_BYTES = 2**8  # rows whose codes are uint8


def largest_divisor(channels: int, limit: int) -> int:
    """Return the largest divisor of ``channels`` up to ``limit``."""
    return next(
        number
        for number in range(min(limit, channels), 0, -1)
        if channels % number == 0
    )


def row_length(
    map_shape: tuple[int, int, int], image_size: int, memories_per_image: float
) -> int:
    """Return the longest rows whose codes do not make memories smaller than wanted.

    Longer rows make fewer codes of a map: more memories in the same bytes, with a
    larger error. A map of few values keeps too little of itself in long rows, so the
    length follows from the bytes.

    Args:
        map_shape: ``(C, H, W)``.
        image_size: side of the images in pixels.
        memories_per_image: largest number of memories that take the bytes of a raw
            image, at a byte a code.

    Returns:
        The largest divisor of ``C`` with at most so many memories, or 1.
    """
    values = math.prod(map_shape)
    image_bytes = 3 * image_size**2
    longest = int(values * memories_per_image / image_bytes)
    return largest_divisor(map_shape[0], max(1, longest))


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

    For the axes see the module. With the defaults it is the paper's. The other settings
    make codes of as many bytes a map with a smaller error: rows chosen by distance,
    several tables, channels grouped by correlation, and a filter of decoded maps. Those
    that depend on the channels of the maps get their room from ``for_channels``.

    Example:
        >>> import torch
        >>> from crumb_avalanche import Codebook
        >>> codebook = Codebook(codebook_size=3, codebook_dim=2)
        >>> blocks = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> _ = codebook.load_state_dict({"blocks": blocks})
        >>> feature_map = torch.tensor([5.0, 0.1, 2.0, 3.0]).view(1, 4, 1, 1)
        >>> codes = codebook.encode(feature_map)
        >>> codes.flatten().tolist()
        [0, 2]
        >>> codebook.decode(codes).flatten().tolist()
        [1.0, 0.0, 1.0, 1.0]

    Args:
        codebook_size: number ``n`` of rows of a table, at most 32,768.
        codebook_dim: length ``d`` of a row.
        search: what a row is chosen by: ``direction`` compares directions alone (eq.
            1), ``distance`` takes the row with the least squared error.
        tables: number ``T`` of tables; a group of channels has one of them, which
            ``init_kmeans_`` chooses, and shares it with other groups. As many as groups
            are a product quantiser.
        grouping: which channels make a group: ``consecutive`` ones, or ``correlated``
            ones (see ``group_channels``).
        filtered: whether decoded maps pass a ``MapFilter``, which ``calibrate`` fits.

    Raises:
        ValueError: ``codebook_size`` is not from 1 to 32,768, ``codebook_dim`` is below
            1, ``tables`` is not from 1 to 256, or ``search`` or ``grouping`` is
            unknown.

    Attributes:
        blocks: the paper's ``B``, ``(T * n, d)`` float32 parameter, ``4 * T * n * d``
            bytes, table by table; zeros until one of ``INITIALISERS`` or a state dict
            fills it.
        table_of_group: ``(G,)`` uint8 buffer with several tables, else ``None``.
        channel_order: ``(C,)`` int16 buffer of the channels of the first group, the
            second and so on, where they are correlated ones, else ``None``.
        map_filter: the ``MapFilter`` of decoded maps, or ``None``.
    """

    table_of_group: Tensor | None
    channel_order: Tensor | None

    def __init__(
        self,
        codebook_size: int = 256,
        codebook_dim: int = 16,
        *,
        search: str = "direction",
        tables: int = 1,
        grouping: str = "consecutive",
        filtered: bool = False,
    ):
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
        if not 1 <= tables <= MOST_TABLES:
            raise ValueError(f"tables is {tables}; give 1 to {MOST_TABLES}")
        _check_name("search", search, SEARCHES)
        _check_name("grouping", grouping, GROUPINGS)
        self.codebook_size = codebook_size
        self.search = search
        self.tables = tables
        self.grouping = grouping
        self.filtered = filtered
        self.channels: int | None = None
        n_rows = tables * codebook_size
        zeros = torch.zeros(n_rows, codebook_dim, dtype=torch.float32)
        self.blocks = nn.Parameter(zeros)
        self.register_buffer("table_of_group", None)
        self.register_buffer("channel_order", None)
        self.map_filter: MapFilter | None = None

    @property
    def codebook_dim(self) -> int:
        """Length ``d`` of a row."""
        return self.blocks.shape[1]

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that make a codebook like this one."""
        return dict(
            codebook_size=self.codebook_size,
            codebook_dim=self.codebook_dim,
            search=self.search,
            tables=self.tables,
            grouping=self.grouping,
            filtered=self.filtered,
        )

    @property
    def is_paper(self) -> bool:
        """Whether all settings besides the size of the table are the paper's."""
        return (
            self.search == "direction"
            and self.tables == 1
            and self.grouping == "consecutive"
            and not self.filtered
        )

    @property
    def buffer_bytes(self) -> int:
        """Bytes of what is kept besides the blocks: tables of groups, order, filter."""
        return sum(buffer.nbytes for buffer in self.buffers())

    def extra_repr(self) -> str:
        """Describe the settings for ``repr``."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())

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

    def for_channels(self, channels: int) -> "Codebook":
        """Make room for what depends on the number of channels.

        ``SplitModel``, ``calibrate`` and ``INITIALISERS`` call it. Tables are then
        shared by consecutive groups, the order of the channels is that of the maps, and
        the filter changes nothing.

        Args:
            channels: number ``C`` of channels of the maps.

        Returns:
            The codebook itself.

        Raises:
            ValueError: ``codebook_dim`` does not divide ``channels``, or the codebook
                is that of maps with other channels.
        """
        n_groups = self.groups(channels)
        if self.channels is not None:
            self._check_channels(channels)
            return self
        self.channels = channels
        device = self.blocks.device
        if self.tables > 1:
            numbers = torch.arange(n_groups, device=device)
            self.table_of_group = (numbers * self.tables // n_groups).byte()
        if self.grouping == "correlated":
            order = torch.arange(channels, dtype=torch.int16, device=device)
            self.channel_order = order
        if self.filtered:
            self.map_filter = MapFilter(channels).to(device)
        return self

    @torch.no_grad()
    def encode(self, feature_map: Tensor, usable: Tensor | None = None) -> Tensor:
        """Replace every slice by the index of a row of its table (eq. 1-2).

        By direction that is the row which, scaled to unit length, has the largest dot
        product with the slice. All-zero rows are never chosen. Ties go to the lowest
        index; an all-zero slice ties everywhere, so it gets the lowest row that is not
        zero. By distance it is the row with the least squared error, the lowest index
        among ties. No gradient passes.

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
            ValueError: ``C`` is not a multiple of ``codebook_dim`` or not that of
                ``for_channels``, all rows are zero, or the codebook or the map is not
                finite.
        """
        batch, channels, height, width = feature_map.shape
        groups = self.groups(channels)
        self._check_channels(channels)
        rows = self.blocks.detach().float()
        is_filled = rows.any(dim=1)
        all_filled, is_usable = self._check_rows(rows, is_filled, usable)

        maps_lc = _by_location(feature_map)
        indices = torch.empty(
            len(maps_lc), groups, dtype=torch.int64, device=feature_map.device
        )
        rows_of_table = rows.split(self.codebook_size)
        filled_of_table = is_filled.split(self.codebook_size)
        for table, members in enumerate(self._groups_of_tables()):
            own_indices = self._search(
                self._slices_of(maps_lc, members),
                rows_of_table[table],
                filled_of_table[table],
                all_filled,
            )
            indices[:, members] = own_indices.view(len(maps_lc), -1)
        if is_usable is None:
            # -1 stands for a slice that is not finite.
            is_usable = not indices.numel() or bool(indices.min() >= 0)
        if not is_usable:
            raise ValueError(
                "the feature map holds NaN or infinite values; look for them in the "
                "images or weights"
            )

        codes_bhwg = indices.to(self._code_dtype).view(batch, height, width, groups)
        return codes_bhwg.permute(0, 3, 1, 2)

    def decode(self, codes: Tensor) -> Tensor:
        """Concatenate the rows of the codes, not those at unit length (eq. 2).

        Only these rows get a gradient. Where the codebook has a filter, the map passes
        it.

        Args:
            codes: ``(B, G, H, W)`` integers in ``[0, n)``.

        Returns:
            ``(B, G * d, H, W)`` float32, channels-last in memory.

        Raises:
            IndexError: a code is outside ``[0, n)``.
        """
        decoded = self.concatenate(codes)
        if self.map_filter is None:
            return decoded
        return self.map_filter(decoded)

    def concatenate(self, codes: Tensor) -> Tensor:
        """Concatenate the rows of codes as ``decode`` does, but without the filter.

        Args:
            codes: ``(B, G, H, W)`` integers in ``[0, n)``.

        Returns:
            ``(B, G * d, H, W)`` float32, channels-last in memory.

        Raises:
            IndexError: a code is outside ``[0, n)``.
            ValueError: the codebook is that of maps with other channels.
        """
        batch, groups, height, width = codes.shape
        channels = groups * self.codebook_dim
        self._check_channels(channels)
        codes_bhwg = codes.permute(0, 2, 3, 1)
        if self.table_of_group is not None:
            first_rows = self.table_of_group.int() * self.codebook_size
            codes_bhwg = codes_bhwg + first_rows
        if codes.device.type == "cpu":
            slices_bhwgd = RowLookup.apply(self.blocks, codes_bhwg)
        else:
            slices_bhwgd = functional.embedding(codes_bhwg.int(), self.blocks)
        map_bhwc = slices_bhwgd.reshape(batch, height, width, channels)
        if self.channel_order is not None:
            positions = self.channel_order.long().argsort()
            map_lc = map_bhwc.reshape(-1, channels).index_select(1, positions)
            map_bhwc = map_lc.view(map_bhwc.shape)
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

        Rows of one index in several tables count together. Paper, Fig. 5b.
        """
        return torch.bincount(codes.reshape(-1).long(), minlength=self.codebook_size)

    @property
    def _code_dtype(self) -> torch.dtype:
        if self.codebook_size <= LARGEST_OF_BYTES:
            return torch.uint8
        return torch.int16

    def slices(self, maps_bchw: Tensor) -> Tensor:
        """Cut maps into slices, each group's channels in the codebook's order.

        Args:
            maps_bchw: ``(B, C, H, W)`` float.

        Returns:
            ``(B * H * W, G, d)`` float32.

        Raises:
            ValueError: ``codebook_dim`` does not divide ``C``.
        """
        maps_lc = _by_location(maps_bchw)
        if self.channel_order is not None:
            # By columns of a matrix: torch selects those of four axes much slower.
            maps_lc = maps_lc.index_select(1, self.channel_order.int())
        groups = self.groups(maps_bchw.shape[1])
        return maps_lc.reshape(len(maps_lc), groups, self.codebook_dim)

    def _slices_of(self, maps_lc: Tensor, members: slice | Tensor) -> Tensor:
        """Return the slices of some groups, one below the other: ``(N, d)``."""
        if isinstance(members, slice) and self.channel_order is None:
            return maps_lc.reshape(-1, self.codebook_dim)
        if self.channel_order is None:
            order = torch.arange(maps_lc.shape[1], device=maps_lc.device)
        else:
            order = self.channel_order.int()
        columns = order.view(-1, self.codebook_dim)[members].flatten()
        return maps_lc.index_select(1, columns).view(-1, self.codebook_dim)

    def _groups_of_tables(self) -> list[slice | Tensor]:
        """Return which groups have each table: all, or their numbers."""
        if self.table_of_group is None:
            return [slice(None)]
        return [
            (self.table_of_group == table).nonzero().squeeze(1)
            for table in range(self.tables)
        ]

    def _search(
        self, slices: Tensor, rows: Tensor, is_filled: Tensor, all_filled: bool
    ) -> Tensor:
        """Return the row of a table for each slice, -1 where a slice is not finite.

        Args:
            slices: ``(N, d)`` float32.
            rows: ``(n, d)`` float32.
            is_filled: ``(n,)`` bool, which rows are not all zero.
            all_filled: whether none is.

        Returns:
            ``(N,)`` int64.
        """
        if self.search == "distance":
            return nearest_rows(slices, rows)
        if all_filled:
            return most_similar_rows(slices, functional.normalize(rows, dim=1))
        candidates = is_filled.nonzero().squeeze(1)
        unit_rows = functional.normalize(rows[candidates], dim=1)
        indices = most_similar_rows(slices, unit_rows)
        is_finite = indices >= 0
        chosen = candidates.index_select(0, indices.clamp_min(0))
        return chosen.where(is_finite, indices)

    def _check_channels(self, channels: int) -> None:
        """Raise ValueError for maps of other channels than those of ``for_channels``.

        A codebook without what depends on them takes maps of any.
        """
        depends = self.tables > 1 or self.grouping != "consecutive" or self.filtered
        if depends and channels != self.channels:
            raise ValueError(
                f"the feature map has {channels} channels, but this codebook was made "
                f"for {self.channels}: call for_channels({channels}) on a new one, or "
                "give it to a SplitModel"
            )

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


def _by_location(maps_bchw: Tensor) -> Tensor:
    """Return the channels of each location, ``(B * H * W, C)`` float32."""
    maps_bhwc = maps_bchw.permute(0, 2, 3, 1)
    return maps_bhwc.reshape(-1, maps_bchw.shape[1]).float()


def _check_name(setting: str, name: str, known: Collection[str]) -> None:
    """Raise ValueError for a name that a setting does not know."""
    if name not in known:
        raise ValueError(f"{setting} is {name!r}; known are {', '.join(known)}")


def check_codebook(codebook: Codebook | None, channels: int) -> None:
    """Make room in a codebook for maps with ``channels``; raise if it does not fit.

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
        codebook.for_channels(channels)


# The half-normal distribution with this multiple of the measured spread matched real
# activations best in the paper.
SPREAD = 5 / 3
# Slices for each centre, above which faiss itself takes a sample.
MOST_SLICES_PER_CENTRE = 256
# Slices whose products with all centres are in memory at once.
NEAREST_TILE = 8192
ITERATIONS = 25  # of k-means
ASSIGNMENTS = 5  # rounds at most in which groups choose their table
ASSIGNED_LOCATIONS = 2000  # by whose error they do


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

    All-zero slices do not count if rows are chosen by direction. Of several tables,
    each group gets the one that has the least error for it.

    Raises:
        ValueError: there are fewer slices than rows.
    """
    if codebook.tables == 1:
        slices = _sampled_slices(codebook, maps, generator)
        codebook.blocks.copy_(_centres(codebook, slices, generator))
        return
    slices_lgd = _sampled_locations(codebook, maps, generator)
    _assign_tables(codebook, slices_lgd, generator)
    _fit_tables(codebook, slices_lgd, generator)


def _sampled_locations(
    codebook: Codebook, maps: Tensor, generator: Generator
) -> Tensor:
    """Return the slices of a random sample of locations, ``(L, G, d)`` on the CPU.

    Raises:
        ValueError: the slices are fewer than the rows.
    """
    codebook.for_channels(maps.shape[1])
    slices_lgd = codebook.slices(maps.detach().float()).cpu()
    _check_enough(slices_lgd.flatten(0, 1), len(codebook.blocks))
    limit = MOST_SLICES_PER_CENTRE * codebook.codebook_size
    if len(slices_lgd) > limit:
        chosen = torch.randperm(len(slices_lgd), generator=generator)[:limit]
        slices_lgd = slices_lgd[chosen]
    return slices_lgd


def _assign_tables(
    codebook: Codebook, slices_lgd: Tensor, generator: Generator
) -> None:
    """Give each group one of the tables.

    Groups of slices of similar length share one at first. Then tables are fitted to
    their groups and groups take the table of least error, in turns, as in k-means. The
    caller fits the tables once more.

    Args:
        codebook: gets ``table_of_group``.
        slices_lgd: slices by location, group and value, ``(L, G, d)``.
        generator: of the k-means of the tables.
    """
    groups = slices_lgd.shape[1]
    device = codebook.blocks.device
    lengths = torch.linalg.vector_norm(slices_lgd, dim=2).mean(dim=0)
    ranks = lengths.argsort().argsort()  # rank of each group by length
    table_of_group = ranks * codebook.tables // groups
    few_lgd = slices_lgd[:ASSIGNED_LOCATIONS]
    for _ in range(ASSIGNMENTS):
        codebook.table_of_group = table_of_group.byte().to(device)
        _fit_tables(codebook, slices_lgd, generator, iterations=8)
        errors_by_table_and_group = _errors_of_tables(codebook, few_lgd)
        nearest = errors_by_table_and_group.argmin(dim=0)
        if torch.equal(nearest, table_of_group):
            break
        table_of_group = nearest
    codebook.table_of_group = table_of_group.byte().to(device)


def _fit_tables(
    codebook: Codebook,
    slices_lgd: Tensor,
    generator: Generator,
    iterations: int = ITERATIONS,
) -> None:
    """Set the rows of each table to k-means centres of the slices of its groups.

    A table of no group, or of too few slices for its rows, is left as it is.
    """
    assert codebook.table_of_group is not None, "only with several tables"
    table_of_group = codebook.table_of_group.cpu()
    for table, rows in enumerate(codebook.blocks.split(codebook.codebook_size)):
        slices = slices_lgd[:, table_of_group == table].flatten(0, 1).contiguous()
        if len(slices) >= codebook.codebook_size:
            rows.copy_(_centres(codebook, slices, generator, iterations=iterations))


def _errors_of_tables(codebook: Codebook, slices_lgd: Tensor) -> Tensor:
    """Return the squared error of each table for each group, ``(T, G)``."""
    slices = slices_lgd.flatten(0, 1).contiguous()
    errors = []
    for table in codebook.blocks.detach().cpu().split(codebook.codebook_size):
        nearest = table[nearest_rows(slices, table)]
        squares_lg = (slices - nearest).square().sum(dim=1).view(slices_lgd.shape[:2])
        errors.append(squares_lg.mean(dim=0))
    return torch.stack(errors)


def _check_enough(slices: Tensor, n_rows: int) -> None:
    """Raise ValueError for fewer slices than rows."""
    if len(slices) < n_rows:
        raise ValueError(
            f"{len(slices)} slices that are not zero cannot make {n_rows} k-means "
            "centres; give more feature maps"
        )


@torch.no_grad()
def init_spherical_(codebook: Codebook, maps: Tensor, generator: Generator) -> None:
    """Set the rows to means of slices of one direction.

    Directions are grouped by a spherical k-means, and each row is the mean of the
    slices in a group. The search compares directions alone (eq. 1), so centres of
    directions make it choose better rows than those of ``init_kmeans_``, and the mean
    of the chosen slices is the row with the least squared error.

    Raises:
        ValueError: see ``init_kmeans_``; or there are several tables.
    """
    if codebook.tables > 1:
        raise ValueError(
            f"spherical fills one table, but there are {codebook.tables}; take kmeans"
        )
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
    """Return a random sample of the slices of maps: ``(N, d)``.

    Where rows are chosen by direction, all-zero slices are left out: any row serves
    them alike.

    Raises:
        ValueError: they are fewer than the rows.
    """
    codebook.for_channels(maps.shape[1])
    slices = codebook.slices(maps.detach().float()).flatten(0, 1).cpu()
    if codebook.search == "direction":
        slices = slices[slices.any(dim=1)]
    _check_enough(slices, codebook.codebook_size)
    limit = MOST_SLICES_PER_CENTRE * codebook.codebook_size
    if len(slices) > limit:
        slices = slices[torch.randperm(len(slices), generator=generator)[:limit]]
    return slices.contiguous()


def _centres(
    codebook: Codebook,
    slices: Tensor,
    generator: Generator,
    spherical: bool = False,
    iterations: int = ITERATIONS,
) -> Tensor:
    """Return k-means centres of ``(N, d)`` slices, one for each row: ``(n, d)``."""
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    faiss.omp_set_num_threads(torch.get_num_threads())
    kmeans = faiss.Kmeans(
        d=codebook.codebook_dim,
        k=codebook.codebook_size,
        niter=iterations,
        seed=seed,
        min_points_per_centroid=1,
        spherical=spherical,
    )
    kmeans.train(slices.numpy())
    return torch.from_numpy(kmeans.centroids)


@torch.no_grad()
def group_channels_(codebook: Codebook, maps: Tensor) -> None:
    """Put channels that are correlated in one group, where the codebook asks for it.

    A group begins with the channel of the largest variance that is left, and takes the
    channel that is most correlated with its members, time and again. Rows of a few
    values describe correlated channels better.

    Args:
        codebook: with ``grouping="correlated"``; others are left as they are.
        maps: ``(B, C, H, W)``.
    """
    channels = maps.shape[1]
    codebook.for_channels(channels)
    if codebook.channel_order is None:
        return
    values_cl = maps.detach().float().transpose(0, 1).flatten(1)
    variances = values_cl.var(dim=1)
    # Constant channels have no correlation.
    correlations = torch.corrcoef(values_cl).abs().nan_to_num()
    is_taken = torch.zeros(channels, dtype=torch.bool, device=maps.device)
    order: list[int] = []
    for _ in range(codebook.groups(channels)):
        first = variances.masked_fill(is_taken, -1).argmax()
        is_taken[first] = True
        members = [int(first)]
        while len(members) < codebook.codebook_dim:
            likeness = correlations[members].sum(dim=0)
            nearest = likeness.masked_fill(is_taken, -1).argmax()
            is_taken[nearest] = True
            members.append(int(nearest))
        order += members
    codebook.channel_order.copy_(torch.tensor(order))


INITIALISERS: dict[str, Callable[[Codebook, Tensor, Generator], None]] = {
    "matched": init_matched_,
    "dense_matched": init_dense_matched_,
    "normal": init_normal_,
    "uniform": init_uniform_,
    "sampled": init_sampled_,
    "kmeans": init_kmeans_,
    "spherical": init_spherical_,
}
