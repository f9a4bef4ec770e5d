"""What is measured, predicted and learned in a run, the files that it is written to, and checkpoints of it."""

import time
import warnings
import zipfile
import zlib
from collections import Counter
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path

import numpy as np
from avalanche.benchmarks import CLScenario
from avalanche.evaluation.metrics import accuracy_metrics, loss_metrics
from avalanche.training.plugins import EvaluationPlugin

from crumb_avalanche.learner.run_file import (
    LEARNER,
    NOT_KEPT,
    LearnerHeader,
    probabilities,
    save_learner,
)
from crumb_avalanche.models.backbone_names import (
    Preprocessing,
    is_timm,
    preprocessing_of,
)
from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run_folder import (
    PERCENT,
    RESUME,
    versions,
    write_csv,
    write_json,
)
from crumb_avalanche.runs.session import Session, network_of
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, RunSettings
from crumb_avalanche.system.atomic_file import atomic_write
from crumb_avalanche.system.process import get_rng_state, set_rng_state
from crumb_avalanche.system.progress import progress_bar
from crumb_avalanche.system.schema import (
    PLAIN_VALUES,
    check,
    each,
    maybe,
    real,
    record,
    table,
    text,
    whole,
)
from crumb_avalanche.training.checkpoint import (
    CheckpointError,
    CheckpointFolder,
    CheckpointPlugin,
    Position,
)
from crumb_avalanche.training.ledger import LedgerMetric
from crumb_avalanche.training.lr_search import Trial
from crumb_avalanche.training.stateful import StatefulPlugin
from crumb_avalanche.training.stream_strategy import StreamStrategy


@dataclass
class Progress:
    """Results of a run so far.

    Attributes:
        matrix: accuracy after each experience on the classes of each, percent; an empty
            row if it was not tested.
        accuracy_after: accuracy over all seen classes after each experience, percent;
            ``None`` if it was not tested.
        ledgers: the ledger after each experience.
        trials: of the learning rate, the chosen one first; they took
            ``tuning_seconds``.
        seconds: time from the start of the run to its latest checkpoint; work lost in
            interruptions is not counted.
        diverged: number of the experience in which training diverged, if the run counts
            nevertheless. No checkpoint follows: a resumed run diverges again.
    """

    matrix: list[list[float]] = field(default_factory=list)
    accuracy_after: list[float | None] = field(default_factory=list)
    ledgers: list[dict] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    tuning_seconds: float = 0.0
    seconds: float = 0.0
    diverged: int | None = None


SECONDS = real(0, 1e12)
TRIAL = record(learning_rate=real(0, 1e12), accuracy=PERCENT, loss=float)
SERIES = record(steps=each(whole()), values=each(float))  # of a metric


