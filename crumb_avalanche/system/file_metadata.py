"""The texts at the head of a tensor file, verified and read without torch."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from crumb_avalanche.system.named_values import without
from crumb_avalanche.system.safetensors_header import (
    FormatError,
    Header,
    OtherFormatError,
    read_header,
)
from crumb_avalanche.system.value_types import StateError

CHECKSUMS = "tensor_checksums"  # metadata entry: JSON of tensor name -> checksum
DIGEST = "metadata_checksum"  # metadata entry: checksum of all others


class TensorFileError(ValueError):
    """A tensor file that is absent, damaged or of another kind."""


def metadata_digest(metadata: dict[str, str]) -> str:
    """Return the SHA-256 over all metadata of a tensor file but the digest itself."""
    texts = without(metadata, DIGEST)
    return hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()


def read_metadata(path: str | os.PathLike) -> dict[str, str]:
    """Read the metadata of a tensor file, verified where it has a digest.

    Raises:
        TensorFileError: the file is absent, or is damaged.
    """
    return _checked_header(path).metadata


def tensor_names(path: str | os.PathLike) -> list[str]:
    """Return the names of the tensors in a tensor file, which are not read.

    Raises:
        TensorFileError: see ``read_metadata``.
    """
    return [entry.name for entry in _checked_header(path).entries]


def _checked_header(path: str | os.PathLike) -> Header:
    """Read the header of a tensor file, and verify it; see ``read_metadata``."""
    if not Path(path).is_file():
        raise TensorFileError(f"there is no file {path}; check the path")
    try:
        with open(path, "rb") as file:
            header = read_header(file)
    except (FormatError, OSError) as error:
        raise incomplete_file_error(path, error) from error
    check_digest(path, header)  # raises if the metadata are damaged
    return header


def digest_of(path: str | os.PathLike) -> str | None:
    """Return the checksum of all that a tensor file holds, as its metadata say.

    ``None`` if the file is damaged, or has no checksum.
    """
    try:
        return read_metadata(path).get(DIGEST)
    except TensorFileError:
        return None


def format_of(path: str | os.PathLike) -> str:
    """Return the kind of a tensor file, such as a learner, as its metadata say.

    Empty for a file that is damaged, or of another program.
    """
    try:
        return read_metadata(path).get("format", "")
    except TensorFileError:
        return ""


def incomplete_file_error(
    path: str | os.PathLike, reason: Exception
) -> TensorFileError:
    """Return the error for a tensor file that breaks a rule of the format."""
    if isinstance(reason, OtherFormatError):
        return TensorFileError(
            f"{path} {reason}; check the path, or write or fetch it again"
        )
    return TensorFileError(
        f"{path} is no complete .safetensors file ({reason}); write or fetch it again"
    )


def check_digest(path: str | os.PathLike, header: Header) -> None:
    """Raise TensorFileError unless the metadata of a file are those that were written.

    Every file with checksums is written with a digest, so one without the other is
    damage. So is another spelling of the same header, which has the same digest.
    """
    metadata = header.metadata
    is_of_another_program = DIGEST not in metadata and CHECKSUMS not in metadata
    if is_of_another_program:
        return
    if metadata.get(DIGEST) != metadata_digest(metadata) or not header.is_canonical:
        raise TensorFileError(
            f"the metadata of {path} are damaged; write or fetch it again"
        )


def loaded_json(text: str) -> Any:
    """Return what a JSON text in the metadata of a file holds.

    Raises:
        StateError: the text is no JSON, or is nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        reason = "it is nested too deep"
        cause: Exception = error
    except ValueError as error:
        reason = str(error)
        cause = error
    raise StateError(
        f"a text of {len(text)} characters is no JSON: {reason}"
    ) from cause
