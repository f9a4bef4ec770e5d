"""Methods that keep sums over frozen features instead of memories, and learn in closed form: NCM and streaming LDA.

The features are those before the head, averaged over locations (512 for SqueezeNet); P stays as it was loaded.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.baselines.entry import Entry, NoSettings, Recipe
from crumb_avalanche.models.penultimate import evaluating, penultimate
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.tensor_bytes import tensor_bytes
from crumb_avalanche.training.stream_strategy import StreamStrategy


def feature_length(model: SplitModel) -> int:
    """``D``, the length of ``pooled_features``."""
    head = model.plastic_layers.get_submodule(model.head)
    return head.in_channels if hasattr(head, "in_channels") else head.in_features


@torch.no_grad()
def pooled_features(model: SplitModel, images: Tensor) -> Tensor:
    """The input of the head, in evaluation mode, averaged over locations: ``(B, D)`` float32.

    Args:
        images: as for ``SplitModel.features``.
    """
    with evaluating(model):
        return penultimate(model, model.features(images))


Features = Callable[[SplitModel, Tensor], Tensor]


class ClassStatistics(ABC):
    """Sums over features that are brought up to date batch by batch, and what they say about new features."""

    @abstractmethod
    def update(self, features: Tensor, labels: Tensor) -> None:
        """Take in ``(B, D)`` features and ``(B,)`` int64 labels, on the CPU; each image once."""

    @abstractmethod
    def scores(self, features: Tensor) -> Tensor:
        """``(B, classes)`` float64; the largest is the answer. Those of classes without images mean nothing."""

    @abstractmethod
    def tensors(self) -> list[Tensor]:
        """All that is kept."""


class ClassMeans(ClassStatistics):
    """Running class means; the nearest by cosine (NCM; Mensink et al., PAMI 2013, and Rebuffi et al., CVPR 2017).

    Args:
        n_classes: of the whole stream.
        length: ``D``.

    Attributes:
        means: ``(n_classes, D)`` float32.
        counts: ``(n_classes,)`` int32, images of each class.
    """

    def __init__(self, n_classes: int, length: int):
        self.means = torch.zeros(n_classes, length)
        self.counts = torch.zeros(n_classes, dtype=torch.int32)

    def update(self, features, labels):
        self.absorb(features, labels)

    def absorb(self, features: Tensor, labels: Tensor) -> dict[int, Tensor]:
        """Update the means; returns for each class ``(n + 1, D)`` float64 rows ``R`` such that ``R^T R`` is what its
        scatter grows by (the pairwise update of Chan, Golub and LeVeque, 1979)."""
        rows = {}
        for label in labels.unique().tolist():
            group = features[labels == label].double()
            centre, mean = group.mean(0), self.means[label].double()
            old, new = int(self.counts[label]), len(group)
            between = (old * new / (old + new)) ** 0.5 * (centre - mean)
            rows[label] = torch.cat([group - centre, between.unsqueeze(0)])
            self.means[label] = (mean + new / (old + new) * (centre - mean)).float()
            self.counts[label] += new
        return rows

    def scores(self, features):
        return functional.normalize(features.double(), dim=1) @ functional.normalize(self.means.double(), dim=1).mT

    def tensors(self):
        return [self.means, self.counts]


class StreamingLDA(ClassStatistics):
    """Linear discriminant analysis with one running covariance (Hayes and Kanan, CVPR Workshops 2020).

    Class means ``mu``, and ``Sigma``, the exact covariance within the classes of all images so far (the paper's
    recursion counts the first image of a class with its distance from zero). Scores are ``w x - w mu / 2`` with
    ``w = ((1 - e) Sigma + e I)^-1 mu``.

    Args:
        n_classes, length: see ``ClassMeans``.
        shrinkage: ``e``.

    Attributes:
        covariance: ``(D, D)`` float32, 1,048,576 bytes at 512.
    """

    unsaved = ("_solution",)  # it follows from what is kept

    def __init__(self, n_classes: int, length: int, shrinkage: float = 1e-4):
        self.classes = ClassMeans(n_classes, length)
        self.covariance = torch.zeros(length, length)
        self.shrinkage = shrinkage
        self._solution: tuple[Tensor, Tensor] | None = None

    def update(self, features, labels):
        old = int(self.classes.counts.sum())
        rows = torch.cat(list(self.classes.absorb(features, labels).values()))
        total = old + len(labels)
        self.covariance = (self.covariance.double() * (old / total) + rows.mT @ rows / total).float()
        self._solution = None

    def scores(self, features):
        if self._solution is None:  # only after learning
            # float32 leaves eigenvalues a little below zero where there are fewer images than features.
            values, vectors = torch.linalg.eigh(self.covariance.double())
            values = (1 - self.shrinkage) * values.clamp_min(0) + self.shrinkage
            means = self.classes.means.double()
            weights = (means @ vectors / values) @ vectors.mT
            self._solution = weights, (weights * means).sum(1) / 2
        weights, offsets = self._solution
        return features.double() @ weights.mT - offsets

    def tensors(self):
        return [*self.classes.tensors(), self.covariance]


class ClosedFormStrategy(StreamStrategy):
    """Takes every image into class statistics, once and in stream order; nothing is learned by gradients.

    Training answers are all zero, and so is the training loss.

    Args:
        statistics: what is kept.
        features: of the model and a batch of images, ``(B, D)`` float32.
        stream_arguments: see ``StreamStrategy``. Of several epochs only the first counts.
    """

    def __init__(self, *, statistics: ClassStatistics, features: Features = pooled_features, **stream_arguments):
        super().__init__(**stream_arguments)
        self.statistics = statistics
        self.features = features

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the statistics."""
        return tensor_bytes(self.statistics.tensors())

    def forward(self):
        if not self.is_training:
            return self._answers(self.features(self.model, self.mb_x))
        if self.clock.train_exp_epochs == 0:
            features = self.features(self.model, self.mb_x)
            with self.model.stopwatch.measure("plastic"):
                self.statistics.update(features.cpu(), self.mb_y.cpu())
        return torch.zeros(len(self.mb_y), self.model.n_classes, device=self.device)

    def _answers(self, features: Tensor) -> Tensor:
        """Scores as logits: 0 for the best seen class, below for the others, whatever the method's scale is."""
        seen = self.seen_classes.seen
        if not seen:
            return torch.zeros(len(features), self.model.n_classes, device=self.device)
        scores = self.statistics.scores(features.cpu())
        return (scores - scores[:, seen].amax(1, keepdim=True)).float().to(self.device)

    def criterion(self):
        return self.mb_output.new_zeros(()) if self.is_training else super().criterion()

    def backward(self):
        """Nothing: there is no gradient."""

    def optimizer_step(self):
        """Nothing: P stays as it was."""


