"""Bit for bit comparison of two run folders, without their times."""

import json
from pathlib import Path

import numpy as np
import torch

from crumb_avalanche.learner.run_file import LEARNER
from crumb_avalanche.runs.recorder import read_predictions
from crumb_avalanche.runs.run_folder import DIGESTS, RESULT
from crumb_avalanche.system.tensor_file import read_tensors

# Values of a result that depend on the machine and the moment.
IGNORED = ("seconds", "tuning_seconds", "versions", *DIGESTS)
MATRIX = "accuracy_matrix.csv"


def differences(one: Path, other: Path) -> list[str]:
    """Compare two finished runs: what was learned where it was kept, accuracies, answers, and results.

    Args:
        one: run folder.
        other: run folder.

    Returns:
        A line for each difference; for a value of the result, with both values.
    """
    found = []
    if len({(folder / MATRIX).read_bytes() for folder in (one, other)}) > 1:
        found.append(MATRIX)
    learned = [tensors_of(folder) for folder in (one, other)]
    for name in sorted(learned[0].keys() | learned[1].keys()):
        values = [tensors.get(name) for tensors in learned]
        if values[0] is None or values[1] is None or not torch.equal(*values):
            found.append(f"{LEARNER}: {name}")
    answers = [read_predictions(folder) for folder in (one, other)]
    if not all(np.array_equal(values, answers[1][name]) for name, values in answers[0].items()):
        found.append("predictions")
    results = [json.loads((folder / RESULT).read_text()) for folder in (one, other)]
    for name in sorted(results[0].keys() | results[1].keys()):
        values = [result.get(name) for result in results]
        if name not in IGNORED and values[0] != values[1]:
            found.append(f"{RESULT}: {name} is {values[0]!r} and {values[1]!r}")
    return found


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors that a run learned, by name; none if it kept no learner.

    Raises:
        TensorFileError: the file is damaged.
    """
    path = folder / LEARNER
    return read_tensors(path)[0] if path.exists() else {}
