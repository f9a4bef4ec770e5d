"""Tensors and nested state as ``.safetensors`` files: written atomically, checksummed, read without running code.

And the bytes that tensors take.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from crumb_avalanche.system.atomic_file import atomic_write
from crumb_avalanche.system.schema import StateError

CHECKSUMS = "tensor_checksums"  # metadata entry: JSON of tensor name -> checksum
DIGEST = "metadata_checksum"  # metadata entry: checksum of all others


class TensorFileError(ValueError):
    """A tensor file that is absent, damaged or of another kind."""


def checksum(name: str, tensor: Tensor) -> str:
    """SHA-256 over name, dtype, shape and values of a tensor on the CPU."""
    found = hashlib.sha256(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
    if tensor.numel():
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _digest(metadata: dict[str, str]) -> str:
    """SHA-256 over all metadata except the digest itself."""
    rest = {name: text for name, text in metadata.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _read_header(file: BinaryIO) -> bytes:
    """Read the JSON header of an open ``.safetensors`` file, with its padding."""
    return file.read(int.from_bytes(file.read(8), "little"))


def _written(header: dict[str, Any], size: int) -> bytes:
    """Return the only spelling of a header that ``write_tensors`` writes."""
    return (
        json.dumps(header, separators=(",", ":"), ensure_ascii=False)
        .encode()
        .ljust(size)
    )


def _sort_metadata(path: Path) -> None:
    """Sort the metadata of a ``.safetensors`` file in place: the library writes them in a random order."""
    with open(path, "r+b") as file:
        text = _read_header(file)
        header = json.loads(text)
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        ordered = _written(header, len(text))
        if len(ordered) > len(
            text
        ):  # never, while both escape text alike; it would overwrite tensors
            raise StateError(
                f"the metadata of {path} cannot be sorted in place; leave out unusual characters"
            )
        file.seek(8)
        file.write(ordered)


def write_tensors(
    path: str | os.PathLike,
    tensors: dict[str, Tensor],
    metadata: dict[str, str],
    expect: Callable[[str], object] | None = None,
) -> str:
    """Write tensors and text metadata atomically, with a checksum of each tensor and of the metadata.

    The same content gives the same bytes. Strides are not kept. The metadata entry
    ``format`` names the kind of file. ``expect`` is called before anything is written,
    with the checksum of all that will be, which is returned; see ``digest_of``. StateError: a tensor of a type that ``safetensors`` cannot store;
    OSError, such as a full disk, leaves an existing file as it is.
    """
    # safetensors keeps no strides and refuses shared memory; all other tensors are
    # written without a copy.
    plain: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        plain[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    metadata = {
        **metadata,
        CHECKSUMS: json.dumps(
            {name: checksum(name, tensor) for name, tensor in plain.items()}
        ),
    }
    metadata[DIGEST] = _digest(metadata)
    if expect is not None:
        expect(metadata[DIGEST])
    with atomic_write(Path(path)) as unfinished:
        try:
            save_file(plain, unfinished, metadata)
        except KeyError as error:  # the type is missing in safetensors' table
            raise StateError(
                f"{path} cannot hold tensors of type {error}; convert them"
            ) from error
        except (
            SafetensorError
        ) as error:  # names the system's error number only in its text
            if not (number := re.search(r"\(os error (\d+)\)", str(error))):
                raise
            raise OSError(
                int(number[1]), os.strerror(int(number[1])), str(path)
            ) from error
        _sort_metadata(unfinished)
    return metadata[DIGEST]


def read_metadata(path: str | os.PathLike) -> dict[str, str]:
    """Read the text metadata of a file, verified where it has a digest; TensorFileError if it is absent or damaged."""
    if not Path(path).is_file():
        raise TensorFileError(f"there is no file {path}; check the path")
    try:
        with safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
        with open(path, "rb") as file:
            header = _read_header(file)
        # Another spelling of the same header has the same digest: spaces, escapes,
        # tensors of the same bytes.
        as_written = header == _written(json.loads(header), len(header))
    except (SafetensorError, OSError, ValueError) as error:
        raise TensorFileError(
            f"{path} is no complete .safetensors file ({error}); write or fetch it again"
        ) from error
    # Every file with checksums is written with a digest, so one without the other is
    # damage.
    checked = DIGEST in metadata or CHECKSUMS in metadata
    if checked and not (as_written and metadata.get(DIGEST) == _digest(metadata)):
        raise TensorFileError(
            f"the metadata of {path} are damaged; write or fetch it again"
        )
    return metadata


def digest_of(path: str | os.PathLike) -> str | None:
    """Return the checksum of all that a file holds, as it says itself; ``None`` if it is damaged or has none."""
    try:
        return read_metadata(path).get(DIGEST)
    except TensorFileError:
        return None


def format_of(path: str | os.PathLike) -> str:
    """Return the kind of file that the metadata name; empty for a file that is damaged or of another program."""
    try:
        return read_metadata(path).get("format", "")
    except TensorFileError:
        return ""


def read_tensors(path: str | os.PathLike) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors by name, and the metadata without checksums, and verify every checksum.

    A file of another program has no checksums and is read silently. If another process
    replaces the file meanwhile, the new one is read. TensorFileError: the file is
    absent, or a tensor or the metadata are damaged; names which.
    """
    while True:
        before = _identity(path)
        try:
            found = _read_tensors(path)
        except TensorFileError:
            if _identity(path) == before:
                raise
        else:
            if _identity(path) == before:  # or metadata and tensors may be of two files
                return found


