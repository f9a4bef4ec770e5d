"""The header of the learner file that a run leaves, read without torch."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from PIL import Image

from crumb_avalanche.models.codebook_ranges import (
    GROUPINGS,
    LARGEST_CODEBOOK,
    MOST_TABLES,
    SEARCHES,
)
from crumb_avalanche.system.file_metadata import loaded_json
from crumb_avalanche.system.value_types import (
    PLAIN_VALUES,
    StateError,
    check,
    each,
    maybe,
    real,
    record,
    shown,
    table,
    text,
    whole,
)

LEARNER = "learner.safetensors"
FORMAT_OF_RUNS = "crumb-run-learner-1"
DAMAGED = "is no valid learner: take a copy from before, or learn anew"


class LearnerError(ValueError):
    """A learner cannot be saved or changed, or a file is not a valid learner file."""


# What a header may hold

MOST_IMAGES = 2**31 - 1  # of a class: its count is int32
MOST_CLASSES = 10**5  # more make every answer slower
FILTERS = tuple(filter.name.lower() for filter in Image.Resampling)


def _sha256(text: str) -> None:
    """Raise ValueError for a text that is no SHA-256."""
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError("a SHA-256 has 64 hexadecimal digits")


IMAGES = whole(0, MOST_IMAGES)
SHA256 = text(64, _sha256)
TRANSFORM = {
    "size": whole(1, 4096),
    "interpolation": Literal[FILTERS],
    "mean": each(real(-100, 100), 3),
    "std": each(real(1e-6, 100), 3),
}
# Arguments of ``split_backbone``; a question mark: it may be absent.
NETWORK = {
    "name": text(),
    "image_size": whole(1, 4096),
    "cut_layer?": maybe(text() | whole(0, 1000)),
    "relu_logits?": bool,
    "head_kernel?": whole(1, 3),
    "fine_tuning?": bool,
    "preprocessing?": record(**TRANSFORM),
}
VERSIONS = table(text(), text(), most=100)
# The method checks its settings itself, and the strategy its state.
HEADER = record(
    strategy=text(),
    method=PLAIN_VALUES,
    learning=PLAIN_VALUES,
    budget_bytes=maybe(whole(0, 10**15)),
    mem_size=whole(0, 10**7),
    seed=whole(0, 2**32 - 1),
    network=record(**NETWORK, n_classes=whole(1, MOST_CLASSES)),
    codebook=maybe(
        record(
            codebook_size=whole(1, LARGEST_CODEBOOK),
            codebook_dim=whole(1, 2**15),
            search=Literal[SEARCHES],
            tables=whole(1, MOST_TABLES),
            grouping=Literal[GROUPINGS],
            filtered=bool,
        )
    ),
    precision=Literal["fp32", "bf16"],
    evaluate_quantized=bool,
    transform=record(**{f"{name}?": values for name, values in TRANSFORM.items()}),
    classes=each(record(label=whole(0, MOST_CLASSES - 1), name=text(), images=IMAGES)),
    weights_sha256=SHA256,
    versions=VERSIONS,
    written=text(40),
)


@dataclass(frozen=True)
class LearnerHeader:
    """Header of a run's learner file, in plain values.

    Attributes:
        strategy: name in the registry.
        method: all settings that only the method has.
        learning: fields of ``LearningSettings``.
        mem_size: in memories; 0 for a method that stores none.
        seed: of the method's random draws.
        network: arguments of ``split_backbone`` except weights and codebook.
        codebook: arguments of ``Codebook``.
        precision: ``fp32`` or ``bf16``.
        evaluate_quantized: whether the plastic layers see quantized maps when asked.
        transform: size, interpolation, mean and std of an image.
        classes: label, name and images of each class, in order of arrival.
        budget_bytes: where it was given so.
        weights_sha256: of F, see ``weights_hash``.
        versions: of libraries that influence results.
        written: when, ISO 8601 in UTC.
    """

    strategy: str
    method: dict[str, Any]
    learning: dict[str, Any]
    mem_size: int
    seed: int
    network: dict[str, Any]
    codebook: dict[str, Any] | None
    precision: str = "fp32"
    evaluate_quantized: bool = False
    transform: dict[str, Any] = field(default_factory=dict)
    classes: list[dict[str, Any]] = field(default_factory=list)
    budget_bytes: int | None = None
    weights_sha256: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    written: str = ""


def check_format(
    path: str | os.PathLike, metadata: dict[str, str], formats: Sequence[str]
) -> None:
    """Raise LearnerError unless a file says that it is a learner file.

    Args:
        path: of the file, which the error names.
        metadata: of the file; its ``format`` is checked.
        formats: names of the formats of learner files that are read.
    """
    name = metadata.get("format", "")
    if name in formats:
        return
    description = f"of format {shown(name)}" if name else "no learner file"
    raise LearnerError(
        f"{path} is {description}, not {' or '.join(formats)}: give a file that crumb "
        "teach, Learner.save or crumb run wrote"
    )


def read_run_header(path: str | os.PathLike, metadata: dict[str, str]) -> LearnerHeader:
    """Return the checked header in the metadata of a run's learner file.

    Raises:
        LearnerError: the file is of another format, or a value breaks a rule.
    """
    check_format(path, metadata, [FORMAT_OF_RUNS])
    try:
        values = loaded_json(metadata.get("learner", ""))
        _check_header(values)
    except StateError as error:
        raise LearnerError(f"{path} {DAMAGED} ({error})") from error
    return LearnerHeader(**values)


def _check_header(values: Any) -> None:
    """Raise StateError if plain values are no header of a learner file.

    The error names the value and the rule that it breaks.

    Args:
        values: read from JSON, of any type.
    """
    check(HEADER, values)  # types and ranges
    classes = values["classes"]  # dicts with label and name
    labels = [class_values["label"] for class_values in classes]
    names = [class_values["name"] for class_values in classes]
    share_label = len(set(labels)) < len(labels)
    share_name = len(set(names)) < len(names)
    if share_label or share_name:
        raise StateError("classes share a label or a name, but have to have their own")
    if max(labels, default=0) >= values["network"]["n_classes"]:
        raise StateError("a label of classes has to be below network.n_classes")
