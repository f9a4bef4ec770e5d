"""Streaming linear discriminant analysis of frozen features.

Hayes and Kanan, CVPR Workshops 2020.
"""

from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.methods.class_tensors import check_not_negative
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.registry import register
from crumb_avalanche.methods.typicality import MeansSpan, Typicality, Whitening
from crumb_avalanche.system.setting_ranges import Factor


@register(
    "slda",
    summary="streaming linear discriminant analysis of frozen features",
    source=(
        "Hayes and Kanan, Lifelong Machine Learning with Deep Streaming Linear "
        "Discriminant Analysis, CVPRW 2020"
    ),
    stores="a mean for each class, and one covariance",
)
class StreamingLDA(ClassMeans):
    """Linear discriminant analysis with one running covariance.

    Scores are ``w x - w mu / 2`` with ``w = ((1 - e) Sigma + e I)^-1 mu`` for class
    means ``mu``. ``Sigma`` is the exact within-class covariance of all images so far;
    the paper's recursion adds the distance of the first image of each class from zero.
    The order of the images does not matter, up to rounding.

    ``forget`` removes the mean of a class and leaves ``Sigma``, which counts from then
    on as the covariance of the images that are left.

    Typical images have a small relative Mahalanobis distance (Ren et al., 2021) and the
    direction of a class mean; see ``MeansSpan``.

    Attributes:
        shrinkage: share ``e`` of the unit matrix in the covariance, in squared units of
            the features.
        covariance: ``(D, D)`` float32, 1,048,576 bytes at 512.
    """

    shrinkage: Factor = 1e-4

    temperature = 4.6
    apart_from_nothing = True
    shared = ("covariance",)
    remains_after_forget = "the share of the removed images in the common covariance"

    def _allocate(self, n_classes: int, length: int) -> None:
        """Allocate class means and a covariance."""
        super()._allocate(n_classes, length)
        self.covariance = torch.zeros(length, length, dtype=torch.float32)

    @property
    def covariance_images(self) -> int:
        """Number of images that the covariance is computed from: all."""
        return int(self.counts.sum())

    def _update(self, features: Tensor, labels: Tensor) -> None:
        """Add ``(B, D)`` features to the means and to the covariance."""
        old_images = self.covariance_images
        increments = self.absorb(features, labels)
        rows = torch.cat(list(increments.values()))
        images = old_images + len(labels)
        old_part = self.covariance.double() * (old_images / images)
        covariance = old_part + rows.mT @ rows / images
        self.covariance = covariance.float()

    def _solve(self, seen: Tensor):
        """Return weights ``(C, D)`` and offsets ``(C,)`` of the discriminant."""
        eigenvalues, vectors = torch.linalg.eigh(self.covariance.double())
        # With fewer images than features, float32 leaves eigenvalues a little below
        # zero.
        shrunk = (1 - self.shrinkage) * eigenvalues.clamp_min(0) + self.shrinkage
        means = self.means[seen].double()
        weights = (means @ vectors / shrunk) @ vectors.mT
        offsets = (weights * means).sum(1) / 2
        return weights, offsets

    def _answers(self, features: Tensor, solution) -> Tensor:
        """Score ``(B, D)`` features: ``(B, C)`` products with the weights."""
        weights, offsets = solution
        return features @ weights.mT - offsets

    def _typical_space(self, nothing: Tensor | None) -> MeansSpan:
        """Return the span of the class means where the covariance is 1."""
        means = self.means[self.image_counts > 0].double()
        eigenvalues, vectors = torch.linalg.eigh(self.covariance.double())
        shrunk = (1 - self.shrinkage) * eigenvalues.clamp_min(0) + self.shrinkage
        whitening = Whitening(vectors=vectors, roots=shrunk.sqrt())
        span = MeansSpan.of_whitened(means, whitening)
        return span.against_background(nothing)

    def _typicality(
        self, features: Tensor, space: MeansSpan, left_out: int | None
    ) -> Typicality:
        """Measure ``(B, D)`` features by relative distance and cosine."""
        scores = self.classifier()(features)
        whitened = space.whiten(features - space.centre)
        return space.typicality(scores, whitened=whitened, left_out=left_out)

    def _merge(self, other: Any, labels: dict[int, int]) -> None:
        """Add means and covariance of another instance, weighed by images."""
        own_images = self.covariance_images
        other_images = other.covariance_images
        merged_means = self.absorb_means(other, labels)
        rows = torch.cat([mean.between for mean in merged_means])
        scatter = (
            own_images * self.covariance.double()
            + other_images * other.covariance.double()
            + rows.mT @ rows
        )
        self.covariance = (scatter / (own_images + other_images)).float()

    def _check_values(self, tensors: dict[str, Tensor]) -> None:
        """Raise ``StateError`` for values that no images give."""
        super()._check_values(tensors)
        check_not_negative("covariance", tensors["covariance"].diagonal())
