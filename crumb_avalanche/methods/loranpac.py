"""LoRanPAC: least squares on random features through a truncated SVD.

Peng et al., ICLR 2025.
"""

from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.methods.class_tensors import add_counts, add_rows
from crumb_avalanche.methods.ranpac import FillsBudget, RandomProjection
from crumb_avalanche.methods.registry import register
from crumb_avalanche.system.setting_ranges import Factor, Share

# Share of the largest squared singular value below which float32 rows hold rounding
# alone.
NO_ENERGY = 1e-12


@register(
    "loranpac",
    summary=(
        "least squares on a random projection of frozen features, through a truncated "
        "SVD"
    ),
    source=(
        "Peng et al., LoRanPAC: Low-rank Random Features and Pre-trained Models, ICLR "
        "2025"
    ),
    stores=(
        "the strongest singular directions of the random features, and their sum and "
        "number for each class"
    ),
)
class LoRanPAC(FillsBudget, RandomProjection):
    """Minimum-norm least squares on truncated random features.

    Peng et al., arXiv 2410.00645. With ``H = relu(X W)`` of all images, of which ``U S
    V^T`` is kept of ``H^T``, scores are ``h U S^-2 U^T H^T Y``. Every batch updates the
    factors by an SVD of ``[U S, h^T]``, of which at most ``(1 - truncated) N``
    directions are kept for ``N`` images, and at most ``rank`` times the random
    features. What is small is dropped instead of ridged, so that the answer is as
    stable with one class a step as with many.

    ``merge`` joins the directions of both instances and truncates them: they equal
    those of one instance only where nothing was dropped. ``forget`` removes the sum of
    a class and leaves the directions.

    Deviations: the authors update at the end of a task, or after 10,000 images, and
    keep them until then; here every batch is one update, and no image is kept.
    Directions are found by the eigenvectors of products instead of QR and SVD. The
    authors' 100,000 random features and 10,000 directions take 4 GB; here as many as
    the budget buys, with the same ratio.

    Attributes:
        rank: largest number of directions, as a share of the random features.
        truncated: share of the directions of the images so far that is dropped; the
            authors' 25 %.
        ridge: summand of the squared singular values, in units of their mean; the
            authors' 0.
        rows: ``U S`` transposed, ``(rank M, M)`` float32, the strongest direction
            first, and zeros.
    """

    projection = 0
    ridge = 0.0
    rank: Factor = 0.1
    truncated: Share = 0.25

    shared = ("rows",)
    remains_after_forget = "the share of the removed images in the singular directions"

    def _allocate(self, n_classes: int, length: int, seed: int = 0) -> None:
        """Allocate singular directions in the place of the Gram matrix."""
        super()._allocate(n_classes, length, seed)
        del self.gram
        n_columns = self.sums.shape[1]
        n_directions = max(1, round(self.rank * n_columns))
        self.rows = torch.zeros(n_directions, n_columns, dtype=torch.float32)

    def _update(self, features: Tensor, labels: Tensor) -> None:
        """Add ``(B, D)`` features to the class sums and to the directions."""
        hidden = self.project(features)
        self.sums.index_add_(0, labels, hidden.float())
        add_counts(self.counts, labels)
        self._extend(hidden)

    def _directions(self) -> Tensor:
        """Return the directions that are not zeros, ``(k, M)`` float64."""
        return self.rows[self.rows.any(1)].double()

    def _extend(self, rows: Tensor) -> None:
        """Add ``(n, M)`` float64 rows to the directions, and truncate these."""
        directions = self._directions()
        stacked = torch.cat([directions, rows])
        energies, vectors = torch.linalg.eigh(stacked @ stacked.mT)  # weakest first
        n_by_images = round((1 - self.truncated) * int(self.counts.sum()))
        n_not_rounding = int((energies > NO_ENERGY * energies[-1]).sum())
        # No fewer than before: forgotten images no longer count.
        n_wanted = max(len(directions), n_by_images, 1)
        n_directions = min(n_wanted, len(self.rows), n_not_rounding)
        strongest = vectors[:, len(energies) - n_directions :].mT @ stacked
        self.rows = torch.zeros_like(self.rows)
        self.rows[:n_directions] = strongest.flip(0).float()

    def _solve(self, seen: Tensor) -> Tensor:
        """Return the weights ``(M, C)`` of the least squares on the directions."""
        rows = self._directions()  # S U^T
        energies = rows.square().sum(1, keepdim=True)  # S^2
        ridge = 0.0
        if len(rows):
            ridge = self.ridge * float(energies.mean())
        along = rows @ self.sums[seen].double().mT
        # U (S^2 + ridge)^-1 U^T H^T Y
        return rows.mT @ (along / (energies * (energies + ridge)))

    def _merge(self, other: Any, labels: dict[int, int]) -> None:
        """Add class sums and directions of another instance."""
        add_rows(self.sums, other.sums, labels)
        add_rows(self.counts, other.counts, labels)
        self._extend(other._directions())
