"""The strategy of all closed forms: the face that they show to Avalanche."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.methods.closed_form import NO_DENSITY, ClosedForm
from crumb_avalanche.methods.features import FeatureMoments, parts_of
from crumb_avalanche.methods.registry import Recipe
from crumb_avalanche.models.extraction import without_autocast
from crumb_avalanche.system.value_types import StateError
from crumb_avalanche.training.stream_strategy import StreamStrategy


class ClosedFormStrategy(StreamStrategy):
    """Updates class statistics with every image once, in stream order.

    There are no gradient steps; logits and loss are zero in training. A class beyond
    those that the statistics have room for gets some, and what is stored is fitted into
    the budget then.

    Args:
        statistics: the closed form.
        features: what it is computed from; default the means of the head's input.
        budget: bytes that the statistics may take as classes come; ``None`` where they
            were allocated for all classes.
        stream_arguments: see ``StreamStrategy``.
    """

    def __init__(
        self,
        *,
        statistics: ClosedForm,
        features: FeatureMoments | None = None,
        budget: int | None = None,
        **stream_arguments,
    ):
        super().__init__(**stream_arguments)
        self.statistics = statistics
        self.features = FeatureMoments() if features is None else features
        self.budget = budget

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the statistics that are held now."""
        return self.statistics.held_bytes

    @property
    def derived_bytes(self) -> int:
        """Bytes of the solution that answers are computed from.

        The statistics give it again.
        """
        return self.statistics.derived_bytes

    @property
    def _length(self) -> int:
        """Number of the last features that the statistics are of."""
        return self.statistics.settings["length"]

    @property
    def decided_settings(self) -> dict[str, Any]:
        """Settings of the method that were decided while learning, by name."""
        if self._length < self.features.length(self.model):
            return {"maps": False, "cells": 1}
        return {}

    def forward(self):
        # Sums of bfloat16 features would part from those of float32.
        with without_autocast(self.device):
            if not self.is_training:
                return self._answers(self.features(self.model, self.mb_x))
            if self.clock.train_exp_epochs == 0:
                features = self.features(self.model, self.mb_x)
                with self.model.stopwatch.measure("plastic"):
                    self._learn(features.cpu(), self.mb_y.cpu())
            return self._zeros(len(self.mb_y))

    def _zeros(self, images: int) -> Tensor:
        """Return logits ``(images, n_classes)`` that say nothing."""
        shape = (images, self.model.n_classes)
        return torch.zeros(shape, dtype=torch.float32, device=self.device)

    def _learn(self, features: Tensor, labels: Tensor) -> None:
        """Add a batch to the statistics, after making room for its classes.

        Args:
            features: ``(B, D)`` float32, on the CPU.
            labels: ``(B,)`` int64, on the CPU.
        """
        classes = int(labels.max()) + 1
        if classes > self.statistics.settings["n_classes"]:
            self.statistics.grow(classes)
            if self.budget is not None:
                self._fit_into_budget(classes, self.budget)
        self.statistics.update(features[:, -self._length :], labels)

    def _fit_into_budget(self, classes: int, budget: int) -> None:
        head_length = self.features.of_head().length(self.model)
        # Some of these are in reserve, which takes bytes, too.
        allocated = self.statistics.allocated_classes
        if self.statistics.narrow(allocated, budget, head_length):
            allocated = classes
        self.statistics.share(allocated, budget)

    def _answers(self, features: Tensor) -> Tensor:
        """Compute logits ``(B, n_classes)``: scores minus that of the best class."""
        seen = self.seen_classes.seen
        if not seen:
            return self._zeros(len(features))
        scores = self.statistics.scores(features.cpu()[:, -self._length :])
        # Classes for which the statistics have no room yet.
        missing = self.model.n_classes - scores.shape[1]
        if missing:
            scores = functional.pad(scores, (0, missing), value=NO_DENSITY)
        best = scores[:, seen].amax(1, keepdim=True)
        return (scores - best).float().to(self.device)

    def criterion(self):
        if self.is_training:
            return self.mb_output.new_zeros(())
        return super().criterion()

    def backward(self):
        """Do nothing: there is no gradient."""

    def optimizer_step(self):
        """Do nothing: P is not trained."""

    def state_dict(self):
        return super().state_dict() | {"method": self.statistics.state_dict()}

    def load_state_dict(self, state, strict=True):
        statistics = self._loaded(state["method"])
        super().load_state_dict(state, strict)
        self.statistics = statistics

    def answer_state(self):
        return super().answer_state() | {"method": self.statistics.state_dict()}

    def load_answer_state(self, state):
        statistics = self._loaded(state["method"])
        super().load_answer_state(state)
        self.statistics = statistics

    def _loaded(self, state: dict[str, Any]) -> ClosedForm:
        """Return statistics with a state, in which features may have been dropped."""
        length = state["settings"]["length"]
        complete = self.features.length(self.model)
        of_head = self.features.of_head().length(self.model)
        if length not in (complete, of_head):
            raise StateError(
                f"the state has {length} features, but this strategy {complete}; build "
                "it with the settings that the state was made with"
            )
        statistics = self.statistics.like(state)
        statistics.load_state_dict(state)
        return statistics


def build(form: type[ClosedForm], recipe: Recipe) -> ClosedFormStrategy:
    """Build the strategy of a registered closed form.

    It trains one epoch per experience, the first included.

    Raises:
        ValueError: the budget does not buy what the form needs at least.
    """
    features, settings = parts_of(recipe.method)
    length = features.length(recipe.model)
    head_length = features.of_head().length(recipe.model)
    statistics = form.for_stream(
        recipe.n_classes, length, head_length, recipe.mem_size, recipe.seed, settings
    )
    budget = None
    if statistics.settings["n_classes"] < recipe.n_classes:
        # The bytes that mem_size was computed from.
        fixed = form.fixed_bytes(recipe.n_classes, length, head_length, settings)
        budget = recipe.mem_size * form.item_bytes(length, settings) + fixed
    arguments = recipe.common() | {"first_epochs": 1, "train_epochs": 1}
    return ClosedFormStrategy(
        statistics=statistics,
        features=features,
        budget=budget,
        optimizer=recipe.optimizer(),
        **arguments,
    )
