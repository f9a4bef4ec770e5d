"""Handmade run folders in the form of `crumb run`."""

import json
from pathlib import Path

import numpy as np

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def made_run(folder: Path, right: int, images: int = 200, first: float = 90.0, joint: bool = False, shift: int = 0):
    """A finished run that has the first `right` of its test images right.

    Args:
        folder: of the run.
        right: number of right answers; final accuracy is their share.
        images: of the test set, two classes in turn.
        first: accuracy in percent after the first experience.
        joint: whether all classes were learned at once.
        shift: of the row numbers, so that the test images are others.
    """
    folder.mkdir(parents=True)
    final = 100 * right / images
    after = [final] if joint else [first, final]
    result = {"final_accuracy": final, "accuracy_after": after, "final_accuracy_per_experience": [final, final]}
    labels = np.arange(images) % 2
    answers = np.where(np.arange(images) < right, labels, 1 - labels)
    rows = np.arange(images) + shift
    columns = dict(row=rows.astype(np.int32), label=labels, answer=answers, confidence=np.full(images, 0.5))
    np.savez(folder / "predictions.npz", **columns)
    (folder / "result.json").write_text(json.dumps(result))
    return folder
