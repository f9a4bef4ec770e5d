"""What the methods share that replay raw images: which they store and draw, herding, and the old network.

``ImageMemoryPlugin`` stores raw images; a method adds its own loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional
from torch.utils.data import DataLoader

from crumb_avalanche.memory.buffers import ImageBuffer, MemoryBuffer, StreamBatch
from crumb_avalanche.memory.selection import SelectionRule
from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.features import pooled_features
from crumb_avalanche.methods.registry import Recipe
from crumb_avalanche.models.penultimate import evaluating
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.tensor_file import tensor_bytes
from crumb_avalanche.training.avalanche_fixes import labels_of
from crumb_avalanche.training.batch_plugin import StoringPlugin, frames


@dataclass
class Reservoir(SelectionRule):
    """Stores every frame of the stream with the same probability, regardless of its class (Vitter 1985, algorithm R).

    The papers on ER and DER++ use it. ``seen`` is the number of frames offered so far.
    """

    every_class_holds_one = False

    seen: int = 0

    def choose(self, slots, labels):
        chosen = []
        for position, label in enumerate(labels):
            self.seen += 1
            if not slots.free:
                place = int(slots.random.integers(self.seen))
                if place >= slots.capacity:
                    continue
                for (
                    victim,
                    members,
                ) in (
                    slots.by_class.items()
                ):  # a class gives up in proportion to its size
                    if place < len(members):
                        slots.release(victim)
                        break
                    place -= len(members)
            chosen.append((position, slots.take(label)))
        return chosen


class RingBuffer(SelectionRule):
    """Stores every frame; a full buffer gives up the oldest memory of the largest class, that of the frame if equal.

    So each class has a ring of its latest frames, and every class that came holds a
    memory. The authors set the rings' sizes by the number of classes of the whole
    stream; here the rings shrink when a class comes.
    """

    evenly_spread = False

    def choose(self, slots, labels):
        chosen = []
        for position, label in enumerate(labels):
            if not slots.free:
                largest = slots.largest()
                victim = label
                if slots.count(label) < largest:
                    victim = next(
                        other
                        for other in slots.classes
                        if slots.count(other) == largest
                    )
                slots.free.append(slots.by_class[victim].pop(0))  # in order of arrival
            chosen.append((position, slots.take(label)))
        return chosen


class ChosenFrames(SelectionRule):
    """Stores all that is offered after training while slots are free, for methods that choose memories themselves."""

    second_pass = True
    evenly_spread = False

    def choose(self, slots, labels):
        return [
            (position, slots.take(label))
            for position, label in enumerate(labels)
            if slots.free
        ]


class HerdedFrames(ChosenFrames):
    """Exemplars in order of priority, which are cut at the end; of more classes than slots, the last ones get none."""

    every_class_holds_one = False


def allot(capacity: int, classes: Sequence[int]) -> dict[int, int]:
    """Allot equal shares of all slots to classes, and the remainder one each to the first; the last may get none."""
    share, left_over = divmod(capacity, len(classes))
    return {label: share + (place < left_over) for place, label in enumerate(classes)}


def trim(slots: Slots, quotas: dict[int, int]) -> list[int]:
    """Cut the lists of some classes, which are in order of priority, to their quotas; return the freed slots."""
    freed: list[int] = []
    for label, quota in quotas.items():
        members = slots.by_class.get(label, [])
        freed += members[quota:]
        del members[quota:]
    slots.free += freed
    return freed


def herd(features: Tensor, count: int) -> list[int]:
    """Choose up to ``count`` of ``(N, D)`` rows whose running mean stays closest to that of all (iCaRL, alg. 4)."""
    mean, total = features.mean(0), torch.zeros_like(features[0])
    taken = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    chosen: list[int] = []
    for number in range(1, min(count, len(features)) + 1):
        distances = (
            (mean - (total + features) / number)
            .norm(dim=1)
            .masked_fill(taken, torch.inf)
        )
        chosen.append(int(distances.argmin()))
        taken[chosen[-1]] = True
        total = total + features[chosen[-1]]
    return chosen


def held_slots(buffer: MemoryBuffer) -> list[int]:
    """Return the slots that hold a memory, ascending."""
    return sorted(
        slot for members in buffer.slots.by_class.values() for slot in members
    )


def draw_from(random: np.random.Generator, slots: Sequence[int], count: int) -> Tensor:
    """Draw ``(count,)`` int64 of some slots in random order, each again only after all were drawn."""
    return torch.from_numpy(
        np.resize(random.permutation(np.asarray(slots, dtype=np.int64)), count)
    )


def draw(buffer: MemoryBuffer, count: int) -> Tensor:
    """Draw ``(count,)`` int64 slots as ``draw_from`` does; none if nothing is stored."""
    held = held_slots(buffer)
    return (
        draw_from(buffer.slots.random, held, count)
        if held
        else torch.empty(0, dtype=torch.int64)
    )


class ImageMemoryPlugin(StoringPlugin):
    """Stores raw images during the last epoch of each experience; a method adds its own loss.

    A method that chooses its memories itself calls ``hold`` after an experience. Its
    settings are attributes, see ``registry.register``.

    Args:
        recipe: gives size and seed of the buffer.
        rule: the selection rule; default a new one of the class's type.

    Attributes:
        buffer, rule: types of the buffer and of its selection rule; a subclass may have
            others.
    """

    buffer: ClassVar[type[ImageBuffer]] = ImageBuffer
    rule: ClassVar[type[SelectionRule]] = Reservoir

    def __init__(self, recipe: Recipe, rule: SelectionRule | None = None):
        super().__init__(
            self.buffer(
                recipe.mem_size, self.rule() if rule is None else rule, recipe.seed
            )
        )

    def before_training_exp(self, strategy, **kwargs):
        super().before_training_exp(strategy, **kwargs)
        strategy.model.quantized_training = False

    def memory_logits(self, strategy, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Compute ``(n, classes)`` masked logits and ``(n,)`` labels of memories; F runs once for each."""
        maps, labels = self.storage_policy.replay(slots, strategy.model)
        return self.logits(strategy.model, maps), labels

    def hold(self, strategy, kept: Sequence[int], positions: Sequence[int]) -> None:
        """Keep the memories in some slots and store some frames of the current experience; give up all others.

        The list of a class has its kept memories first, then the frames in the order of
        ``positions``.
        """
        buffer, kept = self.storage_policy, set(kept)
        for label, members in buffer.slots.by_class.items():
            buffer.slots.free += [slot for slot in members if slot not in kept]
            buffer.slots.by_class[label] = [slot for slot in members if slot in kept]
        targets = labels_of(strategy.experience.dataset)
        for start in range(
            0, max(1, len(positions)), strategy.eval_mb_size
        ):  # at least once: it wipes the freed slots
            part = positions[start : start + strategy.eval_mb_size]

            def pixels(places: Sequence[int], part=part) -> Tensor:
                return frames(strategy, [part[place] for place in places])

            labels = torch.tensor(
                [targets[position] for position in part], dtype=torch.int64
            )
            buffer.store(
                StreamBatch(labels, torch.empty(0), None, pixels), strategy.model
            )


