"""Checkpoints of a run: what is in them, when they are written, and going on from the newest."""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from crumb_avalanche.runs.run_folder import RESUME
from crumb_avalanche.runs.settings import NO_PART_OF_THE_RESULT, RunSettings, as_dict
from crumb_avalanche.system.rng_state import get_rng_state, set_rng_state
from crumb_avalanche.training.checkpoint import Checkpoint, CheckpointFolder
from crumb_avalanche.training.checkpoint_plugin import CheckpointPlugin, Position
from crumb_avalanche.training.lr_search import Trial
from crumb_avalanche.training.state_tree import packed, restored
from crumb_avalanche.training.stream_strategy import StreamStrategy


@dataclass
class Progress:
    """What a run has found out so far.

    Attributes:
        matrix: accuracy after each experience on the classes of each, percent; empty where it was not tested.
        accuracy_after: accuracy over all seen classes after each experience, percent; ``None`` where it was not tested.
        ledgers: the ledger after each experience.
        trials: of the learning rate, the chosen one first.
        tuning_seconds: what they took.
        seconds: from the run's beginning to its latest checkpoint; what was lost after an earlier one is not counted.
        metrics: steps and values of all that Avalanche's evaluator collected, by name.
    """

    matrix: list[list[float]] = field(default_factory=list)
    accuracy_after: list[float | None] = field(default_factory=list)
    ledgers: list[dict] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    tuning_seconds: float = 0.0
    seconds: float = 0.0
    metrics: dict[str, list[list]] = field(default_factory=dict)


class GoingOn:
    """Writes checkpoints of a run, and takes the newest up again.

    Args:
        folder: of the run; checkpoints lie in ``resume/`` in it until the run is finished.
        settings: as given, before anything is tuned; a checkpoint of others is refused.
        files: what it is made from (see ``made_from``), and hashes of whatever else must be the same.
        start: when this process began with the run, by ``time.perf_counter``.

    Attributes:
        position: where the run is.
        progress: what it found.
    """

    def __init__(self, folder: Path, settings: RunSettings, files: dict, start: float):
        compared = {name: value for name, value in as_dict(settings).items() if name not in NO_PART_OF_THE_RESULT}
        self.files = CheckpointFolder(folder / RESUME, {**compared, **files})
        self.wanted = settings.checkpoint
        self.anew = settings.overwrite
        self.every = settings.checkpoint_every
        self.position = Position(0)
        self.progress = Progress()
        self._found: Checkpoint | None = self.files.newest() if self.wanted and not self.anew else None
        if self._found is not None:
            notes = self._found.notes
            self.position = Position(**notes["position"])
            trials = [Trial(**trial) for trial in notes["progress"].pop("trials")]
            self.progress = Progress(**notes["progress"], trials=trials)
        self._clock = start - self.progress.seconds

    @property
    def seconds(self) -> float:
        """What the run has taken so far, in all processes that worked on it."""
        return time.perf_counter() - self._clock

    @property
    def found(self) -> bool:
        """Whether there is something to go on from."""
        return self._found is not None

    def attach(self, strategy: StreamStrategy) -> None:
        """Watch a strategy just built, and bring it to the state of a checkpoint found; or give up the old ones."""
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
            state = restored(found.tree, found.tensors, {"strategy": strategy})
            set_rng_state(state["random"])
            collected = strategy.evaluator.get_all_metrics()
            collected.clear()
            for name, (steps, values) in self.progress.metrics.items():
                collected[name] = ([*steps], [*values])

        restore()
        if self.position.inside:
            plugin.go_on(self.position, plugin.epoch_start, restore)

    def save(self, position: Position) -> None:
        """Write a checkpoint."""
        self.position = position
        if self.wanted:
            self.progress.seconds = self.seconds
            self.progress.metrics = dict(self.strategy.evaluator.get_all_metrics())
            notes = {"position": asdict(position), "progress": asdict(self.progress)}
            self.files.write(notes, *packed({"strategy": self.strategy, "random": get_rng_state()}))
