"""The ``.safetensors`` format: a JSON header, then the bytes of the tensors.

A file begins with the length of its header, eight bytes, little-endian. The header maps
the names of tensors to their types, shapes and places behind it, and
``__metadata__`` to texts.

The library of this name maps files into memory, where the tensors change or the process
dies when another program writes to the file, and it leaves temporary files of its own
when it is killed. So this module reads and writes with plain system calls.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from typing import IO, Any, BinaryIO, TypeGuard

import numpy as np
import torch
from torch import Tensor

# The names of types in a header. The library writes tensors in this order.
DTYPES = {
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F32": torch.float32,
    "U32": torch.uint32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA = "__metadata__"  # a name that no tensor may have
_ORDER = {dtype: position for position, dtype in enumerate(DTYPES.values())}
_LENGTH_BYTES = 8
_ALIGNMENT = 8  # bytes; the length of a header is a multiple
_LONGEST_HEADER = 100_000_000  # bytes, as in the library


class FormatError(ValueError):
    """The bytes of a file break a rule of the format; says which."""


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies.

    Attributes:
        name: of the tensor.
        dtype: of its values.
        shape: sizes of its dimensions.
        start: first byte, counted from the end of the header.
        end: the byte after its last.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    """What stands before the tensors.

    Attributes:
        spelling: the JSON text as it stands in the file, with its padding.
        metadata: texts by name.
        entries: of all tensors, in the order of their bytes.
    """

    spelling: bytes
    metadata: dict[str, str]
    entries: list[TensorEntry]

    @property
    def is_canonical(self) -> bool:
        """Whether the text is the only spelling that ``write_safetensors`` writes."""
        return self.spelling == _spelled(self.metadata, self.entries)


def write_safetensors(
    file: IO[bytes], tensors: Mapping[str, Tensor], metadata: dict[str, str]
) -> None:
    """Write tensors and texts to a file that is open for writing.

    The same content gives the same bytes: larger types come first, then names in
    order. Strides are not kept.

    Raises:
        FormatError: the format has no name for the type of a tensor.
        OSError: the file cannot be written.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise FormatError(f"tensor {name!r} is of type {tensor.dtype}")
    ordered = sorted(tensors.items(), key=lambda item: (_ORDER[item[1].dtype], item[0]))
    entries = []
    start = 0
    for name, tensor in ordered:
        end = start + tensor.numel() * tensor.element_size()
        entry = TensorEntry(
            name=name,
            dtype=tensor.dtype,
            shape=tuple(tensor.shape),
            start=start,
            end=end,
        )
        entries.append(entry)
        start = end
    spelling = _spelled(metadata, entries)
    file.write(len(spelling).to_bytes(_LENGTH_BYTES, "little"))
    file.write(spelling)
    for _, tensor in ordered:
        file.write(bytes_of(tensor).data)


def read_header(file: BinaryIO) -> Header:
    """Read the header of an open file, and check that the tensors fill the rest.

    Raises:
        FormatError: the file is none of this format, or is incomplete.
    """
    file_bytes = file.seek(0, 2)
    file.seek(0)
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    room = min(file_bytes - _LENGTH_BYTES, _LONGEST_HEADER)
    if not 0 < length <= room:
        raise FormatError(f"its header would have {length} bytes, room is for {room}")
    spelling = file.read(length)
    try:
        content = json.loads(spelling.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError("its header is no JSON") from error
    if not isinstance(content, dict):
        raise FormatError("its header is no JSON object")
    metadata = content.pop(METADATA, {})
    if not _is_of_texts(metadata):
        raise FormatError("its metadata are no texts")
    entries = [_entry(name, described) for name, described in content.items()]
    entries.sort(key=lambda entry: (entry.start, entry.end))
    _check_extent(entries, file_bytes - _LENGTH_BYTES - length)
    return Header(spelling=spelling, metadata=metadata, entries=entries)


def read_tensors_of(file: BufferedReader, header: Header) -> dict[str, Tensor]:
    """Read all tensors of an open file into memory of their own, in order of name.

    Raises:
        FormatError: the file was cut off since its header was read.
    """
    begin = _LENGTH_BYTES + len(header.spelling)
    tensors = {}
    for entry in header.entries:
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        file.seek(begin + entry.start)
        values = bytes_of(tensor)
        n_read = file.readinto(values.data)
        if n_read != len(values):
            raise FormatError(f"it ends in tensor {entry.name!r}")
        tensors[entry.name] = tensor
    return {name: tensors[name] for name in sorted(tensors)}


def bytes_of(tensor: Tensor) -> np.ndarray:
    """Return the values of a tensor on the CPU as ``uint8``, ``(bytes,)``.

    A contiguous tensor shares its memory with the array.
    """
    if not tensor.numel():
        return np.zeros(0, np.uint8)
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def _spelled(metadata: dict[str, str], entries: list[TensorEntry]) -> bytes:
    """Return the JSON text of a header, padded with spaces."""
    content: dict[str, Any] = {METADATA: dict(sorted(metadata.items()))}
    for entry in entries:
        content[entry.name] = {
            "dtype": NAMES[entry.dtype],
            "shape": entry.shape,
            "data_offsets": (entry.start, entry.end),
        }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    spelling = text.encode()
    return spelling.ljust(-(-len(spelling) // _ALIGNMENT) * _ALIGNMENT)


def _entry(name: str, described: Any) -> TensorEntry:
    """Return the entry of a tensor from the JSON that describes it."""
    if not isinstance(described, dict):
        raise FormatError(f"tensor {name!r} is not described")
    dtype = described.get("dtype")
    shape = described.get("shape")
    offsets = described.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FormatError(f"tensor {name!r} is of an unknown type")
    if not _are_counts(shape):
        raise FormatError(f"tensor {name!r} has no shape")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise FormatError(f"tensor {name!r} has no place")
    entry = TensorEntry(
        name=name,
        dtype=DTYPES[dtype],
        shape=tuple(shape),
        start=offsets[0],
        end=offsets[1],
    )
    if entry.end - entry.start != math.prod(shape) * entry.dtype.itemsize:
        raise FormatError(f"tensor {name!r} has another size than its shape says")
    return entry


def _is_of_texts(metadata: Any) -> bool:
    return isinstance(metadata, dict) and all(
        isinstance(text, str) for text in metadata.values()
    )


def _are_counts(values: Any) -> TypeGuard[list[int]]:
    """Whether values are a list of whole numbers from 0 that torch can hold."""
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 2**63 for value in values
    )


def _check_extent(entries: list[TensorEntry], room: int) -> None:
    """Raise FormatError unless tensors follow each other and fill the file."""
    end = 0
    for entry in entries:
        if entry.start != end:
            raise FormatError(f"tensor {entry.name!r} does not follow the one before")
        end = entry.end
    if end != room:
        raise FormatError(f"it has {room} bytes of tensors, and needs {end}")
