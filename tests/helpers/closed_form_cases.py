"""The classifiers in closed form at a small size, images for them, and references.

A reference keeps the images of each class and computes everything from them, in
float64, when it is asked. Every registered closed form has a case here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.distributions import MultivariateNormal
from torch.nn import functional

from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.fecam import FeCAM
from crumb_avalanche.methods.klda import KernelLDA
from crumb_avalanche.methods.loranpac import LoRanPAC
from crumb_avalanche.methods.lr_rgda import LowRankRda
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.plda import PostDeploymentLDA
from crumb_avalanche.methods.randumb import RanDumb
from crumb_avalanche.methods.ranpac import ACIL, FOAL, RandomProjection, RanpacGCV
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.methods.simple_cil import SimpleCIL
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.methods.srda import StreamingRda

D = 6  # features
PROJECTION = 20  # random features
SEED = 3  # of the random features
EYE = torch.eye(D, dtype=torch.float64)


def images(count, n_classes, seed=0):
    """Features of classes with centres and covariances of their own, in random order.

    Returns ``(count, D)`` float32 features and ``(count,)`` int64 labels.
    """
    of_classes = torch.Generator().manual_seed(99)
    centres = 3 * torch.randn(50, D, generator=of_classes)
    mixing = torch.randn(50, D, D, generator=of_classes)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(n_classes, (count,), generator=generator)
    noise = torch.randn(count, D, generator=generator)
    mixed = torch.einsum("nd,nde->ne", noise, mixing[labels])
    return centres[labels] + mixed + 2, labels


def feed(statistics, features, labels, size=7):
    """Update statistics in batches, and return them."""
    for start in range(0, len(labels), size):
        batch = slice(start, start + size)
        statistics.update(features[batch], labels[batch])
    return statistics


class Reference:
    """Images of each class, in float64."""

    def __init__(self):
        self.images = {}  # label -> list of (D,) transformed features

    def transformed(self, features):
        return features.double()

    def group(self, label):
        return torch.stack(self.images[label])

    def mean(self, label):
        return self.group(label).mean(0)

    def means(self):
        """``(C, D)``, of the classes with images in the order of their numbers."""
        return torch.stack(list(map(self.mean, sorted(self.images))))

    def scatter(self, label):
        difference = self.group(label) - self.mean(label)
        return difference.T @ difference

    def covariances(self):
        """``(D, D)`` of each class with images."""
        return [
            self.scatter(label) / len(self.images[label])
            for label in sorted(self.images)
        ]

    def total(self):
        return sum(map(len, self.images.values()))

    def update(self, features, labels):
        for feature, label in zip(self.transformed(features), labels.tolist()):
            self.images.setdefault(label, []).append(feature)

    def forget(self, label):
        self.images.pop(label, None)

    def merge(self, other, numbers):
        for label, group in other.images.items():
            self.images.setdefault(numbers[label], []).extend(group)

    def scores(self, features):
        """``(B, C)``, of the classes with images in the order of their numbers."""
        raise NotImplementedError


class MeanReference(Reference):
    """Cosines with class means."""

    def scores(self, features):
        similarities = []
        for mean in self.means():
            similarities.append(torch.cosine_similarity(features.double(), mean[None]))
        return torch.stack(similarities, 1)


class CommonReference(Reference):
    """Keeps the common covariance, an average over the images that are left."""

    length = D

    def __init__(self):
        super().__init__()
        self.common = torch.zeros(self.length, self.length, dtype=torch.float64)

    def within(self):
        """The sum of the scatters of all classes."""
        return sum(map(self.scatter, self.images), torch.zeros_like(self.common))

    def update(self, features, labels):
        before = self.within()
        scatter = self.common * self.total()
        super().update(features, labels)
        self.common = (scatter + self.within() - before) / self.total()

    def forget(self, label):
        super().forget(label)
        if not self.images:
            self.common = torch.zeros_like(self.common)

    def merge(self, other, numbers):
        before = self.within() + other.within()
        scatter = self.common * self.total() + other.common * other.total()
        super().merge(other, numbers)
        self.common = (scatter + self.within() - before) / self.total()

    def variance(self, covariance):
        """The mean of a diagonal, or 1 where it is one of rounding."""
        variance = float(covariance.diagonal().mean())
        if variance > 1e-10 * self.means().square().mean():
            return variance
        return 1.0

    def linear(self, features, covariance):
        """Scores of linear discriminant analysis."""
        means = self.means()
        weights = means @ torch.linalg.inv(covariance)
        return self.transformed(features) @ weights.T - (weights * means).sum(1) / 2


class LinearReference(CommonReference):
    """Linear discriminant analysis with a shrinkage of 0.01."""

    def scores(self, features):
        return self.linear(features, 0.99 * self.common + 0.01 * EYE)


class KernelReference(CommonReference):
    """Linear discriminant analysis of random Fourier features; shrinkage 0.01."""

    length = PROJECTION
    gamma = 0.01

    def transformed(self, features):
        generator = torch.Generator().manual_seed(SEED)
        weights = torch.randn(D, PROJECTION, generator=generator, dtype=torch.float64)
        phases = torch.rand(PROJECTION, generator=generator, dtype=torch.float64)
        scaled = (2 * self.gamma) ** 0.5 * weights
        angles = features.double() @ scaled + 2 * torch.pi * phases
        return (2 / PROJECTION) ** 0.5 * angles.cos()

    def scores(self, features):
        unit = torch.eye(PROJECTION) * self.variance(self.common)
        return self.linear(features, self.common + 0.01 * unit)


class OracleReference(KernelReference):
    """The same with the kernel's width by the number of features, shrunk by OAS."""

    gamma = 1 / D

    def scores(self, features):
        variance = self.common.diagonal().mean()
        squares = self.common.square().mean()
        below = (self.total() + 1) * (squares - variance**2 / PROJECTION)
        share = 1.0
        is_rounding = self.variance(self.common) != float(variance)
        if below > squares + variance**2 and not is_rounding:
            share = float((squares + variance**2) / below)
        unit = torch.eye(PROJECTION) * self.variance(self.common)
        return self.linear(features, (1 - share) * self.common + share * unit)


