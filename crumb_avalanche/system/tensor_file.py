"""Tensors and nested state as ``.safetensors`` files, and the bytes that tensors take.

Files are written atomically, with checksums, and read into memory of their own without
running code.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
from crumb_avalanche.system.file_metadata import (
    CHECKSUMS,
    DIGEST,
    TensorFileError,
    check_digest,
    incomplete_file_error,
    loaded_json,
    metadata_digest,
)
from crumb_avalanche.system.safetensors_format import (
    bytes_of,
    read_tensors_of,
    write_safetensors,
)
from crumb_avalanche.system.safetensors_header import (
    METADATA,
    FormatError,
    read_header,
)
from crumb_avalanche.system.value_types import StateError


def checksum(name: str, tensor: Tensor) -> str:
    """Return the SHA-256 over name, dtype, shape and values of a tensor on the CPU."""
    description = f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|"
    digest = hashlib.sha256(description.encode())
    digest.update(bytes_of(tensor).data)
    return digest.hexdigest()


def write_tensors(
    path: str | os.PathLike,
    tensors: dict[str, Tensor],
    metadata: dict[str, str],
    announce: Callable[[str], object] | None = None,
) -> str:
    """Write tensors and texts atomically, with checksums of both.

    The same content gives the same bytes. Strides are not kept, and tensors that share
    memory are written one by one.

    Args:
        path: of the file, which is replaced if it exists.
        tensors: by name, on any device.
        metadata: texts by name; ``format`` names the kind of file.
        announce: is called before anything is written, with the checksum of all that
            will be.

    Returns:
        The checksum of all that was written; see ``digest_of``.

    Raises:
        StateError: a tensor is of a type that the format cannot store.
        OSError: such as a full disk; an existing file is left as it is.
    """
    tensors = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    checksums = {name: checksum(name, tensor) for name, tensor in tensors.items()}
    metadata = {**metadata, CHECKSUMS: json.dumps(checksums)}
    # It covers the checksums of the tensors, and so all of the file.
    metadata[DIGEST] = metadata_digest(metadata)
    if announce is not None:
        announce(metadata[DIGEST])
    try:
        with atomic_write(path) as file:
            write_safetensors(file, tensors, metadata)
    except FormatError as error:
        raise StateError(f"{path} cannot be written: {error}; convert it") from error
    return metadata[DIGEST]


def read_tensors(path: str | os.PathLike) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors of a file by name, and its metadata without checksums.

    The tensors are copied from the file, then every checksum is verified on the copies:
    another program may replace the file meanwhile, or write to it later. A file of
    another program has no checksums and is read as it is.

    Raises:
        TensorFileError: the file is absent, or a tensor or the metadata are damaged;
            names which.
    """
    if not Path(path).is_file():
        raise TensorFileError(f"there is no file {path}; check the path")
    try:
        with open(path, "rb") as file:
            header = read_header(file)
            check_digest(path, header)  # raises if the metadata are damaged
            tensors = read_tensors_of(file, header)
    except (FormatError, OSError) as error:
        raise incomplete_file_error(path, error) from error
    metadata = dict(header.metadata)
    metadata.pop(DIGEST, None)
    if CHECKSUMS in metadata:
        checksums = _json_of_file(path, metadata.pop(CHECKSUMS))
        _check_tensors(path, tensors, checksums)
    return tensors, metadata


def _check_tensors(
    path: str | os.PathLike, tensors: dict[str, Tensor], checksums: Any
) -> None:
    """Raise TensorFileError unless each tensor has its checksum, and none is absent.

    Args:
        path: of the file, for the error.
        tensors: as read from the file.
        checksums: by name, as read from the metadata; damage may make it anything.
    """
    expected = checksums if isinstance(checksums, dict) else {}
    for name in sorted({*expected, *tensors}):
        has_both = name in tensors and name in expected
        if not has_both or expected[name] != checksum(name, tensors[name]):
            raise TensorFileError(
                f"tensor {name!r} of {path} is damaged; write or fetch the file again"
            )


def _json_of_file(path: str | os.PathLike, text: str) -> Any:
    """Return what a JSON text in a tensor file holds.

    Raises:
        TensorFileError: the text is no JSON.
    """
    try:
        return loaded_json(text)
    except StateError as error:
        raise TensorFileError(
            f"{path} is damaged ({error}); write or fetch it again"
        ) from error


def flatten(state: Any, prefix: str = "") -> tuple[Any, dict[str, Tensor]]:
    """Split a nested state into a JSON tree and tensors; ``unflatten`` is the inverse.

    Args:
        state: of ``None``, bool, int, float, str, list, tuple, dict, tensor and numpy
            array.
        prefix: of the tensors' names, which are their paths in the state.

    Returns:
        The tree, in which a node ``{"tensor": name}`` stands for a tensor, ``{"array":
        name}`` for an array, ``{"tuple": [...]}`` and ``{"dict": [[key, value], ...]}``
        for what JSON has not; and the tensors by name.

    Raises:
        StateError: it holds a value of another type; says where.
    """
    flattening = _Flattening()
    tree = flattening.node(state, prefix)
    return tree, flattening.tensors


