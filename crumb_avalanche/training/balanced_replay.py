"""Replay that gives every class the same weight, at a cost that does not depend on the number of classes."""

import torch
from torch import Tensor

from crumb_avalanche.memory.buffers import MemoryBuffer, StreamBatch
from crumb_avalanche.models.flops import step_flops
from crumb_avalanche.models.split_model import SplitModel

REPLAYED = 8  # images of a replay batch: many small steps learn more than few large ones of the same cost


class BalancedReplay:
    """Draws replay batches in which every class has the same chance, however many images it has.

    A class of the new batch is drawn from the new batch, whose feature maps are at hand, and any other class from the
    memories.

    The number of images to replay follows from the cost of the model. A new image passes F and trains P; a memory
    trains P only, and passes F as well if the buffer holds images. A step of the stream costs ``1 + compute`` times as
    much as without replay.

    Args:
        compute: cost of replay, in units of the training step without it.

    Raises:
        ValueError: ``compute`` is not above 0.

    Attributes:
        due: images to replay that do not fill a batch yet.
    """

    def __init__(self, compute: float):
        if not compute > 0:
            raise ValueError(f"replay_compute is {compute}; give a number above 0: 2 makes a step cost 3 times as much")
        self.compute = compute
        self.due = 0.0
        self._each: float | None = None

    def images_for_each(self, model: SplitModel, memories: MemoryBuffer) -> float:
        """Return how many images are replayed for each new one."""
        if self._each is None:
            extraction, training = step_flops(model)
            self._each = self.compute * (extraction + training) / (training + memories.extracts * extraction)
        return self._each

    def steps(self, new_images: int, model: SplitModel, memories: MemoryBuffer) -> int:
        """Return the number of replay batches after a batch of ``new_images``; the rest stays due."""
        steps, self.due = divmod(self.due + new_images * self.images_for_each(model, memories), REPLAYED)
        return int(steps)

    def draw(self, batch: StreamBatch, memories: MemoryBuffer, model: SplitModel) -> tuple[Tensor, Tensor]:
        """Draw feature maps ``(REPLAYED, C, H, W)`` and labels ``(REPLAYED,)`` int64, on the model's device.

        Args:
            batch: the new batch; where it has codes, its maps are decoded from them.
            memories: a buffer; its random numbers are used.
            model: the model, whose codebook gets gradients from decoded maps.
        """
        random = memories.slots.random
        positions: dict[int, list[int]] = {}
        for position, label in enumerate(batch.numbers):
            positions.setdefault(label, []).append(position)
        classes = list(dict.fromkeys([*memories.classes, *positions]))
        drawn: list[int] = []
        while len(drawn) < REPLAYED:
            drawn += [classes[place] for place in random.permutation(len(classes))[: REPLAYED - len(drawn)]]
        new = [_any(positions[label], random) for label in drawn if label in positions]
        old = [_any(memories.slots.by_class[label], random) for label in drawn if label not in positions]
        parts = []  # none without an image, which would turn channels-last maps into others
        if new:
            maps = batch.feature_map[new] if batch.codes is None else model.codebook.decode(batch.codes[new])
            parts.append((maps, batch.labels[new]))
        if old:
            parts.append(memories.replay(torch.tensor(old), model))
        maps, labels = zip(*parts)
        return torch.cat(maps), torch.cat(labels)


def _any(items: list[int], random) -> int:
    return items[int(random.integers(len(items)))]
