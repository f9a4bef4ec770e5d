"""The strategy of all closed forms: the face that they show to Avalanche."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.methods.closed_form import NO_DENSITY, ClosedForm
from crumb_avalanche.methods.features import FeatureMoments, parts_of
from crumb_avalanche.models.extraction import without_autocast
from crumb_avalanche.system.tensor_file import StateError
from crumb_avalanche.training.stream_strategy import StreamStrategy


class ClosedFormStrategy(StreamStrategy):
    """Update class statistics with every image once, in stream order, without gradient steps.

    Logits and loss are zero in training. A class beyond those that the statistics have
    a place for is given one, and what is stored is fitted into the budget then.
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
        self.statistics, self.budget = statistics, budget
        self.features = FeatureMoments() if features is None else features

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the statistics that are held now."""
        return self.statistics.held_bytes

    @property
    def derived_bytes(self) -> int:
        """Bytes of the solution that answers are computed from, which the statistics give again."""
        return self.statistics.derived_bytes

    @property
    def decided_settings(self) -> dict[str, Any]:
        """Settings of the method that were decided while learning, with their values."""
        narrow = self.statistics.settings["length"] < self.features.length(self.model)
        return {"maps": False, "cells": 1} if narrow else {}

    def forward(self):
        with without_autocast(
            self.device
        ):  # sums of bfloat16 features would part from those of float32
            if not self.is_training:
                return self._answers(self.features(self.model, self.mb_x))
            if self.clock.train_exp_epochs == 0:
                features = self.features(self.model, self.mb_x)
                with self.model.stopwatch.measure("plastic"):
                    self._learn(features.cpu(), self.mb_y.cpu())
            return torch.zeros(len(self.mb_y), self.model.n_classes, device=self.device)

    def _learn(self, features: Tensor, labels: Tensor) -> None:
        """Add a batch to the statistics, on the CPU, after making room for classes beyond those they have."""
        statistics, classes = self.statistics, int(labels.max()) + 1
        if classes > statistics.settings["n_classes"]:
            statistics.grow(classes)
            if self.budget is not None:
                kept = self.features.of_head().length(self.model)
                places = (
                    statistics.allocated_classes
                )  # some of them in reserve, which takes bytes, too
                if statistics.narrow(places, self.budget, kept):
                    places = classes
                statistics.share(places, self.budget)
        statistics.update(features[:, -statistics.settings["length"] :], labels)

    def _answers(self, features: Tensor) -> Tensor:
        """Shift the scores to logits: 0 for the best seen class, negative for the others."""
        seen = self.seen_classes.seen
        if not seen:
            return torch.zeros(len(features), self.model.n_classes, device=self.device)
        scores = self.statistics.scores(
            features.cpu()[:, -self.statistics.settings["length"] :]
        )
        missing = (
            self.model.n_classes - scores.shape[1]
        )  # classes for which the statistics have no place yet
        scores = (
            functional.pad(scores, (0, missing), value=NO_DENSITY)
            if missing
            else scores
        )
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
        """Return statistics with a state, in which features of the map may have been dropped."""
        length = state["settings"]["length"]
        possible = [
            moments.length(self.model)
            for moments in (self.features, self.features.of_head())
        ]
        if length not in possible:
            raise StateError(
                f"the state has {length} features, but this strategy {possible[0]}; build it with the settings that "
                "the state was made with"
            )
        statistics = self.statistics.like(state)
        statistics.load_state_dict(state)
        return statistics


def build(form: type[ClosedForm], recipe: Any) -> ClosedFormStrategy:
    """Build the strategy of a registered closed form, with one epoch per experience, the first included.

    Raises:
        ValueError: the budget does not buy what the form needs at least.
    """
    features, settings = parts_of(recipe.method)
    length, kept = (
        features.length(recipe.model),
        features.of_head().length(recipe.model),
    )
    statistics = form.for_stream(
        recipe.n_classes, length, kept, recipe.mem_size, recipe.seed, settings
    )
    budget = None
    if (
        statistics.settings["n_classes"] < recipe.n_classes
    ):  # the bytes that mem_size was computed from
        budget = recipe.mem_size * form.item_bytes(length, settings)
        budget += form.fixed_bytes(recipe.n_classes, length, kept, settings)
    arguments = recipe.common() | {"first_epochs": 1, "train_epochs": 1}
    return ClosedFormStrategy(
        statistics=statistics,
        features=features,
        budget=budget,
        optimizer=recipe.optimizer(),
        **arguments,
    )
