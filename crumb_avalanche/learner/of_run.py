"""The learner of a finished run as one that can be asked and taught."""

import os
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from crumb_avalanche.learner.confidence import Confidence
from crumb_avalanche.learner.file import FORMAT, LEARNER, LearnerError, LearnerHeader, read_header
from crumb_avalanche.learner.kinds import KINDS
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.learner.thumbnails import Thumbnails
from crumb_avalanche.methods.features import FeatureMoments
from crumb_avalanche.system.tensor_file import StateError, TensorFileError, read_metadata, read_state


def cannot_be_taught(header: LearnerHeader) -> str:
    """Return why a run's learner is none that ``Learner`` can hold; empty if it can."""
    if header.strategy in KINDS:
        return ""
    return f"was learned by {header.strategy}; only {', '.join(KINDS)} can be taught on"


def can_only_answer(path: str | os.PathLike) -> bool:
    """Whether a path is a run's learner file, or its folder, that ``RunLearner`` reads and ``Learner`` does not."""
    path = Path(path) / LEARNER if os.path.isdir(path) else path
    try:
        return read_metadata(path).get("format") == FORMAT and bool(cannot_be_taught(read_header(path)))
    except TensorFileError:
        return False  # Learner.load says what is wrong


def learner_of_run(path: str | os.PathLike) -> tuple[FrozenNetwork, dict[str, Any]]:
    """Read the learner file of a run of a method in closed form: its network, and a state as ``Learner`` has.

    Its confidence is that of a learner before the first lesson.

    Raises:
        LearnerError: the run had another method.
        StateError: the file holds no such state.
    """
    header = read_header(path)
    if reason := cannot_be_taught(header):
        raise LearnerError(
            f"{path} {reason}. It can be asked, with crumb predict or RunLearner, but not taught or changed. To teach "
            f"on, learn its images with crumb teach NEW.safetensors FOLDER, or with crumb run --strategy "
            f"{KINDS[0]}"
        )
    try:
        return _taken_over(header, read_state(path)[0])
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise StateError(f"the run's state is not that of a method in closed form: {reason}") from error


def _taken_over(header: LearnerHeader, state: Any) -> tuple[FrozenNetwork, dict[str, Any]]:
    """Return the network and the state of a learner, from those of a run."""
    arguments = {name: value for name, value in header.network.items() if name != "n_classes"}
    weights = {f"feature_extractor.{name}": value for name, value in state["feature_extractor"].items()}
    model = state["strategy"]["model"]
    weights |= {name: value for name, value in model.items() if not name.startswith(("plastic_layers.head.", "calib"))}
    described = {"arguments": arguments, "source": "the run's weights", "weights_sha256": None}
    counts = {one["label"]: one for one in header.classes}
    labels = range(max(counts, default=-1) + 1)
    names = [str(counts[label]["name"]) if label in counts else None for label in labels]
    features = {name: header.method[name] for name in asdict(FeatureMoments())}
    lesson = {
        "images": {one["name"]: one["images"] for one in header.classes},
        **dict.fromkeys(("clips", "answered", "right"), 0),
        "when": header.written,
        "unread": (),
        "notes": (),
        "runtime": header.versions.get("runtime", "torch"),
        "id": int(sha256(repr(header).encode()).hexdigest()[:15], 16),  # the same for copies of the file
    }
    return FrozenNetwork.of_state(described, weights), {
        "method": header.strategy,
        "budget_bytes": header.budget.get("bytes"),
        "features": vars(FeatureMoments(**features)),
        "lessons": [lesson],
        "stored": [],
        "thumbnails": Thumbnails().state_dict(),
        "int8": state.get("int8"),
        "before": None,
        "names": names,
        "images": [counts[label]["images"] if label in counts else 0 for label in labels],
        "statistics": state["strategy"]["method"],
        "confidence": Confidence().state_dict(),
    }
