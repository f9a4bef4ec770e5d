"""The header of a ``.safetensors`` file, read without torch.

A file begins with the length of its header, eight bytes, little-endian. The header maps
the names of tensors to their types, shapes and places behind it, and
``__metadata__`` to texts.
"""

import json
import math
import os
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeGuard

# Bytes of a value of each type that a header may name.
DTYPE_BYTES = {
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
    "F32": 4,
    "U32": 4,
    "I32": 4,
    "BF16": 2,
    "F16": 2,
    "U16": 2,
    "I16": 2,
    "F8_E5M2FNUZ": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
METADATA = "__metadata__"  # a name that no tensor may have
LENGTH_BYTES = 8
_ALIGNMENT = 8  # bytes; the length of a header is a multiple
_LONGEST_HEADER = 100_000_000  # bytes, as in the library


class FormatError(ValueError):
    """The bytes of a file break a rule of the format; says which."""


class OtherFormatError(FormatError):
    """A file is empty, or of another format; says which."""


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies.

    Attributes:
        name: of the tensor.
        dtype: of its values, as the header names it.
        shape: sizes of its dimensions.
        start: first byte, counted from the end of the header.
        end: the byte after its last.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    """What stands before the tensors.

    Attributes:
        json_bytes: the JSON text as it stands in the file, with its padding.
        metadata: texts by name.
        entries: of all tensors, in the order of their bytes.
    """

    json_bytes: bytes
    metadata: dict[str, str]
    entries: list[TensorEntry]

    @property
    def is_canonical(self) -> bool:
        """Whether the JSON is spelled as ``write_safetensors`` spells it."""
        return self.json_bytes == header_json(self.metadata, self.entries)


def read_header(file: BinaryIO) -> Header:
    """Read the header of an open tensor file; check that the tensors fill the rest.

    Raises:
        OtherFormatError: the file is empty, or of another format.
        FormatError: the file is incomplete, or breaks another rule.
    """
    file_bytes = file.seek(0, os.SEEK_END)
    if file_bytes == 0:
        raise OtherFormatError("is empty")
    file.seek(0)
    n_bytes = int.from_bytes(file.read(LENGTH_BYTES), "little")
    most_bytes = file_bytes - LENGTH_BYTES
    if most_bytes <= 0 or not 0 < n_bytes <= _LONGEST_HEADER:
        raise OtherFormatError("is no .safetensors file")
    if n_bytes > most_bytes:
        raise FormatError(
            f"its header would have {n_bytes} bytes, room is for {most_bytes}"
        )
    json_bytes = file.read(n_bytes)
    try:
        content = json.loads(json_bytes.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError("its header is no JSON") from error
    if not isinstance(content, dict):
        raise FormatError("its header is no JSON object")
    metadata = content.pop(METADATA, {})
    if not _are_texts(metadata):
        raise FormatError("its metadata are no texts")
    # Only the descriptions of tensors are left in the content.
    entries = [_tensor_entry(name, content[name]) for name in content]
    entries.sort(key=lambda entry: (entry.start, entry.end))
    _check_extent(entries, file_bytes - LENGTH_BYTES - n_bytes)
    return Header(json_bytes=json_bytes, metadata=metadata, entries=entries)


def header_json(metadata: dict[str, str], entries: list[TensorEntry]) -> bytes:
    """Return the JSON text of a header, padded with spaces to a multiple of 8 bytes."""
    content: dict[str, Any] = {METADATA: dict(sorted(metadata.items()))}
    for entry in entries:
        content[entry.name] = {
            "dtype": entry.dtype,
            "shape": entry.shape,
            "data_offsets": (entry.start, entry.end),
        }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    json_bytes = text.encode()
    n_padding = -len(json_bytes) % _ALIGNMENT
    return json_bytes + b" " * n_padding


def _tensor_entry(name: str, description: Any) -> TensorEntry:
    """Return where a tensor lies, from the JSON of a header that describes it.

    Raises:
        FormatError: the description is incomplete, or contradicts itself.
    """
    if not isinstance(description, dict):
        raise FormatError(f"tensor {name!r} is not described")
    dtype = description.get("dtype")
    shape = description.get("shape")
    offsets = description.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise FormatError(f"tensor {name!r} is of an unknown type")
    if not _are_counts(shape):
        raise FormatError(f"tensor {name!r} has no shape")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise FormatError(f"tensor {name!r} has no place")
    entry = TensorEntry(
        name=name,
        dtype=dtype,
        shape=tuple(shape),
        start=offsets[0],
        end=offsets[1],
    )
    n_bytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if entry.end - entry.start != n_bytes:
        raise FormatError(f"tensor {name!r} has another size than its shape says")
    return entry


def _are_texts(metadata: Any) -> bool:
    """Whether the metadata of a header are texts by name."""
    return isinstance(metadata, dict) and all(
        isinstance(text, str) for text in metadata.values()
    )


def _are_counts(values: Any) -> TypeGuard[list[int]]:
    """Whether sizes or offsets are a list of whole numbers that torch can hold."""
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 2**63 for value in values
    )


def _check_extent(entries: list[TensorEntry], n_bytes: int) -> None:
    """Raise FormatError unless tensors follow each other and fill the file.

    Args:
        entries: of all tensors, in the order of their bytes.
        n_bytes: bytes of the file behind the header.
    """
    previous_end = 0
    for entry in entries:
        if entry.start != previous_end:
            raise FormatError(f"tensor {entry.name!r} does not follow the one before")
        previous_end = entry.end
    if previous_end != n_bytes:
        raise FormatError(
            f"it has {n_bytes} bytes of tensors, and needs {previous_end}"
        )
