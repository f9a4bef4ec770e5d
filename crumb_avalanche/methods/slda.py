"""Streaming linear discriminant analysis of frozen features (Hayes and Kanan, CVPR Workshops 2020)."""

import torch
from torch import Tensor

from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.registry import register
from crumb_avalanche.system.setting_ranges import Factor


@register(
    "slda",
    summary="streaming linear discriminant analysis of frozen features",
    source="Hayes and Kanan, Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis, CVPRW 2020",
    stores="a mean for each class, and one covariance",
)
class StreamingLDA(ClosedForm):
    """Linear discriminant analysis with one running covariance.

    Scores are ``w x - w mu / 2`` with ``w = ((1 - e) Sigma + e I)^-1 mu`` for class means ``mu``. ``Sigma`` is the
    exact within-class covariance of all images so far; the paper's recursion adds the distance of the first image of
    each class from zero. The order of the images does not matter, up to rounding.

    ``forget`` removes the mean of a class and leaves ``Sigma``, which counts from then on as the covariance of the
    images that are left.

    Attributes:
        shrinkage: share ``e`` of the unit matrix in the covariance, in squared units of the features.
        classes: means and counts.
        covariance: ``(D, D)`` float32, 1,048,576 bytes at 512.
    """

    shrinkage: Factor = 1e-4

    temperature = 4.6
    remains_after_forget = "the share of the removed images in the common covariance"

    def _allocate(self, n_classes: int, length: int) -> None:
        self.classes = ClassMeans(n_classes, length)
        self.covariance = torch.zeros(length, length)

    @property
    def image_counts(self):
        return self.classes.counts

    @property
    def shaping(self) -> Tensor:
        """Images of each class that the covariance is computed from, ``(n_classes,)`` int32: all."""
        return self.classes.counts

    def _update(self, features, labels):
        old = int(self.shaping.sum())
        rows = torch.cat(list(self.classes.absorb(features, labels).values()))
        total = old + len(labels)
        self.covariance = (self.covariance.double() * (old / total) + rows.mT @ rows / total).float()

    def _solve(self, seen):
        # With fewer images than features, float32 leaves eigenvalues a little below zero.
        values, vectors = torch.linalg.eigh(self.covariance.double())
        values = (1 - self.shrinkage) * values.clamp_min(0) + self.shrinkage
        means = self.classes.means[seen].double()
        weights = (means @ vectors / values) @ vectors.mT
        return weights, (weights * means).sum(1) / 2

    def _answers(self, features, solution):
        weights, offsets = solution
        return features @ weights.mT - offsets

    def named_tensors(self):
        return {**self.classes.named_tensors(), "covariance": self.covariance}

    def _merge(self, other, labels):
        old, new = int(self.shaping.sum()), int(other.shaping.sum())
        rows = torch.cat([between for _, _, between in self.classes.absorb_means(other.classes, labels)])
        scatter = old * self.covariance.double() + new * other.covariance.double() + rows.mT @ rows
        self.covariance = (scatter / (old + new)).float()

    def _grow(self, n_classes):
        self.classes.grow(n_classes)

    def _forget(self, label):
        self.classes.forget(label)
        if not self.classes.counts.any():
            self.covariance.zero_()
