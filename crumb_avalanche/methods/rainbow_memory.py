"""Rainbow Memory: raw images that span easy to hard, trained on with augmentation.

Bang et al., CVPR 2021. Memories are chosen and trained on after each experience.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from crumb_avalanche.methods.er import add_replay_loss
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.methods.replay import ChosenFrames, ImageMemoryPlugin, held_slots
from crumb_avalanche.models.penultimate import evaluating
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import (
    Count,
    NotNegative,
    Number,
    Probability,
)
from crumb_avalanche.training.avalanche_fixes import labels_of
from crumb_avalanche.training.batch_plugin import read_frames
from crumb_avalanche.training.replay_step import memory_step

# Perturbations, whose answers vote on the uncertainty of an image


def shift(images: Tensor, down: float, right: float) -> Tensor:
    """Shift images by fractions of their sides and fill with black."""
    height, width = images.shape[-2:]
    rows = round(down * height)
    columns = round(right * width)
    shifted = torch.zeros_like(images)
    target_rows, source_rows = _overlap(rows, height)
    target_columns, source_columns = _overlap(columns, width)
    shifted[..., target_rows, target_columns] = images[..., source_rows, source_columns]
    return shifted


def _overlap(offset: int, length: int) -> tuple[slice, slice]:
    """Return where the shifted axis and the axis itself have the same content."""
    target = slice(max(0, offset), length + min(0, offset))
    source = slice(max(0, -offset), length - max(0, offset))
    return target, source


def brighten(images: Tensor, factor: float) -> Tensor:
    """Multiply ``uint8`` pixels by a factor, up to white."""
    return (images.float() * factor).round().clamp(0, 255).to(torch.uint8)


def cut_out(images: Tensor, share: float, top: float, left: float) -> Tensor:
    """Blacken a rectangle.

    Args:
        images: ``(..., h, w)``.
        share: its sides, as a share of the image's.
        top, left: where it begins, in fractions of the possible range.
    """
    height, width = images.shape[-2:]
    rows = round(share * height)
    columns = round(share * width)
    first_row = round(top * (height - rows))
    first_column = round(left * (width - columns))
    images = images.clone()
    images[
        ...,
        first_row : first_row + rows,
        first_column : first_column + columns,
    ] = 0
    return images


def make_perturbations(
    count: int, random: np.random.Generator
) -> list[Callable[[Tensor], Tensor]]:
    """Make flips, shifts, changes of brightness and holes in turn.

    Their strength grows; they are the same for all images.
    """
    flips = ((-1,), (-2,), (-2, -1))  # axes
    perturbations: list[Callable[[Tensor], Tensor]] = []
    rounds = math.ceil(count / 4)
    for number in range(rounds):
        strength = (number + 1) / (rounds + 1)
        down, right, brighter = random.choice([-1.0, 1.0], size=3) * strength
        top, left = random.random(2)
        perturbations.append(partial(torch.flip, dims=flips[number % 3]))
        perturbations.append(partial(shift, down=down / 2, right=right / 2))
        perturbations.append(partial(brighten, factor=1 + brighter))
        perturbations.append(partial(cut_out, share=strength, top=top, left=left))
    return perturbations[:count]


def uncertainties(
    images: Tensor,
    answers: Callable[[Tensor], Tensor],
    perturbations: Sequence[Callable[[Tensor], Tensor]],
) -> Tensor:
    """Compute ``1 - votes of the most voted class / copies`` of each image (eq. 3).

    Args:
        images: ``(n, 3, h, w)`` uint8.
        answers: function from images to ``(n, classes)`` logits.
        perturbations: functions from images to copies of them.

    Returns:
        ``(n,)``.
    """
    of_copies = [answers(perturb(images)).argmax(1) for perturb in perturbations]
    votes = torch.stack(of_copies, 1)  # (n, copies)
    most_voted = (votes[:, :, None] == votes[:, None, :]).sum(1).amax(1)
    return 1 - most_voted / len(perturbations)


def easy_to_hard(uncertainty: Sequence[float], count: int) -> list[int]:
    """Choose ``count`` positions, evenly spread from lowest to highest uncertainty.

    All, if there are fewer. The authors' code uses an integer step, which chooses only
    the most certain ones if there are fewer than twice as many candidates: old classes,
    cut down again and again, would end with easy images only.
    """
    order = np.argsort(np.asarray(uncertainty), kind="stable")
    ranks = np.linspace(0, len(order) - 1, min(count, len(order)))
    return order[ranks.round().astype(int)].tolist()


# Training on memories


def memory_rate(epoch: int, rate: float) -> float:
    """Return the rate of a memory epoch.

    It is a tenth, the full rate, then cosines of 1, 2, 4, ... epochs to a hundredth.
    """
    if epoch == 0:
        return 0.1 * rate
    length = 1  # epochs of the cosine
    position = epoch - 1
    while position >= length:
        position = position - length
        length = 2 * length
    share = (1 + math.cos(math.pi * position / length)) / 2  # from 1 to 0
    return 0.01 * rate + 0.99 * rate * share


def augment(images: Tensor, random: np.random.Generator) -> Tensor:
    """Shift every image by up to an eighth of its side, and flip half of them."""
    side = images.shape[-1]
    eighth = side // 8
    shifted = []
    for image in images:
        down, right = random.integers(-eighth, eighth + 1, size=2) / side
        shifted.append(shift(image, down, right))
    for index, image in enumerate(shifted):
        if random.random() < 0.5:
            shifted[index] = image.flip(-1)
    return torch.stack(shifted)


class MixedImages(NamedTuple):
    """Images of which a box is replaced by that of another image of the batch.

    Attributes:
        images: ``(n, 3, h, w)`` uint8.
        sources: ``(n,)`` int64, position of the image that each box is of.
        own_share: share of the area that is not replaced.
    """

    images: Tensor
    sources: Tensor
    own_share: float


def cutmix(images: Tensor, random: np.random.Generator) -> MixedImages:
    """Replace a box of each image by that of another.

    Yun et al., CutMix, ICCV 2019, with beta distribution (1, 1).
    """
    height, width = images.shape[-2:]
    side = math.sqrt(1 - random.random())
    row = int(random.integers(height))
    column = int(random.integers(width))
    rows = _around(row, int(height * side), height)
    columns = _around(column, int(width * side), width)
    sources = torch.from_numpy(random.permutation(len(images))).to(images.device)
    mixed = images.clone()
    mixed[..., rows, columns] = images[sources][..., rows, columns]
    replaced = (rows.stop - rows.start) * (columns.stop - columns.start)
    return MixedImages(mixed, sources, own_share=1 - replaced / (height * width))


def _around(middle: int, size: int, length: int) -> slice:
    """Return a part of an axis around a location, cut at the ends of the axis."""
    start = middle - size // 2
    return slice(max(0, start), min(length, start + size))


@dataclass(frozen=True)
class Candidate:
    """An image that may be a memory after an experience.

    Attributes:
        is_memory: whether it is one already; else it is a frame of the experience.
        number: slot of a memory, position of a frame.
    """

    is_memory: bool
    number: int


@register(
    "rainbow_memory",
    summary=(
        "raw images from easy to hard, trained on again with CutMix after each "
        "experience"
    ),
    source=(
        "Bang et al., Rainbow Memory: Continual Learning with a Memory of Diverse "
        "Samples, CVPR 2021"
    ),
    stores="raw images",
    each_class=True,
    tuning={"candidates": 8},
)
class RainbowPlugin(ImageMemoryPlugin):
    """Replays memories with each new batch; then selects and trains on memories.

    It replays as many as there are new images, and does the latter after each
    experience, whose frames are read once more for scoring, without training. The first
    experience, on which all strategies here train several epochs, has the full rate.
    SGD's momentum is Nesterov's.

    Args:
        recipe: what the strategy is built from.
        copies: perturbed copies of a candidate that vote on its uncertainty.
        candidates: frames of each class that are scored after an experience, evenly
            spread over it. F runs on every copy of each; the authors score every frame.
        memory_epochs: epochs over the memory after each experience (5 in the paper's
            comparison; the authors use 256).
        cutmix: probability of mixing a batch in these epochs.
        stream_rate: factor of the learning rate while training on the stream after the
            first experience.
    """

    state_names = ("random",)
    rule = ChosenFrames

    def __init__(
        self,
        recipe: Recipe,
        *,
        copies: Count = 12,
        candidates: Count = 25,
        memory_epochs: Number = 5,
        cutmix: Probability = 0.5,
        stream_rate: NotNegative = 0.1,
    ):
        super().__init__(recipe)
        self.candidates = candidates
        self.memory_epochs = memory_epochs
        self.cutmix = cutmix
        self.stream_rate = stream_rate
        self.rate = recipe.settings.learning_rate
        self.sgd_arguments = {"nesterov": recipe.settings.momentum > 0}
        self.random = np.random.default_rng(recipe.seed)
        # The same for all candidates and experiences: a vote depends on the network and
        # the image only.
        self.perturbations = make_perturbations(copies, self.random)

    def before_training_exp(self, strategy, **kwargs):
        super().before_training_exp(strategy, **kwargs)
        strategy.make_optimizer(reset_optimizer_state=True)
        rate = self.rate
        if strategy.clock.train_exp_counter > 0:
            rate = self.stream_rate * self.rate
        self._set_rate(strategy, rate)

    def before_backward(self, strategy, **kwargs):
        add_replay_loss(self, strategy)

    def after_training_exp(self, strategy, **kwargs):
        with strategy.model.stopwatch.measure("replay"):
            self._choose_memories(strategy)
            for epoch in range(self.memory_epochs):
                self._set_rate(strategy, memory_rate(epoch, self.rate))
                self._memory_epoch(strategy, **kwargs)

    @staticmethod
    def _set_rate(strategy, rate: float) -> None:
        for group in strategy.optimizer.param_groups:
            group["lr"] = rate

    def _choose_memories(self, strategy) -> None:
        """Choose equally many of each class, from easy to hard (paper, algorithm 1).

        Free slots are filled at random.
        """
        by_class = self._candidates(strategy)
        capacity = self.storage_policy.max_size
        count = capacity // len(by_class)
        chosen: list[Candidate] = []
        left_over: list[Candidate] = []
        for _, members in sorted(by_class.items()):
            scores = [0.0] * len(members)
            if len(members) > count:
                scores = self._scores(strategy, members)
            best = set(easy_to_hard(scores, count))
            for index, member in enumerate(members):
                if index in best:
                    chosen.append(member)
                else:
                    left_over.append(member)
        room = capacity - len(chosen)
        for index in self.random.permutation(len(left_over))[:room]:
            chosen.append(left_over[index])
        slots = []
        positions = []
        for candidate in chosen:
            if candidate.is_memory:
                slots.append(candidate.number)
            else:
                positions.append(candidate.number)
        self.hold(strategy, slots=slots, positions=positions)

    def _candidates(self, strategy) -> dict[int, list[Candidate]]:
        """Return the memories and some frames of each class."""
        by_class: dict[int, list[Candidate]] = {}
        for label, slots in self.storage_policy.slots.by_class.items():
            if slots:
                by_class[label] = [Candidate(is_memory=True, number=n) for n in slots]
        targets = np.asarray(labels_of(strategy.experience.dataset))
        for label in np.unique(targets).tolist():
            positions = np.flatnonzero(targets == label)
            count = min(len(positions), self.candidates)
            spread = np.linspace(0, len(positions) - 1, count).astype(int)
            members = by_class.setdefault(label, [])
            for position in positions[spread].tolist():
                members.append(Candidate(is_memory=False, number=position))
        return by_class

    def _scores(self, strategy, candidates: list[Candidate]) -> list[float]:
        """Compute the uncertainty of each candidate."""
        model = strategy.model

        def answers(images: Tensor) -> Tensor:
            return self.logits(model, _fresh_features(model, images))

        size = strategy.eval_mb_size
        scores: list[float] = []
        with evaluating(model), torch.no_grad():
            for start in range(0, len(candidates), size):
                images = []
                for candidate in candidates[start : start + size]:
                    images.append(self._image(strategy, candidate))
                batch = torch.cat(images)
                scores += uncertainties(batch, answers, self.perturbations).tolist()
        return scores

    def _image(self, strategy, candidate: Candidate) -> Tensor:
        """Return the pixels of a candidate, ``(1, 3, h, w)`` uint8."""
        if not candidate.is_memory:
            return read_frames(strategy, [candidate.number])
        return self.stored_images(torch.tensor([candidate.number]), strategy.device)

    def _memory_epoch(self, strategy, **kwargs) -> None:
        """Train on all memories once, in steps of their own."""
        buffer = self.storage_policy
        slots = torch.from_numpy(self.random.permutation(held_slots(buffer)))
        for batch in slots.split(strategy.train_mb_size):
            pixels = self.stored_images(batch, strategy.device)
            images = augment(pixels, self.random)
            labels = buffer.labels[batch].long().to(strategy.device)
            loss = self._memory_loss(strategy, images, labels)
            memory_step(strategy, loss, **kwargs)

    def _memory_loss(self, strategy, images: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of a batch of memories, of which some are mixed."""
        model = strategy.model
        if self.random.random() >= self.cutmix:
            logits = self.logits(model, _fresh_features(model, images))
            return strategy._criterion(logits, labels)
        mixed = cutmix(images, self.random)
        logits = self.logits(model, _fresh_features(model, mixed.images))
        loss = mixed.own_share * strategy._criterion(logits, labels)
        if mixed.own_share < 1:
            source_loss = strategy._criterion(logits, labels[mixed.sources])
            loss = loss + (1 - mixed.own_share) * source_loss
        return loss


def _fresh_features(model: SplitModel, images: Tensor) -> Tensor:
    """Compute maps of images that do not come again, without the ``FeatureMemo``."""
    return model.features(model.extract(images))
