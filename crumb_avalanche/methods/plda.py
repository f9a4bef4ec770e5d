"""PLDA: linear discriminant analysis whose covariance is fixed at deployment.

Kaymak et al., ECAI 2025.
"""

from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.methods.class_tensors import (
    add_counts,
    add_rows,
    check_not_negative,
)
from crumb_avalanche.methods.registry import register
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.system.setting_ranges import Count


@register(
    "plda",
    summary=(
        "linear discriminant analysis of frozen features, with the covariance of the "
        "first classes for all"
    ),
    source="Kaymak et al., Learning After Model Deployment, ECAI 2025",
    stores="a mean for each class, and one covariance",
)
class PostDeploymentLDA(StreamingLDA):
    """Linear discriminant analysis with the covariance of the classes at deployment.

    Kaymak et al., arXiv 2510.17160. The first ``base_classes`` classes to arrive form
    the covariance, as in ``slda``, also with images that come later. A class after them
    adds a mean alone, so that a few images of it do not change what separates the
    others.

    An image is rejected by its Mahalanobis distance to the nearest class mean, or by
    the relative one, from which the distance to a Gaussian of all classes is
    subtracted. A learner rejects by the relative one, beside a cosine, at thresholds
    found as it learns; see ``learner.evidence``.

    ``merge`` equals one instance that saw both parts where both have the same base
    classes; base classes of either instance are base classes of the result. ``forget``
    leaves the covariance, as in ``slda``.

    Deviations: the paper computes the covariance of the classes before deployment once,
    from all their images; here it is exact after every batch. Its full text was not at
    hand: its shrinkage is not known here.

    Attributes:
        base_classes: number of classes that form the covariance.
        shaping: images of each class that do, ``(n_classes,)`` int32.
    """

    base_classes: Count = 10

    by_class = ("means", "counts", "shaping")

    def _allocate(self, n_classes: int, length: int) -> None:
        """Allocate means, a covariance, and which images formed it."""
        super()._allocate(n_classes, length)
        self.shaping = torch.zeros(n_classes, dtype=torch.int32)

    @property
    def covariance_images(self):
        """Number of images that the covariance is computed from."""
        return int(self.shaping.sum())

    def _update(self, features: Tensor, labels: Tensor) -> None:
        """Add ``(B, D)`` features to the means, and of base classes to the covariance.

        Args:
            features: float.
            labels: ``(B,)`` int64.
        """
        base_classes = self._base_classes_with(labels)
        is_base = torch.tensor([label in base_classes for label in labels.tolist()])
        if is_base.any():
            super()._update(features[is_base], labels[is_base])
            add_counts(self.shaping, labels[is_base])
        if not is_base.all():
            self.absorb(features[~is_base], labels[~is_base])

    def _base_classes_with(self, labels: Tensor) -> set[int]:
        """Return the base classes, which form the covariance, with those of a batch.

        New classes join the base in order of arrival, until there are ``base_classes``.

        Args:
            labels: ``(B,)`` int64 of the batch.
        """
        # ``shaping`` counts the images of each class that formed the covariance.
        classes = set(self.shaping.nonzero().flatten().tolist())
        in_order_of_arrival = dict.fromkeys(labels.tolist())
        for label in in_order_of_arrival:
            is_new = not self.counts[label]
            if is_new and len(classes) < self.base_classes:
                classes.add(label)
        return classes

    def _merge(self, other: Any, labels: dict[int, int]) -> None:
        """Add statistics of another instance.

        Of its base classes, which form its covariance, all statistics are added; of the
        classes that came later, only their means.

        Args:
            other: the other instance, which is not changed.
            labels: the number in this instance of each class of the other one.
        """
        base_labels = {}
        later_labels = {}
        for theirs, mine in labels.items():
            if other.shaping[theirs]:  # images that formed the covariance
                base_labels[theirs] = mine
            else:
                later_labels[theirs] = mine
        if base_labels:
            super()._merge(other, base_labels)
            add_rows(self.shaping, other.shaping, base_labels)
        self.absorb_means(other, later_labels)

    def _check_values(self, tensors: dict[str, Tensor]) -> None:
        """Raise ``StateError`` for values that no images give."""
        super()._check_values(tensors)
        check_not_negative("shaping", tensors["shaping"])
