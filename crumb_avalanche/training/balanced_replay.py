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
        """Return how many images are replayed for each new one.

        Their cost is ``compute`` times that of the new image, in floating-point
        operations of the model; it is measured once.
        """
        if self._images_for_each is None:
            extraction_flops, training_flops = step_flops(model)
            flops_of_new = extraction_flops + training_flops
            flops_of_memory = training_flops
            if memories.extracts:  # it holds images, which pass F
                flops_of_memory += extraction_flops
            self._images_for_each = self.compute * flops_of_new / flops_of_memory
        return self._images_for_each

    def n_batches(
        self, n_new_images: int, model: SplitModel, memories: MemoryBuffer
    ) -> int:
        """Return the number of replay batches after a batch of ``n_new_images``.

        Images that do not fill a batch stay due.
        """
        due = self.due + n_new_images * self.images_for_each(model, memories)
        batches, self.due = divmod(due, REPLAYED)
        return int(batches)

    def share_of_new(self, batch: StreamBatch, memories: MemoryBuffer) -> float:
        """Return the share of the new batch's classes in all that are replayed."""
        new_classes = set(batch.label_numbers)
        all_classes = new_classes.union(memories.classes)
        return len(new_classes) / len(all_classes)

    def draw(
        self, batch: StreamBatch, memories: MemoryBuffer, model: SplitModel
    ) -> tuple[Tensor, Tensor]:
        """Draw a replay batch in which each class has the same chance.

        Classes of the new batch are drawn from it, all others from the memories. Maps
        of a batch that has codes are decoded from them.

        Args:
            batch: the new batch: labels, feature maps and maybe codes.
            memories: buffer, which gives the random numbers, too.
            model: decodes codes; its device is that of the result.

        Returns:
            Feature maps ``(REPLAYED, C, H, W)`` and labels ``(REPLAYED,)`` int64.
        """
        random = memories.slots.random
        positions_by_class: dict[int, list[int]] = {}  # of images in the new batch
        for position, label in enumerate(batch.label_numbers):  # of every image
            positions_by_class.setdefault(label, []).append(position)
        classes = list(dict.fromkeys([*memories.classes, *positions_by_class]))
        classes_of_images = _draw_classes(classes, random)

        positions: list[int] = []  # of images of the new batch
        for label in classes_of_images:
            if label in positions_by_class:
                positions.append(_draw_member(positions_by_class[label], random))
        slots: list[int] = []  # of memories, their numbers in the buffer
        for label in classes_of_images:
            if label not in positions_by_class:
                slots.append(_draw_member(memories.slots.by_class[label], random))

        # Parts without an image are left out: concatenated, an empty one would turn
        # channels-last maps into others.
        maps: list[Tensor] = []
        labels: list[Tensor] = []
        if positions:
            maps.append(_maps_at(positions, batch, model))
            labels.append(batch.labels[positions])
        if slots:
            memory_maps, memory_labels = memories.replay(torch.tensor(slots), model)
            maps.append(memory_maps)
            labels.append(memory_labels)
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
    """Draw a position or slot of those of a class."""
    return members[int(random.integers(len(members)))]


def _maps_at(positions: list[int], batch: StreamBatch, model: SplitModel) -> Tensor:
    """Return feature maps ``(n, C, H, W)`` of a batch, decoded if it has codes."""
    if batch.codes is None:
        return batch.feature_map[positions]
    assert model.codebook is not None, "made the codes"
    return model.codebook.decode(batch.codes[positions])
