"""Shared parts of the exemplar methods: herding, prioritised lists, the old network."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from crumb_avalanche.memory.slots import Slots
from crumb_avalanche.models.penultimate import evaluating
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.tensor_bytes import tensor_bytes


def herd(features: Tensor, count: int) -> list[int]:
    """Choose rows whose running mean stays closest to the mean of all, best first (iCaRL, algorithm 4).

    Args:
        features: ``(N, D)``.
        count: number of rows; all rows if there are fewer.
    """
    mean, total = features.mean(0), torch.zeros_like(features[0])
    taken = torch.zeros(len(features), dtype=torch.bool, device=features.device)
    chosen: list[int] = []
    for number in range(1, min(count, len(features)) + 1):
        distances = (mean - (total + features) / number).norm(dim=1).masked_fill(taken, torch.inf)
        chosen.append(int(distances.argmin()))
        taken[chosen[-1]] = True
        total = total + features[chosen[-1]]
    return chosen


def draw_from(random: np.random.Generator, slots: Sequence[int], count: int) -> Tensor:
    """Draw ``(count,)`` int64 of some slots in random order, each again only after all were drawn."""
    return torch.from_numpy(np.resize(random.permutation(np.asarray(slots, dtype=np.int64)), count))


def allot(capacity: int, classes: Sequence[int]) -> dict[int, int]:
    """Allot exemplars to classes: equal shares of all slots, and the remainder one each to the first classes.

    With more classes than slots, the last classes get none.
    """
    share, left_over = divmod(capacity, len(classes))
    return {label: share + (place < left_over) for place, label in enumerate(classes)}


def trim(slots: Slots, quotas: dict[int, int]) -> list[int]:
    """Cut the lists of some classes to their quotas and return the freed slots.

    It keeps the first members of each list, which is in order of priority; ``Slots.trim`` gives up random members.
    """
    freed: list[int] = []
    for label, quota in quotas.items():
        members = slots.by_class.get(label, [])
        freed += members[quota:]
        del members[quota:]
    slots.free += freed
    return freed


class OldNetwork:
    """Copy of the plastic layers after the latest experience, in evaluation mode, for distillation.

    Args:
        half: keep the weights as float16 (11 significant bits), in half the bytes; computation is in float32.
    """

    def __init__(self, half: bool = True):
        self.half = half
        self.state: dict[str, Tensor] = {}

    @staticmethod
    def bytes_of(model: SplitModel, half: bool) -> int:
        """Return the bytes of a copy."""
        tensors = model.plastic_layers.state_dict().values()
        return sum(t.numel() * (2 if half and t.is_floating_point() else t.element_size()) for t in tensors)

    @property
    def bytes(self) -> int:
        """Bytes of the copy; 0 before the first ``take``."""
        return tensor_bytes(self.state.values())

    def take(self, model: SplitModel) -> None:
        """Copy the current weights."""
        self.state = {}
        for name, value in model.plastic_layers.state_dict().items():
            kept = torch.float16 if self.half and value.is_floating_point() else value.dtype
            self.state[name] = value.detach().to(kept, copy=True)

    @torch.no_grad()
    def logits(self, model: SplitModel, maps: Tensor) -> Tensor:
        """Compute ``(B, classes)`` float32 of ``(B, C, H, W)`` maps with the copied weights in the model's layers."""
        self.state = {name: value.to(maps.device) for name, value in self.state.items()}  # a loaded state is on the CPU
        weights = {name: value.float() if value.is_floating_point() else value for name, value in self.state.items()}
        with model.stopwatch.measure("plastic"), evaluating(model.plastic_layers), model.autocast():
            return functional_call(model.plastic_layers, weights, (maps,)).float()

    def state_dict(self) -> dict:
        """The weights; empty before the first ``take``."""
        return dict(self.state)

    def load_state_dict(self, state: dict) -> None:
        """Load what ``state_dict`` returned."""
        # Weights of a SplitModel lie channels-last, an order that a file does not keep and kernels round by.
        self.state = {
            name: value.clone(memory_format=torch.channels_last if value.dim() == 4 else torch.contiguous_format)
            for name, value in state.items()
        }
