"""What is measured and learned in a run, and the files that it is written to."""

import warnings
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from avalanche.benchmarks import CLScenario
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.training.plugins import EvaluationPlugin

from benchmarks_toybox_ilab.tables.progress import progress_bar
from crumb_avalanche.methods.run_file import NOT_KEPT, save_learner
from crumb_avalanche.methods.run_header import LEARNER, LearnerHeader
from crumb_avalanche.models.backbone_names import (
    Preprocessing,
    is_timm,
    preprocessing_of,
)
from crumb_avalanche.runs.model import network_of
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.predictions import PredictionsPlugin
from crumb_avalanche.runs.resume import Progress, Resume
from crumb_avalanche.runs.run_folder import versions, write_csv, write_json
from crumb_avalanche.runs.session import Session
from crumb_avalanche.training.ledger import LedgerMetric
from crumb_avalanche.training.stateful import StatefulPlugin


class Recorder:
    """Metrics, ledger, predictions and progress bars of a run.

    Args:
        n_experiences: of the stream.
        progress: whether to show progress bars.
    """

    def __init__(self, n_experiences: int, progress: bool):
        self.predictions = PredictionsPlugin()
        self.bar = ProgressPlugin(n_experiences, progress)
        self.plugins = [self.bar, self.predictions]
        self.ledger = LedgerMetric()
        with warnings.catch_warnings():
            # metrics.csv is written at the end
            warnings.filterwarnings("ignore", "No loggers specified")
            self.evaluator = EvaluationPlugin(
                accuracy_metrics(experience=True, stream=True),
                loss_metrics(experience=True),
                self.ledger,
                loggers=[],
            )

    def write(
        self, folder: Path, session: Session, progress: Progress
    ) -> dict[str, Any]:
        """Write metrics, predictions, accuracy matrix and ledger to the run folder.

        The last ledger of ``progress`` gets the costs of the feature cache, too, in
        place, and is returned.

        Args:
            folder: of the run.
            session: stream and feature cache of the run.
            progress: accuracies and ledgers so far.
        """
        self._write_metrics(folder)  # metrics.csv
        experiences = session.stream.benchmark.test_stream
        rows = [np.asarray(list(test.dataset.frame_row)) for test in experiences]
        self.predictions.write(folder, np.concatenate(rows))
        write_csv(folder / "accuracy_matrix.csv", _matrix_lines(progress.matrix))
        last_ledger = progress.ledgers[-1]
        last_ledger |= _cache_costs(session)
        ledgers = {**last_ledger, "after_experience": progress.ledgers}
        write_json(folder / "ledger.json", ledgers)
        return last_ledger

    def _write_metrics(self, folder: Path) -> None:
        """Write ``metrics.csv``, a line for each value of Avalanche's metrics."""
        lines = [["metric", "step", "value"]]
        for name, (steps, values) in self.evaluator.get_all_metrics().items():
            lines += [[name, step, value] for step, value in zip(steps, values)]
        write_csv(folder / "metrics.csv", lines)


def _matrix_lines(matrix: list[list[float]]) -> list[list[str]]:
    """Return the lines of ``accuracy_matrix.csv``.

    Cells of unseen classes, and rows that were not tested, are empty.

    Args:
        matrix: a row after each experience: percent on each experience so far.
    """
    n_experiences = len(matrix[-1])
    header = [f"experience_{number}" for number in range(n_experiences)]
    lines = [["after", *header]]
    for number, accuracies in enumerate(matrix):
        cells = [f"{accuracy:.4f}" for accuracy in accuracies]
        empty_cells = [""] * (n_experiences - len(accuracies))
        lines.append([str(number), *cells, *empty_cells])
    return lines


def _cache_costs(session: Session) -> dict[str, float]:
    """Return the ledger's entries about a run's feature cache; 0 without a cache."""
    costs = {
        "feature_cache_seconds": 0.0,
        "feature_cache_images_filled": 0,
        "feature_cache_images_damaged": 0,
    }
    if session.cache is not None:
        store = session.cache.store
        costs["feature_cache_seconds"] = store.seconds
        costs["feature_cache_images_filled"] = store.filled
        costs["feature_cache_images_damaged"] = store.damaged
    return costs


