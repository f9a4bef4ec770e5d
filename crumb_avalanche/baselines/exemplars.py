"""What the exemplar methods share: herding, prioritised lists, the old network."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from crumb_avalanche.memory.selection import Slots
from crumb_avalanche.models.penultimate import evaluating
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.system.tensor_bytes import tensor_bytes


def herd(features: Tensor, count: int) -> list[int]:
    """The rows whose running mean stays closest to the mean of all, best first, none twice (iCaRL, algorithm 4).

    Args:
        features: ``(N, D)``.
        count: how many are wanted; fewer come if there are fewer rows.
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
    """``(count,)`` int64 of some slots in random order, none again before all were drawn."""
    return torch.from_numpy(np.resize(random.permutation(np.asarray(slots, dtype=np.int64)), count))


def allot(capacity: int, classes: Sequence[int]) -> dict[int, int]:
    """How many exemplars each class may have: equal shares of all slots, what is left over one each to the first.

    With more classes than slots the last ones get none.
    """
    share, left_over = divmod(capacity, len(classes))
    return {label: share + (place < left_over) for place, label in enumerate(classes)}


def trim(slots: Slots, quotas: dict[int, int]) -> list[int]:
    """Cut the lists of some classes behind their first members, as many as their quotas; returns the freed slots.

    Unlike ``Slots.trim``, which gives up random members, it takes lists to be in order of priority.
    """
    freed: list[int] = []
    for label, quota in quotas.items():
        members = slots.by_class.get(label, [])
        freed += members[quota:]
        del members[quota:]
    slots.free += freed
    return freed


class OldNetwork:
    """The plastic layers as they were after the latest experience, in evaluation mode, for distillation.

    Args:
        half: keep the weights as float16 (11 significant bits) and compute in float32; half the bytes.
    """

    def __init__(self, half: bool = True):
        self.half = half
        self.state: dict[str, Tensor] = {}

    @staticmethod
    def bytes_of(model: SplitModel, half: bool) -> int:
        """Bytes of such a copy."""
        tensors = model.plastic_layers.state_dict().values()
        return sum(t.numel() * (2 if half and t.is_floating_point() else t.element_size()) for t in tensors)

    @property
    def bytes(self) -> int:
        """Bytes held now; 0 before the first ``take``."""
        return tensor_bytes(self.state.values())

    def take(self, model: SplitModel) -> None:
        """Copy the present weights."""
        self.state = {}
        for name, value in model.plastic_layers.state_dict().items():
            kept = torch.float16 if self.half and value.is_floating_point() else value.dtype
            self.state[name] = value.detach().to(kept, copy=True)

    @torch.no_grad()
    def logits(self, model: SplitModel, maps: Tensor) -> Tensor:
        """``(B, classes)`` float32 of ``(B, C, H, W)`` maps. The model lends its structure, not its weights."""
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
