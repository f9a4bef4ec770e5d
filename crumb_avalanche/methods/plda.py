"""PLDA: linear discriminant analysis whose covariance is fixed at deployment (Kaymak et al., ECAI 2025)."""

import torch

from crumb_avalanche.methods.registry import register
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.system.setting_ranges import Count


@register(
    "plda",
    summary="linear discriminant analysis of frozen features, with the covariance of the first classes for all",
    source="Kaymak et al., Learning After Model Deployment, ECAI 2025",
    stores="a mean for each class, and one covariance",
)
class PostDeploymentLDA(StreamingLDA):
    """Linear discriminant analysis whose covariance is that of the classes known at deployment (arXiv 2510.17160).

    The first ``base_classes`` classes to arrive form the covariance, as in ``slda``,
    also with images that come later. A class after them adds a mean alone, so that a
    few images of it do not change what separates the others.

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
        super()._allocate(n_classes, length)
        self.shaping = torch.zeros(n_classes, dtype=torch.int32)

    @property
    def formed(self):
        return int(self.shaping.sum())

    def _update(self, features, labels):
        base = {label for label, count in enumerate(self.shaping.tolist()) if count}
        for label in dict.fromkeys(labels.tolist()):  # in the order of arrival
            if len(base) < self.base_classes and not self.counts[label]:
                base.add(label)
        forms = torch.tensor([label in base for label in labels.tolist()])
        if forms.any():
            super()._update(features[forms], labels[forms])
            self.shaping += labels[forms].bincount(minlength=len(self.shaping)).int()
        if not forms.all():
            self.absorb(features[~forms], labels[~forms])

    def _merge(self, other, labels):
        base = {
            theirs: mine for theirs, mine in labels.items() if other.shaping[theirs]
        }
        if base:
            super()._merge(other, base)
        for theirs, mine in base.items():
            self.shaping[mine] += other.shaping[theirs]
        self.absorb_means(
            other, {one: mine for one, mine in labels.items() if one not in base}
        )
