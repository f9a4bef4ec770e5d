"""Weight files in and out, without ever running code from them."""

import hashlib
import os
import re
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from crumb_avalanche.system.atomic_file import atomic_write

SUFFIXES = (".npz", ".safetensors", ".pth", ".pt")


class WeightsError(ValueError):
    """A weight file that cannot be read, or that belongs to another model."""


def read_weights(path: str | os.PathLike) -> dict[str, Tensor]:
    """Read ``name -> tensor`` from ``.npz``, ``.safetensors``, ``.pth`` or ``.pt``.

    Pickled code is refused: ``.npz`` without object arrays, ``.pth`` through ``weights_only=True``.

    Raises:
        WeightsError: no such file, another suffix, or a file that is damaged or holds anything but tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"there is no weight file {path}; give a {', '.join(SUFFIXES)} file, or 'torchvision'")
    if path.suffix not in SUFFIXES:
        raise WeightsError(f"weight file {path} ends in {path.suffix!r}; known are {', '.join(SUFFIXES)}")
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]  # a truncated pickle gives none
        raise WeightsError(
            f"weight file {path} cannot be read ({type(error).__name__}: {reason}); "
            "it must hold tensors only and be complete: fetch or save it again"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"weight file {path} does not hold a state dict (name -> tensor); save model.state_dict()")
    return state


def load_weights(model: nn.Module, path: str | os.PathLike) -> None:
    """Load a weight file into a model, all of it or nothing.

    Batch counters of batch norms (``num_batches_tracked``) may be absent: they play no part in evaluation. So may
    ``calibrated``: files without it hold calibrated models.

    Raises:
        WeightsError: see ``read_weights``; or names or shapes differ, the first mismatch being named.
    """
    check_and_load(model, read_weights(path), str(path))


def check_and_load(model: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Load ``state`` after checking every name and shape; ``source`` is named in errors."""
    expected = model.state_dict()
    kind = type(model).__name__
    for name, tensor in expected.items():
        if name.endswith(("num_batches_tracked", "calibrated")) and name not in state:
            continue
        if name not in state:
            raise WeightsError(
                f"{source} has no {name!r}, which {kind} needs: these are the weights of another model; "
                "choose the matching --backbone"
            )
        if state[name].shape != tensor.shape:
            raise WeightsError(
                f"{source} has {name!r} of shape {tuple(state[name].shape)}, {kind} needs {tuple(tensor.shape)}: "
                "these are the weights of another model; choose the matching --backbone"
            )
    extra = next((name for name in state if name not in expected), None)
    if extra is not None:
        raise WeightsError(
            f"{source} has {extra!r}, which {kind} has no place for: these are the weights of another model; "
            "choose the matching --backbone"
        )
    model.load_state_dict(state, strict=False)


def save_safetensors(path: str | os.PathLike, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and text metadata to ``path``: to a temporary file first, so no half-written file is ever seen.

    Raises:
        OSError: the disk is full or the like.
    """
    # contiguous_format: safetensors keeps no strides, and clones share no memory.
    plain = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    with atomic_write(Path(path)) as unfinished:
        try:
            save_file(plain, unfinished, metadata)
        except SafetensorError as error:  # which tells the system's number in words only
            if not (number := re.search(r"\(os error (\d+)\)", str(error))):
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def read_metadata(path: str | os.PathLike) -> dict[str, str]:
    """The text metadata of a ``.safetensors`` file.

    Raises:
        WeightsError: the file is absent or damaged.
    """
    if not Path(path).is_file():
        raise WeightsError(f"there is no file {path}")
    try:
        with safe_open(path, "pt") as file:
            return dict(file.metadata() or {})
    except SafetensorError as error:
        raise WeightsError(f"{path} is no complete .safetensors file ({error}); write or fetch it again") from error


def weights_hash(module: nn.Module) -> str:
    """SHA-256 over names, shapes, types and values of a module's state."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name}|{tuple(value.shape)}|{value.dtype}|".encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()
