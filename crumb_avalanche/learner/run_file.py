"""Learner files of runs: a trained strategy, which answers as the run did.

The file holds all that it needs: not the run's settings, weight files or images.
"""

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from crumb_avalanche.images.looks import WHOLE
from crumb_avalanche.learner.answer import ClassInfo
from crumb_avalanche.learner.classifier import CLOSED_FORMS, RUNNERS_UP
from crumb_avalanche.learner.confidence import Confidence
from crumb_avalanche.learner.lesson import now
from crumb_avalanche.learner.network import FrozenNetwork
from crumb_avalanche.learner.schema import check_header, check_run_header
from crumb_avalanche.models.backbones import split_backbone
from crumb_avalanche.models.codebook import Codebook
from crumb_avalanche.models.extraction import LARGEST_FEATURE
from crumb_avalanche.models.weights import weights_hash
from crumb_avalanche.system.process import preserve_rng_state
from crumb_avalanche.system.schema import shown
from crumb_avalanche.system.tensor_file import (
    StateError,
    TensorFileError,
    loaded_json,
    read_state,
    write_state,
)

if TYPE_CHECKING:
    from crumb_avalanche.training.stream_strategy import StreamStrategy

LEARNER = "learner.safetensors"
FORMAT, FORMAT_OF_RUNS = "crumb-learner-1", "crumb-run-learner-1"
DAMAGED = "is no valid learner: take a copy from before, or learn anew"
# Strategies without a learner file, and why.
NOT_KEPT = {"chance": "its answers are random"}


class LearnerError(ValueError):
    """A learner cannot be saved or changed, or a file is not a valid learner file."""


@dataclass(frozen=True)
class LearnerHeader:
    """Header of a run's learner file, in plain values."""

    strategy: str  # name in the registry
    method: dict[str, Any]  # all settings that only the method has
    learning: dict[str, Any]  # fields of LearningSettings
    mem_size: int  # in memories; 0 for a method that stores none
    seed: int  # of the method's random draws
    network: dict[str, Any]  # arguments of split_backbone except weights and codebook
    codebook: tuple[int, int] | None  # codebook_size and codebook_dim
    precision: str = "fp32"  # or bf16
    evaluate_quantized: bool = False
    transform: dict[str, Any] = field(
        default_factory=dict
    )  # size, interpolation, mean and std of an image
    classes: list[dict[str, Any]] = field(
        default_factory=list
    )  # label, name and images, in order of arrival
    budget_bytes: int | None = None  # in bytes, where it was given so
    weights_sha256: str = ""  # of F, see weights_hash
    versions: dict[str, str] = field(
        default_factory=dict
    )  # of libraries that influence results
    written: str = ""  # ISO 8601 in UTC


def cannot_be_taught(header: LearnerHeader) -> str:
    """Return why a run's learner can only be asked; empty if it can be taught on."""
    if header.strategy in CLOSED_FORMS:
        return ""
    return f"was learned by {header.strategy}; only {', '.join(CLOSED_FORMS)} can be taught on"


def header_of(
    path: str | os.PathLike,
    metadata: dict[str, str],
    formats: Sequence[str] = (FORMAT, FORMAT_OF_RUNS),
) -> LearnerHeader | dict[str, Any]:
    """Return the checked header in the metadata of a file: a ``LearnerHeader`` for that of a run.

    Raises:
        LearnerError: the file is of another format, or holds a value that breaks a
            rule.
    """
    found = metadata.get("format", "")
    if found not in formats:
        kind = f"of format {shown(found)}" if found else "no learner file"
        cure = "give a file that crumb teach, Learner.save or crumb run wrote"
        raise LearnerError(f"{path} is {kind}, not {' or '.join(formats)}: {cure}")
    try:
        values = loaded_json(metadata.get("learner", ""))
        (check_header if found == FORMAT else check_run_header)(values)
    except StateError as error:
        raise LearnerError(f"{path} {DAMAGED} ({error})") from error
    if found == FORMAT:
        return values
    codebook = values["codebook"]
    return LearnerHeader(**{**values, "codebook": codebook and tuple(codebook)})


def save_learner(
    path: str | os.PathLike, strategy: "StreamStrategy", header: LearnerHeader
) -> None:
    """Write a run's learner file atomically.

    Args:
        path: path of the file; an existing one is replaced.
        strategy: the strategy, not within an experience.
        header: ``weights_sha256`` and ``written`` are filled in.

    Raises:
        LearnerError: the strategy is one of ``NOT_KEPT``, or its state cannot be
            stored.
        OSError: the file cannot be written, for instance because the disk is full; an
            existing one is unchanged.
    """
    if header.strategy in NOT_KEPT:
        raise LearnerError(
            f"strategy {header.strategy} has no learner file: {NOT_KEPT[header.strategy]}"
        )
    model = strategy.model
    state: dict[str, Any] = {
        "feature_extractor": dict(model.feature_extractor.state_dict())
    }
    filled = replace(
        header, weights_sha256=weights_hash(model.feature_extractor), written=now()
    )
    try:
        state["strategy"] = strategy.answer_state()
        write_state(
            path,
            state,
            {"format": FORMAT_OF_RUNS, "learner": json.dumps(asdict(filled))},
        )
    except StateError as error:
        raise LearnerError(
            f"strategy {header.strategy} cannot be saved: {error}"
        ) from error


