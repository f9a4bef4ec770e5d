"""The strategy of all closed forms: the face that they show to Avalanche."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from crumb_avalanche.methods.closed_form import NO_DENSITY, ClosedForm
from crumb_avalanche.methods.look_forms import EarlierForms, LookForms
from crumb_avalanche.methods.look_weights import LookWeights
from crumb_avalanche.methods.looks import ViewFeatures, parts_of
from crumb_avalanche.methods.registry import Recipe
from crumb_avalanche.models.extraction import without_autocast
from crumb_avalanche.system.value_types import StateError
from crumb_avalanche.training.stream_strategy import StreamStrategy


class _Clips(NamedTuple):
    """The clips of an experience.

    Attributes:
        numbers: number of the clip of each image.
        begin: position of the first image, by number of the clip.
    """

    numbers: list[int]
    begin: dict[int, int]


class ClosedFormStrategy(StreamStrategy):
    """Updates class statistics with every image once, in stream order.

    There are no gradient steps; logits and loss are zero in training. A class beyond
    those that the statistics have room for gets some, and what is stored is fitted into
    the budget then.

    Of several looks, each has statistics of its own, of its views of the images, and
    the scores of the views are added. Their weights follow how well each clip was
    predicted before it was learned; after an experience, looks that are not needed are
    given up. A clip is what has the same number in the attribute ``clip`` of the data
    set, of those without it each image. See ``LookWeights``.

    Args:
        statistics: the closed form, without images; each look gets a copy.
        features: what it is computed from; default the means of the head's input. With
            several looks, images are ``(L, 3, h, w)`` of ``L`` looks, or ``(L, C, H,
            W)`` maps.
        budget: bytes that the statistics may take as classes come; ``None`` where they
            were allocated for all classes.
        stream_arguments: see ``StreamStrategy``.

    Attributes:
        forms: the statistics, a closed form for each look that is used, and how much
            the scores of each view count.
    """

    takes_gradient_steps = False

    def __init__(
        self,
        *,
        statistics: ClosedForm,
        features: ViewFeatures | None = None,
        budget: int | None = None,
        **stream_arguments,
    ):
        super().__init__(**stream_arguments)
        self.features = ViewFeatures() if features is None else features
        self.forms = LookForms(self.features.looks, statistics)
        self.budget = budget
        self._earlier_forms = EarlierForms()
        self._clips: _Clips | None = None  # of the experience, once they are needed

    @property
    def statistics(self) -> ClosedForm:
        """The closed form of the first look that is used."""
        return self.forms.first

    @property
    def look_weights(self) -> LookWeights:
        """How much the scores of each view count, and which looks are used."""
        return self.forms.weights

    @property
    def statistics_bytes(self) -> int:
        """Bytes of the statistics that are held now, those of all looks."""
        return self.forms.held_bytes

    @property
    def derived_bytes(self) -> int:
        """Bytes of the solutions of all looks, which answers are computed from.

        The statistics give it again.
        """
        return self.forms.derived_bytes

    @property
    def _length(self) -> int:
        """Number of the last features that the statistics are of."""
        return self.forms.length

    @property
    def decided_settings(self) -> dict[str, Any]:
        """Settings of the method that were decided while learning, by name."""
        if self._length < self.features.length(self.model):
            return {"maps": False, "cells": 1}
        return {}

    def forward(self):
        """Learn the batch in training, and return zeros; else return its logits."""
        # Sums of bfloat16 features would part from those of float32.
        with without_autocast(self.device):
            if not self.is_training:
                return self._logits(self._features())
            is_first_epoch = self.clock.train_exp_epochs == 0
            if is_first_epoch:
                features = self._features()
                with self.model.stopwatch.measure("plastic"):
                    self._learn(features.cpu(), self.mb_y.cpu())
            return self._zeros(len(self.mb_y))

    def _features(self) -> Tensor:
        """Compute ``(B, V * D)`` features of the ``V`` views of the batch's images.

        A look is a middle part of an image, resized; a view is the features of a window
        of its maps. Only looks in use are computed.

        Raises:
            ValueError: the images are not ``(B, looks, 3, h, w)``.
        """
        looks = self.features.looks
        images = self.mb_x  # (B, looks, 3, h, w), or without the axis of looks
        is_without_looks = images.dim() == 4
        if is_without_looks and len(looks) == 1:
            images = images.unsqueeze(1)
        has_all_looks = images.dim() == 5 and images.shape[1] == len(looks)
        if not has_all_looks:
            raise ValueError(
                f"the images are {tuple(self.mb_x.shape)}, but the method looks at the "
                f"parts {looks}: give (B, {len(looks)}, 3, h, w), which the transform "
                "crumb_avalanche.images.looks.LookTransform makes"
            )
        used = self.look_weights.used
        return self.features(self.model, [images[:, look] for look in used], used)

    def _views(self, features: Tensor) -> Tensor:
        """Return the features of each view that the statistics are of: ``(B, V, D)``.

        Args:
            features: ``(B, V * D')``, of which the last ``D`` of each view count.
        """
        views = features.unflatten(1, (self.features.looks.n_views, -1))
        return views[:, :, -self._length :]

    def _zeros(self, n_images: int) -> Tensor:
        """Return logits ``(n_images, n_classes)`` that say nothing."""
        shape = (n_images, self.model.n_classes)
        return torch.zeros(shape, dtype=torch.float32, device=self.device)

    def _make_room(self, n_classes: int) -> None:
        """Let the statistics have so many classes or more."""
        if n_classes > self.forms.n_classes:
            used_before = self.forms.used
            length_before = self.forms.length
            self.forms.grow(n_classes)
            if self.budget is not None:
                head_length = self.features.of_head().length(self.model)
                self.forms.fit_into(n_classes, self.budget, head_length)
            is_smaller = self.forms.length < length_before
            if is_smaller or self.forms.used != used_before:
                self._earlier_forms.forget()

    def _learn(self, features: Tensor, labels: Tensor) -> None:
        """Predict the clips that begin in a batch, then add it to the statistics.

        Args:
            features: ``(B, V * D)`` float32, on the CPU.
            labels: ``(B,)`` int64, on the CPU.
        """
        self._make_room(int(labels.max()) + 1)
        views = self._views(features)
        if self.look_weights.is_learning:
            self._observe(views, labels)
        self.forms.update(views, labels)

    def _observe(self, views: Tensor, labels: Tensor) -> None:
        """Record how each view predicts the clips that begin in a batch.

        Each clip is predicted by statistics from before it; ``look_weights``, by which
        views are weighted, learn from the loss.

        Args:
            views: ``(B, V, D)`` float32, features of each view of each image.
            labels: ``(B,)`` int64.
        """
        for positions in self._new_clips(len(labels)):
            label = int(labels[positions[0]])  # images of a clip are of one class
            # A copy of the statistics from before the clip; None if it does not know
            # the class of the clip, or no other one.
            earlier_forms = self._earlier_forms.copy_that_knows(self.forms, label)
            if earlier_forms is None:
                continue
            is_known = earlier_forms.image_counts > 0
            # (images of the clip, V' used views, known classes)
            scores = earlier_forms.scores(views[positions])[:, :, is_known]
            column = int(is_known[:label].sum())  # of the label among known classes
            self.look_weights.observe(scores / self.statistics.temperature, column)

    def _new_clips(self, n_images: int) -> Iterable[list[int]]:
        """Return the positions in the batch of each clip that begins in the batch.

        Where the clips of the experience are not known, each image is a clip.

        Args:
            n_images: number of images of the batch.
        """
        if self._clips is None:  # they are looked up once an experience
            self._clips = self._clips_in_order()
        if self._clips is None:
            return [[position] for position in range(n_images)]
        # Position of the first image of the batch in the experience.
        batch_start = self.clock.train_exp_iterations * self.train_mb_size
        positions_by_clip: dict[int, list[int]] = {}
        for position in range(n_images):
            clip = self._clips.numbers[batch_start + position]
            begins_in_batch = self._clips.begin[clip] >= batch_start
            if begins_in_batch:
                positions_by_clip.setdefault(clip, []).append(position)
        return positions_by_clip.values()

    def _clips_in_order(self) -> "_Clips | None":
        """Return the clips of the experience, if its frames come in order.

        Returns:
            The clips; ``None`` where frames are shuffled or the data set names none.
        """
        dataset = self.adapted_dataset
        if not (self.frames_in_order and hasattr(dataset, "clip")):
            return None
        clip_of_images = list(dataset.clip)
        begin: dict[int, int] = {}
        for position, clip in enumerate(clip_of_images):
            begin.setdefault(clip, position)
        return _Clips(clip_of_images, begin)

    def _before_training_exp(self, **kwargs):
        """Drop what is of the experience before: its clips, and the copy of then."""
        self._earlier_forms.forget()
        self._clips = None
        super()._before_training_exp(**kwargs)

    def _after_training_exp(self, **kwargs):
        """Give up the looks that the experience showed to be needless."""
        super()._after_training_exp(**kwargs)
        self._earlier_forms.forget()
        self.forms.settle()

    def _logits(self, features: Tensor) -> Tensor:
        """Compute logits ``(B, n_classes)``: scores minus that of the best class.

        The score of a class is the weighted sum of its scores in all used views.

        Args:
            features: ``(B, V * D)`` float32, of ``V`` views of each image.

        Returns:
            float32 on the strategy's device; zeros before any class was seen.
        """
        seen = self.seen_classes.seen  # classes, in the order in which they came
        if not seen:
            return self._zeros(len(features))
        views = self._views(features.cpu())  # (B, V, D)
        scores_of_views = self.forms.scores(views)  # (B, V', n_classes), used views
        weights = self.look_weights.weights().unsqueeze(1)  # (V', 1), with the sum 1
        scores = (scores_of_views * weights).sum(1)
        # Classes for which the statistics have no room yet.
        n_missing = self.model.n_classes - scores.shape[1]
        if n_missing:
            scores = functional.pad(scores, (0, n_missing), value=NO_DENSITY)
        best = scores[:, seen].amax(1, keepdim=True)
        # In float64 until here: large scores may differ by little.
        return (scores - best).float().to(self.device)

    def criterion(self):
        """Return 0 in training, which has no loss; else that of the logits."""
        if self.is_training:
            return self.mb_output.new_zeros(())
        return super().criterion()

    def backward(self):
        """Do nothing: there is no gradient."""

    def optimizer_step(self):
        """Do nothing: P is not trained."""

    def state_dict(self):
        """Return the state of training, with statistics and weights of views."""
        state = super().state_dict() | self._learned_state()
        return state | {"earlier": self._earlier_forms.state_dict()}

    def load_state_dict(self, state, strict=True):
        """Load what ``state_dict`` returned."""
        forms = self._forms_of_state(state)
        super().load_state_dict(state, strict)
        self._load_learned(forms)
        self._earlier_forms.load_state_dict(state["earlier"], forms)

    def answer_state(self):
        """Return what evaluation needs, with statistics and weights of views."""
        return super().answer_state() | self._learned_state()

    def load_answer_state(self, state):
        """Load what ``answer_state`` returned."""
        forms = self._forms_of_state(state)
        super().load_answer_state(state)
        self._load_learned(forms)

    def _learned_state(self) -> dict[str, Any]:
        """Return the statistics of each used look, and the weights of views."""
        return {
            "method": self.forms.state_dict(),
            "looks": self.look_weights.state_dict(),
        }

    def _load_learned(self, forms: LookForms) -> None:
        """Take statistics, with the weights of views."""
        self.forms = forms
        self._earlier_forms.forget()

    def _forms_of_state(self, state: dict[str, Any]) -> LookForms:
        """Build statistics from a saved state, in which features may be dropped.

        Args:
            state: what ``_learned_state`` returned, with the statistics of all
                features, or of the head's input alone, the last ones.

        Raises:
            StateError: the state is of other features.
        """
        states = state["method"]  # of each used look
        length = states[0]["settings"]["length"]
        full_length = self.features.length(self.model)
        head_length = self.features.of_head().length(self.model)
        if length not in (full_length, head_length):
            raise StateError(
                f"the state has {length} features, but this strategy {full_length}; "
                "build it with the settings that the state was made with"
            )
        return self.forms.loaded(states, state["looks"])


def build(form: type[ClosedForm], recipe: Recipe) -> ClosedFormStrategy:
    """Build the strategy of a registered closed form.

    It trains one epoch per experience, the first included.

    Args:
        form: class of the statistics, which are updated without a gradient.
        recipe: model, settings, and ``mem_size``, the number of items that the budget
            buys for each look.

    Raises:
        ValueError: the budget does not buy what the form needs at least.
    """
    # What features are computed by, and the settings of the form itself.
    features, settings = parts_of(recipe.method)
    length = features.length(recipe.model)
    head_length = features.of_head().length(recipe.model)
    statistics = form.for_stream(
        n_classes=recipe.n_classes,
        length=length,
        head_length=head_length,
        n_items=recipe.mem_size,
        seed=recipe.seed,
        settings=settings,
    )
    budget = None  # in bytes, for statistics that grow during the run
    grows = statistics.settings["n_classes"] < recipe.n_classes
    if grows:
        # The bytes that mem_size was computed from.
        fixed_bytes = form.fixed_bytes(recipe.n_classes, length, head_length, settings)
        budget_of_look = recipe.mem_size * form.item_bytes(length, settings)
        budget = len(features.looks) * (budget_of_look + fixed_bytes)
    arguments = recipe.common() | {"first_epochs": 1, "train_epochs": 1}
    return ClosedFormStrategy(
        statistics=statistics,
        features=features,
        budget=budget,
        optimizer=recipe.optimizer(),
        **arguments,
    )
