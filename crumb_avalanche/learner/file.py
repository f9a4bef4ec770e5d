"""The learner file: a trained strategy as one ``.safetensors`` file, which is read without running code.

The file holds the strategy's state, the network's weights and a header with the arguments to rebuild both. The loaded
strategy predicts as the run did, without the run's settings, weight files or images.
"""

import json
import os
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from crumb_avalanche.learner.schema import check_run_header
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.int8 import restore
from crumb_avalanche.models.split_model import SplitModel
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.system.rng_state import get_rng_state, preserve_rng_state, set_rng_state
from crumb_avalanche.system.tensor_file import (
    StateError,
    TensorFileError,
    loaded_json,
    read_metadata,
    read_state,
    write_state,
)

if TYPE_CHECKING:
    from crumb_avalanche.training.stream_strategy import StreamStrategy

LEARNER = "learner.safetensors"
FORMAT = "crumb-run-learner-1"
Keep = Literal["full", "answers"]
# Strategies without a learner file, and why.
NOT_KEPT = {"chance": "its answers are random"}


class LearnerError(ValueError):
    """A learner cannot be saved, or a file is not a valid learner file."""


@dataclass(frozen=True)
class LearnerHeader:
    """Header of a learner file, in plain values.

    Attributes:
        strategy: name in the registry.
        method: all settings that only the method has.
        learning: fields of ``LearningSettings``.
        mem_size: capacity in memories; 0 for a method that stores none.
        seed: seed of the method's random draws.
        network: arguments of ``split_backbone`` except ``weights`` and ``codebook``.
        codebook: ``(codebook_size, codebook_dim)``, or ``None``.
        precision: ``fp32`` or ``bf16``.
        evaluate_quantized: whether evaluation goes through the codebook.
        transform: conversion of an image to the network's input: side in pixels, interpolation, mean and standard
            deviation.
        classes: label, name and number of training images of each class, in order of arrival.
        lessons: number, labels and number of images of each experience trained on.
        budget: memory budget in images, bytes or memories.
        calibration: ``feature_scale`` and the initialisation of the codebook.
        keep: ``full`` for a state that training can resume from, ``answers`` for one that can only predict.
        weights_sha256: hash of F's weights (``weights_hash``).
        versions: versions of the libraries that influence results.
        plan: settings of the run that can change its result; not used to rebuild the learner.
        written: date and time of writing, ISO 8601 in UTC.
    """

    strategy: str
    method: dict[str, Any]
    learning: dict[str, Any]
    mem_size: int
    seed: int
    network: dict[str, Any]
    codebook: tuple[int, int] | None
    precision: str = "fp32"
    evaluate_quantized: bool = False
    transform: dict[str, Any] = field(default_factory=dict)
    classes: list[dict[str, Any]] = field(default_factory=list)
    lessons: list[dict[str, Any]] = field(default_factory=list)
    budget: dict[str, Any] = field(default_factory=dict)
    calibration: dict[str, Any] = field(default_factory=dict)
    keep: Keep = "full"
    weights_sha256: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    written: str = ""


@dataclass(frozen=True)
class SavedLearner:
    """A learner loaded from its file.

    Attributes:
        strategy: can ``eval``; can ``train`` if ``header.keep`` is ``full``.
        header: header of the file.
    """

    strategy: "StreamStrategy"
    header: LearnerHeader


def save_learner(path: str | os.PathLike, strategy: "StreamStrategy", header: LearnerHeader) -> None:
    """Write a learner file atomically.

    Args:
        path: path of the file; an existing one is replaced.
        strategy: the strategy, not within an experience.
        header: ``keep`` selects what is written; ``weights_sha256`` and ``written`` are filled in.

    Raises:
        LearnerError: the strategy is one of ``NOT_KEPT``, or its state cannot be stored.
        OSError: the file cannot be written, for instance because the disk is full; an existing one is unchanged.
    """
    if header.strategy in NOT_KEPT:
        raise LearnerError(f"strategy {header.strategy} has no learner file: {NOT_KEPT[header.strategy]}")
    model: SplitModel = strategy.model
    full = header.keep == "full"
    state: dict[str, Any] = {"feature_extractor": dict(model.feature_extractor.state_dict())}
    if model.runtime.calibration is not None:
        state["int8"] = model.runtime.calibration.state_dict()
    if full:
        state["rng"] = get_rng_state()
    written = datetime.now(timezone.utc).isoformat(timespec="seconds")
    filled = replace(header, weights_sha256=weights_hash(model.feature_extractor), written=written)
    try:
        state["strategy"] = strategy.state_dict() if full else strategy.answer_state()
        write_state(path, state, {"format": FORMAT, "learner": json.dumps(asdict(filled))})
    except StateError as error:
        raise LearnerError(f"strategy {header.strategy} cannot be saved: {error}") from error


def read_header(path: str | os.PathLike) -> LearnerHeader:
    """Read the header of a learner file, without its tensors.

    Raises:
        LearnerError: the file is absent, damaged, not a learner file, or holds a value that no run writes.
    """
    try:
        return _header(path, read_metadata(path))
    except TensorFileError as error:
        raise LearnerError(str(error)) from error