def load_learner(
    path: str | os.PathLike, device: str = "cpu"
) -> "tuple[StreamStrategy, LearnerHeader]":
    """Build the strategy of a run's learner file, which can ``eval`` as the run's did but not train on.

    Args:
        path: a learner file.
        device: device of the strategy.

    Raises:
        LearnerError: the file is absent, damaged, of another format, or does not fit
            the installed version.
    """
    from avalanche.training.plugins import EvaluationPlugin

    from crumb_avalanche.methods.registry import LearningSettings, build_strategy

    path = Path(path)
    try:
        state, metadata = read_state(path)
    except TensorFileError as error:
        raise LearnerError(str(error)) from error
    header: Any = header_of(path, metadata, [FORMAT_OF_RUNS])
    try:
        with preserve_rng_state():
            codebook = None if header.codebook is None else Codebook(*header.codebook)
            model = split_backbone(
                weights=None, codebook=codebook, **header.network
            ).to(device)
            model.set_precision(header.precision)
            learning, evaluator = (
                LearningSettings(**header.learning),
                EvaluationPlugin(loggers=[]),
            )
            settings = learning, header.mem_size, header.seed, device, header.method
            strategy = build_strategy(
                header.strategy, model, *settings, evaluator=evaluator
            )
            model.quantized_evaluation = header.evaluate_quantized
            model.feature_extractor.load_state_dict(state["feature_extractor"])
            strategy.load_answer_state(state["strategy"])
        for name, value in model.state_dict().items():
            if value.is_floating_point() and not value.isfinite().all():
                raise StateError(f"{name} holds values that are not finite")
    except (
        Exception
    ) as error:  # the state of each strategy is its own, and so is how it fails
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise LearnerError(
            f"{path} does not fit strategy {header.strategy} of this version: {reason}"
        ) from error
    if weights_hash(model.feature_extractor) != header.weights_sha256:
        raise LearnerError(
            f"the weights of F in {path} are not those that its header names; save the learner again"
        )
    return strategy, header


def probabilities(strategy: Any, outputs: Tensor) -> Tensor:
    """Return the softmax of ``(B, classes)`` outputs, at the usual temperature of a closed form."""
    temperature = getattr(getattr(strategy, "statistics", None), "temperature", 1.0)
    return (outputs.double() / temperature).softmax(1)


class RunAnswers:
    """What answers as the evaluation of a run did, for any strategy; it has of ``Classifier`` what answers need.

    Confidence is not calibrated, and it is not known which images are unknown. The RNG
    state does not change.

    Attributes:
        header: of the file.
        network: the strategy's model.
        note: what a person who reads the answers should know.

    Raises:
        LearnerError: see ``load_learner``.
    """

    looks = WHOLE
    budget_bytes = 0  # nothing more is learned
    note = "confidence is the softmax of the method's outputs, not calibrated, and unknown images are not told"

    def __init__(self, path: Path):
        from crumb_avalanche.training.plugins import OutputsPlugin

        with preserve_rng_state():
            self._strategy, self.header = load_learner(path)
        transform, classes = self.header.transform, self.header.classes
        if not {"size", "interpolation"} <= transform.keys() or not classes:
            raise LearnerError(
                f"{path} names no class or image size; take a copy, or repeat the run"
            )
        arguments = {
            "name": self.header.network["name"],
            "image_size": int(transform["size"]),
        }
        model, sha256 = self._strategy.model, self.header.weights_sha256
        self.network = FrozenNetwork(model, arguments, "the run's weights", sha256)
        self.names = [one["name"] for one in classes]
        self.classes = [ClassInfo(one["name"], one["images"]) for one in classes]
        self.confidence = Confidence()  # without records
        self._labels = [one["label"] for one in classes]
        self._outputs = OutputsPlugin()
        self._strategy.plugins.append(self._outputs)

    def tensors(self) -> list[Tensor]:
        """Return nothing: no budget counts them."""
        return []

    def compute(self, model: Any, pixels: Tensor) -> Tensor:
        """Return the ``(B, classes)`` outputs of an evaluation of ``(B, 3, h, w)`` uint8 pixels."""
        from crumb_avalanche.training.avalanche_fixes import unlabelled_experience

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "No loggers specified")
            try:
                self._strategy.eval(unlabelled_experience(pixels))
            except (
                AttributeError,
                IndexError,
                KeyError,
                RuntimeError,
                TypeError,
            ) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise LearnerError(
                    f"the learner of this run cannot answer ({reason}); take a copy, or repeat it"
                ) from error
        # Some strategies mark classes that cannot be the answer by less.
        return torch.cat(self._outputs.outputs).clamp(-LARGEST_FEATURE, LARGEST_FEATURE)

    def evidence(self, outputs: Tensor) -> Tensor:
        """Return what ``ranked`` takes: the outputs."""
        return outputs

    def ranked(self, outputs: Tensor) -> list[tuple[list[tuple[str, float]], None]]:
        """Rank the classes for each frame, and for all together by the mean of their outputs; see ``Classifier``."""
        shares = probabilities(
            self._strategy, torch.cat([outputs, outputs.mean(0, keepdim=True)])
        )[:, self._labels]
        best = (
            shares.sort(dim=1, descending=True, stable=True)
            .indices[:, : RUNNERS_UP + 1]
            .tolist()
        )
        return [
            ([(self.names[place], float(row[place])) for place in places], None)
            for row, places in zip(shares, best)
        ]
