"""Labels of a data set, and of a batch."""

from typing import Any
from weakref import finalize

import torch
from torch.utils.data import Dataset

from crumb_avalanche.system.rng_state import preserve_rng_state

_read: dict[int, list[int]] = {}  # by id: Avalanche's data sets have no hash


def labels_of(dataset: Dataset) -> list[int]:
    """Return the label of each item: ``targets``, or the second value of each item where a data set has none.

    Without ``targets`` every item is read once; the global RNG state is restored afterwards.
    """
    targets = getattr(dataset, "targets", None)
    if targets is not None:
        return list(map(int, targets))
    if id(dataset) not in _read:
        with preserve_rng_state():
            _read[id(dataset)] = [int(dataset[number][1]) for number in range(len(dataset))]
        finalize(dataset, _read.pop, id(dataset), None)
    return list(_read[id(dataset)])


def use_int64_labels(strategy: Any, targets: bool = False) -> None:
    """Convert the labels of a strategy's batch to int64: losses take no other, data sets have ``int16`` and ``int32``.

    Args:
        strategy: in an iteration of training or evaluation.
        targets: whether the batch may have ``(B, classes)`` targets instead, which stay as they are.

    Raises:
        TypeError: the labels are not whole numbers, one for each image.
    """
    labels = strategy.mb_y
    if targets and labels.dim() == 2:
        return
    if labels.is_floating_point() or labels.dim() != 1:
        raise TypeError(
            f"the labels of a batch are {labels.dtype} of shape {tuple(labels.shape)}; give each image the number of "
            "its class, a whole one"
        )
    if labels.dtype != torch.int64:
        strategy.mbatch[1] = labels.long()