class ProgressPlugin(StatefulPlugin):
    """Show a progress bar with images/s for each training experience.

    A bar goes over all epochs of an experience.

    Args:
        n_experiences: number of experiences of the stream.
        show: whether to show bars.
    """

    def __init__(self, n_experiences: int, show: bool = True):
        super().__init__()
        self.n_experiences = n_experiences
        self.show = show
        self._bar: Any = None

    def before_training_epoch(self, strategy, **kwargs):
        """Open the progress bar of an experience before its first epoch."""
        if self._bar is None:
            number = strategy.clock.train_exp_counter + 1
            title = f"experience {number}/{self.n_experiences}"
            n_images = len(strategy.adapted_dataset) * strategy.train_epochs
            self._bar = progress_bar(n_images, title, show=self.show)

    def after_training_iteration(self, strategy, **kwargs):
        """Count the images of a batch."""
        self._bar.update(len(strategy.mb_y))

    def after_training_exp(self, strategy, **kwargs):
        """Close the bar of an experience."""
        self.close()

    def close(self) -> None:
        """Close the progress bar if one is open."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def run_result(plan: RunPlan, session: Session, resume: Resume) -> dict[str, Any]:
    """Return the values of ``result.json`` of a run, by name.

    Args:
        plan: the settings of the run, with their defaults.
        session: stream, model and strategy of the run.
        resume: its progress: accuracies, learning rates tried, and seconds.
    """
    progress = resume.progress
    stream = session.stream
    benchmark = stream.benchmark
    class_names = [benchmark.class_names[label] for label in benchmark.classes_order]
    return {
        "benchmark": plan.benchmark,
        "protocol": plan.protocol,
        "strategy": plan.strategy,
        "strategy_settings": plan.method,
        "plan_sha256": plan.sha256,
        "family": plan.family,
        "preset": plan.preset,
        "learning_rate": session.plan.learning_rate,
        "learning_rate_trials": [asdict(trial) for trial in progress.trials],
        "tuning_seconds": progress.tuning_seconds,
        "run": plan.run,
        "diverged_in_experience": progress.diverged,
        "final_accuracy": progress.accuracy_after[-1],  # percent, on all classes
        "accuracy_after": progress.accuracy_after,
        "final_accuracy_per_experience": progress.matrix[-1],
        "classes_order": class_names,
        "classes_per_experience": _count_new_classes(benchmark),
        "mem_size": session.plan.capacity,
        # None where the number of memories was given instead.
        "budget_bytes": plan.budget if plan.mem_size is None else None,
        "runtime": str(session.model.runtime),
        "feature_scale": float(session.model.feature_scale),
        "bad_frames_skipped": len(stream.bad_frames),
        "bad_frames": stream.bad_frames,
        "bad_videos_skipped": stream.bad_videos,
        "emptied_classes": stream.emptied_classes,
        "frame_table_sha256": stream.table.content_hash(),
        "seconds": resume.seconds,
        "versions": versions(),
    }


def _count_new_classes(benchmark: CLScenario) -> list[int]:
    """Count the classes of each experience that no earlier experience has."""
    seen_classes: set[int] = set()
    counts = []
    for experience in benchmark.test_stream:
        classes = experience.classes_in_this_experience
        counts.append(len(classes - seen_classes))
        seen_classes |= classes
    return counts


def keep_learner(folder: Path, session: Session, n_learned: int) -> None:
    """Write ``learner.safetensors`` of a run, unless plan or method keeps no learner.

    Args:
        folder: of the run.
        session: has the trained strategy.
        n_learned: number of experiences that it learned.
    """
    plan = session.plan
    if plan.keep_learner and plan.strategy not in NOT_KEPT:
        header = _learner_header(session, n_learned)
        save_learner(folder / LEARNER, session.strategy, header)


def _learner_header(session: Session, n_learned: int) -> LearnerHeader:
    """Return the header of a run's learner file after ``n_learned`` experiences.

    It says how the file is read: method, network, preprocessing, classes and budget.

    Args:
        session: plan, stream, model and strategy of the run.
        n_learned: whose classes it names.
    """
    plan = session.plan
    model = session.model
    assert plan.capacity is not None, "Session.of sets it"
    preprocessing = preprocessing_of(plan.backbone)
    network = {**network_of(plan), "n_classes": model.n_classes}
    if is_timm(plan.backbone) or preprocessing != Preprocessing():
        network["preprocessing"] = preprocessing.as_dict()
    codebook = None
    if model.codebook is not None:
        codebook = model.codebook.settings
    # Those of the method that were decided while learning; few methods have any.
    decided_settings = getattr(session.strategy, "decided_settings", {})
    return LearnerHeader(
        strategy=plan.strategy,
        method={**plan.method, **decided_settings},
        learning=asdict(plan.learning),
        mem_size=plan.capacity,
        seed=plan.run,
        network=network,
        codebook=codebook,
        precision=plan.precision,
        evaluate_quantized=plan.evaluate_quantized,
        transform={**preprocessing.as_dict(), "size": plan.image_size},
        classes=_learned_classes(session.stream.benchmark, n_learned),
        budget_bytes=plan.budget,
        versions={**versions(), "runtime": str(model.runtime)},
    )


def _learned_classes(benchmark: CLScenario, n_learned: int) -> list[dict[str, Any]]:
    """Return ``label``, ``name`` and number of ``images`` of each class learned.

    Classes of the first ``n_learned`` experiences, in the order in which they arrived.
    """
    image_counts: Counter[int] = Counter()  # by label
    for experience in benchmark.train_stream[:n_learned]:
        image_counts.update(int(label) for label in experience.dataset.targets)
    classes = []
    for label, count in image_counts.items():
        name = benchmark.class_names[label]
        classes.append({"label": label, "name": name, "images": count})
    return classes
