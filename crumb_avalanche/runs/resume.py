"""Checkpoints of a run: what they hold, and how a run goes on from one."""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from crumb_avalanche.runs.plan import RunPlan
from crumb_avalanche.runs.run_folder import PERCENT, RESUME
from crumb_avalanche.runs.settings import result_settings
from crumb_avalanche.system.process import get_rng_state, set_rng_state
from crumb_avalanche.system.value_types import (
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
    Checkpoint,
    CheckpointError,
    CheckpointFolder,
    CheckpointPlugin,
    Position,
)
from crumb_avalanche.training.lr_search import Trial
from crumb_avalanche.training.stateful import class_numbers_in
from crumb_avalanche.training.stream_strategy import StreamStrategy

SECONDS = real(0, 1e12)
TRIAL = record(learning_rate=real(0, 1e12), accuracy=PERCENT, loss=float)
SERIES = record(steps=each(whole()), values=each(float))  # of a metric


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

    @classmethod
    def from_notes(cls, progress_notes: dict[str, Any]) -> "Progress":
        """Restore the progress in a checkpoint's notes, which ``asdict`` made."""
        progress = cls(**progress_notes)
        progress.trials = [Trial(**trial) for trial in progress_notes["trials"]]
        return progress


class Resume:
    """Write checkpoints of a run, and resume it from the newest.

    Args:
        folder: folder of the run; its subfolder ``resume`` holds the checkpoints until
            the run is finished.
        plan: the plan before tuning; a checkpoint with other settings is refused.
        inputs: hashes of the run's input files and other values that must be the same.
        start: start of the run in this process, by ``time.perf_counter``.
        experiences: number of experiences of the stream.

    Attributes:
        checkpoint: the checkpoint that the run goes on from, or ``None``.
        position: of the run in the stream.
        progress: results so far.
        runtime: name and version of what ran F before, empty without a checkpoint.
    """

    def __init__(
        self,
        folder: Path,
        plan: RunPlan,
        inputs: dict[str, str],
        start: float,
        experiences: int,
    ):
        # A checkpoint with other values is refused.
        compared = {**result_settings(vars(plan)), **inputs}
        # A plan of ``auto`` is that of any runtime, which the notes name.
        self.files = CheckpointFolder(folder / RESUME, compared, {"runtime": "auto"})
        self.plan = plan
        self.experiences = experiences
        self.position = Position(0)
        self.progress = Progress()
        self.runtime = ""
        self.checkpoint: Checkpoint | None = None
        if plan.checkpoint and not plan.overwrite:
            self.checkpoint = self.files.newest(self._check_notes)
        if self.checkpoint is not None:
            notes = self.checkpoint.notes
            self.position = Position(**notes["position"])
            self.progress = Progress.from_notes(notes["progress"])
            self.runtime = notes["runtime"]
            self._check_planned_runtime()
        # When the run would have begun without interruptions, by perf_counter.
        self._start = start - self.progress.seconds

    def _check_planned_runtime(self) -> None:
        """Raise CheckpointError if the plan names another runtime than ran F before."""
        name, _, _ = self.runtime.partition(" ")  # and its version
        if self.plan.runtime not in ("auto", name):
            raise CheckpointError(
                f"{self.files.folder} holds checkpoints made with runtime={name!r}, "
                f"not {self.plan.runtime!r}; resume with the same settings, use "
                "another --output, or remove that folder to start over"
            )

    def _check_notes(self, notes: dict) -> None:
        """Raise StateError for the notes of a file that no checkpoint of this run has.

        Args:
            notes: what stands beside the tensors: ``position`` in the stream,
                ``progress`` (accuracies, ledgers, trials of the learning rate),
                ``metrics`` and ``runtime``.
        """
        # Types that `check` compares values with: `record` is a dictionary with these
        # keys, `each` a list with a type for its members.
        position_type = record(
            experience=whole(0, self.experiences), epoch=whole(), step=whole(-1)
        )
        notes_type = record(
            position=position_type,
            progress=dict,
            metrics=table(text(), SERIES),
            runtime=text(),
        )
        check(notes_type, notes)
        n_learned = notes["position"]["experience"]
        progress_type = record(
            matrix=each(each(PERCENT), n_learned),
            accuracy_after=each(maybe(PERCENT), n_learned),
            ledgers=each(PLAIN_VALUES, n_learned),
            trials=each(TRIAL),
            tuning_seconds=SECONDS,
            seconds=SECONDS,
            diverged=type(None),  # a run that diverged writes no further checkpoint
        )
        check(progress_type, notes["progress"], "progress")

    @property
    def seconds(self) -> float:
        """Duration of the run so far, over all processes that worked on it."""
        return time.perf_counter() - self._start

    def attach(self, strategy: StreamStrategy) -> None:
        """Load the checkpoint that the run goes on from, and let the run write others.

        A run that starts over removes all checkpoints.

        Args:
            strategy: untrained; gets a plugin that calls ``save``.

        Raises:
            ValueError: another version of ONNX Runtime ran F before.
            CheckpointError: the state does not fit the strategy or the stream.
        """
        if self.checkpoint is not None:
            self._check_runtime(strategy)
        if self.plan.overwrite:
            self.files.clear()
        if not self.plan.checkpoint:
            return
        self.strategy = strategy  # whose state ``save`` writes
        plugin = CheckpointPlugin(self.save, self.plan.checkpoint_every)
        strategy.plugins.append(plugin)
        if self.checkpoint is None:
            return
        checkpoint = self.checkpoint
        self.checkpoint = None  # its tensors are not needed after the strategy has them

        def restore() -> None:
            """Load the checkpoint into the strategy and the RNGs."""
            self._restore(strategy, checkpoint)

        restore()
        if self.position.inside:  # an experience, of which epochs and steps are skipped
            # Skipping draws random numbers, so the plugin restores once more after it.
            plugin.resume_from(self.position, plugin.rng_at_epoch_start, restore)

    def _check_runtime(self, strategy: StreamStrategy) -> None:
        """Raise ValueError if ONNX Runtime has another version than before."""
        runtime = strategy.model.runtime
        if runtime.name == "onnxruntime" and str(runtime) != self.runtime:
            raise ValueError(
                f"the run began with runtime {self.runtime}, but this one is "
                f"{runtime}, whose maps differ: install the version of the former, or "
                "start over with --overwrite true"
            )

    def _restore(self, strategy: StreamStrategy, checkpoint: Checkpoint) -> None:
        """Load a checkpoint into the strategy, its evaluator and the RNGs.

        Args:
            strategy: of the same plan; its state is replaced.
            checkpoint: ``state`` of strategy and RNGs, and ``notes`` with the metrics.

        Raises:
            CheckpointError: it does not fit; the strategy may be changed in part.
        """
        try:
            state = checkpoint.state["strategy"]
            check_class_numbers(strategy, state)
            strategy.load_state_dict(state)
            set_rng_state(checkpoint.state["random"])
            self._check_clock(strategy)
            _restore_metrics(strategy, checkpoint.notes["metrics"])
        except (
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
            RuntimeError,
        ) as error:
            raise CheckpointError(
                f"the state in {self.files.path(checkpoint.number)} does not fit this "
                f"run ({' '.join(str(error).split())}); remove that file to resume "
                "from the one before it"
            ) from error

    def _check_clock(self, strategy: StreamStrategy) -> None:
        """Raise ValueError if a strategy's clock is not where the checkpoint says.

        Args:
            strategy: with the state of the checkpoint; its clock counts experiences,
                epochs and iterations.
        """
        clock = strategy.clock
        reached = Position(
            clock.train_exp_counter,
            clock.train_exp_epochs,
            clock.train_epoch_iterations,
        )
        # Between experiences the counts within one mean nothing.
        if self.position.inside:
            is_same = reached == self.position
        else:
            is_same = reached.experience == self.position.experience
        if not is_same:
            raise ValueError(f"its clock is at {reached}, its note at {self.position}")

    def save(self, position: Position) -> None:
        """Write a checkpoint of the run at a position, unless the plan wants none.

        It holds the states of strategy and RNGs, and notes of progress and metrics.

        Args:
            position: in the stream: numbers of experience and epoch, and steps done.
        """
        self.position = position
        if not self.plan.checkpoint:
            return
        self.progress.seconds = self.seconds
        metrics = {}
        collected = self.strategy.evaluator.get_all_metrics()
        for name, (steps, values) in collected.items():
            metrics[name] = {"steps": steps, "values": values}
        notes = {
            "position": asdict(position),
            "progress": asdict(self.progress),
            "metrics": metrics,
            "runtime": str(self.strategy.model.runtime),
        }
        state = {"strategy": self.strategy.state_dict(), "random": get_rng_state()}
        self.files.write(notes, state)


def _restore_metrics(strategy: StreamStrategy, metrics: dict[str, dict]) -> None:
    """Give Avalanche's evaluator the metrics of a checkpoint instead of its own.

    ``metrics`` has ``steps`` and ``values`` of each metric, by its name.
    """
    collected = strategy.evaluator.get_all_metrics()
    latest = strategy.evaluator.last_metric_results
    collected.clear()
    latest.clear()
    for name, series in metrics.items():
        collected[name] = (list(series["steps"]), list(series["values"]))
        latest[name] = series["values"][-1]


def check_class_numbers(strategy: StreamStrategy, state: dict[str, Any]) -> None:
    """Raise ValueError if a strategy's state has a class number that the stream lacks.

    A file whose checksums fit may hold any numbers; those of classes are indices of the
    network's outputs, which the loss would look up in the middle of an experience.

    Args:
        strategy: whose network has an output for each class of the stream.
        state: of the strategy, before it is loaded.
    """
    n_classes = strategy.model.n_classes
    for name, numbers in class_numbers_in(strategy, state):
        for number in numbers:
            if not -1 <= number < n_classes:  # -1 where there is none
                raise ValueError(
                    f"{name} holds the class {number}, but the stream has the classes "
                    f"0 to {n_classes - 1}"
                )
