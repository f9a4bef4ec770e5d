"""What is measured and predicted in a run, and the files that it is written to."""

import warnings
from pathlib import Path

import numpy as np
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.training.plugins import EvaluationPlugin

from crumb_avalanche.runs.predictions import PredictionsPlugin
from crumb_avalanche.runs.progress import ProgressPlugin
from crumb_avalanche.runs.resume import Progress
from crumb_avalanche.runs.run_folder import metrics_csv, write_json, write_matrix
from crumb_avalanche.runs.session import Session
from crumb_avalanche.training.ledger import LedgerMetric


class Recorder:
    """Metrics, ledger, predictions and progress bars of a run.

    Args:
        experiences: number of experiences of the stream.
        progress: whether to show progress.
    """

    def __init__(self, experiences: int, progress: bool):
        self.predictions = PredictionsPlugin()
        self.bar = ProgressPlugin(experiences, progress)
        self.ledger = LedgerMetric()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "No loggers specified")  # metrics.csv is written at the end
            self.evaluator = EvaluationPlugin(
                accuracy_metrics(experience=True, stream=True), loss_metrics(experience=True), self.ledger, loggers=[]
            )

    @property
    def plugins(self) -> list:
        """Plugins to add to the strategy."""
        return [self.bar, self.predictions]

    def write(self, folder: Path, session: Session, progress: Progress) -> dict:
        """Write metrics, predictions, accuracy matrix and ledger; return the ledger after the last experience."""
        metrics_csv(folder / "metrics.csv", self.evaluator)
        tests = session.stream.benchmark.test_stream
        self.predictions.write(folder, np.concatenate([list(test.dataset.frame_row) for test in tests]))
        write_matrix(folder / "accuracy_matrix.csv", progress.matrix)
        ledger, cache = progress.ledgers[-1], session.cache
        ledger["feature_cache_seconds"] = cache.store.seconds if cache else 0.0
        ledger["feature_cache_images_filled"] = cache.store.filled if cache else 0
        ledger["feature_cache_images_damaged"] = cache.store.damaged if cache else 0
        write_json(folder / "ledger.json", {**ledger, "after_experience": progress.ledgers})
        return ledger