def _header(path: str | os.PathLike, metadata: dict[str, str]) -> LearnerHeader:
    found = metadata.get("format")
    if found != FORMAT:
        kind = f"of format {found}" if found else "without a format"
        raise LearnerError(f"{path} is a file {kind}, not {FORMAT}; give the {LEARNER} of a finished run")
    try:
        values = loaded_json(metadata.get("learner", ""))
        check_run_header(values)
    except StateError as error:
        raise LearnerError(f"{path} is no valid learner of a run ({error}); take a copy, or repeat the run") from error
    codebook = values["codebook"]
    return LearnerHeader(**{**values, "codebook": codebook and tuple(codebook)})


def load_learner(path: str | os.PathLike, device: str = "cpu") -> SavedLearner:
    """Build the strategy of a learner file and load its state.

    A file with ``keep="full"`` also sets the global RNG state: training on the next experience gives the same result as
    in the process that wrote the file. A file with ``keep="answers"`` leaves the RNG state unchanged, and ``train`` of
    its strategy raises a ``LearnerError``.

    Args:
        path: a learner file.
        device: device of the strategy.

    Raises:
        LearnerError: see ``read_header``; or a tensor is damaged or has another shape.
        RuntimeRefusedError: it was learned in int8, and cannot be run so; see ``int8.restore``.
    """
    path = Path(path)
    try:
        state, metadata = read_state(path)
    except TensorFileError as error:
        raise LearnerError(str(error)) from error
    header = _header(path, metadata)
    try:
        with preserve_rng_state():
            strategy = _build(header, device)
        strategy.model.feature_extractor.load_state_dict(state["feature_extractor"])
        if header.keep == "full":
            _load_all(strategy, state["strategy"])
        else:
            strategy.load_answer_state(state["strategy"])
            strategy.__dict__["train"] = partial(_refuse_training, path)
        for name, value in strategy.model.state_dict().items():
            if value.is_floating_point() and not value.isfinite().all():
                raise StateError(f"{name} holds values that are not finite")
    except Exception as error:  # the state of each strategy is its own, and so is how it fails
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise LearnerError(f"{path} does not fit strategy {header.strategy} of this version: {reason}") from error
    if weights_hash(strategy.model.feature_extractor) != header.weights_sha256:
        raise LearnerError(f"the weights of F in {path} are not those that its header names; save the learner again")
    restore(strategy.model, state.get("int8"), [header.versions.get("runtime", "")])
    if "rng" in state:
        try:
            set_rng_state(state["rng"])
        except Exception as error:  # of each generator its own
            raise LearnerError(f"the states of the random draws in {path} are damaged; repeat the run") from error
    return SavedLearner(strategy, header)


def load_to_answer(path: str | os.PathLike, device: str = "cpu") -> SavedLearner:
    """Load a learner with what its answers need, whatever the file keeps; the RNG state does not change.

    Args:
        path, device: as for ``load_learner``.

    Raises:
        LearnerError: see ``load_learner``.
    """
    with preserve_rng_state():
        saved = load_learner(path, device)
        if saved.header.keep == "full":  # iCaRL would pass all its exemplars through the network before every answer
            strategy = _build(saved.header, device)
            strategy.model.feature_extractor.load_state_dict(saved.strategy.model.feature_extractor.state_dict())
            strategy.model.runtime = saved.strategy.model.runtime
            strategy.load_answer_state(saved.strategy.answer_state())
            saved = replace(saved, strategy=strategy)
    saved.strategy.__dict__["train"] = partial(_refuse_training, Path(path))
    return saved


def _refuse_training(path: Path, *arguments, **keywords) -> None:
    raise LearnerError(
        f"{path} was kept with keep_learner=answers: without optimizer, memories and counters, training would start "
        "anew and forget; train on a file that was kept with keep_learner=full"
    )


def _load_all(strategy: "StreamStrategy", state: dict[str, Any]) -> None:
    """Load a full state, except for plugins that recorded the run: metrics, predictions, progress.

    Raises:
        StateError: the state of a plugin of the method is missing.
    """
    from crumb_avalanche.training.stateful import parts

    wanted = {name for name, part in parts(strategy).items() if hasattr(part, "state_dict") and part.state_dict()}
    if missing := wanted - state["plugins"].keys():
        raise StateError(f"the state of {', '.join(sorted(missing))} is missing")
    strategy.load_state_dict(state, strict=False)


def _build(header: LearnerHeader, device: str) -> "StreamStrategy":
    """Build the untrained strategy of a header."""
    from avalanche.training.plugins import EvaluationPlugin

    from crumb_avalanche.methods.registry import LearningSettings, build_strategy

    codebook = None if header.codebook is None else Codebook(*header.codebook)
    model = split_backbone(weights=None, codebook=codebook, **header.network).to(device)
    model.set_precision(header.precision)
    strategy = build_strategy(
        header.strategy,
        model,
        LearningSettings(**header.learning),
        header.mem_size,
        header.seed,
        device,
        header.method,
        evaluator=EvaluationPlugin(loggers=[]),
    )
    model.quantized_evaluation = header.evaluate_quantized
    return strategy
