"""``predictions.npz``: what a run answered for each test image, and how sure it was."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from benchmarks_toybox_ilab.tables.atomic_file import atomic_write
from crumb_avalanche.methods.run_file import probabilities
from crumb_avalanche.system.named_values import selected
from crumb_avalanche.training.stateful import StatefulPlugin

PREDICTIONS = "predictions.npz"
WHOLE_NUMBERS = ("row", "label", "answer")  # columns of int32, from 0 on
CONFIDENCE = "confidence"  # column of float32, from 0 to 1


class PredictionsPlugin(StatefulPlugin):
    """Record labels, answers and probabilities of the latest evaluation, in order."""

    class_numbers = ("labels", "answers")

    def __init__(self) -> None:
        super().__init__()
        self.labels: list[int] = []
        self.answers: list[int] = []
        self.confidence: list[float] = []

    def before_eval(self, strategy, **kwargs):
        """Forget the answers of the evaluation before."""
        self.labels = []
        self.answers = []
        self.confidence = []

    def after_eval_iteration(self, strategy, **kwargs):
        """Add labels, answers and probabilities of a batch."""
        logits = strategy.mb_output
        self.labels += strategy.mb_y.tolist()
        self.answers += logits.argmax(1).tolist()
        self.confidence += probabilities(strategy, logits).amax(1).tolist()

    def write(self, folder: Path, rows: np.ndarray) -> None:
        """Write ``predictions.npz`` atomically.

        ``rows``, ``(N,)``, are those of the images in the frame table.
        """
        path = folder / PREDICTIONS
        with atomic_write(path) as file:
            np.savez_compressed(
                file,
                row=np.asarray(rows, np.int32),
                label=np.asarray(self.labels, np.int32),
                answer=np.asarray(self.answers, np.int32),
                confidence=np.asarray(self.confidence, np.float32),
            )

    def state_dict(self):
        """Return the latest evaluation: int32 ``(N,)``, confidence float32."""
        return {
            "labels": np.asarray(self.labels, np.int32),
            "answers": np.asarray(self.answers, np.int32),
            "confidence": np.asarray(self.confidence, np.float32),
        }

    def load_state_dict(self, state):
        """Load the latest evaluation, as ``state_dict`` returned it."""
        self.labels = state["labels"].tolist()
        self.answers = state["answers"].tolist()
        self.confidence = state["confidence"].tolist()


def read_predictions(folder: Path) -> dict[str, np.ndarray]:
    """Read the predictions of a run, sorted by row.

    Those of runs on the same test set align.

    Args:
        folder: of the run.

    Returns:
        ``row``, ``label`` and ``answer``, each ``(N,)`` int32; ``confidence``, ``(N,)``
        float32: softmax of the outputs, not calibrated.

    Raises:
        ValueError: there is no file, or it holds what no run writes: columns of
            different lengths, negative numbers, or a confidence outside 0 to 1.
    """
    path = folder / PREDICTIONS
    if not path.is_file():
        raise ValueError(
            f"there are no predictions in {folder}; give the folder of a finished run"
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = selected(file, (*WHOLE_NUMBERS, CONFIDENCE))
        _check_columns(columns)
    except (
        OSError,
        KeyError,
        ValueError,
        MemoryError,  # a header may state any size
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
    ) as error:
        raise ValueError(
            f"{path} is damaged ({error}); run it again with --overwrite true"
        ) from error
    order = np.argsort(columns["row"], kind="stable")  # rows of the frame table
    return {name: column[order] for name, column in columns.items()}


def _check_columns(columns: dict[str, np.ndarray]) -> None:
    """Raise ValueError for columns of ``predictions.npz`` that no run writes.

    Args:
        columns: arrays by name, which should each be ``(N,)``: ``row``, ``label`` and
            ``answer`` int32, and ``confidence`` float32 from 0 to 1.
    """
    n_images = columns["row"].size
    for name, column in columns.items():
        dtype = np.float32 if name == CONFIDENCE else np.int32
        if column.dtype != dtype or column.shape != (n_images,):
            raise ValueError(
                f"{name} is {column.dtype} {column.shape}, not {np.dtype(dtype)} "
                f"{(n_images,)}"
            )
    for name in WHOLE_NUMBERS:
        if (columns[name] < 0).any():
            raise ValueError(f"{name} holds {columns[name].min()}, which is below 0")
    confidence = columns[CONFIDENCE]
    is_probability = (confidence >= 0) & (confidence <= 1)  # false for NaN
    if not is_probability.all():
        outside = confidence[~is_probability][0]
        raise ValueError(f"{CONFIDENCE} holds {outside}, which is no share of 1")
