"""Learner files: what ``Learner.save`` and ``crumb run`` write.

One ``.safetensors`` file, read without running code. A learner's file holds its state,
its network, and a readable header; that of a run holds a strategy with the arguments to
rebuild it. Neither holds paths.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks_toybox_ilab.tables.text import now
from crumb_avalanche import __version__
from crumb_avalanche.learner.confidence import Confidence
from crumb_avalanche.learner.header import (
    FORMAT,
    cannot_be_taught,
    check_header,
    file_of,
    header_of,
)
from crumb_avalanche.learner.history import History
from crumb_avalanche.learner.lesson_record import Lesson
from crumb_avalanche.learner.network import (
    FrozenNetwork,
    Network,
    NetworkError,
    StoredNetwork,
)
from crumb_avalanche.learner.record_fit import STRICT
from crumb_avalanche.learner.records import PER_CLIP
from crumb_avalanche.learner.run_answers import RunAnswers
from crumb_avalanche.learner.schema import check_state
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.methods.looks import Looks, ViewFeatures
from crumb_avalanche.methods.run_header import (
    DAMAGED,
    LearnerError,
    LearnerHeader,
)
from crumb_avalanche.models.backbone_names import PUBLISHED
from crumb_avalanche.models.split_model import NOT_WEIGHTS
from crumb_avalanche.models.weights import WeightsError
from crumb_avalanche.system.file_metadata import (
    TensorFileError,
    read_metadata,
)
from crumb_avalanche.system.named_values import selected, without
from crumb_avalanche.system.tensor_file import read_state, write_state
from crumb_avalanche.system.value_types import StateError

# Entries of a learner's state that stand in the header; the others have tensors.
PLAIN = (
    "method",
    "budget_bytes",
    "features",
    "head_length",
    "looks",
    "strict",
    "rates",
    "missing_clips",
    "lessons",
    "undoable",
    "names",
)
ID_DIGITS = 15  # hexadecimal digits of a lesson's number, which fit into 63 bits


@dataclass(frozen=True)
class LearnerContent:
    """What a learner file holds.

    Attributes:
        network: its network; a ``StoredNetwork`` if it was not to be built.
        state: what ``State.state_dict`` returned.
    """

    network: Network
    state: dict[str, Any]


# Writing


def write_learner(
    path: str | os.PathLike,
    network: Network,
    state: dict[str, Any],
    weights: bool,
    expect: Callable[[str], object] | None = None,
) -> str:
    """Write a learner atomically, after checking that ``read_learner`` will take it.

    Args:
        path: the file; an existing one is replaced.
        network: its description is stored.
        state: what ``State.state_dict`` returned.
        weights: whether the file holds the network's weights.
        expect: called with the checksum of the file before it is written.

    Returns:
        The checksum of the file; see ``digest_of``.

    Raises:
        LearnerError: the state is none that can be read again, for instance because a
            value is not finite; an existing file is unchanged.
        OSError: the file cannot be written; an existing one is unchanged.
    """
    header = _header(network, state, weights)  # plain values, JSON
    stored = _without_header(network, state, weights)  # what has tensors
    try:
        check_header(header)
        check_state(header, stored)
    except StateError as error:
        cure = "give up what was changed last, and load the file anew"
        raise LearnerError(f"{path} cannot be saved: {cure} ({error})") from error
    metadata = {"format": FORMAT, "learner": json.dumps(header)}
    return write_state(path, stored, metadata, expect)


def _header(network: Network, state: dict[str, Any], weights: bool) -> dict[str, Any]:
    """Return the header of a learner file, as it is after JSON.

    Args:
        network: is described.
        state: what ``State.state_dict`` returned; its plain values are taken.
        weights: whether the file holds the network's weights.
    """
    header = selected(state, PLAIN)
    header["network"] = {**network.header(), "included": weights}
    header["versions"] = {"crumb_avalanche": __version__, "torch": torch.__version__}
    header["written"] = now()
    return json.loads(json.dumps(header))


def _without_header(
    network: Network, state: dict[str, Any], weights: bool
) -> dict[str, Any]:
    """Return what a learner file stores besides the header, with tensors.

    Args:
        network: its weights are taken if ``weights`` is true.
        state: what ``State.state_dict`` returned; what has tensors is taken.
        weights: whether the file holds the network's weights.
    """
    stored = without(state, *PLAIN)
    stored["network"] = None
    if weights:
        stored["network"] = network.state()
    return stored


# Reading


def read_learner(
    path: str | os.PathLike,
    weights: str | os.PathLike | None,
    build: bool = True,
) -> LearnerContent | RunAnswers:
    """Read a learner; of a run in another method than a closed form, what answers.

    Args:
        path: the file, or the folder of a finished run.
        weights: the weight file, or ``torchvision``, for a file without weights.
        build: whether the network is built, which answers and lessons need; that of a
            run always is.

    Raises:
        LearnerError: the file is no learner, is of a newer version or damaged, or the
            weights are absent or others.
    """
    path = file_of(path)
    try:
        return _read(path, weights, build)
    except TensorFileError as error:
        raise LearnerError(str(error)) from error
    except (NetworkError, WeightsError) as error:
        raise LearnerError(f"{path}: {error}") from error
    except StateError as error:
        raise LearnerError(f"{path} {DAMAGED} ({error})") from error


def _read(
    path: Path, weights: str | os.PathLike | None, build: bool
) -> LearnerContent | RunAnswers:
    """Read a learner file; its header is checked before its tensors are read.

    Args:
        path: of the file.
        weights: the weight file, or ``torchvision``, for a file without weights.
        build: whether the network is built.

    Raises:
        StateError, TensorFileError: the file is damaged, or no learner.
        NetworkError, WeightsError: the weights are absent or others.
    """
    metadata = read_metadata(path)
    header = header_of(path, metadata)
    if isinstance(header, LearnerHeader) and cannot_be_taught(header):
        return RunAnswers(path)
    stored, metadata_of_tensors = read_state(path)
    if metadata_of_tensors["learner"] != metadata["learner"]:
        return _read(path, weights, build)  # replaced by another process meanwhile
    if isinstance(header, LearnerHeader):
        return _content_of_run(header, stored)
    check_state(header, stored)  # raises
    stored_weights = stored.pop("network")
    network: Network
    if build:
        network = _build_network(path, header["network"], stored_weights, weights)
    else:
        network = StoredNetwork.of_file(header["network"], stored_weights)
    return LearnerContent(network, stored | selected(header, PLAIN))


def _build_network(
    path: Path,
    described: dict[str, Any],
    stored_weights: dict[str, Tensor] | None,
    weights: str | os.PathLike | None,
) -> FrozenNetwork:
    """Build the network of a learner file.

    Args:
        path: of the file, for errors.
        described: what ``FrozenNetwork.header`` returned.
        stored_weights: by name, if the file holds them.
        weights: the weight file, or ``torchvision`` and the like, for a file without
            weights. Published ones are not fetched where weights are stored, as they
            have to be the same.

    Raises:
        LearnerError: stored weights do not fit the network, or none are given.
        NetworkError: the weights are others than those of the learner.
    """
    if stored_weights is not None and weights in (None, *PUBLISHED):
        try:
            return FrozenNetwork.of_state(described, stored_weights)
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise LearnerError(f"{path} {DAMAGED} (its network: {reason})") from error
    if weights is None:
        raise LearnerError(
            f"{path.name} holds no weights: give those of {described['source']}, "
            f"SHA-256 {described['weights_sha256'][:12]}..., with weights=FILE, or the "
            "published ones with 'torchvision', 'timm' or 'package' (--weights of "
            "crumb)"
        )
    network = FrozenNetwork.of_arguments(described["arguments"], weights)
    network.check_hash(described["weights_sha256"])  # raises for other weights
    return network


# What a run in closed form left


def _content_of_run(header: LearnerHeader, stored: Any) -> LearnerContent:
    """Return the content of a learner, from that of a run in closed form.

    Args:
        header: of the run's file.
        stored: what the file holds besides: ``feature_extractor`` and ``strategy``.

    Raises:
        StateError: the run's state is none of a closed form.
    """
    try:
        network = _network_of_run(header, stored)
        state = _state_of_run(header, stored, network)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StateError(
            f"the run's state is not that of a method in closed form: {reason}"
        ) from error
    # A run's file is checked as that of a learner, which it becomes.
    learner_header = _header(network, state, weights=True)
    check_header(learner_header)
    check_state(learner_header, _without_header(network, state, weights=True))
    return LearnerContent(network, state)


def _network_of_run(header: LearnerHeader, stored: Any) -> FrozenNetwork:
    """Build the network of a run, whose F and P are stored apart, without its head.

    Args:
        header: of the run's file; ``network`` holds arguments of ``split_backbone``.
        stored: tensors by name: those of F in ``feature_extractor``, and those of P in
            ``strategy`` as ``model``.
    """
    arguments = dict(header.network)
    del arguments["n_classes"]
    weights = {}
    for name, tensor in stored["feature_extractor"].items():
        weights[f"feature_extractor.{name}"] = tensor
    for name, tensor in stored["strategy"]["model"].items():
        # A learner needs neither the head nor what was measured of codes.
        if not name.startswith(("plastic_layers.head.", *NOT_WEIGHTS)):
            weights[name] = tensor
    described = {
        "arguments": arguments,
        "source": "the run's weights",
        "weights_sha256": None,
    }
    return FrozenNetwork.of_state(described, weights)


def _state_of_run(
    header: LearnerHeader, stored: Any, network: FrozenNetwork
) -> dict[str, Any]:
    """Return the state of a learner whose only lesson was a run in closed form.

    Its confidence is that of a learner before the first lesson.

    Args:
        header: of the run's file: classes, images, method and budget.
        stored: what the file holds besides; ``strategy`` has the statistics.
        network: of the run.

    Returns:
        What ``State.state_dict`` returns.
    """
    # The label is the number of the class in the statistics.
    names = {learned["label"]: learned["name"] for learned in header.classes}
    moments = {name: header.method[name] for name in asdict(FeatureMoments())}
    features = FeatureMoments(**moments)
    # The whole image, and middle parts of it.
    looks = Looks.of_text(header.method["looks"])
    head = ViewFeatures(features, looks).of_head()
    n_classes = max(names, default=-1) + 1
    names_by_label = [names.get(label) for label in range(n_classes)]
    images = {learned["label"]: learned["images"] for learned in header.classes}
    images_by_label = [images.get(label, 0) for label in range(n_classes)]
    return {
        "method": header.strategy,
        "budget_bytes": header.budget_bytes,
        "features": vars(features),
        "head_length": head.length(network.model),
        "looks": list(looks.shares),
        "strict": STRICT,
        "rates": None,
        "missing_clips": None,
        "undoable": 0,
        "lessons": [_lesson_of_run(header).state_dict()],
        "history": History(room=0).state_dict(),
        "pictures": [None],
        "names": names_by_label,
        "images": images_by_label,
        # A run does not count clips: as many of PER_CLIP images, rounded up.
        "clips": [-(-count // PER_CLIP) for count in images_by_label],
        "statistics": stored["strategy"]["method"],
        "confidence": Confidence().state_dict(),
        "look_weights": stored["strategy"]["looks"],
        "nothing": [],
    }


def _lesson_of_run(header: LearnerHeader) -> Lesson:
    """Return a run as a lesson; copies of its file have the same one."""
    digest = sha256(repr(header).encode()).hexdigest()
    return Lesson(
        images={learned["name"]: learned["images"] for learned in header.classes},
        clips=0,
        answered=0,
        right=0,
        unknown=0,
        when=header.written,
        runtime=header.versions.get("runtime", "torch"),
        id=int(digest[:ID_DIGITS], 16),
    )
