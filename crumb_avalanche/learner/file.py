"""Learner files: what ``Learner.save`` and ``crumb run`` write, one ``.safetensors`` file, read without running code.

A learner's file holds its state, its network, and a readable header; that of a run
holds a strategy with the arguments to rebuild it. Neither holds paths.
"""

import json
import os
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from crumb_avalanche import __version__
from crumb_avalanche.images.looks import LookWeights
from crumb_avalanche.learner.confidence import Confidence
from crumb_avalanche.learner.lesson import Lesson, now
from crumb_avalanche.learner.network import FrozenNetwork, NetworkError
from crumb_avalanche.learner.run_file import (
    DAMAGED,
    FORMAT,
    FORMAT_OF_RUNS,
    LEARNER,
    LearnerError,
    LearnerHeader,
    RunAnswers,
    cannot_be_taught,
    header_of,
)
from crumb_avalanche.learner.schema import check_learner
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.models.backbone_names import PUBLISHED
from crumb_avalanche.models.weights import WeightsError
from crumb_avalanche.system.tensor_file import (
    StateError,
    TensorFileError,
    format_of,
    read_metadata,
    read_state,
    write_state,
)

PLAIN = (
    "method",
    "budget_bytes",
    "features",
    "looks",
    "lessons",
    "names",
)  # of the state of a learner


class ReplacedError(OSError):
    """Another program replaced the file of a learner since it was read or written."""


def file_of(path: str | os.PathLike) -> Path:
    """Return the learner file of a path, which may be the folder of a run."""
    return Path(path) / LEARNER if os.path.isdir(path) else Path(path)


def read_header(path: str | os.PathLike) -> LearnerHeader | dict[str, Any]:
    """Read the header of a learner file without its tensors: a ``LearnerHeader`` for that of a run.

    Raises:
        LearnerError: the file is absent, damaged, of another kind or of a newer
            version.
    """
    try:
        return header_of(path, read_metadata(path))
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
    header = read_header(path)
    return isinstance(header, LearnerHeader) or header["network"]["included"]


def refuse_folder(path: Path) -> None:
    """Raise ValueError for the folder of a run, which is not to be changed."""
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder, which can be asked but not changed: copy {path / LEARNER} to a file of your own, and "
            "give that"
        )


def write_learner(
    path: str | os.PathLike,
    network: FrozenNetwork,
    state: dict[str, Any],
    weights: bool,
) -> str:
    """Write a learner atomically, after checking that ``read_learner`` will take it.

    Args:
        path: the file; an existing one is replaced.
        network: its description is stored, and its weights if ``weights`` is true.
        state: ``Learner.state_dict()``.
        weights: see above.

    Returns:
        The checksum of the file; see ``digest_of``.

    Raises:
        LearnerError: the state is none that can be read again, for instance because a
            value is not finite; an existing file is unchanged.
        OSError: the file cannot be written; an existing one is unchanged.
    """
    header, stored = _parts(network, state, weights)
    try:
        check_learner(header, stored)
    except StateError as error:
        cure = "give up what was changed last, and load the file anew"
        raise LearnerError(f"{path} cannot be saved: {cure} ({error})") from error
    return write_state(path, stored, {"format": FORMAT, "learner": json.dumps(header)})


