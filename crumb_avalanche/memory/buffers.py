"""Replay buffers as plain tensors: codes, raw images, raw feature maps.

They are storage policies of the plugins of this package. A buffer writes into one
tensor allocated once, so the bytes that the ledger reports are the bytes held.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from benchmarks_toybox_ilab.tables.numbers import is_whole_number
from crumb_avalanche.memory.packing import bits_per_code, pack, packed_bytes, unpack
from crumb_avalanche.memory.selection import EveryJth, SelectionRule
from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.setting_ranges import Memories, check_count
from crumb_avalanche.system.value_types import StateError

EMPTY = -1  # the label of a slot without a memory


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
    def label_numbers(self) -> list[int]:
        """The labels as a list, for which a GPU is waited for once."""
        return self.labels.tolist()

    def of_classes(self, classes: Collection[int]) -> "StreamBatch":
        """Return the part of the batch whose images are of some classes.

        It is the batch itself if all of them are.
        """
        positions = []
        for position, label in enumerate(self.label_numbers):
            if label in classes:
                positions.append(position)
        if len(positions) == len(self.label_numbers):
            return self

        def read_pixels(positions_in_part: Sequence[int]) -> Tensor:
            """Return pixels ``(n, 3, h, w)`` of some images of the part."""
            return self.pixels([positions[index] for index in positions_in_part])

        return StreamBatch(
            labels=self.labels[positions],
            feature_map=self.feature_map[positions],
            codes=None if self.codes is None else self.codes[positions],
            pixels=read_pixels,
        )


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

    extracts: ClassVar[bool] = False
    class_numbers: ClassVar[tuple[str, ...]] = ("labels",)  # entries of the state

    def __init__(self, mem_size: int, rule: SelectionRule | None = None, seed: int = 0):
        if is_whole_number(mem_size) and mem_size < 1:
            raise ValueError(
                f"mem_size is {mem_size}; a buffer holds at least 1 memory: raise "
                "mem_size or the budget"
            )
        check_count("mem_size", mem_size, Memories)
        if not isinstance(rule, SelectionRule | None):
            raise TypeError(
                f"rule is {rule!r}; give an instance of a SelectionRule, such as "
                "EveryJth()"
            )
        self.max_size = mem_size  # the name of Avalanche's buffers
        self.rule = EveryJth() if rule is None else rule
        self.slots = Slots(mem_size, seed)
        self.labels = torch.full((mem_size,), EMPTY, dtype=torch.int16, device="cpu")
        # Allocated by the first memory, which tells the shape and type of a row.
        self.rows: Tensor | None = None

    @abstractmethod
    def to_rows(
        self, batch: StreamBatch, positions: Sequence[int], model: SplitModel
    ) -> Tensor:
        """Turn some images of a batch into rows, ``(n, ...)``.

        Args:
            batch: images, their labels and maps.
            positions: of the images in the batch.
            model: whose maps they are.
        """

    @abstractmethod
    def to_maps(self, rows: Tensor, model: SplitModel) -> Tensor:
        """Turn rows into feature maps ``(n, C, H, W)``.

        Where codes are stored, they have a gradient to the codebook.

        Args:
            rows: ``(n, ...)``, as ``to_rows`` returned them.
            model: that computes or decodes the maps.
        """

    @staticmethod
    @abstractmethod
    def item_bytes(model: SplitModel) -> int:
        """Bytes of one memory, without its label.

        Args:
            model: whose maps, or whose images, are stored.
        """

    def __len__(self) -> int:
        return len(self.slots)

    def __bool__(self) -> bool:  # ``if storage_policy`` asks whether there is a buffer
        return True

    @property
    def classes(self) -> list[int]:
        """Classes with at least one memory."""
        return self.slots.classes

    @property
    def buffer(self) -> Any:
        """Raise AttributeError: Avalanche's data set of exemplars is not here.

        Its ``ReplayPlugin`` and others read it of their storage policy.
        """
        name = type(self).__name__
        raise AttributeError(
            f"a {name} stores rows batch by batch and has no data set of images, which "
            "Avalanche's plugins take from a storage policy's buffer: use "
            f"CRUMBPlugin({name}({self.max_size})) instead of ReplayPlugin"
        )

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the stored codes, pixels or maps, as allocated."""
        if self.rows is None:
            return 0
        return self.rows.numel() * self.rows.element_size()

    @property
    def label_bytes(self) -> int:
        """Bytes of the stored labels, as allocated."""
        return self.labels.numel() * self.labels.element_size()

    def begin_experience(self, labels: Sequence[int], batch_size: int) -> None:
        """Tell the selection rule how many images of each class are coming.

        Args:
            labels: of all images of the experience.
            batch_size: of the batches that will be offered.
        """
        counts = Counter(map(int, labels))
        coming_by_class = dict(sorted(counts.items()))
        freed_slots = self.rule.begin_experience(
            self.slots, coming_by_class, batch_size
        )
        self._wipe_slots(freed_slots)

    @torch.no_grad()
    def store(self, batch: StreamBatch, model: SplitModel) -> int:
        """Offer a batch to the selection rule, and write the images that it chose.

        The rule gives each of them a slot, the place of one memory in the buffer.

        Args:
            batch: images with labels and feature maps.
            model: whose maps they are; it encodes them where codes are stored.

        Returns:
            The number of memories written.
        """
        position_of_slot: dict[int, int] = {}  # slot -> position in the batch
        for position, slot in self.rule.choose(self.slots, batch.label_numbers):
            position_of_slot[slot] = position  # of two images the later one is stored
        if position_of_slot:
            positions = list(position_of_slot.values())
            rows = self.to_rows(batch, positions, model).cpu()
            labels = [batch.label_numbers[position] for position in positions]
            self._write_slots(list(position_of_slot), rows, labels)
        self._wipe_freed_slots()
        return len(position_of_slot)

    def sample(
        self, without: set[int], at_least: int, at_most: int | None = None
    ) -> Tensor:
        """Draw slots of memories to replay, equally many of each class.

        A slot is the place of one memory in the buffer, by its number. A round has a
        random memory of each class; there are as many rounds as give ``at_least``
        slots.

        Args:
            without: classes that are not drawn from.
            at_least: smallest number of slots.
            at_most: largest number of slots; default no limit. Of more classes than
                that, so many are drawn at random, and the others have no slot; of
                fewer, the last round ends at the limit.

        Returns:
            ``(n,)`` int64, round by round; empty if no class is left.
        """
        classes = [label for label in self.slots.classes if label not in without]
        if not classes:
            return torch.empty(0, dtype=torch.int64)
        if at_most is not None and len(classes) > at_most:
            drawn = self.slots.random.permutation(len(classes))[:at_most]
            classes = [classes[index] for index in drawn]
        n_rounds = math.ceil(at_least / len(classes))
        drawn_slots = []  # of each class a slot for each round
        for label in classes:
            class_slots = self.slots.by_class[label]
            draws = self.slots.random.integers(len(class_slots), size=n_rounds)
            drawn_slots.append([class_slots[index] for index in draws])
        slots_by_round = torch.tensor(drawn_slots).t()
        return slots_by_round.reshape(-1)[:at_most]

    def replay(self, slots: Tensor, model: SplitModel) -> tuple[Tensor, Tensor]:
        """Return the memories of drawn slots, on the model's device.

        Args:
            slots: ``(n,)`` int64, as ``sample`` returned them.
            model: that computes or decodes the maps.

        Returns:
            feature maps, ``(n, C, H, W)``, and labels, ``(n,)`` int64.
        """
        assert self.rows is not None, "drawn slots hold memories"
        device = model.pixel_mean.device
        labels = self.labels[slots].long().to(device)
        return self.to_maps(self.rows[slots].to(device), model), labels

    def state_dict(self) -> dict[str, Any]:
        """Return the memories, the slots, and the states of selection rule and RNG.

        The types of buffer and rule are in it by name, for ``check_state``.
        """
        return {
            "type": type(self).__name__,
            "rule_type": type(self.rule).__name__,
            "rows": self.rows,
            "labels": self.labels,
            "free": list(self.slots.free),
            "by_class": _copy_of_slots(self.slots.by_class),
            "random": self.slots.random.bit_generator.state,
            "rule": self.rule.state_dict(),
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise StateError for the state of another buffer; nothing is changed.

        Its type, its capacity and the type of its selection rule are compared.

        Args:
            state: what ``state_dict`` returned.
        """
        saved_size = len(state["labels"])
        saved = f"{state['type']}({saved_size}, {state['rule_type']}())"
        own = f"{type(self).__name__}({self.max_size}, {type(self.rule).__name__}())"
        if saved != own:
            raise StateError(
                f"the saved buffer is {saved}, this one is {own}; build the same "
                "strategy"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load memories, slots and the selection rule, as ``state_dict`` returned them.

        Args:
            state: ``rows`` and ``labels`` of the memories, ``free`` slots and those of
                each class, and the states of the ``random`` numbers and the ``rule``.

        Raises:
            StateError: see ``check_state``.
        """
        self.check_state(state)
        # Copies, as storing overwrites rows in place.
        self.labels = state["labels"].clone()
        rows = state["rows"]  # None before the first memory
        self.rows = None if rows is None else rows.clone()
        self.slots.free = list(state["free"])
        self.slots.by_class = _copy_of_slots(state["by_class"])  # lists by class
        self.slots.random.bit_generator.state = state["random"]
        self.rule.load_state_dict(state["rule"])

    def _write_slots(self, slots: list[int], rows: Tensor, labels: list[int]) -> None:
        """Write ``(n, ...)`` rows and their labels to the slots of the buffer."""
        if self.rows is None:
            self.rows = torch.zeros((self.max_size, *rows.shape[1:]), dtype=rows.dtype)
        self.rows[torch.tensor(slots)] = rows
        self._write_labels(slots, labels)

    def _write_labels(self, slots: list[int], labels: list[int]) -> None:
        """Write the labels of slots, in a type that holds all of them."""
        if max(labels) > torch.iinfo(self.labels.dtype).max:
            self.labels = self.labels.int()
        self.labels[slots] = torch.tensor(labels, dtype=self.labels.dtype)

    def _wipe_freed_slots(self) -> None:
        """Wipe slots that were freed and not taken again: they keep no old memory."""
        n_labelled = int((self.labels != EMPTY).sum())
        if n_labelled > len(self.slots):
            free_slots = torch.tensor(self.slots.free)
            is_labelled = self.labels[free_slots] != EMPTY
            self._wipe_slots(free_slots[is_labelled].tolist())

    def _wipe_slots(self, slots: list[int]) -> None:
        """Set the rows of slots to zero, and their labels to ``EMPTY``."""
        if slots:
            self.labels[slots] = EMPTY
            if self.rows is not None:
                self.rows[slots] = 0


def _copy_of_slots(by_class: dict[int, list[int]]) -> dict[int, list[int]]:
    """Copy the slots of each class."""
    return {label: list(slots) for label, slots in by_class.items()}


class CodeBuffer(MemoryBuffer):
    """CRUMB's memory: the codes of feature maps, bit-packed.

    A memory is the paper's ``m_i``. It takes ``ceil(G * H * W * bits / 8)`` bytes,
    5,408 for maps of 512x13x13 and a codebook of 256x16.

    Example:
        >>> from crumb_avalanche import CodeBuffer, split_backbone
        >>> model = split_backbone("small_cnn", None, n_classes=4, image_size=64)
        >>> model.map_shape
        (128, 8, 8)
        >>> CodeBuffer.item_bytes(model)
        512
        >>> buffer = CodeBuffer(mem_size=100)
        >>> len(buffer), buffer.classes
        (0, [])
    """

    @staticmethod
    def item_bytes(model: SplitModel) -> int:
        """Return the bytes of the packed codes of one map, without its label.

        Args:
            model: as for ``MemoryBuffer.item_bytes``.
        """
        n_channels, height, width = model.map_shape
        codebook = _codebook_of(model)
        n_codes = codebook.n_groups(n_channels) * height * width
        return packed_bytes(n_codes, bits_per_code(codebook.codebook_size))

    def to_rows(
        self, batch: StreamBatch, positions: Sequence[int], model: SplitModel
    ) -> Tensor:
        """Pack the codes of some images of a batch, ``(n, bytes)`` uint8.

        Args:
            batch: has their codes, or feature maps that are encoded here.
            positions: of the ``n`` images in the batch.
            model: has the codebook.
        """
        if batch.codes is None:
            codes_bghw = model.encode(batch.feature_map[positions])
        else:
            codes_bghw = batch.codes[positions]
        codes_bhwg = codes_bghw.permute(0, 2, 3, 1)  # location by location
        # On the CPU: packing would wait for a GPU as well.
        codes_of_images = codes_bhwg.reshape(len(positions), -1).cpu()
        codebook = _codebook_of(model)
        return pack(codes_of_images, bits_per_code(codebook.codebook_size))

    def to_maps(self, rows: Tensor, model: SplitModel) -> Tensor:
        """Decode rows of packed codes, ``(n, bytes)``, to maps ``(n, C, H, W)``.

        Args:
            rows, model: as for ``MemoryBuffer.to_maps``.
        """
        n_channels, height, width = model.map_shape
        codebook = _codebook_of(model)
        n_groups = codebook.n_groups(n_channels)
        bits = bits_per_code(codebook.codebook_size)
        codes_per_item = unpack(rows, bits, n_groups * height * width)
        codes_bhwg = codes_per_item.view(-1, height, width, n_groups)
        return codebook.decode(codes_bhwg.permute(0, 3, 1, 2))


def _codebook_of(model: SplitModel) -> Codebook:
    """Return the codebook of a model that has one."""
    assert model.codebook is not None, "only a codebook makes codes"
    return model.codebook


class ImageBuffer(MemoryBuffer):
    """Raw images as ``uint8`` pixels; F runs again at replay.

    A memory takes ``3 * h * w`` bytes, 150,528 at 224 pixels.
    """

    extracts = True

    @staticmethod
    def item_bytes(model: SplitModel) -> int:
        """Return the bytes of the pixels of one image, without its label.

        Args:
            model: as for ``MemoryBuffer.item_bytes``.
        """
        return 3 * model.image_size**2

    def to_rows(
        self, batch: StreamBatch, positions: Sequence[int], model: SplitModel
    ) -> Tensor:
        """Return the pixels of some images of a batch, ``(n, 3, h, w)`` uint8.

        Args:
            batch, positions, model: as for ``MemoryBuffer.to_rows``.

        Raises:
            ValueError: images are not of ``image_size``, whose bytes are charged.
        """
        pixels = batch.pixels(positions)
        height, width = pixels.shape[2:]
        side = model.image_size
        if (height, width) != (side, side):
            raise ValueError(
                f"images of {height} x {width} pixels are to be stored, but the model "
                f"was built with image_size={side}, by which their bytes are counted; "
                f"resize the images to {side} x {side} pixels in the transform, or "
                "build the model with their image_size"
            )
        return pixels

    def to_maps(self, rows: Tensor, model: SplitModel) -> Tensor:
        """Run F on ``(n, 3, h, w)`` pixels: ``(n, C, H, W)`` maps.

        Args:
            rows, model: as for ``MemoryBuffer.to_maps``.
        """
        return model.features(rows)

    def replay(self, slots: Tensor, model: SplitModel) -> tuple[Tensor, Tensor]:
        """Return maps and labels of drawn slots, with one pass of F for each image.

        A small buffer is drawn from many times over.

        Args:
            slots, model: as for ``MemoryBuffer.replay``.

        Returns:
            feature maps, ``(n, C, H, W)``, and labels, ``(n,)`` int64.
        """
        unique_slots, inverse = slots.unique(return_inverse=True)
        maps, labels = super().replay(unique_slots, model)
        return maps[inverse], labels[inverse.to(labels.device)]


class MapBuffer(MemoryBuffer):
    """Raw float32 feature maps.

    A memory takes ``4 * C * H * W`` bytes, 346,112 for 512x13x13.
    """

    @staticmethod
    def item_bytes(model: SplitModel) -> int:
        """Return the bytes of one float32 map, without its label.

        Args:
            model: as for ``MemoryBuffer.item_bytes``.
        """
        n_channels, height, width = model.map_shape
        return 4 * n_channels * height * width

    def to_rows(
        self, batch: StreamBatch, positions: Sequence[int], model: SplitModel
    ) -> Tensor:
        """Return the maps of some images of a batch, ``(n, C, H, W)`` float32.

        Args:
            batch, positions, model: as for ``MemoryBuffer.to_rows``.
        """
        return batch.feature_map[positions].float().contiguous()

    def to_maps(self, rows: Tensor, model: SplitModel) -> Tensor:
        """Return the stored maps, ``(n, C, H, W)``, channels-last in memory.

        Args:
            rows, model: as for ``MemoryBuffer.to_maps``.
        """
        return rows.contiguous(memory_format=torch.channels_last)