class MahalanobisReference(Reference):
    """FeCAM's distances by their definition, for shrinkages of 2 and 1."""

    def transformed(self, features):
        return torch.copysign(features.double().abs().sqrt(), features.double())

    def scores(self, features):
        points = self.transformed(features)
        distances = []
        for mean, covariance in zip(self.means(), self.covariances()):
            distances.append(self.distances(points, mean, covariance))
        return -torch.stack(distances, 1)

    @staticmethod
    def distances(points, mean, covariance):
        variance = covariance.diagonal().mean()
        off_diagonal = covariance[~torch.eye(D, dtype=torch.bool)].mean()
        shrunk = covariance + 2 * variance * EYE + off_diagonal * (1 - EYE)
        deviations = shrunk.diagonal().sqrt()
        correlation = EYE
        if variance > 1e-10 * mean.square().mean():
            correlation = shrunk / deviations / deviations[:, None]
        difference = functional.normalize(points) - functional.normalize(mean, dim=0)
        return ((difference @ torch.linalg.inv(correlation)) * difference).sum(1)


class RidgeReference(Reference):
    """Ridge regression on random features; the Gram matrix sums over all images."""

    def __init__(self, ridge=0.01, sigmoid=False):
        super().__init__()
        self.ridge = ridge
        self.sigmoid = sigmoid
        generator = torch.Generator().manual_seed(SEED)
        shape = (D, PROJECTION)
        self.weights = torch.randn(shape, generator=generator, dtype=torch.float64)
        self.gram = torch.zeros(PROJECTION, PROJECTION, dtype=torch.float64)

    def hidden(self, features):
        values = features.double() @ self.weights
        if self.sigmoid:
            return (values / D**0.5).sigmoid()
        return values.relu()

    def sums(self):
        """``(M, C)``, of the classes with images."""
        sums = [self.hidden(self.group(label)).sum(0) for label in sorted(self.images)]
        return torch.stack(sums, 1)

    def update(self, features, labels):
        super().update(features, labels)
        self.gram = self.gram + self.hidden(features).T @ self.hidden(features)

    def forget(self, label):
        super().forget(label)
        if not self.images:
            self.gram = torch.zeros_like(self.gram)

    def merge(self, other, numbers):
        super().merge(other, numbers)
        self.gram = self.gram + other.gram

    def ridged(self, ridge):
        unit = float(self.gram.diagonal().mean()) or 1.0
        return self.gram + ridge * unit * torch.eye(PROJECTION)

    def scores(self, features):
        inverse = torch.linalg.inv(self.ridged(self.ridge))
        return self.hidden(features) @ inverse @ self.sums()


