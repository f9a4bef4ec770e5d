"""The replay buffers of ``memory.buffers`` as Avalanche ``ExemplarsBuffer``s.

Avalanche's own buffers keep views on every mini-batch ever seen; these own their memory.
"""

import torch
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.training.storage_policy import ExemplarsBuffer
from torch.utils.data import TensorDataset

from crumb_avalanche.memory.buffers import CodeMemory, ImageMemory, MapMemory, MemoryBuffer
from crumb_avalanche.memory.selection import SelectionRule


class CompactBuffer(MemoryBuffer, ExemplarsBuffer):
    """A ``MemoryBuffer`` that is an Avalanche ``ExemplarsBuffer``.

    Args:
        mem_size: capacity in memories (Avalanche's ``max_size``).
        rule, seed: see ``MemoryBuffer``.
    """

    def __init__(self, mem_size: int, rule: SelectionRule | None = None, seed: int = 0):
        MemoryBuffer.__init__(self, mem_size, rule, seed)  # the host's constructor sets max_size and an empty data set

    def resize(self, strategy, new_size: int) -> None:
        """See ``MemoryBuffer.set_capacity``."""
        self.set_capacity(new_size)

    def post_adapt(self, agent_state, exp) -> None:
        """Do nothing: ``store`` writes memories batch by batch."""

    @property
    def buffer(self) -> AvalancheDataset:
        """The memories as an Avalanche dataset of ``(row, label, task label 0)``; rows are views, not copies."""
        held = sorted(slot for members in self.slots.by_class.values() for slot in members)
        rows = torch.empty(0) if self.rows is None else self.rows[: max(held) + 1]
        labels = self.labels.long()
        if held != list(range(len(held))):
            rows = rows[held]
        targets = labels[held]
        return AvalancheDataset(
            [TensorDataset(rows, targets)],
            data_attributes=[
                DataAttribute(targets, "targets"),
                DataAttribute(torch.zeros_like(targets), "targets_task_labels", use_in_getitem=True),
            ],
        )

    @buffer.setter
    def buffer(self, new_buffer) -> None:
        raise AttributeError("the memories are written by store(); the buffer property is a view of them")


class CodeBuffer(CodeMemory, CompactBuffer):
    """CRUMB's memory: bit-packed codes, ``ceil(G * H * W * bits / 8)`` bytes each (5,408 for 512x13x13 at 256x16)."""


class ImageBuffer(ImageMemory, CompactBuffer):
    """Raw images as ``uint8`` pixels, ``3 * h * w`` bytes each (150,528 at 224 pixels); F runs again at replay."""


class MapBuffer(MapMemory, CompactBuffer):
    """Raw float32 feature maps, ``4 * C * H * W`` bytes each (346,112 for 512x13x13)."""
