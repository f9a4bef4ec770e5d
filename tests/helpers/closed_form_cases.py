"""The classifiers in closed form at a small size, images for them, and a twin that keeps all images."""

import torch
from torch.distributions import MultivariateNormal

from crumb_avalanche.closed_form.class_means import ClassMeans
from crumb_avalanche.closed_form.random_projection import RandomProjection
from crumb_avalanche.closed_form.regularized_discriminant import RegularizedDiscriminant
from crumb_avalanche.closed_form.streaming_lda import StreamingLDA

D = 6
MAKE = {
    "ncm": lambda n_classes: ClassMeans(n_classes, D),
    "slda": lambda n_classes: StreamingLDA(n_classes, D, shrinkage=0.01),
    "ranpac": lambda n_classes: RandomProjection(n_classes, D, projection=20, ridge=0.01, seed=3),
    "rda": lambda n_classes: RegularizedDiscriminant(n_classes, D, directions=D),
    "rda, common scatter": lambda n_classes: RegularizedDiscriminant(n_classes, D, directions=D, whole=True),
}


def images(count, n_classes, seed=0):
    """Features of classes with centres and covariances of their own, and labels, in random order."""
    generator, fixed = (torch.Generator().manual_seed(number) for number in (seed, 99))
    centres, mixing = 3 * torch.randn(50, D, generator=fixed), torch.randn(50, D, D, generator=fixed)
    labels = torch.randint(n_classes, (count,), generator=generator)
    noise = torch.randn(count, D, generator=generator)
    return centres[labels] + torch.einsum("nd,nde->ne", noise, mixing[labels]) + 2, labels


def feed(statistics, features, labels, size=7):
    for some, its_labels in zip(features.split(size), labels.split(size)):
        statistics.update(some, its_labels)
    return statistics


class Twin:
    """Keeps the images of each class and computes everything from them, in float64, when it is asked.

    What the images share is kept as said of each form: the common covariance is an average over the images that are
    left, the Gram matrix a sum over all images.
    """

    def __init__(self):
        self.images = {}
        self.common, self.gram = torch.zeros(D, D, dtype=torch.float64), torch.zeros(20, 20, dtype=torch.float64)
        self.weights = torch.randn(D, 20, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

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
        return sum((self.scatter(label) for label in self.images), torch.zeros(D, D, dtype=torch.float64))

    def hidden(self, features):
        return (features.double() @ self.weights).relu()

    def update(self, features, labels):
        before, scatter = self.within(), self.common * self.total()
        for feature, label in zip(features.double(), labels.tolist()):
            self.images.setdefault(label, []).append(feature)
        self.common = (scatter + self.within() - before) / self.total()
        self.gram = self.gram + self.hidden(features).T @ self.hidden(features)

    def forget(self, label):
        self.images.pop(label, None)
        if not self.images:
            self.common, self.gram = torch.zeros_like(self.common), torch.zeros_like(self.gram)

    def merge(self, other, numbers):
        before, scatter = self.within(), self.common * self.total() + other.common * other.total()
        before = before + other.within()
        for label, group in other.images.items():
            self.images.setdefault(numbers[label], []).extend(group)
        self.common = (scatter + self.within() - before) / self.total()
        self.gram = self.gram + other.gram

    def scores(self, name, features):
        """Scores of the classes with images, in the order of their numbers."""
        labels, features = sorted(self.images), features.double()
        means = torch.stack([self.mean(label) for label in labels])
        if name == "ncm":
            return torch.stack([torch.cosine_similarity(features, mean[None]) for mean in means], 1)
        if name == "slda":
            inverse = torch.linalg.inv(0.99 * self.common + 0.01 * torch.eye(D))
            return features @ inverse @ means.T - ((means @ inverse) * means).sum(1) / 2
        if name == "ranpac":
            gram = self.gram + 0.01 * self.gram.diagonal().mean() * torch.eye(20)
            sums = torch.stack([self.hidden(self.group(label)).sum(0) for label in labels], 1)
            return self.hidden(features) @ torch.linalg.inv(gram) @ sums
        return self.log_densities(features, labels, means, self.common if "common" in name else None)

    def log_densities(self, features, labels, means, common):
        if common is None:
            common = self.within() / self.total()
        spread = float(common.diagonal().mean()) or 1.0
        common = common + min(1, D / self.total()) * spread * torch.eye(D)
        whitening = torch.linalg.inv(torch.linalg.cholesky(common)).T
        centre = means.mean(0)
        space = torch.linalg.svd((means - centre) @ whitening, full_matrices=False)[2][: len(means) - 1].T
        scores = []
        for label, mean in zip(labels, means):
            own = self.scatter(label) / len(self.images[label])
            covariance = 0.7 * torch.eye(space.shape[1]) + 0.3 * (whitening @ space).T @ own @ (whitening @ space)
            placed = [(point - centre) @ whitening @ space for point in (features, mean)]
            scores.append(MultivariateNormal(placed[1], covariance).log_prob(placed[0]))
        return torch.stack(scores, 1)
