"""Bytes that tensors take."""

from collections.abc import Iterable

from torch import Tensor


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Total bytes of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
