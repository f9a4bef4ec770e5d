"""Means and covariances of classes, from which several classifiers are computed."""

import torch
from torch import Tensor

from crumb_avalanche.methods.closed_form import ClassStatistics, copy_tensors
from crumb_avalanche.methods.directions import ClassDirections
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.packed_scatter import PackedScatter

EQUAL = 1e-10  # share of the mean square below which a variance is one of rounding


class ClassGaussians(ClassStatistics):
    """Base class of classifiers by class means, class covariances and a common covariance.

    A class covariance is stored as principal directions, in half precision if a subclass says nothing else. It is
    exact, up to rounding, for a class of at most one image more than ``directions``, and for all classes where
    ``directions`` is the number of features, which take ``2 D**2`` bytes a class. Without a common scatter, the common
    covariance is the sum over the classes. With a common scatter and ``directions=0``, classes have no covariance of
    their own, and no bytes for one.

    ``merge`` and ``forget`` do what ``RegularizedDiscriminant`` says of its own.

    Attributes:
        classes: means and counts.
        directions: the directions of all classes, or ``None``.
        scatter: the common scatter, or ``None``.
    """

    classes: ClassMeans
    directions: ClassDirections | None
    scatter: PackedScatter | None

    def _hold(self, n_classes: int, length: int, directions: int, whole: bool) -> None:
        """Allocate the statistics of features of ``length`` columns."""
        self.classes = ClassMeans(n_classes, length)
        self.directions = ClassDirections(n_classes, length, directions) if directions or not whole else None
        self.scatter = PackedScatter(length) if whole else None

    def transformed(self, features: Tensor) -> Tensor:
        """Compute the values whose statistics are stored, from ``(B, D)`` float features."""
        return features

    def covariances(self, seen: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Return the covariances of the classes of a mask, all float64.

        Returns:
            The common covariance within classes, ``(D, D)``, weighted by images. Rows ``U`` of each class, ``(k, D)``;
            ``U^T U`` is the part of its covariance that the directions hold. Of the traces the parts that these leave
            out, ``(classes,)``. Without directions there are no rows, and the parts are 0.
        """
        counts = self.classes.counts[seen].double()
        if self.directions is None:
            none = torch.zeros(0, self.classes.means.shape[1], dtype=torch.float64)
            rows, outside = [none] * len(counts), torch.zeros_like(counts)
        else:
            labels = seen.nonzero().flatten().tolist()
            rows, outside = (
                [self.directions.of_class(label) for label in labels],
                self.directions.outside[seen].double(),
            )
        if self.scatter is None:
            together = torch.cat(rows)
            common = together.mT @ together
            common.diagonal().add_(outside.sum() / len(common))
        else:
            common = self.scatter.whole()
        rows = [its / count**0.5 for its, count in zip(rows, counts.tolist())]
        return common / counts.sum(), rows, outside / counts

    def mean_variance(self, covariance: Tensor, seen: Tensor) -> float:
        """Return the mean of a covariance's diagonal, or 1 for a single image of each class or equal ones."""
        variance, size = float(covariance.diagonal().mean()), float(self.classes.means[seen].double().square().mean())
        return variance if variance > EQUAL * size else 1.0

    @property
    def image_counts(self):
        return self.classes.counts

    @property
    def remains_after_forget(self):
        return "" if self.scatter is None else "the share of the removed images in the common scatter"

    def _update(self, features, labels):
        for label, rows in self.classes.absorb(self.transformed(features), labels).items():
            if self.scatter is not None:
                self.scatter.add(rows)
            if self.directions is not None:
                self.directions.extend(label, rows)

    def _parts(self) -> list[ClassMeans | ClassDirections | PackedScatter]:
        return [part for part in (self.classes, self.directions, self.scatter) if part is not None]

    def tensors(self):
        strips = [] if self.scatter is None else self.scatter.strips
        return [*self.classes.tensors(), *([] if self.directions is None else self.directions.tensors()), *strips]

    def named_tensors(self):
        return {name: tensor for part in self._parts() for name, tensor in part.named_tensors().items()}

    def _load(self, tensors):
        if self.directions is not None:
            self.directions.check(tensors)
        scatter = None if self.scatter is None else PackedScatter(self.scatter.length)  # copies share the strips
        copy_tensors(tensors, {**self.classes.named_tensors(), **(scatter.named_tensors() if scatter else {})})
        self.scatter = scatter
        if self.directions is not None:
            self.directions.load(tensors)

    def _merge(self, other, labels):
        for theirs, mine, between in self.classes.absorb_means(other.classes, labels):
            if self.scatter is not None:
                self.scatter.add(between)
            if self.directions is not None:
                self.directions.extend(mine, torch.cat([other.directions.of_class(theirs), between]))
                self.directions.outside[mine] += other.directions.outside[theirs]
        if self.scatter is not None:
            self.scatter.merge(other.scatter)

    def _grow(self, n_classes):
        self.classes.grow(n_classes)
        if self.directions is not None:
            self.directions.grow(n_classes)

    def _forget(self, label):
        before = int(self.classes.counts.sum())
        self.classes.forget(label)
        if self.directions is not None:
            self.directions.forget(label)
        if self.scatter is not None:
            self.scatter.scale(int(self.classes.counts.sum()) / before)


class LowRankCovariance:
    """Squared Mahalanobis distances for the covariance ``a I + U^T J U``, with matrices of ``k`` rows only.

    Woodbury: ``(a I + U^T J U)^-1 = (I - U^T (a J + U U^T)^-1 U) / a``.

    Args:
        rows: ``U``, ``(k, D)`` float64.
        round_part: ``a``, above 0.
        signs: diagonal of ``J``, 1 or -1, ``(k,)``; default 1.

    Attributes:
        log_determinant: logarithm of the determinant of the covariance, for ``J = I``.
    """

    def __init__(self, rows: Tensor, round_part: float, signs: Tensor | None = None):
        self.rows, self.round_part = rows, torch.tensor(round_part, dtype=torch.float64)
        inner = rows @ rows.mT
        inner.diagonal().add_(self.round_part if signs is None else self.round_part * signs)
        self.factors, self.pivots = torch.linalg.lu_factor(inner)
        logs = self.factors.diagonal().abs().log().sum()
        self.log_determinant = float(logs + (rows.shape[1] - len(rows)) * self.round_part.log())

    def distances(self, rest: Tensor) -> Tensor:
        """Compute ``x^T C^-1 x`` for each of ``(B, D)`` float64 rows ``x``; ``(B,)``."""
        along = self.rows @ rest.mT
        solved = torch.linalg.lu_solve(self.factors, self.pivots, along)
        return (rest.square().sum(1) - (along * solved).sum(0)) / self.round_part
