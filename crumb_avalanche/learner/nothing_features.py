"""Features of images that show nothing, which a learner compares images with."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from crumb_avalanche.learner.nothing import MOST_SHOWN, PER_PIECE
from crumb_avalanche.methods.looks import Looks
from crumb_avalanche.methods.typicality import DRAWN


class NothingFeatures:
    """Features of images that show none of the classes, for each look.

    Rows of drawn images come first, then the latest ones of those that were shown as
    nothing. It never changes: methods return another one.

    Args:
        by_look: ``(n, D)`` float32 rows by number of the look; default none.

    Attributes:
        by_look: see above.
    """

    def __init__(self, by_look: Mapping[int, Tensor] = MappingProxyType({})):
        self.by_look = dict(by_look)

    def __deepcopy__(self, memo: dict) -> "NothingFeatures":
        return self

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.by_look)

    @classmethod
    def of_drawn(
        cls, views: Tensor, looks: Looks, used: Sequence[int]
    ) -> "NothingFeatures":
        """Take features of drawn images, of the first view of each look.

        Args:
            views: ``(DRAWN, V, D)`` of all views.
            looks: that the views are of.
            used: numbers of those that are used.
        """
        by_look = {}
        for look in used:
            first_view = looks.views_of([look])[0]
            by_look[look] = views[:, first_view]
        return cls(by_look)

    def of_look(self, look: int) -> Tensor | None:
        """Return the rows of a look: ``(n, D)``; ``None`` if there are none."""
        return self.by_look.get(look)

    def with_shown(self, views: Tensor, looks: Looks) -> "NothingFeatures":
        """Add images of a piece of a clip that was shown as nothing.

        They are at equal distances in it.

        Args:
            views: ``(n, V, D)`` of all views of the piece's images, of which neighbours
                are alike.
            looks: that the views are of.
        """
        count = min(len(views), PER_PIECE)
        positions = torch.linspace(0, len(views) - 1, count, dtype=torch.float32)
        spread_views = views[positions.round().long()]
        by_look = {}
        for look, rows in self.by_look.items():
            rows_of_piece = spread_views[:, looks.views_of([look])].flatten(0, 1)
            by_look[look] = _with_latest(rows, rows_of_piece)
        return NothingFeatures(by_look)

    def of_looks(self, used: Collection[int]) -> "NothingFeatures":
        """Drop the rows of other looks."""
        by_look = {}
        for look, rows in self.by_look.items():
            if look in used:
                by_look[look] = rows
        return NothingFeatures(by_look)

    def last_features(self, count: int) -> "NothingFeatures":
        """Keep the last features of all rows."""
        by_look = {}
        for look, rows in self.by_look.items():
            by_look[look] = rows[:, -count:]
        return NothingFeatures(by_look)

    def merged(self, other: "NothingFeatures") -> "NothingFeatures":
        """Add what was shown to another learner as nothing, by the same looks."""
        by_look = dict(self.by_look)
        for look, rows in other.by_look.items():
            if look in by_look:
                rows = _with_latest(by_look[look], rows[DRAWN:])
            by_look[look] = rows
        return NothingFeatures(by_look)

    def state(self) -> list[Tensor]:
        """Return the rows of each look, in order."""
        return list(self.by_look.values())

    @classmethod
    def of_state(cls, rows: Sequence[Tensor], used: Sequence[int]) -> "NothingFeatures":
        """Load what ``state`` returned.

        Args:
            rows: of each used look, or of none.
            used: numbers of the looks, in order.
        """
        return cls(dict(zip(used, rows)))


def _with_latest(rows: Tensor, shown: Tensor) -> Tensor:
    """Return rows of drawn images, and the latest ones of those that were shown.

    Args:
        rows: drawn ones first, then those that were shown before.
        shown: those that are added.
    """
    all_shown = torch.cat([rows[DRAWN:], shown])
    return torch.cat([rows[:DRAWN], all_shown[-MOST_SHOWN:]])
