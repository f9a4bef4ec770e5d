"""The ``.safetensors`` format: a JSON header, then the bytes of the tensors.

The library of this name maps files into memory, where the tensors change or the process
dies when another program writes to the file, and it leaves temporary files of its own
when it is killed. So this module reads and writes with plain system calls.
"""

from collections.abc import Mapping
from io import BufferedReader
from typing import IO

import numpy as np
import torch
from torch import Tensor

from crumb_avalanche.system.safetensors_header import (
    LENGTH_BYTES,
    FormatError,
    Header,
    TensorEntry,
    header_json,
)

# The types of tensors, by their names in a header. The library writes tensors in this
# order.
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
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_DTYPE_RANKS = {dtype: rank for rank, dtype in enumerate(DTYPES.values())}


def write_safetensors(
    file: IO[bytes], tensors: Mapping[str, Tensor], metadata: dict[str, str]
) -> None:
    """Write tensors and metadata to a file that is open for writing.

    Not by the library, which leaves temporary files when it is killed. The same content
    gives the same bytes: larger types come first, then names in order. Strides are not
    kept.

    Raises:
        FormatError: the format has no name for the type of a tensor.
        OSError: the file cannot be written.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPE_NAMES:
            raise FormatError(f"tensor {name!r} is of type {tensor.dtype}")
    names = sorted(tensors, key=lambda name: (_DTYPE_RANKS[tensors[name].dtype], name))
    entries = []  # of the header: where each tensor lies, in bytes behind it
    start = 0
    for name in names:
        tensor = tensors[name]
        end = start + tensor.numel() * tensor.element_size()
        entry = TensorEntry(
            name=name,
            dtype=DTYPE_NAMES[tensor.dtype],
            shape=tuple(tensor.shape),
            start=start,
            end=end,
        )
        entries.append(entry)
        start = end
    json_bytes = header_json(metadata, entries)
    file.write(len(json_bytes).to_bytes(LENGTH_BYTES, "little"))
    file.write(json_bytes)
    for name in names:
        file.write(bytes_of(tensors[name]).data)  # its memory, not a copy


def read_tensors_of(file: BufferedReader, header: Header) -> dict[str, Tensor]:
    """Read all tensors of an open file into memory of their own, in order of name.

    Not by the library, which maps the file into memory, where the tensors change when
    another program writes to it.

    Raises:
        FormatError: the file was cut off since its header was read.
    """
    header_end = LENGTH_BYTES + len(header.json_bytes)
    tensors = {}
    for entry in header.entries:
        tensor = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        file.seek(header_end + entry.start)
        memory = bytes_of(tensor)  # a view of its bytes, so it is filled in place
        n_read = file.readinto(memory.data)
        if n_read != len(memory):
            raise FormatError(f"it ends in tensor {entry.name!r}")
        tensors[entry.name] = tensor
    return dict(sorted(tensors.items()))


def bytes_of(tensor: Tensor) -> np.ndarray:
    """Return the values of a tensor on the CPU as ``uint8``, ``(bytes,)``.

    A contiguous tensor shares its memory with the array.
    """
    if not tensor.numel():
        return np.zeros(0, np.uint8)
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
