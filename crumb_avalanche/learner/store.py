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
from torch import Tensor

from crumb_avalanche._version import __version__
from crumb_avalanche.learner.file import FORMAT as FORMAT_OF_RUNS
from crumb_avalanche.learner.file import LEARNER, LearnerError
from crumb_avalanche.learner.network import PUBLISHED, FrozenNetwork, NetworkError
from crumb_avalanche.learner.of_run import learner_of_run
from crumb_avalanche.learner.schema import check_header, check_learner
from crumb_avalanche.learner.thumbnails import counts_of
from crumb_avalanche.models.weights import WeightsError
from crumb_avalanche.system.schema import Anything, Each, Table, Text, check, maybe, shown
from crumb_avalanche.system.tensor_file import (
    StateError,
    TensorFileError,
    flatten,
    format_of,
    loaded_json,
    read_metadata,
    read_state,
    unflatten,
    write_state,
)

FORMAT = "crumb-learner-1"
DAMAGED = "is no valid learner: take a copy from before, or teach anew"
# What lies in the file beside the header: ``before`` holds only tensors that differ from the present ones.
STORED = {
    **dict.fromkeys(("statistics", "confidence", "replay?", "int8", "thumbnails", "network"), Anything()),
    "before": maybe({"tree": Text(10**8), "same": Each(Text()), "tensors": Table(Text(), Anything(Tensor))}),
}


class ReplacedError(OSError):
    """Another program replaced the file of a learner since it was read or written."""


def write_learner(path: str | os.PathLike, network: FrozenNetwork, state: dict[str, Any], weights: bool) -> str:
    """Write a learner atomically, after checking that ``read_learner`` will take it.

    The state before the last lesson is stored as its difference from the present one.

    Args:
        path: the file; an existing one is replaced.
        network: its description is stored, and its weights if ``weights`` is true.
        state: ``Learner.state_dict()``.
        weights: see above.

    Returns:
        The checksum of the file; see ``digest_of``.

    Raises:
        LearnerError: the state is none that can be read again, for instance because a value is not finite; an existing
            file is unchanged.
        OSError: the file cannot be written; an existing one is unchanged.
    """
    header, stored = _parts(network, state, weights)
    _check(path, header, stored, "cannot be saved: give up what was changed last, and load the file anew")
    before = stored["before"]
    if before is not None:
        tree, tensors = flatten(before)
        present = flatten({name: stored[name] for name in before if name in stored})[1]
        same = [name for name, tensor in tensors.items() if name in present and _equal(tensor, present[name])]
        stored["before"] = {"tree": json.dumps(tree), "same": same, "tensors": _without(tensors, same)}
    return write_state(path, stored, {"format": FORMAT, "learner": json.dumps(header)})


def _parts(network: FrozenNetwork, state: dict[str, Any], weights: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header of a learner, as it is after JSON, and what else is stored."""
    plain = ("method", "budget_bytes", "features", "lessons", "stored")
    header = {
        **{name: state[name] for name in plain},
        "classes": [name and {"name": name, "images": count} for name, count in zip(state["names"], state["images"])],
        "thumbnails": counts_of(state["thumbnails"]),
        "network": network.header() | {"included": weights},
        "versions": {"crumb_avalanche": __version__, "torch": torch.__version__},
        "written": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    rest = {name: value for name, value in state.items() if name not in (*plain, "names", "images")}
    return json.loads(json.dumps(header)), rest | {"network": network.state() if weights else None}


def _check(path: str | os.PathLike, header: dict[str, Any], state: dict[str, Any], otherwise: str) -> None:
    try:
        check_learner(header, state)
    except StateError as error:
        raise LearnerError(f"{path} {otherwise} ({error})") from error


def read_header(path: str | os.PathLike) -> dict[str, Any]:
    """Read the header of a learner file, without its tensors.

    Raises:
        LearnerError: the file is absent, damaged, of another kind or of a newer version.
    """
    try:
        header = _header(path, read_metadata(path))
        check_header(header)
        return header
    except TensorFileError as error:
        raise LearnerError(str(error)) from error
    except StateError as error:
        raise LearnerError(f"{path} {DAMAGED} ({error})") from error


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
    """Whether a file says that it is a learner, also that of a run."""
    return format_of(path) in (FORMAT, FORMAT_OF_RUNS)


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
            network, state = learner_of_run(path)
            check_learner(*_parts(network, state, weights=True))
            return network, state
        state, metadata = read_state(path)
        header = _header(path, metadata)
        state["before"] = _before(state)
        check_learner(header, state)
        network = _network(path, header, state.pop("network"), weights)
    except TensorFileError as error:
        raise LearnerError(str(error)) from error
    except (NetworkError, WeightsError) as error:
        raise LearnerError(f"{path}: {error}") from error
    except StateError as error:
        raise LearnerError(f"{path} {DAMAGED} ({error})") from error
    classes = header["classes"]
    return network, state | {
        **{name: header[name] for name in ("method", "budget_bytes", "features", "lessons")},
        "names": [one and one["name"] for one in classes],
        "images": [one["images"] if one else 0 for one in classes],
    }


def _before(state: Any) -> Any:
    """Return the state before the last lesson.

    Raises:
        StateError: it is not complete.
    """
    check(STORED, state)
    before = state["before"]
    if before is None:
        return None
    present = flatten({name: value for name, value in state.items() if name != "before"})[1]
    if missing := [name for name in before["same"] if name not in present]:
        raise StateError(f"before.same names {shown(missing[0])}, which is no tensor of the state")
    tensors = before["tensors"] | {name: present[name] for name in before["same"]}
    return unflatten(loaded_json(before["tree"]), tensors)


def _header(path: str | os.PathLike, metadata: dict[str, str]) -> dict[str, Any]:
    found = metadata.get("format", "")
    if found != FORMAT:
        kind = f"of format {shown(found)}" if found else "no learner file"
        raise LearnerError(f"{path} is {kind}, not {FORMAT}: give a file that crumb teach or Learner.save wrote")
    return loaded_json(metadata.get("learner", ""))


def _network(
    path: str | os.PathLike, header: dict[str, Any], state: dict | None, weights: str | os.PathLike | None
) -> FrozenNetwork:
    described = header["network"]
    if state is not None and weights in (None, *PUBLISHED):  # which are there already, if they are the same
        try:
            return FrozenNetwork.of_state(described, state)
        except (RuntimeError, ValueError) as error:
            raise LearnerError(f"{path} {DAMAGED} (its network: {str(error).splitlines()[0]})") from error
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