def _parts(
    network: FrozenNetwork, state: dict[str, Any], weights: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header of a learner, as it is after JSON, and what else is stored."""
    header = {
        **{name: state[name] for name in PLAIN},
        "network": network.header() | {"included": weights},
        "versions": {"crumb_avalanche": __version__, "torch": torch.__version__},
        "written": now(),
    }
    rest = {name: value for name, value in state.items() if name not in PLAIN}
    return json.loads(json.dumps(header)), rest | {
        "network": network.state() if weights else None
    }


def read_learner(
    path: str | os.PathLike, weights: str | os.PathLike | None
) -> "tuple[FrozenNetwork, dict[str, Any]] | RunAnswers":
    """Read a learner: its network and its state; of a run in another method, what answers.

    Args:
        path: the file, or the folder of a finished run.
        weights: the weight file, or ``torchvision``, for a file without weights.

    Raises:
        LearnerError: see ``read_header``; or a tensor is damaged, or the weights are
            absent or others.
    """
    path = file_of(path)
    header = read_header(path)
    if isinstance(header, LearnerHeader) and cannot_be_taught(header):
        return RunAnswers(path)
    try:
        state, metadata = read_state(path)
        header = header_of(path, metadata)
        if isinstance(header, LearnerHeader):
            network, state = _taken_over(header, state)
            check_learner(*_parts(network, state, weights=True))
            return network, state
        check_learner(header, state)
        network = _network(path, header, state.pop("network"), weights)
    except TensorFileError as error:
        raise LearnerError(str(error)) from error
    except (NetworkError, WeightsError) as error:
        raise LearnerError(f"{path}: {error}") from error
    except StateError as error:
        raise LearnerError(f"{path} {DAMAGED} ({error})") from error
    return network, state | {name: header[name] for name in PLAIN}


def _network(
    path: Path,
    header: dict[str, Any],
    state: dict | None,
    weights: str | os.PathLike | None,
) -> FrozenNetwork:
    described = header["network"]
    if state is not None and weights in (
        None,
        *PUBLISHED,
    ):  # which are there already, if they are the same
        try:
            return FrozenNetwork.of_state(described, state)
        except (RuntimeError, ValueError) as error:
            raise LearnerError(
                f"{path} {DAMAGED} (its network: {str(error).splitlines()[0]})"
            ) from error
    if weights is None:
        raise LearnerError(
            f"{path.name} holds no weights: give those of {described['source']}, SHA-256 "
            f"{described['weights_sha256'][:12]}..., with weights=FILE, or the published ones with 'torchvision', "
            "'timm' or 'package' (--weights of crumb)"
        )
    network = FrozenNetwork.of_arguments(described["arguments"], weights)
    network.check_hash(described["weights_sha256"])
    return network


def _taken_over(
    header: LearnerHeader, state: Any
) -> tuple[FrozenNetwork, dict[str, Any]]:
    """Return the network and the state of a learner, from those of a run in closed form.

    Its confidence is that of a learner before the first lesson.

    Raises:
        StateError: the run's state is none of a closed form.
    """
    arguments = {
        name: value for name, value in header.network.items() if name != "n_classes"
    }
    described = {
        "arguments": arguments,
        "source": "the run's weights",
        "weights_sha256": None,
    }
    names = {one["label"]: one["name"] for one in header.classes}
    images = {one["name"]: one["images"] for one in header.classes}
    lesson = Lesson(
        images, 0, 0, 0, header.written, runtime=header.versions.get("runtime", "torch")
    )
    lesson = replace(
        lesson, id=int(sha256(repr(header).encode()).hexdigest()[:15], 16)
    )  # the same for copies
    try:
        weights = {
            f"feature_extractor.{name}": value
            for name, value in state["feature_extractor"].items()
        }
        model, unused = state["strategy"]["model"], ("plastic_layers.head.", "calib")
        weights |= {
            name: value for name, value in model.items() if not name.startswith(unused)
        }
        return FrozenNetwork.of_state(described, weights), {
            "method": header.strategy,
            "budget_bytes": header.budget_bytes,
            "features": vars(
                FeatureMoments(
                    **{name: header.method[name] for name in asdict(FeatureMoments())}
                )
            ),
            "looks": [1.0],
            "lessons": [lesson.state_dict()],
            "history": {"before": None, "kept": []},
            "pictures": [None],
            "names": [names.get(label) for label in range(max(names, default=-1) + 1)],
            "statistics": state["strategy"]["method"],
            "confidence": Confidence().state_dict(),
            "look_losses": LookWeights(1).losses,
            "nothing": None,
        }
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StateError(
            f"the run's state is not that of a method in closed form: {reason}"
        ) from error
