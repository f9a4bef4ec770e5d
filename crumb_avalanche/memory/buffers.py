"""Replay buffers as plain tensors: codes, raw images, raw feature maps.

They are storage policies of the plugins of this package. A buffer writes into one
tensor allocated once, so the bytes that the ledger reports are the bytes held.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from crumb_avalanche.memory.packing import bits_per_code, pack, packed_bytes, unpack
from crumb_avalanche.memory.selection import EveryJth, SelectionRule
from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import Memories, check_count
from crumb_avalanche.system.tensor_file import StateError


@dataclass
class StreamBatch:
    """A batch of the stream, offered to a buffer.

    Attributes:
        labels: ``(B,)`` int64.
        feature_map: ``(B, C, H, W)`` float32.
        codes: ``(B, G, H, W)`` codes of the maps, or ``None`` where the forward was not
            quantized.
        pixels: maps positions in the batch to ``(n, 3, h, w)`` ``uint8`` images.
    """

    labels: Tensor
    feature_map: Tensor
    codes: Tensor | None
    pixels: Callable[[Sequence[int]], Tensor]

    @cached_property
    def numbers(self) -> list[int]:
        """The labels as numbers, for which a GPU is waited for once."""
        return self.labels.tolist()


class MemoryBuffer(ABC):
    """Class-balanced buffer of at most ``mem_size`` rows in one preallocated tensor.

    Args:
        mem_size: capacity in memories.
        rule: selects the images that are stored; default the paper's ``EveryJth``.
        seed: of the rule's and the replay's random draws.

    Attributes:
        rows: ``(mem_size, ...)`` tensor, or ``None`` before the first memory; an empty
            slot is all zero.
        labels: ``(mem_size,)`` int16, -1 in empty slots; 2 bytes a memory. With a class
            above 32,767 int32, 4 bytes.
        extracts: whether F runs on a memory that is replayed.
    """

    extracts = False

    def __init__(self, mem_size: int, rule: SelectionRule | None = None, seed: int = 0):
        check_count("mem_size", mem_size, Memories)
        if mem_size < 1:
            raise ValueError(
                f"mem_size is {mem_size}; a buffer holds at least 1 memory: raise mem_size or the budget"
            )
        if not isinstance(rule, SelectionRule | None):
            raise TypeError(
                f"rule is {rule!r}; give an instance of a SelectionRule, such as EveryJth()"
            )
        self.max_size = mem_size
        self.rule = EveryJth() if rule is None else rule
        self.slots = Slots(mem_size, seed)
        self.labels = torch.full((mem_size,), -1, dtype=torch.int16, device="cpu")
        self.rows: Tensor | None = None

    @abstractmethod
    def to_rows(
        self, batch: StreamBatch, positions: Sequence[int], model: SplitModel
    ) -> Tensor:
        """Turn some images of a batch into rows, ``(n, ...)``."""

    @abstractmethod
    def to_maps(self, rows: Tensor, model: SplitModel) -> Tensor:
        """Turn rows into feature maps ``(n, C, H, W)``, with a gradient to the codebook where codes are stored."""

    @staticmethod
    @abstractmethod
    def item_bytes(model: SplitModel) -> int:
        """Bytes of one memory, without its label."""

    def __len__(self) -> int:
        return len(self.slots)

    def __bool__(self) -> bool:  # ``if storage_policy`` asks whether there is a buffer
        return True

    @property
    def classes(self) -> list[int]:
        """Classes with at least one memory."""
        return self.slots.classes

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the stored codes, pixels or maps, as allocated."""
        return 0 if self.rows is None else self.rows.numel() * self.rows.element_size()

    @property
    def label_bytes(self) -> int:
        """Bytes of the stored labels, as allocated."""
        return self.labels.numel() * self.labels.element_size()

    def begin_experience(self, labels: Sequence[int], batch_size: int) -> None:
        """Announce the labels of an experience to the selection rule."""
        coming = {
            int(label): count
            for label, count in sorted(Counter(map(int, labels)).items())
        }
        self._wipe(self.rule.begin_experience(self.slots, coming, batch_size))

    @torch.no_grad()
    def store(self, batch: StreamBatch, model: SplitModel) -> int:
        """Offer a batch to the selection rule, write what it chose, and return the number of memories written."""
        labels = batch.numbers
        chosen = {
            slot: position for position, slot in self.rule.choose(self.slots, labels)
        }
        if chosen:
            positions = list(chosen.values())
            rows = self.to_rows(batch, positions, model).cpu()
            if self.rows is None:
                self.rows = torch.zeros(
                    (self.max_size, *rows.shape[1:]), dtype=rows.dtype
                )
            where = torch.tensor(list(chosen))
            self.rows[where] = rows
            if max(labels) > torch.iinfo(self.labels.dtype).max:
                self.labels = self.labels.int()
            self.labels[where] = torch.tensor(
                [labels[position] for position in positions], dtype=self.labels.dtype
            )
        # A freed slot that was not taken again must not keep its bytes.
        if int((self.labels >= 0).sum()) > len(self.slots):
            self._wipe([slot for slot in self.slots.free if self.labels[slot] >= 0])
        return len(chosen)

    def sample(self, without: set[int], at_least: int) -> Tensor:
        """Draw at least so many ``(n,)`` int64 slots, in rounds of a random memory of each class not in ``without``."""
        candidates = [label for label in self.slots.classes if label not in without]
        if not candidates:
            return torch.empty(0, dtype=torch.int64)
        rounds = -(-at_least // len(candidates))
        drawn = []
        for label in candidates:
            members = self.slots.by_class[label]
            drawn.append(
                [
                    members[place]
                    for place in self.slots.random.integers(len(members), size=rounds)
                ]
            )
        return torch.tensor(drawn).t().reshape(-1)

    def replay(self, slots: Tensor, model: SplitModel) -> tuple[Tensor, Tensor]:
        """Feature maps ``(n, C, H, W)`` and labels ``(n,)`` int64 of drawn slots, on the model's device."""
        assert self.rows is not None, "drawn slots hold memories"
        device = model.pixel_mean.device
        labels = self.labels[slots].long().to(device)
        return self.to_maps(self.rows[slots].to(device), model), labels

    def state_dict(self) -> dict[str, Any]:
        """Rows, labels, slots, the state of the selection rule and that of the random draws."""
        return {
            "rows": self.rows,
            "labels": self.labels,
            "free": list(self.slots.free),
            "by_class": {
                label: list(slots) for label, slots in self.slots.by_class.items()
            },
            "random": self.slots.random.bit_generator.state,
            "rule": self.rule.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned.

        Raises:
            StateError: it is of another capacity.
        """
        if len(state["labels"]) != self.max_size:
            raise StateError(
                f"the saved buffer has mem_size={len(state['labels'])}, this one {self.max_size}; give the same"
            )
        self.labels = state["labels"].clone()
        self.rows = None if state["rows"] is None else state["rows"].clone()
        self.slots.free = list(state["free"])
        self.slots.by_class = {
            label: list(slots) for label, slots in state["by_class"].items()
        }
        self.slots.random.bit_generator.state = state["random"]
        self.rule.load_state_dict(state["rule"])

    def _wipe(self, slots: list[int]) -> None:
        if slots:
            self.labels[slots] = -1
            if self.rows is not None:
                self.rows[slots] = 0


class CodeBuffer(MemoryBuffer):
    """CRUMB's memory: bit-packed codes, ``ceil(G * H * W * bits / 8)`` bytes each (5,408 for 512x13x13 at 256x16)."""

    @staticmethod
    def item_bytes(model):
        channels, height, width = model.map_shape
        return packed_bytes(
            model.codebook.groups(channels) * height * width,
            bits_per_code(model.codebook.codebook_size),
        )

    def to_rows(self, batch, positions, model):
        codes = (
            model.encode(batch.feature_map[positions])
            if batch.codes is None
            else batch.codes[positions]
        )
        flat = codes.permute(0, 2, 3, 1).reshape(len(positions), -1)
        return pack(
            flat.cpu(), bits_per_code(model.codebook.codebook_size)
        )  # packing would wait for a GPU as well

    def to_maps(self, rows, model):
        channels, height, width = model.map_shape
        groups = model.codebook.groups(channels)
        codes = unpack(
            rows, bits_per_code(model.codebook.codebook_size), groups * height * width
        )
        return model.codebook.decode(
            codes.view(-1, height, width, groups).permute(0, 3, 1, 2)
        )


class ImageBuffer(MemoryBuffer):
    """Raw images as ``uint8`` pixels, ``3 * h * w`` bytes each (150,528 at 224 pixels); F runs again at replay."""

    extracts = True

    @staticmethod
    def item_bytes(model):
        return 3 * model.image_size**2

    def to_rows(self, batch, positions, model):
        return batch.pixels(positions)

    def to_maps(self, rows, model):
        return model.features(rows)

    def replay(self, slots, model):
        # A small buffer is drawn from many times over: run F once for each image.
        unique, inverse = slots.unique(return_inverse=True)
        maps, labels = super().replay(unique, model)
        return maps[inverse], labels[inverse.to(labels.device)]


class MapBuffer(MemoryBuffer):
    """Raw float32 feature maps, ``4 * C * H * W`` bytes each (346,112 for 512x13x13)."""

    @staticmethod
    def item_bytes(model):
        channels, height, width = model.map_shape
        return 4 * channels * height * width

    def to_rows(self, batch, positions, model):
        return batch.feature_map[positions].float().contiguous()

    def to_maps(self, rows, model):
        return rows.contiguous(memory_format=torch.channels_last)
