"""The replay buffers of ``memory.buffers`` as Avalanche ``ExemplarsBuffer``s.

Avalanche's own buffers keep views on every mini-batch ever seen; these own their memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute, TaskAwareSupervisedClassificationDataset
from avalanche.models import MultiTaskModule
from avalanche.training.storage_policy import ExemplarsBuffer
from torch import Tensor
from torch.utils.data import Dataset

from crumb_avalanche.memory.buffers import CodeMemory, ImageMemory, MapMemory, MemoryBuffer, StreamBatch
from crumb_avalanche.memory.selection import SelectionRule
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.training.data import Normalization, labels_of, normalization_of
from crumb_avalanche.training.stateful import StatefulPlugin


class _Memories(Dataset):
    """The memories in some slots of a buffer, as ``item_of`` returns them."""

    def __init__(self, buffer: "CompactBuffer", slots: Sequence[int]):
        self.rows, self.labels, self.slots, self.to_item = buffer.rows, buffer.labels, slots, buffer.item_of

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, number: int) -> tuple[Tensor, int | Tensor]:
        slot = self.slots[number]
        return self.to_item(self.rows[slot], int(self.labels[slot]))


class CompactBuffer(MemoryBuffer, ExemplarsBuffer):
    """A ``MemoryBuffer`` that is an Avalanche ``ExemplarsBuffer``.

    An empty one is true, too: ``if storage_policy`` asks whether there is a buffer.

    Args:
        mem_size: capacity in memories (Avalanche's ``max_size``), at least 1; each has a label of 2 bytes besides (4
            with a class above 32,767).
        rule: selects the images that are stored; default ``EveryJth()``.
        seed: seed of the random draws of the rule and of replay.

    Attributes:
        labels: ``(mem_size,)`` int16 or int32, -1 in empty slots.
    """

    contents = "rows of its own kind"
    task_labels = True  # whether items of the stream have one

    def __init__(self, mem_size: int, rule: SelectionRule | None = None, seed: int = 0):
        MemoryBuffer.__init__(self, mem_size, rule, seed)  # the host's constructor sets max_size and an empty data set

    def __bool__(self) -> bool:
        return True

    def resize(self, strategy, new_size: int) -> None:
        """See ``MemoryBuffer.set_capacity``."""
        self.set_capacity(new_size)

    def post_adapt(self, agent_state, exp) -> None:
        """Store images of an experience after its training, for Avalanche's own plugins such as ``ReplayPlugin``.

        It does nothing if a plugin of this package, such as ``CRUMBPlugin``, stores in this buffer batch by batch.
        """
        ours = [plugin for plugin in getattr(agent_state, "plugins", ()) if isinstance(plugin, StatefulPlugin)]
        if all(getattr(plugin, "storage_policy", None) is not self for plugin in ours):
            self.update_from_dataset(exp.dataset, agent_state)

    def update_from_dataset(self, new_data: AvalancheDataset, strategy=None) -> None:
        """Raise ``TypeError``: the buffer does not hold images."""
        name = type(self).__name__
        raise TypeError(
            f"a {name} holds {self.contents}, not images, so Avalanche's plugins can neither fill nor replay it: use "
            f"CRUMBPlugin({name}(...)); or with ReplayPlugin an ImageBuffer or one of Avalanche's own buffers"
        )

    def item_of(self, row: Tensor, label: int) -> tuple[Tensor, int | Tensor]:
        """Return a row and its label as ``buffer`` gives them."""
        return row, label

    @property
    def buffer(self) -> AvalancheDataset:
        """The memories as an Avalanche dataset of ``(row, label, task label 0)``, valid until the next change.

        It reads rows from the buffer's tensor and has no copies.
        """
        return self._dataset(slot for members in self.slots.by_class.values() for slot in members)

    @buffer.setter
    def buffer(self, new_buffer) -> None:
        raise AttributeError("the memories are written by store(); the buffer property is a view of them")

    @property
    def buffer_datasets(self) -> list[AvalancheDataset]:
        """The memories as one dataset for each class in ``classes``; see ``buffer``."""
        return [self._dataset(self.slots.by_class[label]) for label in self.classes]

    def _dataset(self, slots) -> AvalancheDataset:
        held = sorted(slots)
        attributes = [DataAttribute(self.labels[held].tolist(), "targets")]
        if not self.task_labels:
            return AvalancheDataset([_Memories(self, held)], data_attributes=attributes)
        attributes.append(DataAttribute([0] * len(held), "targets_task_labels", use_in_getitem=True))
        return TaskAwareSupervisedClassificationDataset([_Memories(self, held)], data_attributes=attributes)


class CodeBuffer(CodeMemory, CompactBuffer):
    """CRUMB's memory: bit-packed codes, ``ceil(G * H * W * bits / 8)`` bytes each (5,408 for 512x13x13 at 256x16).

    Paper: "Replay to mitigate catastrophic forgetting". For the arguments see ``CompactBuffer``.

    Attributes:
        rows: ``(mem_size, bytes of a memory)`` uint8, or ``None`` before the first memory.
    """

    contents = "codes"


class MapBuffer(MapMemory, CompactBuffer):
    """Raw float32 feature maps, ``4 * C * H * W`` bytes each (346,112 for 512x13x13).

    For the arguments see ``CompactBuffer``.

    Attributes:
        rows: ``(mem_size, C, H, W)`` float32, or ``None`` before the first memory.
    """

    contents = "feature maps"


@dataclass(frozen=True)
class _ImageFormat:
    """How a stream gives its images."""

    dtype: str
    mean: Sequence[float]  # by channel, as the deviation
    std: Sequence[float]
    tensor_labels: bool
    task_labels: bool  # whether one follows the label

    @property
    def channels(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation as ``(channels, 1, 1)``."""
        mean, std = (torch.tensor(values, dtype=torch.float32).view(-1, 1, 1) for values in (self.mean, self.std))
        return mean, std