class ChosenRidgeReference(RidgeReference):
    """Generalised cross validation over eight powers of ten, from matrices."""

    def scores(self, features):
        self.ridge = self.best_ridge()
        return super().scores(features)

    def best_ridge(self):
        total = self.total()
        best = 100.0
        least_error = float("inf")
        for power in range(2, -6, -1):
            fitted, residuals = self.fit(10.0**power)
            error = max(residuals, 1e-5 * total) / (total - fitted) ** 2
            if fitted <= 0.95 * total and error < 0.999 * least_error:
                best = 10.0**power
                least_error = error
        return best

    def fit(self, ridge):
        """Effective parameters and sum of squared residuals with a ridge."""
        inverse = torch.linalg.inv(self.ridged(ridge))
        weights = inverse @ self.sums()
        fitted = float((self.gram @ inverse).trace())
        explained = 2 * float((weights * self.sums()).sum())
        squares = float((weights.T @ self.gram @ weights).trace())
        return fitted, self.total() - explained + squares


class TruncatedReference(RidgeReference):
    """Least squares on the directions of every step so far, ten of them at most."""

    def __init__(self):
        super().__init__()
        self.directions = torch.zeros(0, PROJECTION, dtype=torch.float64)

    def update(self, features, labels):
        super().update(features, labels)
        self.truncate(self.hidden(features))

    def forget(self, label):
        super().forget(label)
        if not self.images:
            self.directions = self.directions[:0]

    def merge(self, other, numbers):
        super().merge(other, numbers)
        self.truncate(other.directions)

    def truncate(self, rows):
        """Keep three quarters of the directions of the images, and ten at most."""
        by_images = round(0.75 * self.total())
        count = min(10, max(by_images, len(self.directions), 1))
        stacked = torch.cat([self.directions, rows])
        _, lengths, axes = torch.linalg.svd(stacked, full_matrices=False)
        scaled = lengths[:, None] * axes
        self.directions = scaled[lengths > 1e-6 * lengths[0]][:count]

    def scores(self, features):
        gram = self.directions.T @ self.directions
        inverse = torch.linalg.pinv(gram, rtol=1e-11)
        return self.hidden(features) @ inverse @ self.sums()


class GaussianReference(CommonReference):
    """Log-densities of Gaussians whose covariances blend a common one and one's own.

    Args:
        own, rest: weights of the class's covariance and of the common one.
        ridge: weight of the unit matrix, in units of the mean variance.
        priors: add the logarithms of the classes' shares of the images.
        kept: take the common covariance that is kept, not that of the images left.
    """

    def __init__(self, own, rest, ridge, priors=False, kept=False):
        super().__init__()
        self.own = own
        self.rest = rest
        self.ridge = ridge
        self.priors = priors
        self.kept = kept

    def common_covariance(self):
        if self.kept:
            return self.common
        return self.within() / self.total()

    def scores(self, features):
        common = self.common_covariance()
        unit = self.ridge * self.variance(common) * EYE
        densities = []
        for mean, covariance in zip(self.means(), self.covariances()):
            blended = self.own * covariance + self.rest * common + unit
            gaussian = MultivariateNormal(mean, blended)
            densities.append(gaussian.log_prob(features.double()))
        scores = torch.stack(densities, 1)
        if not self.priors:
            return scores
        counts = [len(self.images[label]) for label in sorted(self.images)]
        shares = torch.tensor(counts, dtype=torch.float64) / self.total()
        return scores + shares.log()