def closed_form(
    recipe: Recipe, statistics: ClassStatistics, features: Features = pooled_features
) -> ClosedFormStrategy:
    """A strategy that makes one pass over each experience, the first as well."""
    arguments = recipe.common() | {"first_epochs": 1, "train_epochs": 1}
    return ClosedFormStrategy(statistics=statistics, features=features, optimizer=recipe.optimizer(), **arguments)


@dataclass(frozen=True)
class SldaSettings:
    """Settings of streaming LDA.

    Attributes:
        shrinkage: share of the unit matrix in the covariance.
    """

    shrinkage: float = 1e-4

    def __post_init__(self):
        if not 0 < self.shrinkage <= 1:
            raise ValueError(f"shrinkage is {self.shrinkage}; it is a share: above 0 and at most 1")


NCM = Entry(
    name="ncm",
    summary="class means of frozen features, nearest by cosine",
    source="Mensink et al., Distance-Based Image Classification, PAMI 2013; as in iCaRL, CVPR 2017",
    stores="a mean for each class",
    build=lambda recipe: closed_form(recipe, ClassMeans(recipe.n_classes, feature_length(recipe.model))),
    method=NoSettings,
    fixed_bytes=lambda model, method, n_classes: 4 * n_classes * (feature_length(model) + 1),
    gradient=False,
)
SLDA = Entry(
    name="slda",
    summary="streaming linear discriminant analysis of frozen features",
    source="Hayes and Kanan, Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis, CVPRW 2020",
    stores="a mean for each class, and one covariance",
    build=lambda recipe: closed_form(
        recipe, StreamingLDA(recipe.n_classes, feature_length(recipe.model), recipe.method.shrinkage)
    ),
    method=SldaSettings,
    fixed_bytes=lambda model, method, n_classes: (
        4 * (feature_length(model) ** 2 + n_classes * (feature_length(model) + 1))
    ),
    gradient=False,
)
