"""Replay of raw images in the step of the new batch: experience replay and dark experience replay.

``ImageMemoryPlugin`` and ``draw`` are shared by all methods that store raw images and have their own losses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crumb_avalanche.memory.buffers import StreamBatch
from crumb_avalanche.memory.selection import SelectionRule
from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.methods.exemplars import draw_from
from crumb_avalanche.methods.registry import Recipe, register
from crumb_avalanche.models.penultimate import evaluating
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import InRange, NotNegative, Number
from crumb_avalanche.training.batch_plugin import StoringPlugin, frames
from crumb_avalanche.training.labels import labels_of
from crumb_avalanche.training.plugins import UNSEEN_LOGIT
from crumb_avalanche.training.storage_policies import CompactBuffer, ImageBuffer
from crumb_avalanche.training.stream_strategy import StreamStrategy


@dataclass(frozen=True)
class ExperienceReplaySettings(InRange):
    """Settings of experience replay (ER).

    Attributes:
        ring_below: with fewer memories than this for each class of the stream, each class has a ring buffer of its
            latest images, else all share a reservoir, in which a rare class may have none. The authors advise rings for
            tiny memories, and compare 1 to 13 memories a class. With fewer memories than classes, and with 0, it is
            always the reservoir.
    """

    ring_below: Number = 5


@dataclass(frozen=True)
class DarkReplaySettings(InRange):
    """Settings of DER++, with its authors' values.

    Attributes:
        alpha: weight of the loss of the stored logits.
        beta: weight of the loss of the stored labels; 0 is plain DER.
        evaluation_logits: store the logits of the network in evaluation mode, after the step of their batch, instead of
            those of the step itself, whose dropout the network would then have to reproduce.
    """

    alpha: NotNegative = 0.1
    beta: NotNegative = 0.5
    evaluation_logits: bool = True


@dataclass
class Reservoir(SelectionRule):
    """Stores every frame of the stream with the same probability, regardless of its class (Vitter 1985, algorithm R).

    ``ClassBalancedReservoir`` of ``memory.selection`` balances the classes; the papers on ER and DER++ use this one.

    Attributes:
        seen: frames offered so far.
    """

    seen: int = 0

    def begin_experience(self, slots, coming, batch_size):
        return []  # no class has a claim to a slot: there may be more classes than slots

    def choose(self, slots, labels):
        chosen = []
        for position, label in enumerate(labels):
            self.seen += 1
            if not slots.free:
                place = int(slots.random.integers(self.seen))
                if place >= slots.capacity:
                    continue
                slots.release(self._class_at(slots, place))
            chosen.append((position, slots.take(label)))
        return chosen

    @staticmethod
    def _class_at(slots: Slots, place: int) -> int:
        """Return the class of the memory at a place among all; classes give one up in proportion to their size."""
        for label, members in slots.by_class.items():
            if place < len(members):
                return label
            place -= len(members)
        raise AssertionError("the place is below the number of memories")

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


class RingBuffer(SelectionRule):
    """Stores every frame; a full buffer gives up the oldest memory of the largest class, that of the frame if equal.

    So each class has a ring of its latest frames, and a class that came holds a memory however few there are, which a
    reservoir does not grant. The authors set the rings' sizes by the number of classes of the whole stream, which
    leaves memories unused until the last class comes; here the rings shrink when a class comes.
    """

    evenly_spread = False

    def choose(self, slots, labels):
        chosen = []
        for position, label in enumerate(labels):
            if not slots.free:
                largest = slots.largest()
                victim = label
                if slots.count(label) < largest:
                    victim = next(other for other in slots.classes if slots.count(other) == largest)
                self.give_up(slots, victim)
            chosen.append((position, slots.take(label)))
        return chosen

    def give_up(self, slots, label):
        slot = slots.by_class[label].pop(0)  # in order of arrival
        slots.free.append(slot)
        return slot


class ChosenFrames(SelectionRule):
    """Stores all it is offered while slots are free, for methods that choose their memories themselves."""

    second_pass = True  # nothing is stored during training
    evenly_spread = False

    def choose(self, slots, labels):
        return [(position, slots.take(label)) for position, label in enumerate(labels) if slots.free]


def held_slots(buffer: CompactBuffer) -> list[int]:
    """Return the slots that hold a memory, ascending."""
    return sorted(slot for members in buffer.slots.by_class.values() for slot in members)


def draw(buffer: CompactBuffer, count: int) -> Tensor:
    """Draw memories uniformly, each again only after all were drawn.

    Returns:
        ``(count,)`` int64 slots; empty if nothing is stored.
    """
    held = held_slots(buffer)
    if not held:
        return torch.empty(0, dtype=torch.int64)
    return draw_from(buffer.slots.random, held, count)


class ImageMemoryPlugin(StoringPlugin):
    """Stores raw images during the last epoch of each experience; a method adds its own loss.

    A method that chooses its memories itself calls ``hold`` after an experience.
    """

    def before_training_exp(self, strategy, **kwargs):
        super().before_training_exp(strategy, **kwargs)
        strategy.model.quantized_training = False

    def memory_logits(self, strategy, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Compute ``(n, classes)`` masked logits and ``(n,)`` labels of memories; F runs once for each."""
        maps, labels = self.storage_policy.replay(slots, strategy.model)
        return self.logits(strategy.model, maps), labels

    def hold(self, strategy, kept: Sequence[int], positions: Sequence[int]) -> None:
        """Keep the memories in some slots and store some frames of the current experience; give up all others.

        Args:
            strategy: in training; the rule of its buffer is ``ChosenFrames``.
            kept: slots.
            positions: frames of the experience; the list of a class has them in this order, after its kept memories.
        """
        buffer, kept = self.storage_policy, set(kept)
        for label, members in buffer.slots.by_class.items():
            buffer.slots.free += [slot for slot in members if slot not in kept]
            buffer.slots.by_class[label] = [slot for slot in members if slot in kept]
        targets = labels_of(strategy.experience.dataset)
        for start in range(0, max(1, len(positions)), strategy.eval_mb_size):  # at least once: it wipes the freed slots
            part = positions[start : start + strategy.eval_mb_size]

            def pixels(places: Sequence[int], part=part) -> Tensor:
                return frames(strategy, [part[place] for place in places])

            labels = torch.tensor([targets[position] for position in part], dtype=torch.int64)
            buffer.store(StreamBatch(labels, torch.empty(0), None, pixels), strategy.model)


