"""Write checkpoints of a run and resume from the newest."""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from crumb_avalanche.runs.run_folder import RESUME
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, RunSettings, as_dict
from crumb_avalanche.system.rng_state import get_rng_state, set_rng_state
from crumb_avalanche.training.checkpoint import Checkpoint, CheckpointFolder, CheckpointPlugin, Position
from crumb_avalanche.training.lr_search import Trial
from crumb_avalanche.training.stream_strategy import StreamStrategy

ROWS = ("matrix", "accuracy_after", "ledgers")


@dataclass
class Progress:
    """Results of a run so far.

    Attributes:
        matrix: accuracy after each experience on the classes of each, percent; an empty row if it was not tested.
        accuracy_after: accuracy over all seen classes after each experience, percent; ``None`` if it was not tested.
        ledgers: the ledger after each experience.
        trials: of the learning rate, the chosen one first; they took ``tuning_seconds``.
        seconds: time from the start of the run to its latest checkpoint; work lost in interruptions is not counted.
        diverged: number of the experience in which training diverged, if the run counts nevertheless. No checkpoint
            follows: a resumed run diverges again.
    """

    matrix: list[list[float]] = field(default_factory=list)
    accuracy_after: list[float | None] = field(default_factory=list)
    ledgers: list[dict] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    tuning_seconds: float = 0.0
    seconds: float = 0.0
    diverged: int | None = None


class Resume:
    """Write checkpoints of a run, and resume it from the newest.

    Rows of the progress and Avalanche's metrics only grow: a checkpoint appends the new ones to its history.

    Args:
        folder: folder of the run; its subfolder ``resume`` holds the checkpoints until the run is finished.
        settings: settings before tuning; a checkpoint with other settings is refused.
        files: hashes of the run's input files and other values that must be the same.
        start: start of the run in this process, by ``time.perf_counter``.

    Attributes:
        position: place of the run in the stream.
        progress: results so far.
        runtime: name and version of what ran F before, empty without a checkpoint.
    """

    def __init__(self, folder: Path, settings: RunSettings, files: dict, start: float):
        compared = {name: value for name, value in as_dict(settings).items() if name not in NON_RESULT_SETTINGS}
        self.files = CheckpointFolder(folder / RESUME, {**compared, **files})
        self.wanted = settings.checkpoint
        self.anew = settings.overwrite
        self.every = settings.checkpoint_every
        self.position = Position(0)
        self.progress = Progress()
        self.runtime = ""
        self._written: dict[str, int] = {}  # name of a metric -> values in the history
        self._found: Checkpoint | None = self.files.newest() if self.wanted and not self.anew else None
        if self._found is not None:
            notes = self._found.notes
            self.position = Position(**notes["position"])
            self.runtime = notes["runtime"]
            trials = [Trial(**trial) for trial in notes["trials"]]
            self.progress = Progress(trials=trials, tuning_seconds=notes["tuning_seconds"], seconds=notes["seconds"])
            for name in ROWS:
                getattr(self.progress, name).extend(row for record in self._found.records for row in record[name])
        self._clock = start - self.progress.seconds

    @property
    def seconds(self) -> float:
        """Duration of the run so far, over all processes that worked on it."""
        return time.perf_counter() - self._clock

    @property
    def found(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self._found is not None

    def attach(self, strategy: StreamStrategy) -> None:
        """Write checkpoints of a new strategy; load the one found, or remove all when starting over."""
        now = str(strategy.model.runtime)
        if self.found and strategy.model.runtime.name in ("onnxruntime", "int8") and now != self.runtime:
            raise ValueError(
                f"the run began with runtime {self.runtime}, but this one is {now}, whose maps differ: install "
                "the version of the former (int8: and use its machine), or start over with --overwrite true"
            )
        if self.anew:
            self.files.clear()
        if not self.wanted:
            return
        self.strategy = strategy
        plugin = CheckpointPlugin(self.save, self.every)
        strategy.plugins.append(plugin)
        if self._found is None:
            return
        found, self._found = self._found, None

        def restore() -> None:
            strategy.load_state_dict(found.state["strategy"])
            set_rng_state(found.state["random"])
            self._restore_metrics(found.records)

        restore()
        if self.position.inside:
            plugin.resume_from(self.position, plugin.epoch_start, restore)

    def save(self, position: Position) -> None:
        """Write a checkpoint."""
        self.position = position
        if not self.wanted:
            return
        progress = self.progress
        progress.seconds = self.seconds
        notes = {
            "position": asdict(position),
            "trials": [asdict(trial) for trial in progress.trials],
            "tuning_seconds": progress.tuning_seconds,
            "seconds": progress.seconds,
            "runtime": str(self.strategy.model.runtime),
        }
        record = {name: getattr(progress, name)[self._written.get(name, 0) :] for name in ROWS}
        record["metrics"] = {}
        for name, (steps, values) in self._metrics().items():
            if new := len(values) - self._written.get(f"metric {name}", 0):
                record["metrics"][name] = [steps[-new:], values[-new:]]
        state = {"strategy": self.strategy.state_dict(), "random": get_rng_state()}
        self.files.write(notes, state, record if any(record.values()) else None)
        self._count()

    def _metrics(self) -> dict[str, tuple[list, list]]:
        return self.strategy.evaluator.get_all_metrics()

    def _restore_metrics(self, records: list[dict]) -> None:
        collected, latest = self._metrics(), self.strategy.evaluator.last_metric_results
        collected.clear()
        latest.clear()
        for record in records:
            for name, (steps, values) in record["metrics"].items():
                collected[name][0].extend(steps)
                collected[name][1].extend(values)
                latest[name] = values[-1]
        self._count()

    def _count(self) -> None:
        """Count the rows and values that the history holds."""
        self._written = {name: len(getattr(self.progress, name)) for name in ROWS}
        self._written |= {f"metric {name}": len(values) for name, (_, values) in self._metrics().items()}
