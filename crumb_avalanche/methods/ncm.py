"""NCM: nearest class mean of frozen features, by cosine."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.registry import register
from crumb_avalanche.methods.typicality import MeansSpan, Typicality


@register(
    "ncm",
    summary="class means of frozen features, nearest by cosine",
    source="Mensink et al., Distance-Based Image Classification, PAMI 2013; as in iCaRL, CVPR 2017",
    stores="a mean for each class",
)
class ClassMeans(ClosedForm):
    """Classifier by the class mean with the largest cosine (NCM; Mensink et al., PAMI 2013; Rebuffi et al., CVPR 2017).

    The order of the images does not matter, up to rounding. ``forget`` leaves nothing
    of a class. Typical images are near a class mean and have its direction, both of
    unit vectors.

    Attributes:
        means: ``(n_classes, D)`` float32.
        counts: ``(n_classes,)`` int32, images of each class.
    """

    temperature = 0.014
    by_class: ClassVar[tuple[str, ...]] = ("means", "counts")

    def _allocate(self, n_classes: int, length: int) -> None:
        self.means = torch.zeros(n_classes, length)
        self.counts = torch.zeros(n_classes, dtype=torch.int32)

    def _update(self, features, labels):
        self.absorb(features, labels)

    def absorb(self, features: Tensor, labels: Tensor) -> dict[int, Tensor]:
        """Add images to the means and return the increments of the scatters (Chan, Golub and LeVeque, 1979).

        Returns:
            ``(n + 1, D)`` float64 rows ``R`` for each class of the ``n`` images; its
            scatter grows by ``R^T R``.
        """
        rows = {}
        for label in labels.unique().tolist():
            group = features[labels == label].double()
            centre = group.mean(0)
            rows[label] = torch.cat(
                [group - centre, self._shift(label, centre, len(group)).unsqueeze(0)]
            )
        self._solution = None
        return rows

    def absorb_means(
        self, other: "ClassMeans", labels: dict[int, int]
    ) -> list[tuple[int, int, Tensor]]:
        """Add the means of another instance's classes, with their numbers in this one by the values of ``labels``.

        Returns:
            The class's numbers in the other and in this instance, and ``(1, D)``
            float64 rows ``R``; add ``R^T R`` to the sum of both scatters of the class.
        """
        self._solution = None
        return [
            (
                theirs,
                mine,
                self._shift(
                    mine, other.means[theirs].double(), int(other.counts[theirs])
                ).unsqueeze(0),
            )
            for theirs, mine in labels.items()
        ]

    def _shift(self, label: int, centre: Tensor, new: int) -> Tensor:
        """Add ``new`` images with the mean ``centre`` to a class; return the weighted difference of the two means."""
        mean, old = self.means[label].double(), int(self.counts[label])
        between = (old * new / (old + new)) ** 0.5 * (centre - mean)
        self.means[label] = (mean + new / (old + new) * (centre - mean)).float()
        self.counts[label] += new
        return between

    def _solve(self, seen):
        return functional.normalize(self.means[seen].double(), dim=1)

    def _answers(self, features, solution):
        return functional.normalize(features, dim=1) @ solution.mT

    def _typical_space(self, nothing: Tensor | None) -> MeansSpan:
        means = self.means[self.image_counts > 0].double()
        return MeansSpan.of_unit_vectors(functional.normalize(means, dim=1))

    def _typicality(self, features: Tensor, space: MeansSpan) -> Typicality:
        rows = functional.normalize(features) - space.centre
        scores = self.solution()(features)
        return space.typicality(scores, rows=rows, white=space.white(rows))

    def _merge(self, other, labels):
        self.absorb_means(other, labels)
