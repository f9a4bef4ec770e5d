"""Closed forms and the frozen network as estimators of scikit-learn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from benchmarks_toybox_ilab.streams.torch_dataset import PixelTransform
from crumb_avalanche.images.sources import batches, clips_of
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.methods.closed_form import ClosedForm
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.rda import RegularizedDiscriminant
from crumb_avalanche.methods.registry import get_strategy

BUDGET = 2_940_000  # bytes; as a learner on SqueezeNet
AT_A_TIME = 64  # images of an update
# What to do with a file that gives no image: methods of scikit-learn leave none out.
CURE = "Restore or replace the file, or leave it out of the list."


class CrumbClassifier(ClassifierMixin, BaseEstimator):
    """Classifier in closed form, in one pass and within a budget of bytes.

    It learns features batch by batch.
    Unlike estimators of scikit-learn, ``partial_fit`` also takes classes that no
    earlier call named; they are added to ``classes_`` at the end. What is learned of
    the others stays.

    Args:
        method: name of a registered method in closed form, such as ``rda``, ``slda``,
            ``ncm``, or ``ranpac``.
        budget_bytes: most bytes of the statistics; if it is full, a method gives up
            what counts least.

    Attributes:
        classes_: ``(C,)``, the labels, in the order of the columns of
            ``predict_proba``.
        n_features_in_: number of features.
        statistics_: the closed form.
    """

    classes_: NDArray
    statistics_: ClosedForm

    def __init__(self, method: str = "rda", budget_bytes: int = BUDGET):
        self.method = method
        self.budget_bytes = budget_bytes

    def fit(self, X: ArrayLike, y: ArrayLike) -> "CrumbClassifier":
        """Learn ``(N, D)`` features and ``(N,)`` labels from the start.

        Raises:
            BudgetError: the classes do not fit into the budget.
            ValueError: a value is not finite, or the method is not one in closed form.
        """
        self.__dict__.pop("classes_", None)
        return self.partial_fit(X, y)

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None
    ) -> "CrumbClassifier":
        """Learn further features and labels.

        Args:
            X: ``(N, D)`` features.
            y: ``(N,)`` labels.
            classes: labels that will come, ``(C,)``; optional.

        Raises:
            BudgetError: a class more does not fit into the budget; nothing of the call
                is learned then.
            ValueError: a value is not finite, or the method is not one in closed form.
        """
        is_first = not hasattr(self, "classes_")
        features, y = validate_data(self, X, y, reset=is_first)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        if classes is None:
            labels = unique_labels(y)
        else:
            labels = unique_labels(np.asarray(classes), y)
        length = features.shape[1]
        if is_first:
            all_labels = labels
            statistics = self._form().for_budget(length, self.budget_bytes, length)
        else:
            new = labels[~np.isin(labels, self.classes_)]
            all_labels = np.concatenate([self.classes_, new])
            statistics = self.statistics_
        # Gives up features if the classes would not fit into the budget else.
        statistics.make_room(len(all_labels), self.budget_bytes, length)
        statistics.grow(len(all_labels))
        feature_batches = torch.tensor(features).split(AT_A_TIME)
        class_numbers = torch.from_numpy(_index_of(y, all_labels))
        number_batches = class_numbers.split(AT_A_TIME)
        for batch, numbers in zip(feature_batches, number_batches, strict=True):
            statistics.update(batch, numbers)
        self.classes_ = all_labels
        self.statistics_ = statistics
        return self

    def _form(self) -> type[ClosedForm]:
        """Return the class of the method's closed form."""
        form = get_strategy(self.method).form
        if form is None:
            raise ValueError(
                f"method is {self.method!r}; give one in closed form, such as rda, "
                "slda, ncm, or ranpac"
            )
        return form

    def predict(self, X: ArrayLike) -> NDArray:
        """Return the labels of ``(N, D)`` features, ``(N,)``."""
        best = self._scores(X).argmax(1).numpy()
        return self.classes_[best]

    def predict_proba(self, X: ArrayLike) -> NDArray:
        """Return ``(N, C)`` float64 probabilities; 0 for classes not learned yet."""
        return (self._scores(X) / self.statistics_.temperature).softmax(1).numpy()

    def _scores(self, X: ArrayLike) -> torch.Tensor:
        """Return ``(N, C)`` float64 scores of ``(N, D)`` features."""
        check_is_fitted(self)
        return self.statistics_.scores(
            torch.tensor(validate_data(self, X, reset=False), dtype=torch.float64)
        )


def _index_of(labels: ArrayLike, all_labels: NDArray) -> NDArray:
    """Return where each label stands among all labels, which are in any order."""
    order = np.argsort(all_labels)
    return order[np.searchsorted(all_labels, labels, sorter=order)]


class ImageFeatures(TransformerMixin, BaseEstimator):
    """Features of images: ``make_pipeline(ImageFeatures(), CrumbClassifier())``.

    Args:
        backbone: a name in ``BACKBONES``, or ``timm:NAME``.
        weights: ``"torchvision"`` or ``"timm"`` downloads the published weights; or a
            weight file; ``None`` draws them.
        image_size: side in pixels to which images are resized; default the network's.
        moments: arguments of ``FeatureMoments``; default those of the recommended
            method.
    """

    def __init__(
        self,
        backbone: str = "squeezenet1_0",
        weights: str | None = "torchvision",
        image_size: int | None = None,
        moments: dict[str, Any] | None = None,
    ):
        self.backbone = backbone
        self.weights = weights
        self.image_size = image_size
        self.moments = moments

    def fit(self, X: Any = None, y: Any = None) -> "ImageFeatures":
        """Build the network; see ``split_backbone`` for what is raised."""
        self.network_ = FrozenNetwork.build(
            self.backbone, self.weights, self.image_size
        )
        return self

    def transform(self, X: Sequence[Any]) -> NDArray:
        """Return ``(N, D)`` float32 features of images.

        Args:
            X: paths, PIL images, or an ``(N, H, W, 3)`` array.

        Raises:
            BadFrameError: a file cannot be decoded.
        """
        check_is_fitted(self)
        arguments = self.moments
        if arguments is None:
            arguments = RegularizedDiscriminant.moments
        moments = FeatureMoments(**arguments)
        network = self.network_
        resized = PixelTransform(network.image_size, network.interpolation)
        images = X if getattr(X, "ndim", 0) == 4 else list(X)
        features = []
        for clip in clips_of(images, cure=CURE):
            for _, pixels in batches(clip.frames, AT_A_TIME, resized):
                features.append(moments(network.model, pixels))
        return torch.cat(features).numpy()
