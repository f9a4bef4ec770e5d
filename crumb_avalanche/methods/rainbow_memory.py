"""Rainbow Memory: raw images that span easy to hard, trained on with augmentation after each experience."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from crumb_avalanche.methods.er import ExperienceReplayPlugin
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
from crumb_avalanche.training.batch_plugin import frames
from crumb_avalanche.training.replay_step import memory_step


def shift(images: Tensor, down: float, right: float) -> Tensor:
    """Shift images by fractions of their sides and fill with black."""
    height, width = images.shape[-2:]
    down, right = round(down * height), round(right * width)
    moved = torch.zeros_like(images)
    moved[
        ..., max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)
    ] = images[
        ...,
        max(0, -down) : height - max(0, down),
        max(0, -right) : width - max(0, right),
    ]
    return moved


def brighten(images: Tensor, factor: float) -> Tensor:
    """Multiply ``uint8`` pixels by a factor, up to white."""
    return (images.float() * factor).round().clamp(0, 255).to(torch.uint8)


def cut_out(images: Tensor, share: float, top: float, left: float) -> Tensor:
    """Blacken a rectangle whose sides are a share of the image's, at a place in fractions of the possible range."""
    height, width = images.shape[-2:]
    high, wide = round(share * height), round(share * width)
    first, second = round(top * (height - high)), round(left * (width - wide))
    images = images.clone()
    images[..., first : first + high, second : second + wide] = 0
    return images


