"""LoRanPAC: least squares on random features through a truncated SVD (Peng et al., ICLR 2025)."""

import torch
from torch import Tensor

from crumb_avalanche.methods.ranpac import FillsBudget, RandomProjection
from crumb_avalanche.methods.registry import register
from crumb_avalanche.system.setting_ranges import Factor, Share

# share of the largest squared singular value below which float32 rows hold rounding
# alone
NO_ENERGY = 1e-12


@register(
    "loranpac",
    summary="least squares on a random projection of frozen features, through a truncated SVD",
    source="Peng et al., LoRanPAC: Low-rank Random Features and Pre-trained Models, ICLR 2025",
    stores="the strongest singular directions of the random features, and their sum and number for each class",
)
class LoRanPAC(FillsBudget, RandomProjection):
    """Minimum-norm least squares on truncated random features (LoRanPAC; Peng et al., arXiv 2410.00645).

    With ``H = relu(X W)`` of all images, of which ``U S V^T`` is kept of ``H^T``,
    scores are ``h U S^-2 U^T H^T Y``. Every batch updates the factors by an SVD of ``[U
    S, h^T]``, of which at most ``(1 - truncated) N`` directions are kept for ``N``
    images, and at most ``rank`` times the random features. What is small is dropped
    instead of ridged, so that the answer is as stable with one class a step as with
    many.

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

    projection, ridge = 0, 0.0
    rank: Factor = 0.1
    truncated: Share = 0.25

    shared = ("rows",)
    remains_after_forget = "the share of the removed images in the singular directions"

    def _allocate(self, n_classes: int, length: int, seed: int = 0) -> None:
        super()._allocate(n_classes, length, seed)
        columns = self.sums.shape[1]
        self.rows = torch.zeros(max(1, round(self.rank * columns)), columns)
        del self.gram

    def _update(self, features, labels):
        hidden = self.project(features)
        self.sums.index_add_(0, labels, hidden.float())
        self.counts.index_add_(0, labels, torch.ones_like(labels, dtype=torch.int32))
        self._extend(hidden)

    def _extend(self, rows: Tensor) -> None:
        """Add ``(n, M)`` float64 rows to the directions, and truncate these."""
        held = int(self.rows.any(1).sum())
        together = torch.cat([self.rows[:held].double(), rows])
        energies, vectors = torch.linalg.eigh(together @ together.mT)
        # No fewer than before: forgotten images no longer count.
        most = max(held, round((1 - self.truncated) * int(self.counts.sum())), 1)
        most = min(
            most, len(self.rows), int((energies > NO_ENERGY * energies[-1]).sum())
        )
        self.rows = torch.zeros_like(self.rows)
        self.rows[:most] = (
            (vectors[:, len(energies) - most :].mT @ together).flip(0).float()
        )

    def _solve(self, seen):
        rows = self.rows[self.rows.any(1)].double()
        energies = rows.square().sum(1, keepdim=True)
        ridge = self.ridge * float(energies.mean()) if len(rows) else 0.0
        return rows.mT @ (
            rows @ self.sums[seen].double().mT / (energies * (energies + ridge))
        )

    def _merge(self, other, labels):
        for theirs, mine in labels.items():
            self.sums[mine] += other.sums[theirs]
            self.counts[mine] += other.counts[theirs]
        self._extend(other.rows[other.rows.any(1)].double())
