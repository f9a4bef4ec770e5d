"""The learner file that a run leaves: a trained strategy, which answers as the run did.

It stands below the rooms that write it (``runs``) and that ask and teach what it holds
(``learner``), beside the registry, by which a strategy is built of a name and settings.

The file holds all that it needs: not the run's settings, weight files or images.
"""

import json
import os
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from benchmarks_toybox_ilab.tables.text import now
from crumb_avalanche.methods.run_header import (
    FORMAT_OF_RUNS,
    LearnerError,
    LearnerHeader,
    read_run_header,
)
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.split_backbone import split_backbone
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.system.file_metadata import TensorFileError
from crumb_avalanche.system.process import preserve_rng_state
from crumb_avalanche.system.tensor_file import read_state, write_state
from crumb_avalanche.system.value_types import StateError

if TYPE_CHECKING:
    from crumb_avalanche.training.stream_strategy import StreamStrategy

# Strategies without a learner file, and why.
NOT_KEPT = {"chance": "its answers are random"}


def save_learner(
    path: str | os.PathLike, strategy: "StreamStrategy", header: LearnerHeader
) -> None:
    """Write a run's learner file atomically: what it learned, and how to build it.

    Args:
        path: path of the file; an existing one is replaced.
        strategy: the strategy, not within an experience.
        header: settings, classes and provenance of the run; ``weights_sha256`` and
            ``written``, the time, are filled in.

    Raises:
        LearnerError: the strategy is one of ``NOT_KEPT``, or its state cannot be
            stored.
        OSError: the file cannot be written, for instance because the disk is full; an
            existing one is unchanged.
    """
    if header.strategy in NOT_KEPT:
        raise LearnerError(
            f"strategy {header.strategy} has no learner file: "
            f"{NOT_KEPT[header.strategy]}"
        )
    feature_extractor = strategy.model.feature_extractor
    header = replace(
        header, weights_sha256=weights_hash(feature_extractor), written=now()
    )
    metadata = {"format": FORMAT_OF_RUNS, "learner": json.dumps(asdict(header))}
    try:
        state = {
            "feature_extractor": dict(feature_extractor.state_dict()),
            "strategy": strategy.answer_state(),  # all that evaluation needs
        }
        write_state(path, state, metadata)
    except StateError as error:
        raise LearnerError(
            f"strategy {header.strategy} cannot be saved: {error}"
        ) from error


def load_learner(
    path: str | os.PathLike, device: str = "cpu"
) -> "tuple[StreamStrategy, LearnerHeader]":
    """Build the strategy of a run's learner file.

    It can ``eval`` as the run's did, but not train on. The RNG state does not change.

    Args:
        path: a learner file.
        device: device of the strategy.

    Returns:
        The strategy, and the header of the file: settings, classes and provenance.

    Raises:
        LearnerError: the file is absent, damaged, of another format, or does not fit
            the installed version.
    """
    path = Path(path)
    try:
        state, metadata = read_state(path)
    except TensorFileError as error:
        raise LearnerError(str(error)) from error
    header = read_run_header(path, metadata)
    try:
        with preserve_rng_state():
            strategy = _build_strategy(header, device)
            _load_strategy(strategy, state)
    # The state of each strategy is its own, and so is how it fails.
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        reason = lines[0]
        raise LearnerError(
            f"{path} does not fit strategy {header.strategy} of this version: {reason}"
        ) from error
    if weights_hash(strategy.model.feature_extractor) != header.weights_sha256:
        raise LearnerError(
            f"the weights of F in {path} are not those that its header names; save the "
            "learner again"
        )
    return strategy, header


def _build_strategy(header: LearnerHeader, device: str) -> Any:
    """Build the untrained strategy that the header of a learner file describes.

    Args:
        header: settings of network, codebook, method and training.
        device: of the strategy.
    """
    from avalanche.training.plugins import EvaluationPlugin

    from crumb_avalanche.methods.registry import LearningSettings, build_strategy

    codebook = None
    if header.codebook is not None:
        codebook = Codebook(**header.codebook)
    model = split_backbone(weights=None, codebook=codebook, **header.network)
    model = model.to(device)
    model.set_precision(header.precision)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No loggers specified")
        evaluator = EvaluationPlugin(loggers=[])
        strategy = build_strategy(
            header.strategy,
            model,
            settings=LearningSettings(**header.learning),
            mem_size=header.mem_size,
            seed=header.seed,
            device=device,
            method=header.method,
            evaluator=evaluator,
        )
    model.quantized_evaluation = header.evaluate_quantized
    return strategy


def _load_strategy(strategy: Any, state: dict[str, Any]) -> None:
    """Load the state of a learner file into the strategy of its header.

    Args:
        strategy: untrained; its weights and what it learned are replaced.
        state: ``feature_extractor`` holds the weights of F, ``strategy`` what
            ``answer_state`` returned.

    Raises:
        StateError: a weight is not finite.
    """
    model = strategy.model
    model.feature_extractor.load_state_dict(state["feature_extractor"])
    strategy.load_answer_state(state["strategy"])
    for name, weight in model.state_dict().items():
        if weight.is_floating_point() and not weight.isfinite().all():
            raise StateError(f"{name} holds values that are not finite")


def probabilities(strategy: Any, outputs: Tensor) -> Tensor:
    """Return the softmax of ``(B, classes)`` outputs of a run's strategy.

    That of a closed form is taken at its usual temperature.
    """
    closed_form = getattr(strategy, "statistics", None)
    temperature = getattr(closed_form, "temperature", 1.0)
    return (outputs.double() / temperature).softmax(1)