class ExperienceReplayPlugin(ImageMemoryPlugin):
    """Trains on the union of the new batch and as many memories, in one step.

    Chaudhry et al., On Tiny Episodic Memories in Continual Learning, 2019, algorithm 1. The two halves pass the
    plastic layers one after the other: a batch norm takes its statistics from each of them.
    """

    def before_backward(self, strategy, **kwargs):
        slots = draw(self.storage_policy, len(strategy.mb_y))
        if len(slots) == 0:
            return
        with strategy.model.stopwatch.measure("replay"):
            logits, labels = self.memory_logits(strategy, slots)
            replay_loss = strategy._criterion(logits, labels)
        strategy.loss = (strategy.loss + replay_loss) / 2


class LogitImageBuffer(ImageBuffer):
    """Raw images and their logits when they were seen, ``3 * h * w + 4 * classes`` bytes each.

    A row has the pixels, then the float32 logits; those of classes not seen by then are -10,000.

    Attributes:
        offered: function from positions in the batch that is stored next to their ``(n, classes)`` logits.
    """

    offered: Callable[[Sequence[int]], Tensor]

    @staticmethod
    def item_bytes(model):
        return ImageBuffer.item_bytes(model) + 4 * model.n_classes

    def to_rows(self, batch, positions, model):
        pixels = super().to_rows(batch, positions, model).flatten(1)
        logits = self.offered(list(positions)).float().contiguous()
        return torch.cat([pixels, logits.view(torch.uint8)], 1)

    def to_maps(self, rows, model):
        size = model.image_size
        return super().to_maps(rows[:, : 3 * size**2].unflatten(1, (3, size, size)), model)

    def logits(self, slots: Tensor, model: SplitModel) -> Tensor:
        """Return ``(n, classes)`` float32 logits of some slots, on the model's device."""
        tail = self.rows[slots][:, 3 * model.image_size**2 :]
        # A copy, since a view of a part of a row may not be aligned.
        return tail.clone(memory_format=torch.contiguous_format).view(torch.float32).to(model.pixel_mean.device)


