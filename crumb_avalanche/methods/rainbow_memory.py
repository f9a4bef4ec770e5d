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
    """Shift ``(..., h, w)`` images by fractions of their sides and fill with black."""
    height, width = images.shape[-2:]
    shifted = torch.zeros_like(images)
    target_rows, source_rows = _overlap(round(down * height), height)
    target_columns, source_columns = _overlap(round(right * width), width)
    shifted[..., target_rows, target_columns] = images[..., source_rows, source_columns]
    return shifted


def _overlap(offset: int, length: int) -> tuple[slice, slice]:
    """Return where an axis shifted by an offset and the axis itself have equal content.

    Args:
        offset: number of locations, of either sign.
        length: of the axis.

    Returns:
        The locations in the shifted axis, and those in the axis itself.
    """
    target = slice(max(0, offset), length + min(0, offset))
    source = slice(max(0, -offset), length - max(0, offset))
    return target, source


def brighten(images: Tensor, factor: float) -> Tensor:
    """Multiply ``uint8`` pixels by a factor, up to white."""
    return (images.float() * factor).round().clamp(0, 255).to(torch.uint8)


def cut_out(images: Tensor, share: float, top: float, left: float) -> Tensor:
    """Return copies of images with a black rectangle, the same in all of them.

    Args:
        images: ``(..., h, w)``.
        share: sides of the rectangle, as a share of the image's.
        top, left: where it begins, from 0 (at the top, the left) to 1 (at the bottom,
            the right).
    """
    height, width = images.shape[-2:]
    rows = round(share * height)
    columns = round(share * width)
    first_row = round(top * (height - rows))
    first_column = round(left * (width - columns))
    cut = images.clone()
    cut[
        ...,
        first_row : first_row + rows,
        first_column : first_column + columns,
    ] = 0
    return cut


def make_perturbations(
    count: int, random: np.random.Generator
) -> list[Callable[[Tensor], Tensor]]:
    """Make perturbations of images: flips, shifts, brightness and holes in turn.

    Their strength grows; they are the same for all images.

    Args:
        count: number of perturbations.
        random: of their signs and of the places of the holes.

    Returns:
        Functions from ``(n, 3, h, w)`` images to perturbed copies.
    """
    flipped_axes = ((-1,), (-2,), (-2, -1))
    perturbations: list[Callable[[Tensor], Tensor]] = []
    rounds = math.ceil(count / 4)  # each has one of the four kinds
    for number in range(rounds):
        strength = (number + 1) / (rounds + 1)
        down, right, brighter = random.choice([-1.0, 1.0], size=3) * strength
        top, left = random.random(2)
        perturbations.append(partial(torch.flip, dims=flipped_axes[number % 3]))
        perturbations.append(partial(shift, down=down / 2, right=right / 2))
        perturbations.append(partial(brighten, factor=1 + brighter))
        perturbations.append(partial(cut_out, share=strength, top=top, left=left))
    return perturbations[:count]


def uncertainties(
    images: Tensor,
    logits_of: Callable[[Tensor], Tensor],
    perturbations: Sequence[Callable[[Tensor], Tensor]],
) -> Tensor:
    """Compute ``1 - votes of the most voted class / copies`` of each image (eq. 3).

    Each perturbed copy of an image votes for the class that the network answers.

    Args:
        images: ``(n, 3, h, w)`` uint8.
        logits_of: function from images to ``(n, classes)`` logits.
        perturbations: functions from images to perturbed copies.

    Returns:
        ``(n,)`` float, from 0, where all copies are answered alike, to below 1.
    """
    classes_of_copies = [
        logits_of(perturb(images)).argmax(1) for perturb in perturbations
    ]
    votes = torch.stack(classes_of_copies, 1)  # (n, copies)
    # Of each copy, how many copies of the image have its vote, (n, copies).
    equal_votes = (votes[:, :, None] == votes[:, None, :]).sum(1)
    votes_of_most_voted = equal_votes.amax(1)
    return 1 - votes_of_most_voted / len(perturbations)


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
    """Return the learning rate of an epoch over the memories, as the authors set it.

    A tenth of the rate in the first epoch. Then it begins at the full rate again and
    again, and falls along a cosine to a hundredth in 1, 2, 4, ... epochs (cosine
    annealing with warm restarts). Unlike torch's scheduler, a function of the epoch has
    no state that a checkpoint would have to store.

    Args:
        epoch: number of the epoch after an experience, from 0.
        rate: full learning rate.
    """
    if epoch == 0:
        return 0.1 * rate
    cosine_epochs = 1
    epoch_in_cosine = epoch - 1
    while epoch_in_cosine >= cosine_epochs:
        epoch_in_cosine = epoch_in_cosine - cosine_epochs
        cosine_epochs = 2 * cosine_epochs
    cosine = math.cos(math.pi * epoch_in_cosine / cosine_epochs)
    share = (1 + cosine) / 2  # from 1 to 0
    return 0.01 * rate + 0.99 * rate * share


