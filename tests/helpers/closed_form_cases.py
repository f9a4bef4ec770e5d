"""The classifiers in closed form at a small size, images for them, and a twin that keeps all images."""

import torch
from torch.distributions import MultivariateNormal
from torch.nn import functional

from crumb_avalanche.methods.fecam import FeCAM
from crumb_avalanche.methods.klda import KernelLDA
from crumb_avalanche.methods.loranpac import LoRanPAC
from crumb_avalanche.methods.lr_rgda import LowRankRda
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.plda import PostDeploymentLDA
from crumb_avalanche.methods.ranpac import FOAL, RandomProjection
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.methods.srda import StreamingRda

D = 6


def discriminant(*arguments, **changes):
    """A regularised discriminant in the span of the class means, its directions in half precision."""
    plain = dict(own=0.3, diagonal=False, span=True, eight_bits=False)
    return RegularizedDiscriminant(*arguments, **{**plain, **changes})


MAKE = {
    "ncm": lambda n_classes: ClassMeans(n_classes, D),
    "slda": lambda n_classes: StreamingLDA(n_classes, D, shrinkage=0.01),
    "plda": lambda n_classes: PostDeploymentLDA(
        n_classes, D, shrinkage=0.01, base_classes=20
    ),
    "ranpac": lambda n_classes: RandomProjection(
        n_classes, D, projection=20, ridge=0.01, seed=3
    ),
    "rda": lambda n_classes: discriminant(n_classes, D, directions=D),
    "rda, common scatter": lambda n_classes: discriminant(
        n_classes, D, directions=D, whole=True
    ),
    "rda, all features": lambda n_classes: discriminant(
        n_classes, D, D, own=0.1, span=False
    ),
    "rda, a part": lambda n_classes: discriminant(
        n_classes, D, D, own=0.1, span=False, part=2, head_share=0.4
    ),
    "ranpac, chosen ridge": lambda n_classes: RandomProjection(
        n_classes, D, projection=20, ridge=0, seed=3
    ),
    "ranpac, sigmoid": lambda n_classes: FOAL(
        n_classes, D, projection=20, ridge=0.01, seed=3
    ),
    "loranpac": lambda n_classes: LoRanPAC(
        n_classes, D, projection=20, rank=0.5, seed=3
    ),
    "klda": lambda n_classes: KernelLDA(
        n_classes, D, projection=20, gamma=0.01, shrinkage=0.01, seed=3
    ),
    "fecam": lambda n_classes: FeCAM(
        n_classes, D, directions=D, shrink_diagonal=2.0, shrink_others=1.0
    ),
    "srda": lambda n_classes: StreamingRda(
        n_classes, D, directions=D, own=0.4, shrinkage=0.1
    ),
    "lr-rgda, common scatter": lambda n_classes: LowRankRda(
        n_classes, D, D, whole=True, own=0.5, common=0.8, ridge=0.1
    ),
}
# Their answers are densities: they depend on the unit of the features, and are compared
# up to a constant.
DENSITIES = ("rda", "srda", "lr-rgda")
# Their directions are in half precision.
HALF = (*DENSITIES, "fecam")
# Their answers depend on the scale of the features, for which they have a setting.
SCALED = ("slda", "plda", "ranpac, sigmoid", "klda")
# Their statistics are sums of random features.
RANDOM = ("ranpac", "loranpac")


def images(count, n_classes, seed=0):
    """Features of classes with centres and covariances of their own, and labels, in random order."""
    generator, fixed = (torch.Generator().manual_seed(number) for number in (seed, 99))
    centres, mixing = (
        3 * torch.randn(50, D, generator=fixed),
        torch.randn(50, D, D, generator=fixed),
    )
    labels = torch.randint(n_classes, (count,), generator=generator)
    noise = torch.randn(count, D, generator=generator)
    return centres[labels] + torch.einsum(
        "nd,nde->ne", noise, mixing[labels]
    ) + 2, labels


def feed(statistics, features, labels, size=7):
    for some, its_labels in zip(features.split(size), labels.split(size)):
        statistics.update(some, its_labels)
    return statistics


