"""Write checkpoints of a run and resume from the newest."""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from crumb_avalanche.runs.run_folder import RESUME
from crumb_avalanche.runs.settings import NON_RESULT_SETTINGS, RunSettings, as_dict
from crumb_avalanche.system.rng_state import get_rng_state, set_rng_state
from crumb_avalanche.training.checkpoint import CheckpointFolder, CheckpointPlugin, Position
from crumb_avalanche.training.lr_search import Trial
from crumb_avalanche.training.stream_strategy import StreamStrategy


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

    Args:
        folder: folder of the run; its subfolder ``resume`` holds the checkpoints until the run is finished.
        settings: settings before tuning; a checkpoint with other settings is refused.
        files: hashes of the run's input files and other values that must be the same.
        start: start of the run in this process, by ``time.perf_counter``.

    Attributes:
        found: the checkpoint that the run goes on from, or ``None``.
        position: place of the run in the stream.
        progress: results so far.
        runtime: name and version of what ran F before, empty without a checkpoint.
    """

    def __init__(self, folder: Path, settings: RunSettings, files: dict, start: float):
        compared = {name: value for name, value in as_dict(settings).items() if name not in NON_RESULT_SETTINGS}
        self.files = CheckpointFolder(folder / RESUME, {**compared, **files})
        self.settings = settings
        self.position, self.progress, self.runtime = Position(0), Progress(), ""
        self.found = self.files.newest() if settings.checkpoint and not settings.overwrite else None
        if self.found is not None:
            notes = self.found.notes
            self.position, self.runtime = Position(**notes["position"]), notes["runtime"]
            self.progress = Progress(**notes["progress"])
            self.progress.trials = [Trial(**trial) for trial in notes["progress"]["trials"]]
        self._clock = start - self.progress.seconds

    @property
    def seconds(self) -> float:
        """Duration of the run so far, over all processes that worked on it."""
        return time.perf_counter() - self._clock

    def attach(self, strategy: StreamStrategy) -> None:
        """Write checkpoints of a new strategy; load the one found, or remove all when starting over."""
        now, found = str(strategy.model.runtime), self.found
        if found and strategy.model.runtime.name == "onnxruntime" and now != self.runtime:
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

        def restore() -> None:
            strategy.load_state_dict(found.state["strategy"])
            set_rng_state(found.state["random"])
            collected, latest = strategy.evaluator.get_all_metrics(), strategy.evaluator.last_metric_results
            collected.clear()
            collected.update({name: (list(steps), list(values)) for name, (steps, values) in found.notes["metrics"]})
            latest.clear()
            latest.update({name: values[-1] for name, (_, values) in found.notes["metrics"]})

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
            "metrics": list(self.strategy.evaluator.get_all_metrics().items()),
            "runtime": str(self.strategy.model.runtime),
        }
        self.files.write(notes, {"strategy": self.strategy.state_dict(), "random": get_rng_state()})
