"""Bytes that tensors take."""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Total bytes of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Total bytes of the memory behind some tensors; memory that they share counts once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples and attributes of objects."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_of(part)
    elif hasattr(value, "__dict__"):
        yield from tensors_of([*vars(value).values()])