class _Flattening:
    """Splits the tensors off a nested state; see ``flatten``.

    Attributes:
        tensors: those that were split off so far, by name.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def node(self, value: Any, path: str) -> Any:
        """Return the node of the JSON tree for a value; put its tensors aside by path.

        Args:
            value: a part of the nested state.
            path: keys and indices of the part in the state, which names its tensors.

        Raises:
            StateError: a file cannot hold a value of this type.
        """
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor):
            return {"tensor": self._store(value, path)}
        if isinstance(value, np.ndarray):
            return {"array": self._store(_as_tensor(value, path), path)}
        if isinstance(value, np.generic):
            return self.node(value.item(), path)
        if isinstance(value, list):
            return self._nodes(value, path)
        if isinstance(value, tuple):
            return {"tuple": self._nodes(value, path)}
        if isinstance(value, dict):
            node_pairs = []
            for key, member in value.items():
                key_node = self.node(key, _path_below(path, "key"))
                member_node = self.node(member, _path_below(path, key))
                node_pairs.append([key_node, member_node])
            return {"dict": node_pairs}
        raise StateError(
            f"{path or 'the state'} is of type {type(value).__name__}, which a file "
            "cannot hold; make it of numbers, texts, lists, dictionaries, arrays and "
            "tensors"
        )

    def _nodes(self, members: Iterable[Any], path: str) -> list[Any]:
        """Return the nodes of the members of a list or tuple at a path of the state."""
        return [
            self.node(member, _path_below(path, index))
            for index, member in enumerate(members)
        ]

    def _store(self, tensor: Tensor, path: str) -> str:
        """Store a tensor under its path, or a name like it that is free.

        Returns:
            The name.
        """
        name = path
        while name in self.tensors or name == METADATA:
            name += "'"
        self.tensors[name] = tensor.detach()
        return name


def _path_below(path: str, key: object) -> str:
    """Return the path of a member of a state, from its parent's path and its key."""
    return f"{path}.{key}" if path else str(key)


def _as_tensor(array: np.ndarray, path: str) -> Tensor:
    """Return an array as a tensor; raise StateError if no tensor holds its type."""
    # ascontiguousarray gives an array without axes one.
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    try:
        return torch.from_numpy(contiguous)
    except TypeError as error:
        raise StateError(
            f"{path or 'the state'} is an array of {array.dtype}; no tensor holds it"
        ) from error


def unflatten(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the nested state that ``flatten`` split into a tree and tensors.

    Args:
        tree: of JSON, with nodes such as ``{"tensor": name}``.
        tensors: by name.

    Raises:
        StateError: the tree names a missing tensor, or holds an unknown node.
    """
    if isinstance(tree, list):
        return [unflatten(member, tensors) for member in tree]
    if not isinstance(tree, dict):
        return tree
    try:
        return _unflattened_node(tree, tensors)
    except RecursionError as error:
        raise StateError("the state is nested too deep") from error
    except StateError:
        raise
    except (TypeError, ValueError) as error:
        # An entry that is no pair, a list as key, an array of bfloat16.
        raise _unknown_node_error(tree) from error


def _unflattened_node(node: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """Return what a node of the JSON tree stands for.

    Args:
        node: a dictionary of one entry, the kind of node and its content; ``flatten``
            lists them.
        tensors: of the state, by name.
    """
    if len(node) != 1:
        raise _unknown_node_error(node)
    ((kind, content),) = node.items()
    if kind == "tuple" and isinstance(content, list):
        return tuple(unflatten(member, tensors) for member in content)
    if kind == "dict" and isinstance(content, list):
        return {
            unflatten(key, tensors): unflatten(member, tensors)
            for key, member in content
        }
    if kind == "tensor" and content in tensors:
        return tensors[content]
    if kind == "array" and content in tensors:
        return tensors[content].numpy()
    raise _unknown_node_error(node)


def _unknown_node_error(node: dict[str, Any]) -> StateError:
    """Return the error for a node that ``flatten`` does not make."""
    return StateError(
        f"the state has the unknown node {ascii(node)[:80]}; it was written by another "
        "version"
    )


def write_state(
    path: str | os.PathLike,
    state: Any,
    metadata: dict[str, str],
    announce: Callable[[str], object] | None = None,
) -> str:
    """Write a nested state as ``write_tensors`` does, its tree as metadata ``tree``.

    Raises:
        StateError, OSError: see ``flatten`` and ``write_tensors``.
    """
    tree, tensors = flatten(state)
    metadata = {**metadata, "tree": json.dumps(tree)}
    return write_tensors(path, tensors, metadata, announce)


def read_state(path: str | os.PathLike) -> tuple[Any, dict[str, str]]:
    """Read what ``write_state`` wrote: the state, and the metadata without the tree.

    Raises:
        TensorFileError: the file is absent or damaged, or holds no state.
    """
    tensors, metadata = read_tensors(path)
    if "tree" not in metadata:
        raise TensorFileError(
            f"{path} holds tensors but no state; give a file that this package wrote"
        )
    tree = _json_of_file(path, metadata.pop("tree"))
    try:
        return unflatten(tree, tensors), metadata
    except StateError as error:
        raise TensorFileError(
            f"{path} is damaged: {error}; write or fetch it again"
        ) from error


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the total bytes of the values of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the total bytes of the memory behind tensors.

    Memory that they share counts once.
    """
    bytes_by_address = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        bytes_by_address[storage.data_ptr()] = storage.nbytes()
    return sum(bytes_by_address.values())


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples, dictionaries and attributes."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for member in value:
            yield from tensors_of(member)
    elif isinstance(value, dict):
        yield from tensors_of(list(value.values()))
    elif hasattr(value, "__dict__"):
        yield from tensors_of(list(vars(value).values()))