def _identity(path: str | os.PathLike) -> tuple[int, ...] | None:
    """Return numbers that change when another file takes the place of this one; ``None`` if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _read_tensors(path: str | os.PathLike) -> tuple[dict[str, Tensor], dict[str, str]]:
    metadata = read_metadata(path)
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise TensorFileError(
            f"{path} is no complete .safetensors file ({error}); write or fetch it again"
        ) from error
    if CHECKSUMS in metadata:
        expected = _plain(path, metadata[CHECKSUMS])
        expected = expected if isinstance(expected, dict) else {}
        for name in sorted({*expected, *tensors}):
            if name not in tensors or expected.get(name) != checksum(
                name, tensors[name]
            ):
                raise TensorFileError(
                    f"tensor {name!r} of {path} is damaged; write or fetch the file again"
                )
    return tensors, {
        name: text for name, text in metadata.items() if name not in (CHECKSUMS, DIGEST)
    }


def _plain(path: str | os.PathLike, text: str) -> Any:
    try:
        return loaded_json(text)
    except StateError as error:
        raise TensorFileError(
            f"{path} is damaged ({error}); write or fetch it again"
        ) from error


def loaded_json(text: str) -> Any:
    """Return what a JSON text holds; raise StateError if it is none, or is nested too deep."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # of too many levels
        reason = (
            str(error) if isinstance(error, ValueError) else "it is nested too deep"
        )
        raise StateError(
            f"a text of {len(text)} characters is no JSON: {reason}"
        ) from error


def flatten(state: Any, place: str = "") -> tuple[Any, dict[str, Tensor]]:
    """Split a nested state into a JSON tree, and tensors by their path in the state; ``unflatten`` is the inverse.

    The state is of ``None``, bool, int, float, str, list, tuple, dict, tensor and numpy
    array; StateError for other types. ``place`` is the prefix of the tensors' names.
    """
    tensors: dict[str, Tensor] = {}

    def store(value: Tensor, place: str) -> str:
        name = place
        while name in tensors or name == "__metadata__":  # safetensors' own entry
            name += "'"
        tensors[name] = value.detach()
        return name

    def walk(value: Any, place: str) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor):
            return {"tensor": store(value, place)}
        if isinstance(value, np.ndarray):
            try:
                return {
                    "array": store(
                        torch.from_numpy(
                            np.ascontiguousarray(value).reshape(value.shape)
                        ),
                        place,
                    )
                }
            except TypeError as error:
                raise StateError(
                    f"{place or 'the state'} is an array of {value.dtype}; no tensor holds it"
                ) from error
        if isinstance(value, np.generic):
            return walk(value.item(), place)
        inner = f"{place}." if place else ""
        if isinstance(value, list):
            return [walk(part, f"{inner}{index}") for index, part in enumerate(value)]
        if isinstance(value, tuple):
            return {
                "tuple": [
                    walk(part, f"{inner}{index}") for index, part in enumerate(value)
                ]
            }
        if isinstance(value, dict):
            return {
                "dict": [
                    [walk(key, f"{inner}key"), walk(part, f"{inner}{key}")]
                    for key, part in value.items()
                ]
            }
        raise StateError(
            f"{place or 'the state'} is of type {type(value).__name__}, which a file cannot hold; make it of numbers, "
            "texts, lists, dictionaries, arrays and tensors"
        )

    return walk(state, place), tensors


def unflatten(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """Restore what ``flatten`` split; StateError if the tree names a missing tensor, or holds an unknown node."""
    if isinstance(tree, list):
        return [unflatten(part, tensors) for part in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items() if len(tree) == 1 else ((None, None),)
    try:
        if kind == "tuple" and isinstance(content, list):
            return tuple(unflatten(part, tensors) for part in content)
        if kind == "dict" and isinstance(content, list):
            return {
                unflatten(key, tensors): unflatten(part, tensors)
                for key, part in content
            }
        if kind in ("tensor", "array") and content in tensors:
            return tensors[content] if kind == "tensor" else tensors[content].numpy()
    except RecursionError as error:
        raise StateError("the state is nested too deep") from error
    except (
        TypeError,
        ValueError,
    ) as error:  # an entry that is no pair, a list as key, an array of bfloat16
        if isinstance(error, StateError):
            raise
    raise StateError(
        f"the state has the unknown node {ascii(tree)[:80]}; it was written by another version"
    )


def write_state(
    path: str | os.PathLike,
    state: Any,
    metadata: dict[str, str],
    expect: Callable[[str], object] | None = None,
) -> str:
    """Write a nested state as ``write_tensors`` does, its tree as metadata ``tree``; errors also of ``flatten``."""
    tree, tensors = flatten(state)
    metadata = {**metadata, "tree": json.dumps(tree)}
    return write_tensors(path, tensors, metadata, expect)


def read_state(path: str | os.PathLike) -> tuple[Any, dict[str, str]]:
    """Read what ``write_state`` wrote: the state, and the metadata without the tree; or raise TensorFileError."""
    tensors, metadata = read_tensors(path)
    if "tree" not in metadata:
        raise TensorFileError(
            f"{path} holds tensors but no state; give a file that this package wrote"
        )
    tree = _plain(path, metadata.pop("tree"))
    try:
        return unflatten(tree, tensors), metadata
    except StateError as error:
        raise TensorFileError(
            f"{path} is damaged: {error}; write or fetch it again"
        ) from error


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Total bytes of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Total bytes of the memory behind some tensors; memory that they share counts once."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples, dictionaries and attributes of objects."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_of(part)
    elif isinstance(value, dict) or hasattr(value, "__dict__"):
        yield from tensors_of(
            [*(value if isinstance(value, dict) else vars(value)).values()]
        )
