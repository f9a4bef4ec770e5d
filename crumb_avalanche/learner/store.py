"""The file of a ``Learner``: its state, its network and a readable header, in one checksummed ``.safetensors`` file.

The header holds class names with image counts, lessons, the network's name with the hash, source and licence of its
weights, the budget and the versions that wrote it. The file holds no paths, and no images but thumbnails by request.
"""

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from crumb_avalanche._version import __version__
from crumb_avalanche.learner.file import FORMAT as FORMAT_OF_RUNS
from crumb_avalanche.learner.file import LEARNER, LearnerError
from crumb_avalanche.learner.network import PUBLISHED, FrozenNetwork, NetworkError
from crumb_avalanche.learner.of_run import learner_of_run
from crumb_avalanche.learner.thumbnails import counts_of
from crumb_avalanche.models.weights import WeightsError
from crumb_avalanche.system.tensor_file import (
    StateError,
    TensorFileError,
    flatten,
    format_of,
    read_metadata,
    read_state,
    unflatten,
    write_state,
)

FORMAT = "crumb-learner-2"


class ReplacedError(OSError):
    """Another program replaced the file of a learner since it was read or written."""


def write_learner(path: str | os.PathLike, network: FrozenNetwork, state: dict[str, Any], weights: bool) -> str:
    """Write a learner atomically.

    The state before the last lesson is stored as its difference from the present one.

    Args:
        path: the file; an existing one is replaced.
        network: its description is stored, and its weights if ``weights`` is true.
        state: ``Learner.state_dict()``.
        weights: see above.

    Returns:
        The checksum of the file; see ``digest_of``.

    Raises:
        OSError: the file cannot be written; an existing one is unchanged.
    """
    before = state["before"]
    if before is not None:
        tree, tensors = flatten(before)
        present = flatten({name: state[name] for name in before})[1]
        same = [name for name, tensor in tensors.items() if name in present and _equal(tensor, present[name])]
        before = {"tree": json.dumps(tree), "same": same, "tensors": _without(tensors, same)}
    header = {
        "method": state["method"],
        "classes": {name: count for name, count in zip(state["names"], state["images"]) if name is not None},
        "lessons": state["lessons"],
        "budget_bytes": state["budget_bytes"],
        "thumbnails": counts_of(state["thumbnails"]),
        "stored": state["stored"],
        "network": network.header() | {"included": weights},
        "versions": {"crumb_avalanche": __version__, "torch": torch.__version__},
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    rest = {name: value for name, value in state.items() if name not in ("lessons", "stored")}
    stored = {**rest, "before": before, "network": network.state() if weights else None}
    return write_state(path, stored, {"format": FORMAT, "learner": json.dumps(header)})


def read_header(path: str | os.PathLike) -> dict[str, Any]:
    """Read the header of a learner file, without its tensors.

    Raises:
        LearnerError: the file is absent, damaged, of another kind or of a newer version.
    """
    try:
        return _header(path, read_metadata(path))
    except TensorFileError as error:
        raise LearnerError(str(error)) from error


def is_of_run(path: str | os.PathLike) -> bool:
    """Whether a learner file is that of a run.

    Raises:
        LearnerError: the file is absent or damaged.
    """
    try:
        return read_metadata(path).get("format") == FORMAT_OF_RUNS
    except TensorFileError as error:
        raise LearnerError(str(error)) from error


def is_learner(path: str | os.PathLike) -> bool:
    """Whether a file says that it is a learner, of any version."""
    return format_of(path).startswith("crumb-learner-")


def holds_weights(path: str | os.PathLike) -> bool:
    """Whether a learner file holds the network's weights; that of a run always does.

    Raises:
        LearnerError: see ``read_header``.
    """
    return is_of_run(path) or read_header(path)["network"]["included"]


def refuse_folder(path: Path) -> None:
    """Raise ValueError for the folder of a run, which is not to be changed."""
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder, which can be asked but not changed: copy {path / LEARNER} to a file of your own, and "
            "give that"
        )


def read_learner(path: str | os.PathLike, weights: str | os.PathLike | None) -> tuple[FrozenNetwork, dict[str, Any]]:
    """Read a learner: its network and its state.

    Args:
        path: the file, or the folder of a finished run of a method in ``KINDS``.
        weights: the weight file, or ``torchvision``, for a file without weights.

    Raises:
        LearnerError: see ``read_header``; or a tensor is damaged, or the weights are absent or others.
    """
    if os.path.isdir(path):
        path = Path(path) / LEARNER
    try:
        if read_metadata(path).get("format") == FORMAT_OF_RUNS:
            return learner_of_run(path)
        state, metadata = read_state(path)
        header = _header(path, metadata)
        network = _network(path, header, state.pop("network"), weights)
    except (TensorFileError, NetworkError, WeightsError) as error:
        raise LearnerError(str(error)) from error
    before = state["before"]
    if before is not None:
        present = flatten({name: value for name, value in state.items() if name != "before"})[1]
        try:
            tensors = before["tensors"] | {name: present[name] for name in before["same"]}
            state["before"] = unflatten(json.loads(before["tree"]), tensors)
        except (KeyError, StateError) as error:
            raise LearnerError(f"the state before the last lesson in {path} is not complete ({error})") from error
    return network, state | {"lessons": header["lessons"]}


def _header(path: str | os.PathLike, metadata: dict[str, str]) -> dict[str, Any]:
    found = metadata.get("format", "")
    kind, _, number = found.rpartition("-")
    if kind == "crumb-learner" and number.isdigit() and int(number) > int(FORMAT.rpartition("-")[2]):
        raise LearnerError(f"{path} is of format {found}, this version reads up to {FORMAT}: update crumb-avalanche")
    if found != FORMAT:
        raise LearnerError(
            f"{path} is {f'of format {found}' if found else 'no learner file'}, not {FORMAT}: give a file that "
            "crumb teach or Learner.save wrote"
        )
    return json.loads(metadata["learner"])


def _network(
    path: str | os.PathLike, header: dict[str, Any], state: dict | None, weights: str | os.PathLike | None
) -> FrozenNetwork:
    described = header["network"]
    if state is not None and weights in (None, *PUBLISHED):  # which are there already, if they are the same
        return FrozenNetwork.of_state(described, state)
    if weights is None:
        raise LearnerError(
            f"{Path(path).name} holds no weights: give those of {described['source']}, SHA-256 "
            f"{described['weights_sha256'][:12]}..., with weights=FILE, or 'torchvision' or 'timm' to download them "
            "(--weights of crumb)"
        )
    network = FrozenNetwork.of_arguments(described["arguments"], weights)
    network.check_hash(described["weights_sha256"])
    return network


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def _without(tensors: dict[str, torch.Tensor], names: list[str]) -> dict[str, torch.Tensor]:
    left_out = set(names)
    return {name: tensor for name, tensor in tensors.items() if name not in left_out}