class HerdingPlugin(ImageMemoryPlugin):
    """Stores exemplars that are herded after each experience, from its frames, by the features of the network then."""

    rule = HerdedFrames

    @torch.no_grad()
    def herd(self, strategy) -> None:
        """Herd the classes of the experience and cut the lists of the others (iCaRL, algorithms 2, 4 and 5).

        A class that comes again is herded from its old exemplars and its new frames.
        """
        # A generator of its own: a loader draws a seed, and must not advance the global
        # RNG.
        loader = DataLoader(
            strategy.adapted_dataset, strategy.eval_mb_size, generator=torch.Generator()
        )
        looks = [
            (unit_features(strategy.model, images.to(strategy.device)), labels)
            for images, labels, *_ in loader
        ]
        features, labels = (torch.cat(parts) for parts in zip(*looks))
        lists, orders, kept, chosen = self.storage_policy.slots.by_class, {}, [], []
        classes = dict.fromkeys([*lists, *sorted(set(labels.tolist()))])
        for label, quota in allot(self.storage_policy.max_size, list(classes)).items():
            members, positions = (
                lists.setdefault(label, []),
                (labels == label).nonzero().flatten().tolist(),
            )
            best = list(range(min(quota, len(members))))
            if positions:
                old = [self.stored_features(strategy, members)] if members else []
                best = herd(torch.cat([*old, features[positions]]), quota)
                orders[label] = [
                    members[place] if place < len(members) else None for place in best
                ]
            kept += [members[place] for place in best if place < len(members)]
            chosen += [
                positions[place - len(members)]
                for place in best
                if place >= len(members)
            ]
        self.hold(strategy, kept, chosen)
        for label, order in orders.items():
            new = iter(
                [slot for slot in lists[label] if slot not in order]
            )  # in the order in which they were chosen
            lists[label] = [next(new) if slot is None else slot for slot in order]

    def stored_features(self, strategy, slots: Sequence[int]) -> Tensor:
        """Compute unit features ``(n, D)`` of stored images."""
        parts = torch.tensor(slots).split(strategy.eval_mb_size)
        rows = self.storage_policy.rows
        return torch.cat(
            [
                unit_features(strategy.model, rows[part].to(strategy.device))
                for part in parts
            ]
        )


