"""Gaussians of classes whose covariances are blended with a common one: Deep SRDA and LR-RGDA."""

from abc import abstractmethod

import torch

from crumb_avalanche.methods.gaussians import ClassGaussians, LowRankCovariance


class BlendedGaussians(ClassGaussians):
    """Base class of classifiers by log-densities of Gaussians with the covariances ``a C_c + b S + r v I``.

    ``C_c`` is the covariance of a class, ``S`` the common one within classes, and ``v`` the mean variance.
    """

    @abstractmethod
    def _weights(self) -> tuple[float, float, float]:
        """Return ``a``, ``b`` above 0, and ``r`` above 0."""

    def _log_priors(self, counts):
        """Return the logarithms of the classes' prior probabilities."""
        return torch.zeros_like(counts)

    def _rest(self, outside, rows, own, share):
        """Return what the directions of a class leave out of its covariance, as a share of the common part."""
        return 0.0

    def _solve(self, seen):
        own, share, ridge = self._weights()
        common, rows, outside = self.covariances(seen)
        variance = self.mean_variance(common, seen)
        common *= share
        common.diagonal().add_(ridge * variance)
        root = torch.linalg.cholesky(common)
        means = torch.linalg.solve_triangular(root, self.classes.means[seen].double().mT, upper=False).mT
        # Where the common part is the unit matrix, the rows of a class are U root^-T.
        covariances = [
            LowRankCovariance(
                own**0.5 * torch.linalg.solve_triangular(root, its.mT, upper=False).mT,
                1 + self._rest(float(rest), its, own, share),
            )
            for its, rest in zip(rows, outside)
        ]
        return root, means, covariances, self._log_priors(self.classes.counts[seen].double())

    def _answers(self, features, solution):
        root, means, covariances, log_priors = solution
        points = torch.linalg.solve_triangular(root, self.transformed(features).mT, upper=False).mT
        scores = [
            -(covariance.distances(points - mean) + covariance.log_determinant) / 2
            for mean, covariance in zip(means, covariances)
        ]
        return torch.stack(scores, 1) + log_priors


class StreamingRda(BlendedGaussians):
    """Streaming regularised discriminant analysis (Deep SRDA; Khawand, Hanappe and Colliaux, ICCV Workshops 2023).

    Scores are log-densities with the covariances ``(1 - e) (a C_c + (1 - a) S) + e v I``, plus the logarithms of the
    classes' shares of the images. ``own`` 0 is streaming LDA, and 1 quadratic discriminant analysis.

    Deviations: means and covariances are exact at any time, those of a first image included (the paper starts at
    another matrix); the unit matrix is weighed by the mean variance ``v``, so that the scale of the features does not
    matter; covariances are not initialised on base classes. With fewer ``directions`` than a class needs, the part of
    its covariance that they leave out has the shape of the common one.

    Args:
        n_classes, length: see ``ClassMeans``.
        directions: largest number of principal directions of each class; ``length`` for full covariances.
        own: share ``a`` of a class's own covariance, at least 0 and below 1.
        shrinkage: share ``e`` of the unit matrix, above 0 and below 1.
    """

    def __init__(self, n_classes: int, length: int, directions: int, own: float = 0.1, shrinkage: float = 0.1):
        self.settings = {
            "n_classes": n_classes,
            "length": length,
            "directions": directions,
            "own": own,
            "shrinkage": shrinkage,
        }
        self._hold(n_classes, length, directions, whole=False)

    def _weights(self):
        own, shrinkage = self.settings["own"], self.settings["shrinkage"]
        return (1 - shrinkage) * own, (1 - shrinkage) * (1 - own), shrinkage

    def _log_priors(self, counts):
        return (counts / counts.sum()).log()

    def _rest(self, outside, rows, own, share):
        left_out = outside / (outside + float(rows.square().sum()) or 1.0)
        return own / share * left_out


class LowRankRda(BlendedGaussians):
    """Gaussians with class covariances of low rank (LR-RGDA; Rao et al., arXiv 2602.00144).

    Scores are log-densities with the covariances ``a_1 U_c^T U_c + a_2 S + a_3 v I``, where ``U_c^T U_c`` consists of
    the strongest directions of the covariance of a class. They are those of a linear classifier plus a quadratic term
    in ``k`` products for each class (Woodbury). Classes are equally probable.

    Deviations: directions are updated batch by batch instead of computed from the full covariance of a class; ``S`` is
    weighted by images instead of classes; the unit matrix is weighed by the mean variance ``v``; nothing compensates
    for a drift of the features (the paper's HopDC), because the network is frozen. The paper's values of the three
    weights are not known here.

    Args:
        n_classes, length: see ``ClassMeans``.
        directions: largest number of principal directions of each class.
        whole: whether to store the full common scatter; otherwise it is the sum over the classes' directions, and what
            these leave out is spread evenly.
        own: ``a_1``, at least 0.
        common: ``a_2``, above 0.
        ridge: ``a_3``, above 0.
    """

    def __init__(
        self,
        n_classes: int,
        length: int,
        directions: int,
        whole: bool = True,
        own: float = 0.1,
        common: float = 0.9,
        ridge: float = 0.1,
    ):
        self.settings = {
            "n_classes": n_classes,
            "length": length,
            "directions": directions,
            "whole": whole,
            "own": own,
            "common": common,
            "ridge": ridge,
        }
        self._hold(n_classes, length, directions, whole)

    def _weights(self):
        return self.settings["own"], self.settings["common"], self.settings["ridge"]