class DiscriminantReference(GaussianReference):
    """Regularised discriminant of all features, with ``own`` 0.1 and shrinkage 1."""

    def __init__(self):
        super().__init__(own=0.1, rest=0.9, ridge=1.0)

    def scores(self, features):
        return self.log_densities(features.double())

    def log_densities(self, features):
        """Log-densities of the last features, of ``(B, d)``."""
        length = features.shape[1]
        common = self.common_covariance()[-length:, -length:]
        shrunk = self.shrunk(common, length)
        densities = []
        for mean, covariance in zip(self.means(), self.covariances()):
            head_covariance = covariance[-length:, -length:]
            blended = self.rest * shrunk + self.own * head_covariance
            gaussian = MultivariateNormal(mean[-length:], blended)
            densities.append(gaussian.log_prob(features))
        return torch.stack(densities, 1)

    def shrunk(self, common, length):
        variance = float(common.diagonal().mean()) or 1.0
        shrinkage = min(1, length / self.total())
        return common + shrinkage * variance * torch.eye(length)


class PartReference(DiscriminantReference):
    """The same, whose last two features answer alone, too, with a share of 0.4."""

    def scores(self, features):
        features = features.double()
        of_all = self.log_densities(features)
        if len(self.images) == 1:
            return of_all
        of_part = self.log_densities(features[:, -2:])
        shares = [(scores / 2.7).log_softmax(1).exp() for scores in (of_all, of_part)]
        mixed = 0.6 * shares[0] + 0.4 * shares[1]
        return 2.7 * mixed.clamp_min(1e-300).log()


class SpanReference(DiscriminantReference):
    """The same with ``own`` 0.3, in the space that the class means span."""

    def __init__(self, kept=False):
        super().__init__()
        self.kept = kept

    def scores(self, features):
        shrunk = self.shrunk(self.common_covariance(), D)
        whitening = torch.linalg.inv(torch.linalg.cholesky(shrunk)).T
        means = self.means()
        centre = means.mean(0)
        projection = whitening @ axes_of((means - centre) @ whitening)
        points = (features.double() - centre) @ projection
        densities = []
        for mean, covariance in zip(means, self.covariances()):
            projected = projection.T @ covariance @ projection
            blended = 0.7 * torch.eye(projection.shape[1]) + 0.3 * projected
            gaussian = MultivariateNormal((mean - centre) @ projection, blended)
            densities.append(gaussian.log_prob(points))
        return torch.stack(densities, 1)


def axes_of(means):
    """Axes of the space that ``(C, D)`` centred means span, ``(D, r)``."""
    largest = len(means) - 1
    _, lengths, axes = torch.linalg.svd(means, full_matrices=False)
    longer = lengths[:largest] > 1e-5 * lengths[0]
    return axes[:largest][longer].T


def discriminant(*arguments, **changes):
    """A regularised discriminant in the span of the means, in half precision."""
    plain = dict(own=0.3, diagonal=False, span=True, eight_bits=False)
    return RegularizedDiscriminant(*arguments, **{**plain, **changes})


@dataclass(frozen=True)
class Case:
    """A closed form at a small size, and what it is compared with.

    Attributes:
        strategy: its name in the registry.
        make: builds it for a number of classes.
        reference: builds its reference.
        densities: its scores are densities: they depend on the unit of the features,
            and are compared up to a constant.
        half: its directions are in half precision.
        scaled: its answers depend on the scale of the features, for which it has a
            setting.
        random: its statistics are sums of random features.
        tolerance: largest error of a score, relative to the largest score.
    """

    strategy: str
    make: Callable[[int], ClosedForm]
    reference: Callable[[], Reference]
    densities: bool = False
    half: bool = False
    scaled: bool = False
    random: bool = False
    tolerance: float = 1e-4


