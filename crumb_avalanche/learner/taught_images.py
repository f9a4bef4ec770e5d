"""Which images were learned before: the same photo again is no evidence.

Images are known again by their features, which a learner keeps of its last lessons.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from crumb_avalanche.system.tensor_file import tensor_bytes

# Distance of the features of one image, in units of their length, that other batches
# and runtimes may make by rounding.
ROUNDING = 1e-4


@dataclass
class _ImagesOfClass:
    """Images of a class by their features.

    Attributes:
        rows: ``(V, D)`` of each image, of ``V`` views of it.
        projections: ``(m, V)``, of these on one direction: images whose projections
            are far apart are not the same, which is quickly seen.
    """

    rows: list[Tensor]
    projections: Tensor


class TaughtImages:
    """Images that were learned, by class.

    Args:
        n_views: number of views of an image that features are of.
        room: most bytes of features that ``learned`` adds; images beyond them are not
            known again.

    Attributes:
        n_views: as it was given.
    """

    def __init__(self, n_views: int, room: int = 0):
        self.n_views = n_views
        self._room = room
        self._added: dict[str, list[Tensor]] = defaultdict(list)  # not yet in a table
        self._tables: dict[str, _ImagesOfClass] = {}

    def add(self, label: str, features: Tensor) -> None:
        """Add images of a class.

        Args:
            label: its name.
            features: ``(n, V * D)``, which are not copied.
        """
        if len(features):
            self._added[label].append(features)

    def learned(self, label: str, features: Tensor) -> None:
        """Add images of the lesson that is being learned, as far as there is room."""
        self._room -= tensor_bytes([features])
        if self._room >= 0:
            self.add(label, features)

    def among(self, label: str, features: Tensor) -> Tensor:
        """Return which of ``n`` images are among those of a class: ``(n,)`` bool.

        Views that were computed of one of two images alone are not compared.

        Args:
            label: name of the class.
            features: ``(n, V * D)``.
        """
        table = self._table_of(label)
        rows = features.unflatten(1, (self.n_views, -1))
        mask = torch.zeros(len(rows), dtype=torch.bool)
        if table is None:
            return mask
        projections = _projections(rows)
        for number, row in enumerate(rows):
            mask[number] = _is_among(row, projections[number], table)
        return mask

    def _table_of(self, label: str) -> _ImagesOfClass | None:
        """Return the images of a class, with those that were added since."""
        added = self._added.pop(label, [])
        if added:
            views = [features.unflatten(1, (self.n_views, -1)) for features in added]
            projections = [_projections(rows) for rows in views]
            table = self._tables.get(label)
            rows_before: list[Tensor] = []
            if table is not None:
                rows_before = table.rows
                projections.insert(0, table.projections)
            for rows in views:
                rows_before.extend(rows)
            self._tables[label] = _ImagesOfClass(rows_before, torch.cat(projections))
        return self._tables.get(label)


def _projections(rows: Tensor) -> Tensor:
    """Return the projections of ``(..., V, D)`` features on a direction: ``(..., V)``.

    Of two images they are at most as far apart as the features.
    """
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(rows.shape[-1], generator=generator)
    return rows.float() @ (direction / direction.norm())


def _is_among(row: Tensor, projection: Tensor, images: _ImagesOfClass) -> bool:
    """Whether an image is one of a class.

    Args:
        row: its features, ``(V, D)``.
        projection: of these, ``(V,)``; see ``_projections``.
        images: of the class.
    """
    limit = ROUNDING * row.norm(dim=1)  # of each view
    is_computed = limit > 0
    # A projection of 0 is that of a view that was not computed.
    is_comparable = is_computed & (images.projections != 0)
    gaps = (images.projections - projection).abs()
    is_far = is_comparable & (gaps > limit)
    is_candidate = is_comparable.any(1) & ~is_far.any(1)
    for number in is_candidate.nonzero().flatten().tolist():
        distances = (images.rows[number] - row).norm(dim=1)
        if not bool((is_comparable[number] & (distances > limit)).any()):
            return True
    return False
