"""BiC in one pass: distillation, then two scalars that correct the bias to new classes (Wu et al., CVPR 2019)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from crumb_avalanche.memory.selection import SelectionRule
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.methods.replay import (
    ImageMemoryPlugin,
    OldNetwork,
    allot,
    draw_from,
    trim,
)
from crumb_avalanche.models.penultimate import evaluating
from crumb_avalanche.system.setting_ranges import (
    Count,
    NotNegative,
    Positive,
    PositiveShare,
)
from crumb_avalanche.training.avalanche_fixes import labels_of
from crumb_avalanche.training.batch_plugin import in_last_epoch

_SMALLEST_ALPHA = 0.01


def spread(count: int, total: int) -> list[int]:
    """Return ``count`` different numbers below ``total``, evenly spread and ascending; all if there are no more."""
    count = min(count, total)
    return [(2 * number + 1) * total // (2 * count) for number in range(count)]


@dataclass
class SplitExemplars(SelectionRule):
    """Exemplars evenly spread over the frames of each class; the first ones of each list are for validation.

    Validation frames must not be trained on, so they have to be known in advance and
    are not herded after training. If a new exemplar needs room, the class most above
    its quota gives up the last of its list: an exemplar that was trained on never
    becomes a validation exemplar. The only exemplar of a class is used for both:
    otherwise a small budget would replay nothing.

    Attributes:
        share: share of a class's exemplars for validation; at least one.
        quotas: exemplars of each class after this experience.
        stored, held: for each class of the experience, numbers of the frames to store
            and, among them, to hold out.
        offered: frames of each class so far in this epoch.
    """

    evenly_spread = False
    every_class_holds_one = False

    share: float = 0.1
    quotas: dict[int, int] = field(default_factory=dict)
    stored: dict[int, list[int]] = field(default_factory=dict)
    held: dict[int, list[int]] = field(default_factory=dict)
    offered: dict[int, int] = field(default_factory=dict)

    def validating(self, count: int) -> int:
        """Return how many of a class's exemplars are for validation."""
        return min(max(1, round(self.share * count)), max(1, count - 1))

    def begin_experience(self, slots, coming, batch_size):
        for label in coming:
            slots.by_class.setdefault(
                label, []
            )  # a class even if no slot is left for it
        self.quotas = allot(slots.capacity, list(slots.by_class))
        self.stored = {
            label: spread(self.quotas[label], total) for label, total in coming.items()
        }
        self.held = {
            label: [
                numbers[place]
                for place in spread(self.validating(len(numbers)), len(numbers))
            ]
            for label, numbers in self.stored.items()
        }
        self.offered = {}
        return trim(
            slots, dict.fromkeys(coming, 0)
        )  # a class that comes again is collected anew

    def _places_in_class(self, labels: Sequence[int]) -> list[int]:
        """Number each image among the frames of its class in this epoch."""
        here: dict[int, int] = {}
        numbers = []
        for label in labels:
            numbers.append(self.offered.get(label, 0) + here.get(label, 0))
            here[label] = here.get(label, 0) + 1
        return numbers

    def held_out(self, labels: Sequence[int]) -> list[bool]:
        """Return which images of the next batch must not be trained on."""
        return [
            number in self.held[label]
            for label, number in zip(labels, self._places_in_class(labels))
        ]

    def pass_by(self, labels: Sequence[int]) -> None:
        """Count a batch without storing any of it."""
        for label in labels:
            self.offered[label] = self.offered.get(label, 0) + 1

    def choose(self, slots, labels):
        chosen = []
        for position, (label, number) in enumerate(
            zip(labels, self._places_in_class(labels))
        ):
            if number in self.stored[label]:
                if not slots.free:
                    above = {
                        other: slots.count(other) - quota
                        for other, quota in self.quotas.items()
                    }
                    slots.free.append(slots.by_class[max(above, key=above.get)].pop())
                slot = slots.take(label)
                if number in self.held[label]:
                    members = slots.by_class[label]
                    members.insert(self.held[label].index(number), members.pop())
                chosen.append((position, slot))
        self.pass_by(labels)
        if all(
            slots.count(label) == len(numbers) for label, numbers in self.stored.items()
        ):
            trim(slots, self.quotas)  # all are stored: balance the others
        return chosen


