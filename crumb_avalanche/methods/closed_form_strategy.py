"""Strategies that store class statistics of frozen features instead of memories: NCM and streaming LDA.

The features are the input of the head, averaged over locations (512 for SqueezeNet). P is not trained.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.methods.closed_form import NO_DENSITY, ClassStatistics
from crumb_avalanche.methods.closed_form_budget import features_of, length_of
from crumb_avalanche.methods.closed_form_settings import SldaSettings
from crumb_avalanche.methods.entry import Entry, Recipe
from crumb_avalanche.methods.features import feature_length, pooled_features
from crumb_avalanche.methods.method_settings import NoSettings
from crumb_avalanche.methods.ncm import ClassMeans
from crumb_avalanche.methods.slda import StreamingLDA
from crumb_avalanche.models.precision import without_autocast
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.training.stream_strategy import StreamStrategy

Features = Callable[[SplitModel, Tensor], Tensor]


class ClosedFormStrategy(StreamStrategy):
    """Update class statistics with every image once, in stream order, without gradient steps.

    Logits and loss are zero in training.

    Args:
        statistics: the statistics and their classifier.
        features: function of the model and a batch of images that returns ``(B, D)`` float32 features.
        stream_arguments: see ``StreamStrategy``. Only the first epoch of an experience updates the statistics.
    """

    def __init__(self, *, statistics: ClassStatistics, features: Features = pooled_features, **stream_arguments):
        super().__init__(**stream_arguments)
        self.statistics = statistics
        self.features = features

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the statistics that are held now."""
        return self.statistics.held_bytes

    @property
    def derived_bytes(self) -> int:
        """Bytes of the solution that answers are computed from, which the statistics give again."""
        return self.statistics.derived_bytes

    def forward(self):
        with without_autocast(self.device):  # sums of bfloat16 features would part from those of float32
            return self._forward()

    def _forward(self) -> Tensor:
        if not self.is_training:
            return self._answers(self.features(self.model, self.mb_x))
        if self.clock.train_exp_epochs == 0:
            features = self.features(self.model, self.mb_x)
            with self.model.stopwatch.measure("plastic"):
                self._learn(features.cpu(), self.mb_y.cpu())
        return torch.zeros(len(self.mb_y), self.model.n_classes, device=self.device)

    @property
    def decided_settings(self) -> dict[str, Any]:
        """Settings of the method that were decided while learning, with their values."""
        return {}

    def _learn(self, features: Tensor, labels: Tensor) -> None:
        """Add a batch to the statistics, on the CPU."""
        self.statistics.update(features, labels)

    def _answers(self, features: Tensor) -> Tensor:
        """Shift the scores to logits: 0 for the best seen class, negative for the others."""
        seen = self.seen_classes.seen
        if not seen:
            return torch.zeros(len(features), self.model.n_classes, device=self.device)
        scores = self.statistics.scores(features.cpu())
        missing = self.model.n_classes - scores.shape[1]  # classes for which the statistics have no place yet
        scores = functional.pad(scores, (0, missing), value=NO_DENSITY) if missing else scores
        return (scores - scores[:, seen].amax(1, keepdim=True)).float().to(self.device)

    def criterion(self):
        return self.mb_output.new_zeros(()) if self.is_training else super().criterion()

    def backward(self):
        """Do nothing: there is no gradient."""

    def optimizer_step(self):
        """Do nothing: P is not trained."""

    def state_dict(self):
        return super().state_dict() | {"method": self.statistics.state_dict()}

    def load_state_dict(self, state, strict=True):
        super().load_state_dict(state, strict)
        self.statistics.load_state_dict(state["method"])

    def answer_state(self):
        return super().answer_state() | {"method": self.statistics.state_dict()}

    def load_answer_state(self, state):
        super().load_answer_state(state)
        self.statistics.load_state_dict(state["method"])


def closed_form(
    recipe: Recipe,
    statistics: ClassStatistics,
    features: Features = pooled_features,
    kind: type[ClosedFormStrategy] = ClosedFormStrategy,
    **more: Any,
) -> ClosedFormStrategy:
    """Build a ``ClosedFormStrategy`` with one epoch per experience, the first included.

    Args:
        recipe: arguments that all strategies share.
        statistics, features: see ``ClosedFormStrategy``.
        kind: the class.
        more: its own arguments.
    """
    arguments = recipe.common() | {"first_epochs": 1, "train_epochs": 1}
    return kind(statistics=statistics, features=features, optimizer=recipe.optimizer(), **arguments, **more)


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


def build_slda(recipe: Recipe) -> ClosedFormStrategy:
    """Build streaming LDA of the features of the settings."""
    method = recipe.method
    statistics = StreamingLDA(recipe.n_classes, length_of(recipe.model, method), method.shrinkage)
    return closed_form(recipe, statistics, features_of(method))


def slda_bytes(model: SplitModel, method: SldaSettings, n_classes: int) -> int:
    """Return the bytes of means, counts and one covariance."""
    length = length_of(model, method)
    return 4 * (length**2 + n_classes * (length + 1))


SLDA = Entry(
    name="slda",
    summary="streaming linear discriminant analysis of frozen features",
    source="Hayes and Kanan, Lifelong Machine Learning with Deep Streaming Linear Discriminant Analysis, CVPRW 2020",
    stores="a mean for each class, and one covariance",
    build=build_slda,
    method=SldaSettings,
    fixed_bytes=slda_bytes,
    gradient=False,
)