# Scores of directions in half precision. A chosen ridge may be so small that it
# amplifies the rounding of the Gram matrix.
ROUNDED = 2e-2
RANDOM = dict(projection=PROJECTION, seed=SEED)


def gaussians(strategy, make, reference, densities=True):
    """A case of Gaussians with directions in half precision."""
    return Case(
        strategy, make, reference, densities=densities, half=True, tolerance=ROUNDED
    )


CASES = {
    "ncm": Case("ncm", lambda n: ClassMeans(n, D), MeanReference),
    "simplecil": Case("simplecil", lambda n: SimpleCIL(n, D), MeanReference),
    "slda": Case(
        "slda",
        lambda n: StreamingLDA(n, D, shrinkage=0.01),
        LinearReference,
        scaled=True,
    ),
    "plda": Case(
        "plda",
        lambda n: PostDeploymentLDA(n, D, shrinkage=0.01, base_classes=20),
        LinearReference,
        scaled=True,
    ),
    "ranpac": Case(
        "ranpac",
        lambda n: RandomProjection(n, D, ridge=0.01, **RANDOM),
        RidgeReference,
        random=True,
    ),
    "ranpac_gcv": Case(
        "ranpac_gcv",
        lambda n: RanpacGCV(n, D, **RANDOM),
        ChosenRidgeReference,
        random=True,
        tolerance=ROUNDED,
    ),
    "acil": Case("acil", lambda n: ACIL(n, D, **RANDOM), RidgeReference, random=True),
    "foal": Case(
        "foal",
        lambda n: FOAL(n, D, ridge=0.01, **RANDOM),
        lambda: RidgeReference(sigmoid=True),
        random=True,
        scaled=True,
    ),
    "loranpac": Case(
        "loranpac",
        lambda n: LoRanPAC(n, D, rank=0.5, **RANDOM),
        TruncatedReference,
        random=True,
    ),
    "klda": Case(
        "klda",
        lambda n: KernelLDA(n, D, gamma=0.01, shrinkage=0.01, **RANDOM),
        KernelReference,
        scaled=True,
    ),
    "randumb": Case(
        "randumb",
        lambda n: RanDumb(n, D, **RANDOM),
        OracleReference,
        scaled=True,
    ),
    "fecam": gaussians(
        "fecam",
        lambda n: FeCAM(n, D, directions=D, shrink_diagonal=2.0, shrink_others=1.0),
        MahalanobisReference,
        densities=False,
    ),
    "srda": gaussians(
        "srda",
        lambda n: StreamingRda(n, D, directions=D, own=0.4, shrinkage=0.1),
        lambda: GaussianReference(own=0.36, rest=0.54, ridge=0.1, priors=True),
    ),
    "lr_rgda, common scatter": gaussians(
        "lr_rgda",
        lambda n: LowRankRda(n, D, D, whole=True, own=0.5, common=0.8, ridge=0.1),
        lambda: GaussianReference(own=0.5, rest=0.8, ridge=0.1, kept=True),
    ),
    "rda": gaussians("rda", lambda n: discriminant(n, D, directions=D), SpanReference),
    "rda, common scatter": gaussians(
        "rda",
        lambda n: discriminant(n, D, directions=D, whole=True),
        lambda: SpanReference(kept=True),
    ),
    "rda, all features": gaussians(
        "rda",
        lambda n: discriminant(n, D, D, own=0.1, span=False),
        DiscriminantReference,
    ),
    "rda, a part": gaussians(
        "rda",
        lambda n: discriminant(n, D, D, own=0.1, span=False, part=2, head_share=0.4),
        PartReference,
    ),
}