def fit_bias(
    logits: Tensor, labels: Tensor, new: Sequence[int], settings: Any
) -> tuple[float, float]:
    """Fit ``alpha`` and ``beta`` of ``alpha * logit + beta`` for new classes on ``(B, classes)`` balanced logits.

    ``alpha`` stays positive: for a few images, reversing the order of the new classes
    may have a lower loss. ``settings`` are those of ``BiCPlugin``.
    """
    is_new = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
    is_new[list(new)] = True
    with torch.enable_grad():
        scalars = torch.tensor([1.0, 0.0], device=logits.device, requires_grad=True)
        optimizer = torch.optim.Adam([scalars], settings.bias_learning_rate)
        quarters = [settings.bias_epochs * quarter // 4 for quarter in (1, 2, 3)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, quarters, gamma=0.1)
        for _ in range(settings.bias_epochs):
            corrected = torch.where(is_new, scalars[0] * logits + scalars[1], logits)
            loss = (
                cross_entropy(corrected, labels)
                + settings.bias_decay * scalars[1] ** 2 / 2
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            scalars.data[0].clamp_(min=_SMALLEST_ALPHA)
    return float(scalars[0].detach()), float(scalars[1].detach())


@register(
    "bic",
    summary="exemplars, distillation, and two scalars that correct the bias to new classes",
    source="Wu et al., Large Scale Incremental Learning, CVPR 2019",
    stores="raw images, a copy of the plastic layers for distillation, two scalars an experience",
    fixed_bytes=lambda model, method, n_classes: (
        OldNetwork.bytes_of(model) + 8 * n_classes
    ),
)
class BiCPlugin(ImageMemoryPlugin):
    """Distillation with replay, and two scalars for each experience that correct the bias to new classes.

    Stage 1, with every batch: cross-entropy and distillation on new frames and as many
    exemplars of old classes; frames held out for validation have weight 0. Stage 2,
    after each experience from the second on, fits the two scalars of its classes on
    equally many validation exemplars of each class.

    Each experience keeps its scalars, in predictions, in the loss and in the answers of
    the old network. (The authors drop them after the next experience, when distillation
    has trained the network to make the same correction; one pass is too short for
    that.)

    Attributes:
        temperature: temperature of the distillation.
        validation_share: share of a class's exemplars that only the bias stage uses; at
            least one.
        bias_epochs: steps of the bias stage, each over the whole validation set.
        bias_learning_rate: learning rate of Adam in that stage, divided by ten after
            each quarter of the steps. (The authors use SGD; Adam's steps do not depend
            on the scale of the logits, which the feature scale sets here.)
        bias_decay: weight of ``beta ** 2 / 2`` in the loss of that stage.
        alpha, beta: ``(n_classes,)`` float32, the scalars of each class's experience.
    """

    temperature: Positive = 2.0
    validation_share: PositiveShare = 0.1
    bias_epochs: Count = 200
    bias_learning_rate: Positive = 0.1
    bias_decay: NotNegative = 0.1

    kept, answering = ("_old", "old_network"), ("alpha", "beta")

    def __init__(self, recipe: Recipe):
        super().__init__(recipe, SplitExemplars(recipe.method.validation_share))
        self.old_network = OldNetwork()
        self.alpha = torch.ones(recipe.n_classes)
        self.beta = torch.zeros(recipe.n_classes)
        self._old: list[int] = []

    def correct(self, logits: Tensor) -> Tensor:
        """Apply the scalars of every experience to its classes, in ``(B, classes)`` logits."""
        return logits * self.alpha.to(logits.device) + self.beta.to(logits.device)

    def before_training_exp(self, strategy, **kwargs):
        coming = sorted(set(labels_of(strategy.experience.dataset)))
        self._old = [
            label for label in strategy.seen_classes.seen if label not in coming
        ]
        self.alpha[coming], self.beta[coming] = 1.0, 0.0
        super().before_training_exp(strategy, **kwargs)

    def before_training_epoch(self, strategy, **kwargs):
        super().before_training_epoch(strategy, **kwargs)
        self.storage_policy.rule.offered = {}

    def after_forward(self, strategy, **kwargs):
        super().after_forward(strategy, **kwargs)
        strategy.mb_output = self.mask(self.correct(strategy.mb_output))

    def before_backward(self, strategy, **kwargs):
        model, storage = strategy.model, self.storage_policy
        logits, labels, maps = (
            strategy.mb_output,
            self.batch.labels,
            self.batch.feature_map,
        )
        weights = 1.0 - torch.tensor(storage.rule.held_out(labels.tolist())).float()
        if self._old:
            with model.stopwatch.measure("replay"):
                lists = [storage.slots.by_class[label] for label in self._old]
                stored = [
                    slot
                    for slots in lists
                    for slot in (slots[storage.rule.validating(len(slots)) :] or slots)
                ]
                if stored:
                    replayed, its_labels = storage.replay(
                        draw_from(storage.slots.random, stored, len(labels)), model
                    )
                    logits = torch.cat(
                        [logits, self.mask(self.correct(model.classify(replayed)))]
                    )
                    labels, maps = (
                        torch.cat([labels, its_labels]),
                        torch.cat([maps, replayed]),
                    )
                    weights = torch.cat([weights, torch.ones(len(its_labels))])
                old_logits = self.correct(self.old_network.logits(model, maps))
        losses = cross_entropy(logits, labels, reduction="none")
        if self._old:
            # Cross-entropies of softened answers over the old classes, not scaled by
            # the squared temperature.
            soft, targets = (
                one[:, self._old] / self.temperature for one in (logits, old_logits)
            )
            distilled = -(targets.softmax(1) * soft.log_softmax(1)).sum(1)
            share = len(self._old) / len(strategy.seen_classes.seen)
            losses = share * distilled + (1 - share) * losses
        weights = weights.to(losses.device)
        strategy.loss = (weights * losses).sum() / weights.sum().clamp(min=1)

    def after_training_iteration(self, strategy, **kwargs):
        if not in_last_epoch(strategy):
            self.storage_policy.rule.pass_by(strategy.mb_y.tolist())
        super().after_training_iteration(strategy, **kwargs)

    @torch.no_grad()
    def after_training_exp(self, strategy, **kwargs):
        super().after_training_exp(strategy, **kwargs)
        new = [label for label in strategy.seen_classes.seen if label not in self._old]
        stored = set(self.storage_policy.classes)
        if stored & set(self._old) and stored & set(new):
            logits, labels = self._validation_answers(strategy)
            self.alpha[new], self.beta[new] = fit_bias(logits, labels, new, self)
        self.old_network.take(strategy.model)

    def _validation_answers(self, strategy) -> tuple[Tensor, Tensor]:
        """Return logits ``(B, classes)`` and labels of equally many validation exemplars of each class."""
        storage = self.storage_policy
        lists = [storage.slots.by_class[label] for label in storage.classes]
        each = min(storage.rule.validating(len(slots)) for slots in lists)
        answers = []
        with evaluating(strategy.model):
            for part in torch.tensor(
                [slot for slots in lists for slot in slots[:each]]
            ).split(strategy.eval_mb_size):
                logits, labels = self.memory_logits(strategy, part)
                answers.append((self.mask(self.correct(logits)), labels))
        return torch.cat([logits for logits, _ in answers]), torch.cat(
            [labels for _, labels in answers]
        )

    def after_eval_forward(self, strategy, **kwargs):
        strategy.mb_output = strategy.seen_classes.mask_answers(
            self.correct(strategy.mb_output)
        )
