"""Final predictions of a run on all test images."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from crumb_avalanche.learner.run_learner import probabilities
from crumb_avalanche.system.atomic_file import atomic_write
from crumb_avalanche.training.stateful import StatefulPlugin

PREDICTIONS = "predictions.npz"


class PredictionsPlugin(StatefulPlugin):
    """Record labels, predicted classes and their probabilities of the latest evaluation, in order."""

    def __init__(self):
        super().__init__()
        self.labels: list[int] = []
        self.answers: list[int] = []
        self.confidence: list[float] = []

    def before_eval(self, strategy, **kwargs):
        self.labels, self.answers, self.confidence = [], [], []

    def after_eval_iteration(self, strategy, **kwargs):
        self.labels += strategy.mb_y.tolist()
        self.answers += strategy.mb_output.argmax(1).tolist()
        self.confidence += probabilities(strategy, strategy.mb_output).amax(1).tolist()

    def write(self, folder: Path, rows: np.ndarray) -> None:
        """Write ``predictions.npz`` atomically.

        Args:
            folder: folder of the run.
            rows: ``(N,)``, row of each image in the frame table, in the order of the evaluation.
        """
        values = {"row": rows, "label": self.labels, "answer": self.answers}
        columns = {name: np.asarray(column, np.int32) for name, column in values.items()}
        if len(self.confidence) == len(rows):  # else resumed from a checkpoint of an earlier version
            columns["confidence"] = np.asarray(self.confidence, np.float32)
        with atomic_write(folder / PREDICTIONS) as unfinished, open(unfinished, "wb") as file:
            np.savez_compressed(file, **columns)

    def state_dict(self):
        state = {name: np.asarray(getattr(self, name), np.int32) for name in ("labels", "answers")}
        return state | {"confidence": np.asarray(self.confidence, np.float32)}

    def load_state_dict(self, state):
        self.labels, self.answers = state["labels"].tolist(), state["answers"].tolist()
        self.confidence = state["confidence"].tolist() if "confidence" in state else []


def read_predictions(folder: Path, confidence: bool = False) -> dict[str, np.ndarray]:
    """Read the predictions of a run, sorted by row: those of runs on the same test set align.

    Args:
        folder: folder of the run.
        confidence: whether to read the probabilities of the answers, too, if they were recorded.

    Returns:
        ``row``, ``label`` and ``answer``, each ``(N,)`` int32; ``confidence``, ``(N,)`` float32: softmax of the
        outputs, not calibrated.

    Raises:
        ValueError: the file is absent or damaged.
    """
    path = folder / PREDICTIONS
    if not path.is_file():
        raise ValueError(f"there are no predictions in {folder}; it was made by an earlier version: run it again")
    try:
        with np.load(path, allow_pickle=False) as file:
            names = ["row", "label", "answer", *["confidence"] * (confidence and "confidence" in file)]
            columns = {name: file[name] for name in names}
    except (OSError, KeyError, ValueError, NotImplementedError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(f"{path} is damaged ({error}); run it again with --overwrite true") from error
    order = np.argsort(columns["row"], kind="stable")
    return {name: values[order] for name, values in columns.items()}
