"""BiC in one pass: distillation, then two scalars that correct the bias to new classes.

Wu et al., CVPR 2019.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from crumb_avalanche.memory.selection import SelectionRule
from crumb_avalanche.memory.slots import Slots
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


def spread_evenly(count: int, total: int) -> list[int]:
    """Choose ``count`` of ``total`` frames, evenly spread; all, if there are no more.

    Returns:
        Their numbers, from 0, ascending.
    """
    count = min(count, total)
    return [(2 * number + 1) * total // (2 * count) for number in range(count)]


@dataclass
class SplitExemplars(SelectionRule):
    """Exemplars evenly spread over the frames of each class, some for validation.

    The first ones of each list are for validation. Validation frames must not be
    trained on, so they have to be known in advance and are not herded after training.
    If a new exemplar needs room, the class most above its quota gives up the last of
    its list: an exemplar that was trained on never becomes a validation exemplar. The
    only exemplar of a class is used for both: otherwise a small budget would replay
    nothing.

    Args:
        share: share of a class's exemplars for validation; at least one.

    Attributes:
        quotas: exemplars of each class after this experience.
        stored: for each class of the experience, numbers of the frames to store.
        held: among them, those to hold out for validation.
        offered: frames of each class so far in this epoch.
    """

    evenly_spread = False
    every_class_holds_one = False
    class_numbers = ("quotas", "stored", "held", "offered")

    share: float = 0.1
    quotas: dict[int, int] = field(init=False, default_factory=dict)
    stored: dict[int, list[int]] = field(init=False, default_factory=dict)
    held: dict[int, list[int]] = field(init=False, default_factory=dict)
    offered: dict[int, int] = field(init=False, default_factory=dict)

    def n_validating(self, count: int) -> int:
        """Return how many of a class's ``count`` exemplars are for validation.

        At least one, and where there are two or more, not all of them.
        """
        rounded = max(1, round(self.share * count))
        most = max(1, count - 1)
        return min(rounded, most)

    def begin_experience(
        self, slots: Slots, coming: dict[int, int], batch_size: int
    ) -> list[int]:
        """Decide which frames of a class are stored, and which of these are held out.

        Frames to store are spread evenly over those of the class, and those that are
        held out for validation evenly over these. A class that comes again is collected
        anew: its memories are freed.

        Args:
            slots: of the buffer; changed in place.
            coming: number of frames of each class of the experience.
            batch_size: without effect.

        Returns:
            The slots that are freed.
        """
        for label in coming:
            # A class even if no slot is left for it.
            slots.by_class.setdefault(label, [])
        self.quotas = allot(slots.capacity, list(slots.by_class))  # slots of each class
        self.stored = {}
        self.held = {}
        for label, n_frames in coming.items():
            # Numbers of frames, of all of the class from 0.
            stored_frames = spread_evenly(self.quotas[label], n_frames)
            n_held = self.n_validating(len(stored_frames))
            held_indices = spread_evenly(n_held, len(stored_frames))
            self.stored[label] = stored_frames
            self.held[label] = [stored_frames[index] for index in held_indices]
        self.offered = {}
        return trim(slots, dict.fromkeys(coming, 0))  # no memory of these is left

    def _numbers_in_class(self, labels: Sequence[int]) -> list[int]:
        """Number each image of a batch among the frames of its class in this epoch."""
        counts = dict(self.offered)
        numbers = []
        for label in labels:
            number = counts.get(label, 0)
            numbers.append(number)
            counts[label] = number + 1
        return numbers

    def held_out(self, labels: Sequence[int]) -> list[bool]:
        """Return for each image of the next batch whether it is for validation alone.

        Such an image must not be trained on.
        """
        numbers = self._numbers_in_class(labels)
        return [number in self.held[label] for label, number in zip(labels, numbers)]

    def count_batch(self, labels: Sequence[int]) -> None:
        """Count a batch without storing any of it."""
        for label in labels:
            self.offered[label] = self.offered.get(label, 0) + 1

    def choose(self, slots: Slots, labels: Sequence[int]) -> list[tuple[int, int]]:
        """Choose the frames that ``begin_experience`` decided to store of a batch.

        After the last one of an experience, each class is cut to its quota.

        Args:
            slots: of the buffer; changed in place.
            labels: class of each frame of the batch.

        Returns:
            Position in the batch and slot of each frame that is stored.
        """
        chosen = []
        # Decided on were numbers of frames, counted within their class.
        for position, number in enumerate(self._numbers_in_class(labels)):
            label = labels[position]
            if number in self.stored[label]:
                slot = self._slot_for_frame(slots, label, number)
                chosen.append((position, slot))
        self.count_batch(labels)
        if self._is_complete(slots):
            trim(slots, self.quotas)  # balance the classes of earlier experiences
        return chosen

    def _is_complete(self, slots: Slots) -> bool:
        """Whether all frames that were decided on are stored."""
        for label, numbers in self.stored.items():
            if slots.count(label) != len(numbers):
                return False
        return True

    def _slot_for_frame(self, slots: Slots, label: int, number: int) -> int:
        """Take a slot for a frame that is to be stored, and return it.

        Where no slot is free, the class furthest above its quota gives up its last one.

        Args:
            slots: of the buffer; changed in place.
            label: class of the frame.
            number: of the frame among those of its class in the experience, from 0.
        """
        if not slots.free:
            class_above_quota = self._most_above_quota(slots)
            slots.free.append(slots.by_class[class_above_quota].pop())
        slot = slots.take(label)  # last in the list of the class
        held_out_frames = self.held[label]
        if number in held_out_frames:
            # Exemplars for validation come first in the list, in their order.
            class_slots = slots.by_class[label]
            class_slots.insert(held_out_frames.index(number), class_slots.pop())
        return slot

    def _most_above_quota(self, slots: Slots) -> int:
        """Return the class whose number of memories is furthest above its quota."""
        return max(
            self.quotas, key=lambda label: slots.count(label) - self.quotas[label]
        )


@dataclass(frozen=True)
class BiasStage:
    """Settings of the bias stage.

    Attributes:
        epochs: steps, each over the whole validation set.
        learning_rate: of Adam, divided by ten after each quarter of the steps.
        decay: weight of ``beta ** 2 / 2`` in the loss.
    """

    epochs: int
    learning_rate: float
    decay: float


def fit_bias(
    logits: Tensor, labels: Tensor, new: Sequence[int], stage: BiasStage
) -> tuple[float, float]:
    """Fit ``alpha`` and ``beta`` of ``alpha * logit + beta`` for new classes (eq. 4).

    The loss is the cross-entropy of the corrected logits (eq. 5) and ``decay * beta**2
    / 2``, minimised by Adam, each step over all images. ``alpha`` stays positive: for a
    few images, reversing the order of the new classes may have a lower loss.

    Args:
        logits: ``(B, classes)`` float32 of equally many images of each class.
        labels: ``(B,)`` int64.
        new: the new classes, columns of the logits; other columns stay as they are.
        stage: number of steps (``epochs``), learning rate, and ``decay``.

    Returns:
        ``alpha`` and ``beta``.
    """
    is_new = torch.zeros(logits.shape[1], dtype=torch.bool, device=logits.device)
    is_new[list(new)] = True
    with torch.enable_grad():
        alpha_and_beta = torch.tensor(
            [1.0, 0.0], dtype=torch.float32, device=logits.device, requires_grad=True
        )
        optimizer = torch.optim.Adam([alpha_and_beta], stage.learning_rate)
        # The rate is divided by ten after each quarter of the steps.
        quarters = [stage.epochs * quarter // 4 for quarter in (1, 2, 3)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, quarters, gamma=0.1)
        for _ in range(stage.epochs):
            alpha, beta = alpha_and_beta.unbind()
            corrected = torch.where(is_new, alpha * logits + beta, logits)
            penalty = stage.decay * beta**2 / 2
            loss = cross_entropy(corrected, labels) + penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            # Outside of the graph of the loss.
            alpha_and_beta.data[0].clamp_(min=_SMALLEST_ALPHA)
    fitted_alpha, fitted_beta = alpha_and_beta.detach().tolist()
    return fitted_alpha, fitted_beta


@register(
    "bic",
    summary=(
        "exemplars, distillation, and two scalars that correct the bias to new classes"
    ),
    source="Wu et al., Large Scale Incremental Learning, CVPR 2019",
    stores=(
        "raw images, a copy of the plastic layers for distillation, two scalars an "
        "experience"
    ),
    fixed_bytes=lambda model, method, n_classes: (
        OldNetwork.bytes_of(model) + 8 * n_classes
    ),
)
class BiCPlugin(ImageMemoryPlugin):
    """Distillation with replay, and two scalars for each experience.

    The scalars correct the bias to new classes. Stage 1, with every batch:
    cross-entropy and distillation (eq. 1 to 3) on new frames and as many exemplars of
    old classes; frames held out for validation have weight 0. Stage 2, after each
    experience from the second on, fits the two scalars of its classes on equally many
    validation exemplars of each class (eq. 4 and 5).

    Each experience keeps its scalars, in predictions, in the loss and in the answers of
    the old network. (The authors drop them after the next experience, when distillation
    has trained the network to make the same correction; one pass is too short for
    that.)

    Frames are held out by their order within their class: several epochs need the same
    order.

    Args:
        recipe: what the strategy is built from; the criterion for the host is plain
            cross-entropy.
        temperature: temperature of the distillation.
        validation_share: share of a class's exemplars that only the bias stage uses; at
            least one.
        bias_epochs: steps of the bias stage, each over the whole validation set.
        bias_learning_rate: learning rate of Adam in that stage, divided by ten after
            each quarter of the steps. (The authors use SGD; Adam's steps do not depend
            on the scale of the logits, which the feature scale sets here.)
        bias_decay: weight of ``beta ** 2 / 2`` in the loss of that stage.

    Raises:
        ValueError: the criterion is another; or, before an experience is trained on,
            frames are shuffled in several epochs.

    Attributes:
        alpha, beta: ``(n_classes,)`` float32, the scalars of each class's experience.
    """

    state_names = ("old_classes", "old_network")
    class_numbers = ("old_classes",)
    answer_state_names = ("alpha", "beta")

    def __init__(
        self,
        recipe: Recipe,
        *,
        temperature: Positive = 2.0,
        validation_share: PositiveShare = 0.1,
        bias_epochs: Count = 200,
        bias_learning_rate: Positive = 0.1,
        bias_decay: NotNegative = 0.1,
    ):
        _check_plain_cross_entropy(recipe.host.get("criterion"))
        self.exemplars = SplitExemplars(validation_share)
        super().__init__(recipe, self.exemplars)
        self.temperature = temperature
        self.bias_stage = BiasStage(
            epochs=bias_epochs, learning_rate=bias_learning_rate, decay=bias_decay
        )
        self.old_network = OldNetwork()
        self.alpha = torch.ones(recipe.n_classes, dtype=torch.float32)
        self.beta = torch.zeros(recipe.n_classes, dtype=torch.float32)
        self.old_classes: list[int] = []  # classes of earlier experiences

    def correct(self, logits: Tensor) -> Tensor:
        """Apply the scalars of every experience to its classes, of ``(B, classes)``."""
        return logits * self.alpha.to(logits.device) + self.beta.to(logits.device)

    def before_training_exp(self, strategy, **kwargs):
        """Note the classes of earlier experiences; new ones have no correction."""
        _check_same_order(strategy)
        coming = sorted(set(labels_of(strategy.experience.dataset)))
        seen = strategy.seen_classes.seen
        self.old_classes = [label for label in seen if label not in coming]
        self.alpha[coming] = 1.0
        self.beta[coming] = 0.0
        super().before_training_exp(strategy, **kwargs)

    def before_training_epoch(self, strategy, **kwargs):
        """Count the frames of each class from 0."""
        super().before_training_epoch(strategy, **kwargs)
        self.exemplars.offered = {}

    def after_forward(self, strategy, **kwargs):
        """Correct the logits of the batch, and mask the classes not seen yet."""
        super().after_forward(strategy, **kwargs)
        strategy.mb_output = self.mask(self.correct(strategy.mb_output))

    def before_backward(self, strategy, **kwargs):
        """Replace ``strategy.loss`` by that of new and stored images (eq. 1 to 3).

        Each image has ``lambda * distillation + (1 - lambda) * cross-entropy``, where
        ``lambda`` is the share of old classes. New images that are held out for
        validation, by which the bias is corrected later, have no weight in the mean.
        """
        # Of the new images; those of the memories are appended.
        logits = strategy.mb_output
        labels = self.current.labels
        maps = self.current.feature_map
        is_held_out = self.exemplars.held_out(labels.tolist())
        weights = 1.0 - torch.tensor(is_held_out).float()
        slots = self._training_slots()  # of memories that are not for validation
        if slots:
            model = strategy.model
            storage = self.storage_policy
            with model.stopwatch.measure("replay"):
                # As many memories as new images.
                drawn_slots = draw_from(storage.slots.random, slots, len(labels))
                memory_maps, memory_labels = storage.replay(drawn_slots, model)
                uncorrected = model.classify(memory_maps)
                # By alpha and beta, and masked where a class was not seen.
                memory_logits = self.mask(self.correct(uncorrected))
                memory_weights = torch.ones(len(memory_labels), dtype=torch.float32)
                logits = torch.cat([logits, memory_logits])
                labels = torch.cat([labels, memory_labels])
                maps = torch.cat([maps, memory_maps])
                weights = torch.cat([weights, memory_weights])
        losses = cross_entropy(logits, labels, reduction="none")
        if self.old_classes:
            n_seen = len(strategy.seen_classes.seen)
            old_share = len(self.old_classes) / n_seen  # lambda of eq. 3
            distilled = self._distillation_losses(strategy, logits, maps)
            losses = old_share * distilled + (1 - old_share) * losses
        weights = weights.to(losses.device)
        strategy.loss = (weights * losses).sum() / weights.sum().clamp(min=1)

    def _training_slots(self) -> list[int]:
        """Return the slots of exemplars of old classes that are trained on."""
        slots: list[int] = []
        for label in self.old_classes:
            members = self.storage_policy.slots.by_class[label]
            n_validating = self.exemplars.n_validating(len(members))
            training_members = members[n_validating:]
            slots += training_members or members  # the only one is used for both
        return slots

    def _distillation_losses(self, strategy, logits: Tensor, maps: Tensor) -> Tensor:
        """Compute the distillation loss of each image over the old classes (eq. 1).

        It is the cross-entropy ``-sum(softmax(old / T) * log_softmax(new / T))`` at the
        temperature ``T``, not scaled by ``T**2``.

        Args:
            strategy: gives the layers that the weights of the old network run in.
            logits: ``(B, classes)`` of the network in training.
            maps: ``(B, C, H, W)`` feature maps of the same images, for the old network.

        Returns:
            ``(B,)`` float32.
        """
        with strategy.model.stopwatch.measure("replay"):
            old_logits = self.correct(self.old_network.logits(strategy.model, maps))
        softened = logits[:, self.old_classes] / self.temperature
        old_softened = old_logits[:, self.old_classes] / self.temperature
        return -(old_softened.softmax(1) * softened.log_softmax(1)).sum(1)

    def after_training_iteration(self, strategy, **kwargs):
        """Count the frames of the batch, which the buffer counts only if it stores."""
        if not in_last_epoch(strategy):
            self.exemplars.count_batch(strategy.mb_y.tolist())
        super().after_training_iteration(strategy, **kwargs)

    @torch.no_grad()
    def after_training_exp(self, strategy, **kwargs):
        """Fit the correction of the new classes, and keep a copy as the old network.

        ``alpha`` and ``beta`` of the new classes are set from validation exemplars,
        where there are some of both old and new classes.
        """
        super().after_training_exp(strategy, **kwargs)
        new_classes = [
            label
            for label in strategy.seen_classes.seen
            if label not in self.old_classes
        ]
        stored_classes = set(self.storage_policy.classes)
        has_old = not stored_classes.isdisjoint(self.old_classes)
        has_new = not stored_classes.isdisjoint(new_classes)
        if has_old and has_new:
            logits, labels = self._validation_answers(strategy)
            alpha, beta = fit_bias(logits, labels, new_classes, self.bias_stage)
            self.alpha[new_classes] = alpha
            self.beta[new_classes] = beta
        self.old_network.copy_from(strategy.model)

    def _validation_answers(self, strategy) -> tuple[Tensor, Tensor]:
        """Compute logits of equally many validation exemplars of each stored class.

        The network is in evaluation mode. The logits are corrected by ``alpha`` and
        ``beta`` of earlier experiences, and masked where a class was not seen yet.

        Returns:
            ``(n, classes)`` logits and ``(n,)`` int64 labels.
        """
        storage = self.storage_policy
        slots_of_classes = [storage.slots.by_class[label] for label in storage.classes]
        fewest = min(map(len, slots_of_classes))  # exemplars of a class
        per_class = self.exemplars.n_validating(fewest)
        validation_slots: list[int] = []
        for class_slots in slots_of_classes:  # those for validation first
            validation_slots += class_slots[:per_class]
        slots = torch.tensor(validation_slots)
        logits = []
        labels = []
        with evaluating(strategy.model):
            for batch in slots.split(strategy.eval_mb_size):
                batch_logits, batch_labels = self.memory_logits(strategy, batch)
                logits.append(self.mask(self.correct(batch_logits)))
                labels.append(batch_labels)
        return torch.cat(logits), torch.cat(labels)

    def after_eval_forward(self, strategy, **kwargs):
        """Correct the logits of the images under test."""
        logits = self.correct(strategy.mb_output)
        strategy.mb_output = strategy.seen_classes.mask_answers(logits)


def _check_plain_cross_entropy(criterion: Any) -> None:
    """Raise ValueError for another criterion, which no loss of BiC would use.

    Args:
        criterion: for the host; ``None`` for the default.
    """
    if criterion is None:
        return
    is_plain = (
        type(criterion) is nn.CrossEntropyLoss
        and criterion.weight is None
        and criterion.label_smoothing == 0
        and criterion.reduction == "mean"
    )
    if not is_plain:
        raise ValueError(
            f"the criterion is {criterion!r}, but bic weighs the plain cross-entropy "
            "of each image against its distillation: leave the criterion out"
        )


def _check_same_order(strategy) -> None:
    """Raise ValueError for several epochs whose frames come in different orders.

    Frames are held out for validation by their order within their class.
    """
    if strategy.train_epochs > 1 and not strategy.frames_in_order:
        raise ValueError(
            "bic holds out frames for validation by their order, but "
            f"{strategy.train_epochs} shuffled epochs have different orders, so that "
            "it would train on these frames: call train(experience, shuffle=False), or "
            "train one epoch (epochs=1, first_epochs=1)"
        )