def make_perturbations(
    count: int, random: np.random.Generator
) -> list[Callable[[Tensor], Tensor]]:
    """Make flips, shifts, changes of brightness and holes in turn, with growing strength, the same for all images."""
    made: list[Callable[[Tensor], Tensor]] = []
    strengths = -(-count // 4)
    for number in range(strengths):
        strength = (number + 1) / (strengths + 1)
        down, right, brighter = random.choice([-1.0, 1.0], size=3) * strength
        top, left = random.random(2)
        made += [
            partial(torch.flip, dims=((-1,), (-2,), (-2, -1))[number % 3]),
            partial(shift, down=down / 2, right=right / 2),
            partial(brighten, factor=1 + brighter),
            partial(cut_out, share=strength, top=top, left=left),
        ]
    return made[:count]


def uncertainties(
    images: Tensor, answers, perturbations: Sequence[Callable[[Tensor], Tensor]]
) -> Tensor:
    """Compute ``1 - votes of the most voted class / copies`` of each ``uint8`` image; ``answers`` gives logits."""
    votes = torch.stack(
        [answers(perturb(images)).argmax(1) for perturb in perturbations], 1
    )  # (n, copies)
    most = (votes[:, :, None] == votes[:, None, :]).sum(1).amax(1)
    return 1 - most / len(perturbations)


def easy_to_hard(uncertainty: Sequence[float], count: int) -> list[int]:
    """Choose ``count`` positions, evenly spread from the lowest to the highest uncertainty; all if there are fewer.

    The authors' code uses an integer step, which chooses only the most certain ones if
    there are fewer than twice as many candidates: old classes, cut down again and
    again, would end with easy images only.
    """
    order = np.argsort(np.asarray(uncertainty), kind="stable")
    return order[
        np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
    ].tolist()


def memory_rate(epoch: int, rate: float) -> float:
    """Return the rate of a memory epoch: a tenth, the full rate, then cosines of 1, 2, 4, ... epochs to a hundredth."""
    if epoch == 0:
        return 0.1 * rate
    length, place = 1, epoch - 1
    while place >= length:
        length, place = 2 * length, place - length
    return 0.01 * rate + 0.99 * rate * (1 + math.cos(math.pi * place / length)) / 2


def augment(images: Tensor, random: np.random.Generator) -> Tensor:
    """Shift every image by up to an eighth of its side and flip it with probability one half."""
    side = images.shape[-1]
    moved = [
        shift(image, *(random.integers(-(side // 8), side // 8 + 1, size=2) / side))
        for image in images
    ]
    return torch.stack(
        [image.flip(-1) if random.random() < 0.5 else image for image in moved]
    )


def cutmix(images: Tensor, random: np.random.Generator) -> tuple[Tensor, Tensor, float]:
    """Replace a box of each image by that of another (Yun et al., CutMix, ICCV 2019, with beta distribution (1, 1)).

    Returns the images, ``(n,)`` positions of the other images, and the share of the
    area that is not replaced.
    """
    height, width = images.shape[-2:]
    side = math.sqrt(1 - random.random())
    row, column = int(random.integers(height)), int(random.integers(width))
    high, wide = int(height * side), int(width * side)
    rows = slice(max(0, row - high // 2), min(height, row - high // 2 + high))
    columns = slice(max(0, column - wide // 2), min(width, column - wide // 2 + wide))
    others = torch.from_numpy(random.permutation(len(images))).to(images.device)
    mixed = images.clone()
    mixed[..., rows, columns] = images[others][..., rows, columns]
    return (
        mixed,
        others,
        1
        - (rows.stop - rows.start) * (columns.stop - columns.start) / (height * width),
    )


@register(
    "rainbow_memory",
    summary="raw images from easy to hard, trained on again with CutMix after each experience",
    source="Bang et al., Rainbow Memory: Continual Learning with a Memory of Diverse Samples, CVPR 2021",
    stores="raw images",
    each_class=True,
    tuning={"candidates": 8},
)
class RainbowPlugin(ImageMemoryPlugin):
    """Replays as many memories with each new batch; after each experience, selects memories and trains on them.

    The frames of the experience are read once more for scoring, without training. The
    first experience, on which all strategies here train several epochs, has the full
    rate. SGD's momentum is Nesterov's.

    Attributes:
        copies: perturbed copies of a candidate that vote on its uncertainty.
        candidates: frames of each class that are scored after an experience, evenly
            spread over it. F runs on every copy of each; the authors score every frame.
        memory_epochs: epochs over the memory after each experience (5 in the paper's
            comparison; the authors use 256).
        cutmix: probability of mixing a batch in these epochs.
        stream_rate: factor of the learning rate while training on the stream after the
            first experience.
    """

    copies: Count = 12
    candidates: Count = 25
    memory_epochs: Number = 5
    cutmix: Probability = 0.5
    stream_rate: NotNegative = 0.1

    kept, rule = ("random",), ChosenFrames
    before_backward = ExperienceReplayPlugin.before_backward

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        self.rate = recipe.settings.learning_rate
        self.sgd = {"nesterov": recipe.settings.momentum > 0}
        self.random = np.random.default_rng(recipe.seed)
        # The same for all candidates and experiences: a vote depends on the network and
        # the image only.
        self.perturbations = make_perturbations(recipe.method.copies, self.random)

    def before_training_exp(self, strategy, **kwargs):
        super().before_training_exp(strategy, **kwargs)
        strategy.make_optimizer(reset_optimizer_state=True)
        first = strategy.clock.train_exp_counter == 0
        self._set_rate(strategy, self.rate if first else self.stream_rate * self.rate)

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
        """Diversity-aware update: equally many of each class, from easy to hard; free slots are filled at random.

        A candidate is ``(True, slot)`` of a memory or ``(False, position)`` of a frame.
        """
        candidates = self._candidates(strategy)
        count = self.storage_policy.max_size // len(candidates)
        chosen, left = [], []
        for _, members in sorted(candidates.items()):
            scores = (
                self._scores(strategy, members)
                if len(members) > count
                else [0.0] * len(members)
            )
            best = set(easy_to_hard(scores, count))
            for number, member in enumerate(members):
                (chosen if number in best else left).append(member)
        room = self.storage_policy.max_size - len(chosen)
        chosen += [left[number] for number in self.random.permutation(len(left))[:room]]
        kept = [slot for is_memory, slot in chosen if is_memory]
        self.hold(
            strategy,
            kept,
            [position for is_memory, position in chosen if not is_memory],
        )

    def _candidates(self, strategy) -> dict[int, list[tuple[bool, int]]]:
        by_class = {
            label: [(True, slot) for slot in slots]
            for label, slots in self.storage_policy.slots.by_class.items()
            if slots
        }
        targets = np.asarray(labels_of(strategy.experience.dataset))
        for label in np.unique(targets).tolist():
            positions = np.flatnonzero(targets == label)
            spread = np.linspace(
                0, len(positions) - 1, min(len(positions), self.candidates)
            ).astype(int)
            by_class.setdefault(label, []).extend(
                (False, position) for position in positions[spread].tolist()
            )
        return by_class

    def _scores(self, strategy, candidates: list[tuple[bool, int]]) -> list[float]:
        model = strategy.model

        def answers(images: Tensor) -> Tensor:
            return self.logits(model, self._fresh_features(model, images))

        scores = []
        with evaluating(model), torch.no_grad():
            for start in range(0, len(candidates), strategy.eval_mb_size):
                part = candidates[start : start + strategy.eval_mb_size]
                images = [
                    self.storage_policy.rows[[place]].to(strategy.device)
                    if is_memory
                    else frames(strategy, [place])
                    for is_memory, place in part
                ]
                scores += uncertainties(
                    torch.cat(images), answers, self.perturbations
                ).tolist()
        return scores

    @staticmethod
    def _fresh_features(model: SplitModel, images: Tensor) -> Tensor:
        """Compute maps of images that do not come again, without the ``FeatureMemo``."""
        return model.features(model.extract(images))

    def _memory_epoch(self, strategy, **kwargs) -> None:
        buffer, model = self.storage_policy, strategy.model
        for slots in torch.from_numpy(
            self.random.permutation(held_slots(buffer))
        ).split(strategy.train_mb_size):
            images = augment(buffer.rows[slots].to(strategy.device), self.random)
            labels = buffer.labels[slots].long().to(strategy.device)
            mixed, others, own = images, slice(None), 1.0
            if self.random.random() < self.cutmix:
                mixed, others, own = cutmix(images, self.random)
            logits = self.logits(model, self._fresh_features(model, mixed))
            loss = own * strategy._criterion(logits, labels)
            if own < 1:
                loss = loss + (1 - own) * strategy._criterion(logits, labels[others])
            memory_step(strategy, loss, **kwargs)