class ImageBuffer(ImageMemory, CompactBuffer):
    """Raw images as ``uint8`` pixels, ``3 * h * w`` bytes each (150,528 at 224 pixels); F runs again at replay.

    Avalanche's own plugins can use it with any model: ``ReplayPlugin(mem_size=20, storage_policy=ImageBuffer(20))``.
    Images are then stored after the training of an experience, as its transforms for training give them, rounded to 256
    levels. From then on ``buffer`` gives them as the stream does: with the same types and normalisation. For the
    arguments see ``CompactBuffer``.

    Attributes:
        rows: ``(mem_size, 3, h, w)`` uint8, or ``None`` before the first memory.
        normalization: mean and standard deviation, by channel, of the float images that Avalanche's plugins store. By
            default the ones that were set on a ``SplitModel``, else those of ``Normalize`` in the data set's
            transforms, else the ``SplitModel``'s; without any of these, images are floats from 0 to 1.
    """

    normalization: Normalization | None = None
    _format: _ImageFormat | None = None

    @property
    def task_labels(self) -> bool:  # type: ignore[override]
        return self._format is None or self._format.task_labels

    def update_from_dataset(self, new_data: AvalancheDataset, strategy=None) -> None:
        """Store images of a data set by the selection rule, as those of a new experience.

        Args:
            new_data: items begin with image and label; images are ``(3, h, w)`` tensors, ``uint8`` or normalised float.
            strategy: whose model and batch size are used.

        Raises:
            TypeError: the images are not such tensors.
            ValueError: a pixel is out of range if the normalisation is taken back; or the model has an output head
                for each task, since the buffer keeps no task labels.
        """
        labels, model = labels_of(new_data), getattr(strategy, "model", None)
        if not labels:
            return
        if self._format is None:
            self._format = self._format_of(new_data, model)
        if isinstance(model, MultiTaskModule) and any(map(int, getattr(new_data, "targets_task_labels", ()))):
            raise ValueError(
                f"a {type(self).__name__} replays its images with task label 0, and a {type(model).__name__} has a "
                "head for each task: use one of Avalanche's own buffers"
            )
        size = getattr(strategy, "train_mb_size", 1)
        self.begin_experience(labels, size)
        for start in range(0, len(labels), size):
            part = torch.tensor(labels[start : start + size])
            self.store(StreamBatch(part, torch.empty(0), None, self._reader(new_data, start)), model)  # type: ignore[arg-type]
            if self.rule.finished:
                break

    def _format_of(self, data: AvalancheDataset, model) -> _ImageFormat:
        image, label, *_ = data[0]
        if not isinstance(image, Tensor) or not (image.dtype == torch.uint8 or image.is_floating_point()):
            kind = image.dtype if isinstance(image, Tensor) else type(image).__name__
            raise TypeError(
                f"the stream's images are {kind}; an ImageBuffer stores uint8 or normalised float tensors: give the "
                "data sets a transform such as torchvision's ToTensor()"
            )
        found = self.normalization
        split = isinstance(model, SplitModel)
        if found is None and not (split and model.normalization_set):
            found = normalization_of(data)
        if found is None and split:
            found = tuple(model.pixel_mean.flatten().tolist()), tuple(model.pixel_std.flatten().tolist())
        mean, std = found or ((0.0,), (1.0,))
        dtype = str(image.dtype).removeprefix("torch.")
        return _ImageFormat(dtype, mean, std, isinstance(label, Tensor), hasattr(data, "targets_task_labels"))

    def _reader(self, data: AvalancheDataset, start: int) -> Callable[[Sequence[int]], Tensor]:
        return lambda positions: torch.stack([self._pixels(data[start + position][0]) for position in positions])

    def _pixels(self, image: Tensor) -> Tensor:
        assert self._format is not None, "set by update_from_dataset"
        if image.dtype == torch.uint8:
            return image
        mean, std = self._format.channels
        pixels = (image.float().cpu() * std + mean) * 255
        low, high = map(float, pixels.aminmax())
        if not (low > -0.51 and high < 255.51):  # half a level is lost by rounding
            raise ValueError(
                f"pixels would be from {low:.1f} to {high:.1f}, not 0 to 255, for images normalised with mean "
                f"{list(self._format.mean)} and deviation {list(self._format.std)}: say how they are, with "
                "buffer.normalization = (mean, std) before training"
            )
        return pixels.round().clamp(0, 255).to(torch.uint8)

    def item_of(self, row: Tensor, label: int) -> tuple[Tensor, int | Tensor]:
        """Return a ``row`` of ``(3, h, w)`` uint8 pixels and its ``label`` as the stream gives them."""
        if self._format is None:
            return row, label
        if self._format.dtype != "uint8":
            mean, std = self._format.channels
            row = ((row.float() / 255 - mean) / std).to(getattr(torch, self._format.dtype))
        return row, torch.tensor(label) if self._format.tensor_labels else label

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"format": None if self._format is None else asdict(self._format)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the ``state`` of a buffer of the same size."""
        super().load_state_dict(state)
        written = state["format"]
        self._format = None if written is None else _ImageFormat(**written)
