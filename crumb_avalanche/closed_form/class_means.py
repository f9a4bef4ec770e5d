"""Nearest-class-mean classifier."""

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.closed_form.class_statistics import ClassStatistics


class ClassMeans(ClassStatistics):
    """Classifier by the class mean with the largest cosine (NCM; Mensink et al., PAMI 2013; Rebuffi et al., CVPR 2017).

    Args:
        n_classes: number of classes of the whole stream.
        length: number of features ``D``.

    Attributes:
        means: ``(n_classes, D)`` float32.
        counts: ``(n_classes,)`` int32, images of each class.
    """

    def __init__(self, n_classes: int, length: int):
        self.settings = {"n_classes": n_classes, "length": length}
        self.means = torch.zeros(n_classes, length)
        self.counts = torch.zeros(n_classes, dtype=torch.int32)

    def update(self, features, labels):
        self.absorb(features, labels)

    def absorb(self, features: Tensor, labels: Tensor) -> dict[int, Tensor]:
        """Add images to the means and return the increments of the scatters.

        Pairwise update of Chan, Golub and LeVeque, 1979.

        Returns:
            ``(n + 1, D)`` float64 rows ``R`` for each class of the ``n`` images; its scatter grows by ``R^T R``.
        """
        rows = {}
        for label in labels.unique().tolist():
            group = features[labels == label].double()
            centre = group.mean(0)
            rows[label] = torch.cat([group - centre, self._shift(label, centre, len(group)).unsqueeze(0)])
        return rows

    def absorb_means(self, other: "ClassMeans") -> dict[int, Tensor]:
        """Add the means of another instance.

        Returns:
            ``(1, D)`` float64 rows ``R`` for each class of the other instance; add ``R^T R`` to the sum of both
            scatters of the class.
        """
        return {
            label: self._shift(label, other.means[label].double(), int(other.counts[label])).unsqueeze(0)
            for label in other.counts.nonzero().flatten().tolist()
        }

    def _shift(self, label: int, centre: Tensor, new: int) -> Tensor:
        """Add ``new`` images with the mean ``centre`` to a class; return the weighted difference of the two means."""
        mean, old = self.means[label].double(), int(self.counts[label])
        between = (old * new / (old + new)) ** 0.5 * (centre - mean)
        self.means[label] = (mean + new / (old + new) * (centre - mean)).float()
        self.counts[label] += new
        return between

    def scores(self, features):
        return functional.normalize(features.double(), dim=1) @ functional.normalize(self.means.double(), dim=1).mT

    def named_tensors(self):
        return {"means": self.means, "counts": self.counts}

    def _merge(self, other):
        self.absorb_means(other)