class Twin:
    """Keeps the images of each class and computes everything from them, in float64, when it is asked.

    What the images share is kept as said of each form: the common covariance is an
    average over the images that are left, the Gram matrix a sum over all images, and
    the truncated directions are those of every step so far.
    """

    def __init__(self, name):
        self.name, self.images = name, {}
        generator = torch.Generator().manual_seed(3)
        self.weights = torch.randn(D, 20, generator=generator, dtype=torch.float64)
        self.phases = torch.rand(20, generator=generator, dtype=torch.float64)
        length = len(self.transformed(torch.zeros(1, D))[0])
        self.common = torch.zeros(length, length, dtype=torch.float64)
        self.gram = torch.zeros(20, 20, dtype=torch.float64)
        self.kept = torch.zeros(0, 20, dtype=torch.float64)

    def transformed(self, features):
        features = features.double()
        if self.name == "klda":
            return (2 / 20) ** 0.5 * torch.cos(
                features @ self.weights * 0.02**0.5 + 2 * torch.pi * self.phases
            )
        return (
            torch.copysign(features.abs().sqrt(), features)
            if self.name.startswith("fecam")
            else features
        )

    def group(self, label):
        return torch.stack(self.images[label])

    def mean(self, label):
        return self.group(label).mean(0)

    def scatter(self, label):
        rest = self.group(label) - self.mean(label)
        return rest.T @ rest

    def total(self):
        return sum(map(len, self.images.values()))

    def within(self):
        return sum(
            (self.scatter(label) for label in self.images),
            torch.zeros_like(self.common),
        )

    def hidden(self, features):
        values = features.double() @ self.weights
        return (values / D**0.5).sigmoid() if "sigmoid" in self.name else values.relu()

    def update(self, features, labels):
        before, scatter = self.within(), self.common * self.total()
        for feature, label in zip(self.transformed(features), labels.tolist()):
            self.images.setdefault(label, []).append(feature)
        self.common = (scatter + self.within() - before) / self.total()
        self.gram = self.gram + self.hidden(features).T @ self.hidden(features)
        self.truncate(self.hidden(features))

    def truncate(self, rows):
        """Three quarters of the directions of the images are kept, and ten at most."""
        most = min(10, max(round(0.75 * self.total()), len(self.kept), 1))
        _, lengths, directions = torch.linalg.svd(
            torch.cat([self.kept, rows]), full_matrices=False
        )
        self.kept = (lengths[:, None] * directions)[lengths > 1e-6 * lengths[0]][:most]

    def forget(self, label):
        self.images.pop(label, None)
        if not self.images:
            self.common, self.gram = (
                torch.zeros_like(self.common),
                torch.zeros_like(self.gram),
            )
            self.kept = self.kept[:0]

    def merge(self, other, numbers):
        before, scatter = (
            self.within(),
            self.common * self.total() + other.common * other.total(),
        )
        before = before + other.within()
        for label, group in other.images.items():
            self.images.setdefault(numbers[label], []).extend(group)
        self.common = (scatter + self.within() - before) / self.total()
        self.gram = self.gram + other.gram
        self.truncate(other.kept)

    def scores(self, features):
        """Scores of the classes with images, in the order of their numbers."""
        name, labels, features = (
            self.name,
            sorted(self.images),
            self.transformed(features),
        )
        means = torch.stack([self.mean(label) for label in labels])
        if name == "ncm":
            return torch.stack(
                [torch.cosine_similarity(features, mean[None]) for mean in means], 1
            )
        if name in ("slda", "plda"):
            return linear(features, means, 0.99 * self.common + 0.01 * torch.eye(D))
        if name == "klda":
            return linear(
                features,
                means,
                self.common + 0.01 * self.variance(self.common, means) * torch.eye(20),
            )
        if name.startswith(RANDOM):
            sums = torch.stack(
                [self.hidden(self.group(label)).sum(0) for label in labels], 1
            )
            if name == "loranpac":
                return (
                    self.hidden(features)
                    @ torch.linalg.pinv(self.kept.T @ self.kept, rtol=1e-11)
                    @ sums
                )
            ridge = self.chosen_ridge(sums) if "chosen" in name else 0.01
            return self.hidden(features) @ torch.linalg.inv(self.ridged(ridge)) @ sums
        common = self.common if "common" in name else self.within() / self.total()
        owns = [self.scatter(label) / len(self.images[label]) for label in labels]
        if name.startswith("fecam"):
            return torch.stack(
                [-mahalanobis(features, mean, own) for mean, own in zip(means, owns)], 1
            )
        if name.startswith("rda"):
            return self.log_densities(features, labels, means, common)
        shares = torch.tensor(
            [len(self.images[label]) / self.total() for label in labels],
            dtype=torch.float64,
        )
        own, rest, ridge = (0.36, 0.54, 0.1) if name == "srda" else (0.5, 0.8, 0.1)
        unit = ridge * self.variance(common, means) * torch.eye(D)
        gaussians = [
            MultivariateNormal(mean, own * its + rest * common + unit)
            for mean, its in zip(means, owns)
        ]
        scores = torch.stack([gaussian.log_prob(features) for gaussian in gaussians], 1)
        return scores + shares.log() if name == "srda" else scores

    @staticmethod
    def variance(covariance, means):
        variance = float(covariance.diagonal().mean())
        return variance if variance > 1e-10 * means.square().mean() else 1.0

    def ridged(self, ridge):
        return self.gram + ridge * (
            float(self.gram.diagonal().mean()) or 1.0
        ) * torch.eye(20)

    def chosen_ridge(self, sums):
        """Generalised cross validation over eight powers of ten, from matrices instead of eigenvalues."""
        images, best, least = self.total(), 100.0, float("inf")
        for ridge in (10.0**power for power in range(2, -6, -1)):
            inverse = torch.linalg.inv(self.ridged(ridge))
            weights, fitted = inverse @ sums, float((self.gram @ inverse).trace())
            residuals = (
                images
                - 2 * float((weights * sums).sum())
                + float((weights.T @ self.gram @ weights).trace())
            )
            error = max(residuals, 1e-5 * images) / (images - fitted) ** 2
            if fitted <= 0.95 * images and error < 0.999 * least:
                best, least = ridge, error
        return best

    def gaussians(self, features, labels, means, common):
        """Log-densities of all features given, the last ones."""
        length = features.shape[1]
        shrunk = common[-length:, -length:]
        spread = float(shrunk.diagonal().mean()) or 1.0
        shrunk = shrunk + min(1, length / self.total()) * spread * torch.eye(length)
        owns = [
            self.scatter(label)[-length:, -length:] / len(self.images[label])
            for label in labels
        ]
        gaussians = [
            MultivariateNormal(mean[-length:], 0.9 * shrunk + 0.1 * own)
            for mean, own in zip(means, owns, strict=True)
        ]
        return torch.stack([gaussian.log_prob(features) for gaussian in gaussians], 1)

    def log_densities(self, features, labels, means, common):
        if "all features" in self.name:
            return self.gaussians(features, labels, means, common)
        if "a part" in self.name:
            parts = [
                self.gaussians(some, labels, means, common)
                for some in (features, features[:, -2:])
            ]
            whole, alone = ((some / 2.7).log_softmax(1).exp() for some in parts)
            return (
                2.7 * (0.6 * whole + 0.4 * alone).clamp_min(1e-300).log()
                if len(labels) > 1
                else parts[0]
            )
        spread = float(common.diagonal().mean()) or 1.0
        common = common + min(1, D / self.total()) * spread * torch.eye(D)
        whitening = torch.linalg.inv(torch.linalg.cholesky(common)).T
        centre = means.mean(0)
        lengths, axes = torch.linalg.svd(
            (means - centre) @ whitening, full_matrices=False
        )[1:]
        space = axes[: len(means) - 1][lengths[: len(means) - 1] > 1e-5 * lengths[0]].T
        scores = []
        for label, mean in zip(labels, means):
            own = self.scatter(label) / len(self.images[label])
            covariance = 0.7 * torch.eye(space.shape[1]) + 0.3 * (
                whitening @ space
            ).T @ own @ (whitening @ space)
            placed = [
                (point - centre) @ whitening @ space for point in (features, mean)
            ]
            scores.append(MultivariateNormal(placed[1], covariance).log_prob(placed[0]))
        return torch.stack(scores, 1)


def linear(features, means, covariance):
    """Scores of linear discriminant analysis."""
    inverse = torch.linalg.inv(covariance)
    return features @ inverse @ means.T - ((means @ inverse) * means).sum(1) / 2


def mahalanobis(features, mean, covariance):
    """FeCAM's distance by its definition, for the shrinkage in ``MAKE``."""
    variances, others = (
        covariance.diagonal().mean(),
        covariance[~torch.eye(D, dtype=torch.bool)].mean(),
    )
    shrunk = covariance + 2 * variances * torch.eye(D) + others * (1 - torch.eye(D))
    deviations = shrunk.diagonal().sqrt()
    unequal = variances > 1e-10 * mean.square().mean()
    correlation = (
        shrunk / deviations / deviations[:, None]
        if unequal
        else torch.eye(D, dtype=torch.float64)
    )
    rest = functional.normalize(features) - functional.normalize(mean, dim=0)
    return ((rest @ torch.linalg.inv(correlation)) * rest).sum(1)
