"""The codebook of memory blocks.

Paper: "Reconstructing feature maps from memory", eq. 1-2.

Axes, which names of tensors list: ``B`` images, ``C`` channels, ``H, W`` locations,
``d = codebook_dim``, ``G = C / d`` groups of consecutive channels, ``n`` rows of the
codebook. A slice is the ``d`` values of one group at one location, the paper's
``Z_{f, x, y}``. Slices are ordered location by location, ``(B, H, W, G)``, so that
channels-last maps are not copied.
"""

import warnings
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks_toybox_ilab.tables.numbers import is_whole_number
from crumb_avalanche.models.codebook_ranges import (
    GROUPINGS,
    LARGEST_CODEBOOK,
    MOST_TABLES,
    SEARCHES,
)
from crumb_avalanche.models.map_filter import MapFilter
from crumb_avalanche.models.row_length import largest_divisor
from crumb_avalanche.models.row_lookup import RowLookup
from crumb_avalanche.models.search import most_similar_rows, nearest_rows

LARGEST_OF_BYTES = 2**8  # rows whose codes are uint8


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
            are a product quantiser; more are never used, though their bytes count.
        grouping: which channels make a group: ``consecutive`` ones, or ``correlated``
            ones (see ``group_channels``).
        filtered: whether decoded maps pass a ``MapFilter``, which ``calibrate`` fits.

    Raises:
        TypeError: ``codebook_size``, ``codebook_dim`` or ``tables`` is no whole number.
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
        _check_whole("codebook_size", codebook_size)
        _check_whole("codebook_dim", codebook_dim)
        _check_whole("tables", tables)
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
        """Bytes of what a codebook keeps besides its blocks.

        They are those of the tables of groups, the order of channels and the filter.
        """
        return sum(buffer.nbytes for buffer in self.buffers())

    def extra_repr(self) -> str:
        """Return the settings of the codebook as text, for ``repr``."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())

    def n_groups(self, n_channels: int) -> int:
        """Return ``C / d``, the number ``G`` of codes for each location of a map.

        Args:
            n_channels: number ``C`` of channels of the map, a multiple of
                ``codebook_dim``, ``d``.

        Raises:
            ValueError: ``codebook_dim`` does not divide ``n_channels``.
        """
        if n_channels % self.codebook_dim:
            divisor = largest_divisor(n_channels, self.codebook_dim)
            raise ValueError(
                f"the feature map has {n_channels} channels, which "
                f"codebook_dim={self.codebook_dim} does not divide; choose another "
                f"codebook_dim, such as {divisor}, or a cut_layer whose channel count "
                "it divides"
            )
        return n_channels // self.codebook_dim

    def for_channels(self, n_channels: int) -> "Codebook":
        """Make room for what depends on the number of channels: tables, order, filter.

        ``SplitModel``, ``calibrate`` and ``INITIALISERS`` call it; the first call
        decides. Tables are then shared by consecutive groups, the order of the channels
        is that of the maps, and the filter changes nothing. It warns of more tables
        than groups.

        Args:
            n_channels: number ``C`` of channels of the maps.

        Returns:
            The codebook itself.

        Raises:
            ValueError: ``codebook_dim`` does not divide ``n_channels``, or the codebook
                is that of maps with other channels.
        """
        n_groups = self.n_groups(n_channels)
        if self.channels is not None:
            self._check_channels(n_channels)
            return self
        self.channels = n_channels
        if self.tables > n_groups:
            warnings.warn(
                f"tables is {self.tables}, but the number of groups is {n_groups} "
                f"({n_channels} channels, codebook_dim={self.codebook_dim}), and each "
                "has one table: the others are never used, though their bytes count; "
                f"give {n_groups} at most, or a smaller codebook_dim",
                stacklevel=2,
            )
        device = self.blocks.device
        if self.tables > 1:
            groups = torch.arange(n_groups, device=device)
            self.table_of_group = (groups * self.tables // n_groups).byte()
        if self.grouping == "correlated":
            order = torch.arange(n_channels, dtype=torch.int16, device=device)
            self.channel_order = order
        if self.filtered:
            self.map_filter = MapFilter(n_channels).to(device)
        return self

    @torch.no_grad()
    def encode(self, feature_map: Tensor, usable: Tensor | None = None) -> Tensor:
        """Replace every slice by the index of a row of its table (eq. 1-2).

        A slice is the values of a group of ``codebook_dim`` channels at a location; a
        codebook has one table of rows, or several for different groups.

        By direction that is the row which, scaled to unit length, has the largest dot
        product with the slice. All-zero rows are never chosen; an all-zero slice gets
        the lowest row that is not zero. By distance it is the row with the least
        squared error. Other ties mostly go to the lowest index, see ``models.search``.
        No gradient passes.

        Args:
            feature_map: ``(B, C, H, W)`` float; ``C`` is a multiple of
                ``codebook_dim``.
            usable: whether the map is finite, a bool on its device; default it is
                checked here, which waits for a GPU once more.

        Returns:
            ``(B, G, H, W)`` codes, ``uint8`` up to 256 rows and ``int16`` above; ``(B,
            H, W, G)`` in memory.

        Raises:
            ValueError: ``C`` is not a multiple of ``codebook_dim`` or not that of
                ``for_channels``, all rows are zero, or the codebook or the map is not
                finite.
        """
        batch, n_channels, height, width = feature_map.shape
        n_groups = self.n_groups(n_channels)
        self._check_channels(n_channels)
        rows = self.blocks.detach().float()
        is_filled = rows.any(dim=1)
        # ``is_usable``, whether the map is finite, is None where that is not known yet:
        # the search marks slices that are not finite.
        all_filled, is_usable = self._check_rows(rows, is_filled, usable)

        maps_lc = _by_location(feature_map)  # (B * H * W, C)
        row_indices = torch.empty(
            len(maps_lc), n_groups, dtype=torch.int64, device=feature_map.device
        )
        rows_by_table = rows.split(self.codebook_size)
        is_filled_by_table = is_filled.split(self.codebook_size)
        # Each group of channels is searched for in its own table of rows.
        for table, groups in enumerate(self._groups_by_table()):
            has_no_group = isinstance(groups, Tensor) and len(groups) == 0
            if has_no_group:
                continue  # all of its rows may be zero
            slices = self._slices_of_groups(maps_lc, groups)  # (locations * groups, d)
            indices_of_slices = self._search_rows(
                slices, rows_by_table[table], is_filled_by_table[table], all_filled
            )
            row_indices[:, groups] = indices_of_slices.view(len(maps_lc), -1)
        if is_usable is None:
            # -1 stands for a slice that is not finite.
            is_usable = not row_indices.numel() or bool(row_indices.min() >= 0)
        if not is_usable:
            raise ValueError(
                "the feature map holds NaN or infinite values; look for them in the "
                "images or weights"
            )

        codes_lg = row_indices.to(self._code_dtype)
        codes_bhwg = codes_lg.view(batch, height, width, n_groups)
        return codes_bhwg.permute(0, 3, 1, 2)

    def decode(self, codes: Tensor) -> Tensor:
        """Make maps of codes: a location has the rows of its codes in a line (eq. 2).

        The rows are those of the codebook, not scaled to unit length; only these get a
        gradient. Where the codebook has a filter, which smooths maps, they pass it.

        Args:
            codes: ``(B, G, H, W)`` integers in ``[0, n)``.

        Returns:
            ``(B, G * d, H, W)`` float32, channels-last in memory.

        Raises:
            IndexError: a code is outside the rows of all tables. With several tables,
                one outside ``[0, n)`` may be a row of another table.
        """
        decoded = self.concatenate(codes)
        if self.map_filter is None:
            return decoded
        return self.map_filter(decoded)

    def concatenate(self, codes: Tensor) -> Tensor:
        """Concatenate the rows of codes as ``decode`` does, but without the filter.

        Each location gets the rows of its codes in a line, whose values are then put in
        the order of the maps' channels.

        Args:
            codes: ``(B, G, H, W)`` integers in ``[0, n)``, indices in the table of rows
                of each group.

        Returns:
            ``(B, G * d, H, W)`` float32, channels-last in memory.

        Raises:
            IndexError: a code is outside the rows of all tables. With several tables,
                one outside ``[0, n)`` may be a row of another table.
            ValueError: the codebook is that of maps with other channels.
        """
        batch, n_groups, height, width = codes.shape
        n_channels = n_groups * self.codebook_dim
        self._check_channels(n_channels)
        codes_bhwg = codes.permute(0, 2, 3, 1)
        if self.table_of_group is not None:
            # From the row of a group's table to the row of all tables.
            first_rows = self.table_of_group.int() * self.codebook_size
            codes_bhwg = codes_bhwg + first_rows
        if codes.device.type == "cpu":
            # An embedding whose gradient takes a quarter of the time on a CPU.
            slices_bhwgd = RowLookup.apply(self.blocks, codes_bhwg)
        else:
            slices_bhwgd = functional.embedding(codes_bhwg.int(), self.blocks)
        map_bhwc = slices_bhwgd.reshape(batch, height, width, n_channels)
        if self.channel_order is not None:
            # The inverse: where each channel of the maps is in the codebook's order.
            positions = self.channel_order.long().argsort()
            map_lc = map_bhwc.reshape(-1, n_channels).index_select(1, positions)
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
        """Smallest type that holds the codes."""
        if self.codebook_size <= LARGEST_OF_BYTES:
            return torch.uint8
        return torch.int16

    def slices(self, maps_bchw: Tensor) -> Tensor:
        """Cut the channels of each location into slices, as long as a codebook row.

        A slice has the channels of a group, in the codebook's order of channels.

        Args:
            maps_bchw: ``(B, C, H, W)`` float.

        Returns:
            ``(B * H * W, G, d)`` float32: ``G = C / d`` slices of ``d`` values for each
            location.

        Raises:
            ValueError: ``codebook_dim`` does not divide ``C``.
        """
        maps_lc = _by_location(maps_bchw)
        if self.channel_order is not None:
            # By columns of a matrix: torch selects those of four axes much slower.
            maps_lc = maps_lc.index_select(1, self.channel_order.int())
        n_groups = self.n_groups(maps_bchw.shape[1])
        return maps_lc.reshape(len(maps_lc), n_groups, self.codebook_dim)

    def _slices_of_groups(self, maps_lc: Tensor, groups: slice | Tensor) -> Tensor:
        """Return the slices of groups of channels, one below the other: ``(N, d)``.

        Args:
            maps_lc: channels of each location, ``(B * H * W, C)``.
            groups: numbers of the groups, int64, or ``slice(None)`` for all.

        Returns:
            float32, location by location: ``N`` is their number times that of the
            groups.
        """
        if isinstance(groups, slice) and self.channel_order is None:  # all, in order
            return maps_lc.reshape(-1, self.codebook_dim)
        if self.channel_order is None:
            order = torch.arange(maps_lc.shape[1], device=maps_lc.device)
        else:
            order = self.channel_order.int()
        columns = order.view(-1, self.codebook_dim)[groups].flatten()  # of the maps
        return maps_lc.index_select(1, columns).view(-1, self.codebook_dim)

    def _groups_by_table(self) -> list[slice | Tensor]:
        """Return the groups of channels that have each table.

        They are an index of the axis ``G``: all of a single table as a slice, else
        int64 numbers.
        """
        if self.table_of_group is None:
            return [slice(None)]
        return [
            (self.table_of_group == table).nonzero().squeeze(1)
            for table in range(self.tables)
        ]

    def _search_rows(
        self, slices: Tensor, rows: Tensor, is_filled: Tensor, all_filled: bool
    ) -> Tensor:
        """Return the index of a table's row for each slice, by the setting ``search``.

        By distance it is that of the nearest row; by direction, that of the largest dot
        product with the row at unit length, all-zero rows left out.

        Args:
            slices: ``(N, d)`` float32.
            rows: of the table, ``(n, d)`` float32.
            is_filled: ``(n,)`` bool, which rows are not all zero.
            all_filled: whether no row of any table is all zero.

        Returns:
            ``(N,)`` int64; -1 where a slice is not finite.
        """
        if self.search == "distance":
            return nearest_rows(slices, rows)
        if all_filled:
            return most_similar_rows(slices, functional.normalize(rows, dim=1))
        candidates = is_filled.nonzero().squeeze(1)  # indices of rows
        unit_rows = functional.normalize(rows[candidates], dim=1)
        candidate_indices = most_similar_rows(slices, unit_rows)
        is_finite = candidate_indices >= 0
        row_indices = candidates.index_select(0, candidate_indices.clamp_min(0))
        return row_indices.where(is_finite, candidate_indices)  # -1 elsewhere

    def _check_channels(self, n_channels: int) -> None:
        """Raise ValueError for maps of other channels than those of ``for_channels``.

        A codebook without tables of groups, order and filter takes maps of any.
        """
        is_for_channels = (
            self.tables > 1 or self.grouping != "consecutive" or self.filtered
        )
        if is_for_channels and n_channels != self.channels:
            raise ValueError(
                f"the feature map has {n_channels} channels, but this codebook was "
                f"made for {self.channels}: call for_channels({n_channels}) on a new "
                "one, or give it to a SplitModel"
            )

    def _check_rows(
        self, rows: Tensor, is_filled: Tensor, usable: Tensor | None
    ) -> tuple[bool, bool | None]:
        """Check the rows, and return whether all are filled and the map is usable.

        All questions are answered in one transfer, so that a GPU is waited for once.

        Args:
            rows: ``(n, d)`` float32, of all tables.
            is_filled: ``(n,)`` bool, which of them are not all zero.
            usable: whether the map that is to be encoded is finite, a bool on its
                device; ``None`` if that is not known yet.

        Returns:
            Whether all rows are filled; and ``usable`` as a Python bool, or ``None`` if
            it was not given.

        Raises:
            ValueError: all rows are zero, or one is not finite.
        """
        questions = [is_filled.any(), is_filled.all(), rows.isfinite().all()]
        if usable is not None:
            questions.append(usable)
        answers = torch.stack(questions).tolist()
        any_filled, all_filled, is_finite = answers[:3]
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
        if usable is None:
            return all_filled, None
        return all_filled, answers[3]


def _by_location(maps_bchw: Tensor) -> Tensor:
    """Return the channels of maps by location, ``(B * H * W, C)`` float32."""
    maps_bhwc = maps_bchw.permute(0, 2, 3, 1)
    return maps_bhwc.reshape(-1, maps_bchw.shape[1]).float()


def _check_whole(setting: str, value: object) -> None:
    """Raise TypeError for a setting of a codebook that is no whole number."""
    if not is_whole_number(value):
        raise TypeError(f"{setting} is {value!r}; give a whole number")


def _check_name(setting: str, name: str, known: Collection[str]) -> None:
    """Raise ValueError for a name that a setting of a codebook does not know."""
    if name not in known:
        raise ValueError(f"{setting} is {name!r}; known are {', '.join(known)}")


def prepare_codebook(codebook: Codebook | None, n_channels: int) -> None:
    """Check a codebook, and make room in it for maps with a number of channels.

    That is room for what depends on this number: tables, order of channels, filter.

    Args:
        codebook: changed in place; nothing is done for ``None``.
        n_channels: number of channels of the maps.

    Raises:
        TypeError: it is neither a ``Codebook`` nor ``None``.
        ValueError: its ``codebook_dim`` does not divide ``n_channels``.
    """
    if not isinstance(codebook, Codebook | None):
        raise TypeError(
            f"codebook is {codebook!r}; give a Codebook, such as Codebook(256, 16), or "
            "None"
        )
    if codebook is not None:
        codebook.for_channels(n_channels)
