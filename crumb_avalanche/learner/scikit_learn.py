"""Methods in closed form with scikit-learn's contract, and the frozen network as a transformer of images."""

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


class CrumbClassifier(ClassifierMixin, BaseEstimator):
    """Classifier in closed form that learns features batch by batch, in one pass and within a budget of bytes.

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
            X, y: as for ``fit``.
            classes: labels that will come, ``(C,)``; optional.

        Raises:
            BudgetError: a class more does not fit into the budget; nothing of the call
                is learned then.
            ValueError: see ``fit``.
        """
        first = not hasattr(self, "classes_")
        features, y = validate_data(self, X, y, reset=first)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        named = (
            unique_labels(y)
            if classes is None
            else unique_labels(np.asarray(classes), y)
        )
        known = named[:0] if first else self.classes_
        together = np.concatenate([known, named[~np.isin(named, known)]])
        if not first:
            statistics = self.statistics_
        elif (form := get_strategy(self.method).form) is None:
            raise ValueError(
                f"method is {self.method!r}; give one in closed form, such as rda, slda, ncm, or ranpac"
            )
        else:
            statistics = form.for_budget(
                features.shape[1], self.budget_bytes, features.shape[1]
            )
        statistics.make_room(len(together), self.budget_bytes, features.shape[1])
        statistics.grow(len(together))
        order = np.argsort(together)
        labels = torch.from_numpy(order[np.searchsorted(together, y, sorter=order)])
        for some, numbers in zip(
            torch.tensor(features).split(AT_A_TIME), labels.split(AT_A_TIME)
        ):
            statistics.update(some, numbers)
        self.classes_, self.statistics_ = together, statistics
        return self

    def predict(self, X: ArrayLike) -> NDArray:
        """Return the labels of ``(N, D)`` features, ``(N,)``."""
        best = self._scores(X).argmax(1).numpy()
        return self.classes_[best]

    def predict_proba(self, X: ArrayLike) -> NDArray:
        """Return ``(N, C)`` float64 probabilities; 0 for classes that were named but not learned."""
        return (self._scores(X) / self.statistics_.temperature).softmax(1).numpy()

    def _scores(self, X: ArrayLike) -> torch.Tensor:
        check_is_fitted(self)
        return self.statistics_.scores(
            torch.tensor(validate_data(self, X, reset=False), dtype=torch.float64)
        )


class ImageFeatures(TransformerMixin, BaseEstimator):
    """Features of images by a frozen network: ``make_pipeline(ImageFeatures(), CrumbClassifier())``.

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
        """Return ``(N, D)`` float32 features of paths, PIL images, or an ``(N, H, W, 3)`` array.

        Raises:
            BadFrameError: a file cannot be decoded.
        """
        check_is_fitted(self)
        moments = FeatureMoments(
            **(
                RegularizedDiscriminant.moments
                if self.moments is None
                else self.moments
            )
        )
        change = PixelTransform(self.network_.image_size, self.network_.interpolation)
        images = X if getattr(X, "ndim", 0) == 4 else list(X)
        found = [
            moments(self.network_.model, pixels)
            for clip in clips_of(images)
            for _, pixels in batches(clip.frames, AT_A_TIME, change)
        ]
        return torch.cat(found).numpy()