class Resume:
    """Write checkpoints of a run, and resume it from the newest.

    Args:
        folder: folder of the run; its subfolder ``resume`` holds the checkpoints until
            the run is finished.
        settings: settings before tuning; a checkpoint with other settings is refused.
        files: hashes of the run's input files and other values that must be the same.
        start: start of the run in this process, by ``time.perf_counter``.
        experiences: number of experiences of the stream.

    Attributes:
        found: the checkpoint that the run goes on from, or ``None``.
        position: place of the run in the stream.
        progress: results so far.
        runtime: name and version of what ran F before, empty without a checkpoint.
    """

    def __init__(
        self,
        folder: Path,
        settings: RunSettings,
        files: dict,
        start: float,
        experiences: int,
    ):
        compared = {
            name: value
            for name, value in vars(settings).items()
            if name not in NON_RESULT_SETTINGS
        }
        self.files = CheckpointFolder(folder / RESUME, {**compared, **files})
        self.settings = settings
        self.position, self.progress, self.runtime = Position(0), Progress(), ""
        self.experiences, self.found = experiences, None
        if settings.checkpoint and not settings.overwrite:
            self.found = self.files.newest(self._check_notes)
        if self.found is not None:
            notes = self.found.notes
            self.position, self.runtime = (
                Position(**notes["position"]),
                notes["runtime"],
            )
            self.progress = Progress(**notes["progress"])
            self.progress.trials = [
                Trial(**trial) for trial in notes["progress"]["trials"]
            ]
        self._clock = start - self.progress.seconds

    def _check_notes(self, notes: dict) -> None:
        position = record(
            experience=whole(0, self.experiences), epoch=whole(), step=whole(-1)
        )
        check(
            record(
                position=position,
                progress=dict,
                metrics=table(text(), SERIES),
                runtime=text(),
            ),
            notes,
        )
        done = notes["position"]["experience"]
        progress = record(
            matrix=each(each(PERCENT), done),
            accuracy_after=each(maybe(PERCENT), done),
            ledgers=each(PLAIN_VALUES, done),
            trials=each(TRIAL),
            tuning_seconds=SECONDS,
            seconds=SECONDS,
            diverged=type(None),
        )
        check(progress, notes["progress"], "progress")

    @property
    def seconds(self) -> float:
        """Duration of the run so far, over all processes that worked on it."""
        return time.perf_counter() - self._clock

    def attach(self, strategy: StreamStrategy) -> None:
        """Write checkpoints of a new strategy; load the one found, or remove all when starting over."""
        now, found = str(strategy.model.runtime), self.found
        if (
            found
            and strategy.model.runtime.name == "onnxruntime"
            and now != self.runtime
        ):
            raise ValueError(
                f"the run began with runtime {self.runtime}, but this one is {now}, whose maps differ: install "
                "the version of the former, or start over with --overwrite true"
            )
        if self.settings.overwrite:
            self.files.clear()
        if not self.settings.checkpoint:
            return
        self.strategy = strategy
        plugin = CheckpointPlugin(self.save, self.settings.checkpoint_every)
        strategy.plugins.append(plugin)
        if found is None:
            return
        self.found = None  # its tensors are not needed after the strategy has them

        compared = (
            3 if self.position.inside else 1
        )  # between experiences the counts within one mean nothing

        def restore() -> None:
            try:
                strategy.load_state_dict(found.state["strategy"])
                set_rng_state(found.state["random"])
                clock = strategy.clock
                place = (
                    clock.train_exp_counter,
                    clock.train_exp_epochs,
                    clock.train_epoch_iterations,
                )
                if place[:compared] != astuple(self.position)[:compared]:
                    raise ValueError(
                        f"its clock is at {place}, its note at {astuple(self.position)}"
                    )
                collected, latest = (
                    strategy.evaluator.get_all_metrics(),
                    strategy.evaluator.last_metric_results,
                )
                collected.clear()
                latest.clear()
                for name, series in found.notes["metrics"].items():
                    collected[name] = list(series["steps"]), list(series["values"])
                    latest[name] = series["values"][-1]
            except (
                AttributeError,
                LookupError,
                TypeError,
                ValueError,
                RuntimeError,
            ) as error:
                raise CheckpointError(
                    f"the state in {self.files.path(found.number)} does not fit this run "
                    f"({' '.join(str(error).split())}); remove that file to resume from the one before it"
                ) from error

        restore()
        if self.position.inside:
            plugin.resume_from(self.position, plugin.epoch_start, restore)

    def save(self, position: Position) -> None:
        """Write a checkpoint."""
        self.position = position
        if not self.settings.checkpoint:
            return
        self.progress.seconds = self.seconds
        notes = {
            "position": asdict(position),
            "progress": asdict(self.progress),
            "metrics": {
                name: {"steps": steps, "values": values}
                for name, (
                    steps,
                    values,
                ) in self.strategy.evaluator.get_all_metrics().items()
            },
            "runtime": str(self.strategy.model.runtime),
        }
        self.files.write(
            notes, {"strategy": self.strategy.state_dict(), "random": get_rng_state()}
        )


class Recorder:
    """Metrics, ledger, predictions and progress bars of a run of so many experiences."""

    def __init__(self, experiences: int, progress: bool):
        self.predictions = PredictionsPlugin()
        self.bar = ProgressPlugin(experiences, progress)
        self.plugins = [self.bar, self.predictions]
        self.ledger = LedgerMetric()
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "No loggers specified"
            )  # metrics.csv is written at the end
            self.evaluator = EvaluationPlugin(
                accuracy_metrics(experience=True, stream=True),
                loss_metrics(experience=True),
                self.ledger,
                loggers=[],
            )

    def write(self, folder: Path, session: Session, progress: Progress) -> dict:
        """Write metrics, predictions, accuracy matrix and ledger; return the ledger after the last experience."""
        metrics = self.evaluator.get_all_metrics().items()
        values = (
            [name, step, value]
            for name, series in metrics
            for step, value in zip(*series)
        )
        write_csv(folder / "metrics.csv", [["metric", "step", "value"], *values])
        tests = session.stream.benchmark.test_stream
        self.predictions.write(
            folder, np.concatenate([list(test.dataset.frame_row) for test in tests])
        )
        width = len(progress.matrix[-1])
        lines = [["after", *[f"experience_{j}" for j in range(width)]]]
        for i, row in enumerate(
            progress.matrix
        ):  # columns of unseen classes stay empty
            lines.append(
                [str(i), *[f"{value:.4f}" for value in row], *[""] * (width - len(row))]
            )
        write_csv(folder / "accuracy_matrix.csv", lines)
        ledger, cache = progress.ledgers[-1], session.cache
        ledger["feature_cache_seconds"] = cache.store.seconds if cache else 0.0
        ledger["feature_cache_images_filled"] = cache.store.filled if cache else 0
        ledger["feature_cache_images_damaged"] = cache.store.damaged if cache else 0
        write_json(
            folder / "ledger.json", {**ledger, "after_experience": progress.ledgers}
        )
        return ledger


