"""Bit for bit comparison of two run folders, without their times."""

import json
from pathlib import Path

import numpy as np

from crumb_avalanche.runs.predictions import read_predictions
from crumb_avalanche.runs.run_folder import RESULT

# Values of a result that depend on the machine and the moment.
IGNORED = ("seconds", "tuning_seconds", "versions")
FILES = ("checkpoint/model.safetensors", "checkpoint/buffer.safetensors", "accuracy_matrix.csv")


def differences(one: Path, other: Path) -> list[str]:
    """Compare two finished runs: weights and buffer where they were kept, accuracies, answers, and results.

    Args:
        one: run folder.
        other: run folder.

    Returns:
        A line for each difference; for a value of the result, with both values.
    """
    found = []
    for name in FILES:
        contents = [(folder / name).read_bytes() if (folder / name).exists() else b"" for folder in (one, other)]
        if contents[0] != contents[1]:
            found.append(name)
    answers = [read_predictions(folder) for folder in (one, other)]
    if not all(np.array_equal(values, answers[1][name]) for name, values in answers[0].items()):
        found.append("predictions")
    results = [json.loads((folder / RESULT).read_text()) for folder in (one, other)]
    for name in sorted(results[0].keys() | results[1].keys()):
        values = [result.get(name) for result in results]
        if name not in IGNORED and values[0] != values[1]:
            found.append(f"{RESULT}: {name} is {values[0]!r} and {values[1]!r}")
    return found