def unit_features(model: SplitModel, images: Tensor) -> Tensor:
    """Compute L2-normalised penultimate features ``(B, D)`` in evaluation mode."""
    return functional.normalize(pooled_features(model, images))


class OldNetwork:
    """Copy of the plastic layers after the latest experience, for distillation; float16 with ``half``."""

    def __init__(self, half: bool = True):
        self.half = half
        self.state: dict[str, Tensor] = {}

    @classmethod
    def bytes_of(cls, model: Any) -> int:
        """Return the bytes of a copy of ``model.plastic_layers``."""
        old = cls()
        old.take(model)
        return tensor_bytes(old.state.values())

    def take(self, model: SplitModel) -> None:
        """Copy the current weights."""
        self.state = {}
        for name, value in model.plastic_layers.state_dict().items():
            kept = (
                torch.float16
                if self.half and value.is_floating_point()
                else value.dtype
            )
            self.state[name] = value.detach().to(kept, copy=True)

    @torch.no_grad()
    def logits(self, model: SplitModel, maps: Tensor) -> Tensor:
        """Compute ``(B, classes)`` float32 of ``(B, C, H, W)`` maps with the copied weights in the model's layers."""
        self.state = {
            name: value.to(maps.device) for name, value in self.state.items()
        }  # a loaded state is on the CPU
        weights = {
            name: value.float() if value.is_floating_point() else value
            for name, value in self.state.items()
        }
        with (
            model.stopwatch.measure("plastic"),
            evaluating(model.plastic_layers),
            model.autocast(),
        ):
            return functional_call(model.plastic_layers, weights, (maps,)).float()

    def state_dict(self) -> dict:
        """The weights; empty before the first ``take``."""
        return dict(self.state)

    def load_state_dict(self, state: dict) -> None:
        """Load what ``state_dict`` returned."""
        # Weights of a SplitModel lie channels-last, an order that a file does not keep
        # and kernels round by.
        self.state = {
            name: value.clone(
                memory_format=torch.channels_last
                if value.dim() == 4
                else torch.contiguous_format
            )
            for name, value in state.items()
        }


def distillation_loss(
    logits: Tensor, old_logits: Tensor, classes: Sequence[int], temperature: float
) -> Tensor:
    """Compute the mean Kullback-Leibler divergence of ``(B, n)`` answers over some classes from the old ones.

    It has the gradient of LwF's modified cross-entropy (eq. 2), and is 0 if nothing was
    forgotten. Logits are divided by the temperature; ``old_logits`` have no gradient.
    """
    answers = (logits[:, classes] / temperature).log_softmax(1)
    old_answers = (old_logits[:, classes] / temperature).log_softmax(1)
    return functional.kl_div(
        answers, old_answers, reduction="batchmean", log_target=True
    )
