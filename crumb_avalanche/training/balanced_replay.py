"""Replay of all classes alike, as often as a cost of computation allows.

Algorithm 1 of the paper has none of this: it replays one batch after each new batch,
without the classes of that batch.
"""

import torch
from numpy.random import Generator
from torch import Tensor

from crumb_avalanche.memory.buffers import MemoryBuffer, StreamBatch
from crumb_avalanche.models.layers import step_flops
from crumb_avalanche.models.split_model import SplitModel

# Images of a balanced replay batch: many small steps learn more than few large ones of
# the same cost.
REPLAYED = 8


class BalancedReplay:
    """Draws replay batches in which every class has the same chance.

    The number of images of a class does not matter. Classes of the new batch are drawn
    from it, all others from the memories. The number of images follows from the cost of
    the model: a step of the stream costs ``1 + compute`` times as much as without
    replay. A new image passes F and trains P; a memory trains P only, and passes F as
    well if the buffer holds images.

    Args:
        compute: cost of replay, in units of the training step without it; above 0.

    Attributes:
        due: images to replay that do not fill a batch yet, below ``REPLAYED``.
    """

    def __init__(self, compute: float):
        self.compute = compute
        self.due = 0.0
        self._images_for_each: float | None = None

    def images_for_each(self, model: SplitModel, memories: MemoryBuffer) -> float:
        """Return how many images are replayed for each new one; measured once."""
        if self._images_for_each is None:
            extraction, training = step_flops(model)
            cost_of_new = extraction + training
            cost_of_memory = training + memories.extracts * extraction
            self._images_for_each = self.compute * cost_of_new / cost_of_memory
        return self._images_for_each

    def steps(self, new_images: int, model: SplitModel, memories: MemoryBuffer) -> int:
        """Return the number of replay batches after a batch of ``new_images``.

        Images that do not fill a batch stay due.
        """
        due = self.due + new_images * self.images_for_each(model, memories)
        steps, self.due = divmod(due, REPLAYED)
        return int(steps)

    def share_of_new(self, batch: StreamBatch, memories: MemoryBuffer) -> float:
        """Return the share of the new batch's classes in all that are replayed."""
        new = set(batch.numbers)
        return len(new) / len(new.union(memories.classes))

    def draw(
        self, batch: StreamBatch, memories: MemoryBuffer, model: SplitModel
    ) -> tuple[Tensor, Tensor]:
        """Draw feature maps ``(REPLAYED, C, H, W)`` and labels ``(REPLAYED,)`` int64.

        Both are on the model's device. Maps of a batch that has codes are decoded from
        them. Random numbers are those of the buffer.
        """
        random = memories.slots.random
        positions_of: dict[int, list[int]] = {}
        for position, label in enumerate(batch.numbers):
            positions_of.setdefault(label, []).append(position)
        classes = list(dict.fromkeys([*memories.classes, *positions_of]))
        drawn = _draw_classes(classes, random)

        positions, slots = [], []
        for label in drawn:
            if label in positions_of:
                positions.append(_draw_member(positions_of[label], random))
        for label in drawn:
            if label not in positions_of:
                slots.append(_draw_member(memories.slots.by_class[label], random))

        # No part without an image, which would turn channels-last maps into others.
        maps, labels = [], []
        if positions:
            maps.append(_maps_of(batch, positions, model))
            labels.append(batch.labels[positions])
        if slots:
            old_maps, old_labels = memories.replay(torch.tensor(slots), model)
            maps.append(old_maps)
            labels.append(old_labels)
        return torch.cat(maps), torch.cat(labels)


def _draw_classes(classes: list[int], random: Generator) -> list[int]:
    """Draw ``REPLAYED`` classes, each once before any comes again."""
    drawn: list[int] = []
    while len(drawn) < REPLAYED:
        missing = REPLAYED - len(drawn)
        order = random.permutation(len(classes))[:missing]
        drawn += [classes[index] for index in order]
    return drawn


def _draw_member(members: list[int], random: Generator) -> int:
    return members[int(random.integers(len(members)))]


def _maps_of(batch: StreamBatch, positions: list[int], model: SplitModel) -> Tensor:
    if batch.codes is None:
        return batch.feature_map[positions]
    assert model.codebook is not None, "made the codes"
    return model.codebook.decode(batch.codes[positions])