def dark_loss(logits: Tensor, stored: Tensor) -> Tensor:
    """Compute the mean squared difference between logits and stored ones, over the classes seen when these were stored.

    Args:
        logits: ``(n, classes)``.
        stored: ``(n, classes)``.
    """
    known = stored != UNSEEN_LOGIT
    return (logits - stored).masked_fill(~known, 0.0).square().sum() / known.sum()


class DarkReplayPlugin(ImageMemoryPlugin):
    """Trains on ``CE(new) + alpha * MSE(logits of a draw, as stored) + beta * CE(another draw)``, in one step.

    Buzzega et al., Dark Experience for General Continual Learning, NeurIPS 2020 (there called DER++).

    Args:
        storage_policy: the buffer of images and logits.
        settings: see ``DarkReplaySettings``.
    """

    def __init__(self, storage_policy: LogitImageBuffer, settings: DarkReplaySettings):
        super().__init__(storage_policy)
        self.settings = settings

    def before_backward(self, strategy, **kwargs):
        first = draw(self.storage_policy, len(strategy.mb_y))
        second = draw(self.storage_policy, len(strategy.mb_y))
        if len(first) == 0:
            return
        with strategy.model.stopwatch.measure("replay"):
            logits, labels = self.memory_logits(strategy, torch.cat([first, second]))
            stored = self.storage_policy.logits(first, strategy.model)
            dark = dark_loss(logits[: len(first)], stored)
            again = strategy._criterion(logits[len(first) :], labels[len(first) :])
        strategy.loss = strategy.loss + self.settings.alpha * dark + self.settings.beta * again

    def offer(self, strategy, batch):
        trained_on = self.batch is not None

        @torch.no_grad()
        def logits(positions: Sequence[int]) -> Tensor:
            if trained_on and not self.settings.evaluation_logits:
                return strategy.mb_output[positions]
            with evaluating(strategy.model):
                return self.logits(strategy.model, batch.feature_map[positions])

        self.storage_policy.offered = logits
        super().offer(strategy, batch)
        del self.storage_policy.offered  # it holds the batch


def memory_strategy(recipe: Recipe, plugin: ImageMemoryPlugin, **optimizer_changes) -> StreamStrategy:
    """Build a strategy with a plugin that stores images."""
    return StreamStrategy(memory=plugin, optimizer=recipe.optimizer(**optimizer_changes), **recipe.common())


def build_er(recipe: Recipe) -> StreamStrategy:
    """Build experience replay; see ``ExperienceReplaySettings`` for the selection rule."""
    rings = recipe.n_classes <= recipe.mem_size < recipe.method.ring_below * recipe.n_classes
    rule = RingBuffer() if rings else Reservoir()
    return memory_strategy(recipe, ExperienceReplayPlugin(ImageBuffer(recipe.mem_size, rule, recipe.seed)))


def build_der(recipe: Recipe) -> StreamStrategy:
    """Build dark experience replay."""
    buffer = LogitImageBuffer(recipe.mem_size, Reservoir(), recipe.seed)
    return memory_strategy(recipe, DarkReplayPlugin(buffer, recipe.method))


register(
    "er",
    summary="raw images from rings or a reservoir, trained on in one step with each new batch",
    source="Chaudhry et al., On Tiny Episodic Memories in Continual Learning, 2019",
    stores="raw images",
    settings=ExperienceReplaySettings,
    buffer=ImageBuffer,
)(build_er)
register(
    "der",
    summary="raw images and their logits from a reservoir (DER++)",
    source="Buzzega et al., Dark Experience for General Continual Learning, NeurIPS 2020",
    stores="raw images, and a float32 logit of each for every class",
    settings=DarkReplaySettings,
    buffer=LogitImageBuffer,
)(build_der)
