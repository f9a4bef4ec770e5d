"""NCM: nearest class mean of frozen features, by cosine."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.methods.class_tensors import check_at_most
from crumb_avalanche.methods.closed_form import LARGEST_FEATURE, ClosedForm
from crumb_avalanche.methods.registry import register
from crumb_avalanche.methods.typicality import MeansSpan, Typicality


@dataclass(frozen=True)
class MergedMean:
    """A class of another instance whose mean was added to one of this instance.

    Attributes:
        theirs, mine: number of the class in the other and in this instance.
        between: ``(1, D)`` float64 row ``R``; add ``R^T R`` to the sum of both scatters
            of the class.
    """

    theirs: int
    mine: int
    between: Tensor


@register(
    "ncm",
    summary="class means of frozen features, nearest by cosine",
    source=(
        "Mensink et al., Distance-Based Image Classification, PAMI 2013; as in iCaRL, "
        "CVPR 2017"
    ),
    stores="a mean for each class",
)
class ClassMeans(ClosedForm):
    """Classifier by the class mean with the largest cosine (NCM).

    Mensink et al., PAMI 2013; Rebuffi et al., CVPR 2017. The order of the images does
    not matter, up to rounding. ``forget`` leaves nothing of a class. Typical images are
    near a class mean and have its direction, both of unit vectors.

    Attributes:
        means: ``(n_classes, D)`` float32.
        counts: ``(n_classes,)`` int32, images of each class.
    """

    temperature = 0.014
    by_class: ClassVar[tuple[str, ...]] = ("means", "counts")

    def _allocate(self, n_classes: int, length: int) -> None:
        """Allocate a mean and a count for each class."""
        self.means = torch.zeros(n_classes, length, dtype=torch.float32)
        self.counts = torch.zeros(n_classes, dtype=torch.int32)

    def _update(self, features: Tensor, labels: Tensor) -> None:
        """Add ``(B, D)`` features to the means of their classes."""
        self.absorb(features, labels)

    def absorb(self, features: Tensor, labels: Tensor) -> dict[int, Tensor]:
        """Add images to the class means and return the increments of the scatters.

        The scatter of a class is the sum of outer products of its features minus their
        mean (Chan, Golub and LeVeque, 1979).

        Args:
            features, labels: ``(B, D)`` float, and ``(B,)`` int64.

        Returns:
            For each class of the batch, of which ``n`` images are, ``(n + 1, D)``
            float64 rows ``R``; its scatter grows by ``R^T R``.
        """
        increments = {}
        for label in labels.unique().tolist():
            samples = features[labels == label].double()
            new_mean = samples.mean(0)
            # A row for the difference of the old mean and the new one.
            between = self._move_mean(label, new_mean, len(samples))
            increments[label] = torch.cat([samples - new_mean, between.unsqueeze(0)])
        self._solution = None  # the cached one is outdated
        return increments

    def absorb_means(
        self, other: "ClassMeans", labels: dict[int, int]
    ) -> list[MergedMean]:
        """Add the means and counts of another instance's classes to these.

        Args:
            other: the other instance, which is not changed.
            labels: the number in this instance of each class of the other one to add.

        Returns:
            For each of these classes its two numbers, and a row ``R``; the sum of both
            scatters of the class grows by ``R^T R``.
        """
        merged_means = []
        for theirs, mine in labels.items():
            new_mean = other.means[theirs].double()
            between = self._move_mean(mine, new_mean, int(other.counts[theirs]))
            merged = MergedMean(theirs=theirs, mine=mine, between=between.unsqueeze(0))
            merged_means.append(merged)
        self._solution = None  # the cached one is outdated
        return merged_means

    def _move_mean(self, label: int, new_mean: Tensor, n_new_images: int) -> Tensor:
        """Add images with a mean ``new_mean`` to the mean and count of a class.

        Args:
            label: the class.
            new_mean: ``(D,)`` float64, of the new images.
            n_new_images: number of the new images.

        Returns:
            ``(D,)`` float64, ``sqrt(n m / (n + m)) (new mean - old mean)`` for ``n``
            old and ``m`` new images: its outer product is what the scatter of the class
            gains from the difference of the two means.
        """
        mean = self.means[label].double()
        n_old_images = int(self.counts[label])
        n_images = n_old_images + n_new_images
        difference = new_mean - mean
        share = n_new_images / n_images
        self.means[label] = (mean + share * difference).float()
        self.counts[label] += n_new_images
        weight = n_old_images * n_new_images / n_images
        return weight**0.5 * difference

    def _solve(self, seen: Tensor):
        """Return the means of the classes seen, ``(C, D)``, of length 1."""
        return functional.normalize(self.means[seen].double(), dim=1)

    def _answers(self, features: Tensor, solution) -> Tensor:
        """Compute the cosines ``(B, C)`` of ``(B, D)`` features with the means."""
        return functional.normalize(features, dim=1) @ solution.mT

    def _typical_space(self, nothing: Tensor | None) -> MeansSpan:
        """Return the span of the class means, as unit vectors."""
        means = self.means[self.image_counts > 0].double()
        return MeansSpan.of_unit_vectors(functional.normalize(means, dim=1))

    def _typicality(
        self, features: Tensor, space: MeansSpan, left_out: int | None
    ) -> Typicality:
        """Measure how near features are to a class mean; see ``MeansSpan``."""
        rows = functional.normalize(features) - space.centre
        scores = self.classifier()(features)
        return space.typicality(scores, whitened=rows, left_out=left_out)

    def _merge(self, other: Any, labels: dict[int, int]) -> None:
        """Add the means of another instance."""
        self.absorb_means(other, labels)

    def _check_values(self, tensors: dict[str, Tensor]) -> None:
        """Raise ``StateError`` for means or counts that no images give."""
        super()._check_values(tensors)
        check_at_most("means", tensors["means"].abs(), LARGEST_FEATURE)