class ProgressPlugin(StatefulPlugin):
    """Shows a progress bar with images/s for each of ``total`` training experiences, over all its epochs."""

    def __init__(self, total: int, show: bool = True):
        super().__init__()
        self.total = total
        self.show = show
        self._bar = None

    def before_training_epoch(self, strategy, **kwargs):
        if self._bar is None:
            number = strategy.clock.train_exp_counter + 1
            images = len(strategy.adapted_dataset) * strategy.train_epochs
            self._bar = progress_bar(
                images, f"experience {number}/{self.total}", show=self.show
            )

    def after_training_iteration(self, strategy, **kwargs):
        self._bar.update(len(strategy.mb_y))

    def after_training_exp(self, strategy, **kwargs):
        self.close()

    def close(self) -> None:
        """Close the bar if one is open."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


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
        """Write ``predictions.npz`` atomically, with the row of each image in the frame table, ``(N,)``."""
        columns = {"row": np.asarray(rows, np.int32), **self.state_dict()}
        columns["label"], columns["answer"] = (
            columns.pop("labels"),
            columns.pop("answers"),
        )
        with (
            atomic_write(folder / PREDICTIONS) as unfinished,
            open(unfinished, "wb") as file,
        ):
            np.savez_compressed(file, **columns)

    def state_dict(self):
        state = {
            name: np.asarray(getattr(self, name), np.int32)
            for name in ("labels", "answers")
        }
        return state | {"confidence": np.asarray(self.confidence, np.float32)}

    def load_state_dict(self, state):
        self.labels, self.answers = state["labels"].tolist(), state["answers"].tolist()
        self.confidence = state["confidence"].tolist()


def read_predictions(folder: Path) -> dict[str, np.ndarray]:
    """Read the predictions of a run, sorted by row: those of runs on the same test set align.

    Returns:
        ``row``, ``label`` and ``answer``, each ``(N,)`` int32; ``confidence``, ``(N,)``
        float32: softmax of the outputs, not calibrated.
    """
    path = folder / PREDICTIONS
    if not path.is_file():
        raise ValueError(
            f"there are no predictions in {folder}; give the folder of a finished run"
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {
                name: file[name] for name in ("row", "label", "answer", "confidence")
            }
    except (
        OSError,
        KeyError,
        ValueError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
    ) as error:
        raise ValueError(
            f"{path} is damaged ({error}); run it again with --overwrite true"
        ) from error
    order = np.argsort(columns["row"], kind="stable")
    return {name: values[order] for name, values in columns.items()}


def result_of(plan: RunPlan, session: Session, resume: Resume) -> dict:
    """Return the values of ``result.json`` from plan, stream and progress."""
    progress, stream = resume.progress, session.stream
    benchmark = stream.benchmark
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
        "final_accuracy": progress.accuracy_after[-1],
        "accuracy_after": progress.accuracy_after,
        "final_accuracy_per_experience": progress.matrix[-1],
        "classes_order": [
            benchmark.class_names[label] for label in benchmark.classes_order
        ],
        "classes_per_experience": _new_classes(benchmark),
        "mem_size": session.plan.capacity,
        "runtime": str(session.model.runtime),
        "feature_scale": float(session.model.feature_scale),
        "bad_frames_skipped": len(stream.bad_frames),
        "bad_frames": stream.bad_frames,
        "frame_table_sha256": stream.table.content_hash(),
        "seconds": resume.seconds,
        "versions": versions(),
    }


def _new_classes(benchmark: CLScenario) -> list[int]:
    """Count the classes that each experience is the first to have."""
    seen: set[int] = set()
    counts = []
    for test in benchmark.test_stream:
        counts.append(len(test.classes_in_this_experience - seen))
        seen |= test.classes_in_this_experience
    return counts


def keep_learner(folder: Path, session: Session, experiences: int) -> None:
    """Write ``learner.safetensors`` after so many experiences, unless the plan or the method keeps none."""
    plan, benchmark, model = session.plan, session.stream.benchmark, session.model
    if not plan.keep_learner or plan.strategy in NOT_KEPT:
        return
    images = Counter(
        label
        for one in benchmark.train_stream[:experiences]
        for label in map(int, one.dataset.targets)
    )
    names = benchmark.class_names
    blocks, expected = model.codebook, preprocessing_of(plan.backbone)
    network = {**network_of(plan), "n_classes": model.n_classes}
    if is_timm(plan.backbone) or expected != Preprocessing():
        network["preprocessing"] = expected.as_dict()
    header = LearnerHeader(
        strategy=plan.strategy,
        method={**plan.method, **getattr(session.strategy, "decided_settings", {})},
        learning=asdict(plan.learning),
        mem_size=plan.capacity,
        seed=plan.run,
        network=network,
        codebook=None
        if blocks is None
        else (blocks.codebook_size, blocks.codebook_dim),
        precision=plan.precision,
        evaluate_quantized=plan.evaluate_quantized,
        transform={**expected.as_dict(), "size": plan.image_size},
        classes=[
            dict(label=label, name=names[label], images=count)
            for label, count in images.items()
        ],
        budget_bytes=plan.budget,
        versions={**versions(), "runtime": str(model.runtime)},
    )
    save_learner(folder / LEARNER, session.strategy, header)