def augment(images: Tensor, random: np.random.Generator) -> Tensor:
    """Shift every image at random by up to an eighth of its side, and flip half.

    Flips are horizontal.

    Args:
        images: ``(n, 3, h, w)`` uint8.
        random: of the draws.

    Returns:
        New images of the same shape and dtype.
    """
    side = images.shape[-1]
    eighth = side // 8
    augmented = []
    for image in images:
        # In units of the side, as ``shift`` takes them.
        down, right = random.integers(-eighth, eighth + 1, size=2) / side
        augmented.append(shift(image, down=down, right=right))
    for index, image in enumerate(augmented):
        if random.random() < 0.5:
            augmented[index] = image.flip(-1)
    return torch.stack(augmented)


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
    """Replace a box of each image by that of another; the box is the same for all.

    Yun et al., CutMix, ICCV 2019, with beta distribution (1, 1).

    Args:
        images: ``(n, 3, h, w)`` uint8.
        random: of the draws.

    Returns:
        The mixed images, the index of the image that each box is from, ``(n,)``, and
        the share of its own pixels that an image keeps.
    """
    height, width = images.shape[-2:]
    # Side of the box in units of the image's: its area is uniform from 0 to 1, as
    # beta (1, 1) is the uniform distribution.
    side = math.sqrt(1 - random.random())
    middle_row = int(random.integers(height))
    middle_column = int(random.integers(width))
    # Slices, cut off at the edges of the image.
    rows = _around(middle_row, size=int(height * side), length=height)
    columns = _around(middle_column, size=int(width * side), length=width)
    # Of each image the index of the one that its box is from.
    sources = torch.from_numpy(random.permutation(len(images))).to(images.device)
    mixed = images.clone()
    mixed[..., rows, columns] = images[sources][..., rows, columns]
    replaced_pixels = (rows.stop - rows.start) * (columns.stop - columns.start)
    own_share = 1 - replaced_pixels / (height * width)
    return MixedImages(mixed, sources, own_share=own_share)


