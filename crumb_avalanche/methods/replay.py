"""What the methods share that replay raw images.

Which images they store and draw, herding, and the old network. ``ImageMemoryPlugin``
stores raw images; a method adds its own loss.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
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
from crumb_avalanche.training.batch_plugin import FrameReader, StoringPlugin

# Selection


@dataclass
class Reservoir(SelectionRule):
    """Stores every frame of the stream with the same probability, whatever its class.

    Vitter 1985, algorithm R; the papers on ER and DER++ use it. No class has a claim to
    a slot: there may be more classes than slots.

    Attributes:
        seen: frames offered so far.
    """

    every_class_holds_one = False

    seen: int = field(init=False, default=0)

    def choose(self, slots: Slots, labels: Sequence[int]) -> list[tuple[int, int]]:
        """Return position and slot of each frame of a batch that is stored."""
        chosen = []
        for position, label in enumerate(labels):
            self.seen += 1
            if not slots.free:
                # A frame is stored with the probability capacity / seen.
                number = int(slots.random.integers(self.seen))
                is_stored = number < slots.capacity
                if not is_stored:
                    continue
                slots.release(_class_of_memory(slots, number))
            chosen.append((position, slots.take(label)))
        return chosen


def _class_of_memory(slots: Slots, number: int) -> int:
    """Return the class of the ``number``-th memory, counted class by class.

    So a random number gives up more memories of large classes.
    """
    n_left = number
    for label, members in slots.by_class.items():
        if n_left < len(members):
            return label
        n_left -= len(members)
    raise ValueError("there are fewer memories than that")


class RingBuffer(SelectionRule):
    """Stores every frame; a full buffer gives up an old memory of the largest class.

    It is the oldest one, and the class that of the frame if several are as large. So
    each class has a ring of its latest frames, and every class that came holds a
    memory. The authors set the rings' sizes by the number of classes of the whole
    stream; here the rings shrink when a class comes.
    """

    evenly_spread = False

    def choose(self, slots: Slots, labels: Sequence[int]) -> list[tuple[int, int]]:
        """Store every frame of a batch; return its position and slot."""
        chosen = []
        for position, label in enumerate(labels):
            if not slots.free:
                largest_class = self._largest_class(slots, label)
                members = slots.by_class[largest_class]
                slots.free.append(members.pop(0))  # in order of arrival
            chosen.append((position, slots.take(label)))
        return chosen

    @staticmethod
    def _largest_class(slots: Slots, label: int) -> int:
        """Return the class with most memories; ``label`` if several have as many."""
        most = slots.size_of_largest_class()
        if slots.count(label) == most:
            return label
        return next(group for group in slots.classes if slots.count(group) == most)


class ChosenFrames(SelectionRule):
    """Stores all that is offered after training while slots are free.

    It is for methods that choose memories themselves.
    """

    second_pass = True
    evenly_spread = False

    def choose(self, slots: Slots, labels: Sequence[int]) -> list[tuple[int, int]]:
        """Store frames while slots are free; return their positions and slots."""
        chosen = []
        for position, label in enumerate(labels):
            if slots.free:
                chosen.append((position, slots.take(label)))
        return chosen


class HerdedFrames(ChosenFrames):
    """Exemplars in order of priority, which are cut at the end.

    Of more classes than slots, the last ones get none.
    """

    every_class_holds_one = False


def allot(capacity: int, classes: Sequence[int]) -> dict[int, int]:
    """Allot equal shares of a buffer's slots to classes, and the remainder one each.

    The first classes get the remainder; the last may get none.

    Args:
        capacity: number of slots of the buffer.
        classes: all classes, in order of priority; none before the first images.

    Returns:
        The number of slots of each class.
    """
    share, remainder = divmod(capacity, max(1, len(classes)))
    quotas = {}
    for index, label in enumerate(classes):
        quotas[label] = share
        if index < remainder:
            quotas[label] += 1
    return quotas


def trim(slots: Slots, quotas: dict[int, int]) -> list[int]:
    """Cut the memories of some classes to their quotas; return the freed slots.

    Args:
        slots: of a buffer, whose lists of slots are in order of priority.
        quotas: largest number of memories of each of these classes.
    """
    freed: list[int] = []
    for label, quota in quotas.items():
        members = slots.by_class.get(label, [])
        freed += members[quota:]
        del members[quota:]
    slots.free += freed
    return freed


def herd(features: Tensor, count: int) -> list[int]:
    """Choose rows whose running mean stays closest to that of all (iCaRL, alg. 4).

    Each step chooses the row with which the mean of the chosen ones is closest, so that
    any first few of them stand for all.

    Args:
        features: ``(N, D)`` of the images of a class.
        count: number of rows to choose, at most.

    Returns:
        Indices of the rows, in order of priority.
    """
    mean = features.mean(0)
    sum_of_chosen = torch.zeros_like(features[0])
    is_chosen = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    chosen: list[int] = []
    for number in range(1, min(count, len(features)) + 1):
        running_means = (sum_of_chosen + features) / number  # with each row, (N, D)
        distances = (mean - running_means).norm(dim=1)
        index = int(distances.masked_fill(is_chosen, torch.inf).argmin())
        chosen.append(index)
        is_chosen[index] = True
        sum_of_chosen = sum_of_chosen + features[index]
    return chosen


# Draws


def held_slots(buffer: MemoryBuffer) -> list[int]:
    """Return the slots of a buffer that hold a memory, ascending."""
    slots: list[int] = []
    for members in buffer.slots.by_class.values():
        slots += members
    return sorted(slots)


def draw_from(random: np.random.Generator, slots: Sequence[int], count: int) -> Tensor:
    """Draw ``(count,)`` int64 slots of memories to replay, in random order.

    Each is drawn again only after all were drawn.

    Args:
        random: of the draws.
        slots: to draw from, at least one.
        count: number of draws.
    """
    shuffled = random.permutation(np.asarray(slots, dtype=np.int64))
    return torch.from_numpy(np.resize(shuffled, count))


def draw(buffer: MemoryBuffer, count: int) -> Tensor:
    """Draw ``(count,)`` int64 slots of a buffer's memories to replay.

    Each is drawn again only after all were drawn; none without memories.
    """
    slots = held_slots(buffer)
    if not slots:
        return torch.empty(0, dtype=torch.int64)
    return draw_from(buffer.slots.random, slots, count)


# Plugins


class ImageMemoryPlugin(StoringPlugin):
    """Stores raw images during the last epoch of each experience.

    A method adds its own loss to ``strategy.loss`` in ``before_backward``: ``draw``
    gives slots of memories, ``memory_logits`` their masked logits and labels, and
    ``storage_policy.slots.random`` the random numbers. Attributes that later steps need
    are named in ``state_names``. A method that chooses its memories itself calls
    ``hold`` after an experience.

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
        if rule is None:
            rule = self.rule()
        super().__init__(self.buffer(recipe.mem_size, rule, recipe.seed))

    def before_training_exp(self, strategy, **kwargs):
        """Train on maps as they are, without codes."""
        super().before_training_exp(strategy, **kwargs)
        strategy.model.quantized_training = False

    def memory_logits(self, strategy, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Compute ``(n, classes)`` masked logits and ``(n,)`` labels of memories.

        F runs once for each memory.
        """
        maps, labels = self.storage_policy.replay(slots, strategy.model)
        return self.logits(strategy.model, maps), labels

    def stored_images(self, slots: Tensor, device: torch.device | str) -> Tensor:
        """Return the pixels of memories, ``(n, 3, h, w)`` uint8."""
        rows = self.storage_policy.rows
        assert rows is not None, "these slots hold memories"
        return rows[slots].to(device)

    def hold(self, strategy, slots: Collection[int], positions: Sequence[int]) -> None:
        """Keep the memories in some slots, store some frames, and give up all others.

        The buffer's list of slots of a class has its kept memories first, then the
        frames.

        Args:
            strategy: its experience has the frames.
            slots: of the memories that are kept.
            positions: of the frames, in the order in which they are stored.
        """
        self._free_all_but(set(slots))
        labels_of_frames = labels_of(strategy.experience.dataset)
        batch_size = strategy.eval_mb_size
        # At least once, even without frames: storing wipes the freed slots.
        for start in range(0, max(1, len(positions)), batch_size):
            batch_positions = positions[start : start + batch_size]
            labels = [labels_of_frames[position] for position in batch_positions]
            batch = StreamBatch(
                labels=torch.tensor(labels, dtype=torch.int64),
                feature_map=torch.empty(0, dtype=torch.float32),  # images are stored
                codes=None,
                # Reads the images of those positions that are stored.
                pixels=FrameReader(strategy, batch_positions),
            )
            self.storage_policy.store(batch, strategy.model)

    def _free_all_but(self, staying_slots: set[int]) -> None:
        """Free all slots of the buffer but some; the order of each class stays."""
        slots = self.storage_policy.slots
        for label, members in slots.by_class.items():
            staying = []
            for slot in members:
                if slot in staying_slots:
                    staying.append(slot)
                else:
                    slots.free.append(slot)
            slots.by_class[label] = staying


@dataclass(frozen=True)
class Exemplars:
    """What is chosen of a class, as memories that stay and frames that come.

    Attributes:
        slots: of old exemplars that stay.
        positions: of new frames in the experience.
        order: slots of old exemplars, and ``None`` for each new one, in order of
            priority; ``None`` where the order of the class does not change.
    """

    slots: list[int]
    positions: list[int]
    order: list[int | None] | None


class HerdingPlugin(ImageMemoryPlugin):
    """Stores exemplars that are herded after each experience from its frames.

    The features are those of the network then.
    """

    rule = HerdedFrames

    @torch.no_grad()
    def herd(self, strategy) -> None:
        """Store exemplars of the experience's classes; cut the other classes' lists.

        Herding chooses images whose mean feature is that of their class (iCaRL,
        algorithms 2, 4 and 5). All classes get equal shares of the buffer. A class that
        comes again is herded from its old exemplars and its new frames.

        Args:
            strategy: gives the model, and the experience with the frames; without
                frames, the exemplars stay.
        """
        if not len(strategy.adapted_dataset):
            return
        features, labels = self._features_of_frames(strategy)  # (N, D), (N,)
        slots_by_class = self.storage_policy.slots.by_class
        new_classes = sorted(set(labels.tolist()))
        classes = list(dict.fromkeys([*slots_by_class, *new_classes]))
        # Number of exemplars of each class.
        quotas = allot(self.storage_policy.max_size, classes)
        exemplars_by_class: dict[int, Exemplars] = {}
        staying_slots: list[int] = []
        new_positions: list[int] = []
        for label, quota in quotas.items():
            positions = (labels == label).nonzero().flatten().tolist()
            exemplars = self._choose_exemplars(
                strategy, label, quota, positions, features
            )
            exemplars_by_class[label] = exemplars
            staying_slots += exemplars.slots
            new_positions += exemplars.positions
        self.hold(strategy, slots=staying_slots, positions=new_positions)
        # Old exemplars are first in each list now; where a class was herded again, its
        # slots are put in order of priority.
        for label, exemplars in exemplars_by_class.items():
            if exemplars.order is not None:
                slots_by_class[label] = _in_order(
                    slots_by_class[label], exemplars.order
                )

    def _features_of_frames(self, strategy) -> tuple[Tensor, Tensor]:
        """Compute unit features ``(N, D)`` and labels ``(N,)`` of the experience."""
        # A generator of its own: a loader draws a seed, and must not advance the global
        # RNG.
        loader = DataLoader(
            strategy.adapted_dataset, strategy.eval_mb_size, generator=torch.Generator()
        )
        features = []
        labels = []
        for images, batch_labels, *_ in loader:
            images = images.to(strategy.device)
            features.append(unit_features(strategy.model, images))
            labels.append(batch_labels)
        return torch.cat(features), torch.cat(labels)

    def _choose_exemplars(
        self,
        strategy,
        label: int,
        quota: int,
        positions: list[int],
        features: Tensor,
    ) -> Exemplars:
        """Choose the exemplars of a class by herding, from old ones and new frames.

        Args:
            strategy: gives the model.
            label: the class.
            quota: number of its exemplars.
            positions: of its frames in the experience; maybe none.
            features: ``(N, D)`` of all frames of the experience.

        Returns:
            Slots of the old exemplars that stay, positions of the frames to store, and
            the order of priority of both together, which is ``None`` where it stays as
            it was, without new frames.
        """
        old_slots = self.storage_policy.slots.by_class.setdefault(label, [])
        if not positions:  # old exemplars are in order of priority already
            return Exemplars(slots=old_slots[:quota], positions=[], order=None)
        candidates = features[positions]
        if old_slots:
            old_features = self.stored_features(strategy, old_slots)
            candidates = torch.cat([old_features, candidates])
        staying_slots: list[int] = []
        new_positions: list[int] = []
        order: list[int | None] = []
        for index in herd(candidates, quota):
            is_old = index < len(old_slots)
            if is_old:
                staying_slots.append(old_slots[index])
                order.append(old_slots[index])
            else:
                new_positions.append(positions[index - len(old_slots)])
                order.append(None)  # it has no slot yet
        return Exemplars(slots=staying_slots, positions=new_positions, order=order)

    def stored_features(self, strategy, slots: Sequence[int]) -> Tensor:
        """Compute unit features ``(n, D)`` of stored images."""
        features = []
        for batch in torch.tensor(slots).split(strategy.eval_mb_size):
            images = self.stored_images(batch, strategy.device)
            features.append(unit_features(strategy.model, images))
        return torch.cat(features)


def _in_order(members: list[int], order: list[int | None]) -> list[int]:
    """Return the slots of a class's exemplars in order of priority.

    Args:
        members: slots of the class; those of new exemplars are in the order in which
            these were chosen.
        order: slots of old exemplars, and ``None`` for each new one, in order of
            priority.
    """
    new_slots = iter([slot for slot in members if slot not in order])
    ordered = []
    for slot in order:
        if slot is None:
            slot = next(new_slots)
        ordered.append(slot)
    return ordered


def unit_features(model: SplitModel, images: Tensor) -> Tensor:
    """Compute L2-normalised penultimate features ``(B, D)`` in evaluation mode."""
    return functional.normalize(pooled_features(model, images))


# Distillation


class OldNetwork:
    """Copy of the plastic layers after the latest experience, for distillation.

    Args:
        half: hold the weights as float16.

    Attributes:
        state: the weights by name; empty before the first ``copy_from``.
    """

    def __init__(self, half: bool = True):
        self.half = half
        self.state: dict[str, Tensor] = {}

    @classmethod
    def bytes_of(cls, model: Any) -> int:
        """Return the bytes of a copy of ``model.plastic_layers``."""
        old = cls()
        old.copy_from(model)
        return tensor_bytes(old.state.values())

    def copy_from(self, model: SplitModel) -> None:
        """Copy the current weights of the plastic layers, with their buffers."""
        self.state = {}
        for name, weight in model.plastic_layers.state_dict().items():
            dtype = weight.dtype
            if self.half and weight.is_floating_point():
                dtype = torch.float16
            self.state[name] = weight.detach().to(dtype, copy=True)

    @torch.no_grad()
    def logits(self, model: SplitModel, maps: Tensor) -> Tensor:
        """Compute logits of the old network: its weights in the model's layers.

        Args:
            model: has the plastic layers, which run in evaluation mode; its own weights
                stay.
            maps: ``(B, C, H, W)`` feature maps, which enter these layers.

        Returns:
            ``(B, classes)`` float32, without a gradient.
        """
        weights = {}  # by name; the copy may be float16
        for name, weight in self.state.items():
            weight = weight.to(maps.device)  # a loaded state is on the CPU
            self.state[name] = weight  # moved once
            weights[name] = weight.float() if weight.is_floating_point() else weight
        with (
            model.stopwatch.measure("plastic"),
            evaluating(model.plastic_layers),
            model.autocast(),
        ):
            return functional_call(model.plastic_layers, weights, (maps,)).float()

    def state_dict(self) -> dict:
        """Return the weights; none before the first ``copy_from``."""
        return dict(self.state)

    def load_state_dict(self, state: dict) -> None:
        """Load what ``state_dict`` returned."""
        self.state = {}
        for name, weight in state.items():
            # Weights of a SplitModel lie channels-last, an order that a file does not
            # keep and kernels round by.
            memory_format = torch.contiguous_format
            if weight.dim() == 4:
                memory_format = torch.channels_last
            self.state[name] = weight.clone(memory_format=memory_format)


def distillation_loss(
    logits: Tensor, old_logits: Tensor, classes: Sequence[int], temperature: float
) -> Tensor:
    """Compute the mean Kullback-Leibler divergence of new answers from the old ones.

    It has the gradient of LwF's modified cross-entropy (eq. 2), and is 0 if nothing was
    forgotten.

    Args:
        logits: ``(B, n)`` of the network in training.
        old_logits: ``(B, n)`` of the old network, without a gradient.
        classes: columns that are compared, usually the old classes.
        temperature: divisor of both.

    Returns:
        A scalar, mean over the batch.
    """
    log_answers = (logits[:, classes] / temperature).log_softmax(1)
    log_old_answers = (old_logits[:, classes] / temperature).log_softmax(1)
    return functional.kl_div(
        log_answers, log_old_answers, reduction="batchmean", log_target=True
    )
