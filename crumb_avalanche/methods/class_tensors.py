"""Tensors with a row for each class: how they grow, are added, copied and checked."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from crumb_avalanche.system.tensor_file import StateError


def grown(rows: Tensor, count: int) -> Tensor:
    """Return a tensor of ``count`` rows of classes: ``rows``, followed by zeros.

    It may share the memory of ``rows``, which is a tensor of its own or what this
    function returned: an eighth more room is reserved for later calls.

    Args:
        rows: ``(n, ...)``, a row for each class.
        count: number of classes, at least ``n``.
    """
    shape = (count, *rows.shape[1:])
    bytes_needed = math.prod(shape) * rows.element_size()
    if rows.untyped_storage().nbytes() < bytes_needed:
        n_reserved = max(count, len(rows) + len(rows) // 8)
        reserved = rows.new_zeros(n_reserved, *shape[1:])
        reserved[: len(rows)] = rows
        rows = reserved
    # A view of the first rows. A slice would end where ``rows`` does; those in reserve
    # behind it are zeros.
    return rows.as_strided(shape, rows.stride())


def copy_tensors(source: dict[str, Tensor], target: dict[str, Tensor]) -> None:
    """Copy the tensors of a state into those of statistics, by name.

    Args:
        source: tensors of the state by name, maybe more than are needed.
        target: tensors of the statistics, which are overwritten.

    Raises:
        StateError: a shape differs; nothing is copied then.
    """
    for name, tensor in target.items():
        if source[name].shape != tensor.shape:
            raise StateError(
                f"{name} of the state has the shape {tuple(source[name].shape)}, not "
                f"{tuple(tensor.shape)}; it does not belong to the settings of the "
                "state"
            )
    for name, tensor in target.items():
        tensor.copy_(source[name])


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise ``StateError`` for a tensor of a state with values that are not finite."""
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise StateError(
                f"{name} of the state holds values that are not finite; load a copy"
            )


def check_not_negative(name: str, values: Tensor) -> None:
    """Raise ``StateError`` for a tensor of a state with negative values."""
    if (values < 0).any():
        raise StateError(
            f"{name} of the state holds {float(values.min()):g}, where no images give "
            "a negative value; load a copy"
        )


def check_at_most(name: str, values: Tensor, limits: Tensor | float) -> None:
    """Raise ``StateError`` for a tensor of a state with values above their limits."""
    if (values > limits).any():
        raise StateError(
            f"{name} of the state holds {float(values.max()):g}, more than images "
            "give; load a copy"
        )


def add_counts(counts: Tensor, labels: Tensor) -> None:
    """Add the number of images of each class to ``(n_classes,)`` int32, in place."""
    counts.index_add_(0, labels, torch.ones_like(labels, dtype=torch.int32))


def add_rows(target: Tensor, source: Tensor, labels: Mapping[int, int]) -> None:
    """Add rows of classes of ``source`` to those of their new numbers, in place."""
    for theirs, mine in labels.items():
        target[mine] += source[theirs]