def _around(middle: int, size: int, length: int) -> slice:
    """Return ``size`` locations of an axis around ``middle``, cut at its ends."""
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
        self.candidates = candidates  # scored frames of each class of an experience
        self.memory_epochs = memory_epochs
        self.cutmix = cutmix  # a probability
        self.stream_rate = stream_rate
        self.rate = recipe.settings.learning_rate
        self.sgd_arguments = {"nesterov": recipe.settings.momentum > 0}
        self.random = np.random.default_rng(recipe.seed)
        # The answers to perturbed copies of an image vote on its uncertainty. The
        # perturbations are the same for all images and experiences, so that a vote
        # depends on the network and the image only.
        self.perturbations = make_perturbations(copies, self.random)

    def before_training_exp(self, strategy, **kwargs):
        """Set the rate of the experience, with a fresh optimiser."""
        super().before_training_exp(strategy, **kwargs)
        strategy.make_optimizer(reset_optimizer_state=True)
        rate = self.rate
        if strategy.clock.train_exp_counter > 0:
            rate = self.stream_rate * self.rate
        self._set_rate(strategy, rate)

    def before_backward(self, strategy, **kwargs):
        add_replay_loss(self, strategy)

    def after_training_exp(self, strategy, **kwargs):
        """Choose memories, and train on them for some epochs.

        An experience without images changes nothing.
        """
        if not len(strategy.adapted_dataset):
            return
        with strategy.model.stopwatch.measure("replay"):
            self._choose_memories(strategy)
            for epoch in range(self.memory_epochs):
                self._set_rate(strategy, memory_rate(epoch, self.rate))
                self._memory_epoch(strategy, **kwargs)

    @staticmethod
    def _set_rate(strategy, rate: float) -> None:
        """Set the learning rate of the strategy's optimiser."""
        for group in strategy.optimizer.param_groups:
            group["lr"] = rate

    def _choose_memories(self, strategy) -> None:
        """Choose the memories of the buffer after an experience (paper, algorithm 1).

        Candidates are the memories so far and frames of the experience. Of each class
        equally many are chosen, evenly spread from low to high uncertainty, also after
        the first experience, where the authors' code chooses at random. Slots that are
        left are filled with other candidates at random.

        Args:
            strategy: its network tells uncertainties, its experience has the frames.
        """
        candidates_by_class = self._candidates_by_class(strategy)
        capacity = self.storage_policy.max_size
        per_class = capacity // len(candidates_by_class)
        chosen: list[Candidate] = []
        left_over: list[Candidate] = []
        for _, candidates in sorted(candidates_by_class.items()):
            uncertainties_of_class = [0.0] * len(candidates)  # where all are chosen
            if len(candidates) > per_class:
                uncertainties_of_class = self._uncertainties(strategy, candidates)
            # Evenly spread from the lowest to the highest uncertainty.
            chosen_indices = set(easy_to_hard(uncertainties_of_class, per_class))
            for index, candidate in enumerate(candidates):
                if index in chosen_indices:
                    chosen.append(candidate)
                else:
                    left_over.append(candidate)
        n_free = capacity - len(chosen)
        for index in self.random.permutation(len(left_over))[:n_free]:
            chosen.append(left_over[index])
        slots = []  # of memories that stay
        positions = []  # of frames in the experience
        for candidate in chosen:
            if candidate.is_memory:
                slots.append(candidate.number)
            else:
                positions.append(candidate.number)
        # All other memories are given up.
        self.hold(strategy, slots=slots, positions=positions)

    def _candidates_by_class(self, strategy) -> dict[int, list[Candidate]]:
        """Return the images of each class that may be memories after an experience.

        They are its memories so far, and at most ``candidates`` frames, evenly spread
        over those of the class in the experience.
        """
        by_class: dict[int, list[Candidate]] = {}
        for label, slots in self.storage_policy.slots.by_class.items():
            if slots:
                by_class[label] = [Candidate(is_memory=True, number=n) for n in slots]
        labels = np.asarray(labels_of(strategy.experience.dataset))
        for label in np.unique(labels).tolist():
            positions = np.flatnonzero(labels == label)
            count = min(len(positions), self.candidates)
            evenly_spread = np.linspace(0, len(positions) - 1, count).astype(int)
            candidates = by_class.setdefault(label, [])
            for position in positions[evenly_spread].tolist():
                candidates.append(Candidate(is_memory=False, number=position))
        return by_class

    def _uncertainties(self, strategy, candidates: list[Candidate]) -> list[float]:
        """Compute the uncertainty of each candidate with the network of now (eq. 3).

        It is the share of perturbed copies of an image that do not vote for the class
        with most votes, from 0 to 1.

        Args:
            strategy: gives the network, and the experience with the frames.
            candidates: memories and frames of a class.
        """
        model = strategy.model

        def logits_of(images: Tensor) -> Tensor:
            """Compute logits ``(n, classes)`` of ``(n, 3, h, w)`` uint8 images."""
            return self.logits(model, _fresh_features(model, images))

        batch_size = strategy.eval_mb_size
        of_candidates: list[float] = []
        with evaluating(model), torch.no_grad():
            for start in range(0, len(candidates), batch_size):
                images = []
                for candidate in candidates[start : start + batch_size]:
                    images.append(self._image(strategy, candidate))
                of_batch = uncertainties(
                    torch.cat(images), logits_of, self.perturbations
                )
                of_candidates += of_batch.tolist()
        return of_candidates

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
        """Compute the mean loss of a batch of memories, a scalar with a graph.

        With the probability ``cutmix``, boxes of the images are exchanged (CutMix), and
        the loss is ``own share * loss of the own labels + (1 - own share) * loss of the
        labels of the boxes``.

        Args:
            strategy: gives model and criterion.
            images: ``(n, 3, h, w)`` uint8, augmented.
            labels: ``(n,)`` int64.
        """
        model = strategy.model
        is_mixed = self.random.random() < self.cutmix
        if not is_mixed:
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
