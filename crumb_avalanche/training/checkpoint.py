"""Checkpoint files, and the plugin that writes them within an experience.

Files are atomic, checksummed and without pickle.
"""

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from crumb_avalanche.system.file_metadata import TensorFileError, loaded_json
from crumb_avalanche.system.tensor_file import read_state, write_state
from crumb_avalanche.system.value_types import PLAIN_VALUES, StateError, check, record
from crumb_avalanche.training.stateful import StatefulPlugin

FORMAT = "crumb-checkpoint-1"
PLAIN_PARTS = ("settings", "notes")  # of the metadata of a file, as JSON
NEWEST = 2  # checkpoints that stay: the last one, and one if that is damaged


class CheckpointError(ValueError):
    """A checkpoint cannot be written, or belongs to another run or version."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint: its number, notes in plain values, and nested state."""

    number: int
    notes: dict
    state: Any


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        folder: the folder, which the first ``write`` creates.
        settings: plain values that can change the result; a checkpoint with other
            settings is refused.
        open_values: by the name of a setting, a value that stands for any other: who
            reads the checkpoint decides which one was chosen.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        settings: dict | None = None,
        open_values: Mapping[str, object] | None = None,
    ):
        self.folder = Path(folder)
        self.settings = settings or {}
        self.open_values = open_values or {}
        self._damaged_numbers: set[int] = set()

    def clear(self, but: str | None = None) -> None:
        """Remove the folder of the checkpoints, or all that is in it but one file.

        The newest checkpoint goes last, by its name: a run that is killed meanwhile
        resumes from it. What cannot be removed stays, without an error.

        Args:
            but: name of the file that stays, and the folder with it; default none.
        """
        self._damaged_numbers.clear()
        with suppress(OSError):  # no folder, or something in it that cannot be removed
            paths = sorted(self.folder.iterdir())
            folders = []
            files = []
            for path in paths:
                is_folder = path.is_dir() and not path.is_symlink()
                if is_folder:
                    folders.append(path)
                else:
                    files.append(path)
            for path in folders:
                shutil.rmtree(path, ignore_errors=True)
            for path in files:
                if path.name != but:
                    path.unlink(missing_ok=True)
            self.folder.rmdir()  # fails if a file stays

    def numbers(self) -> list[int]:
        """Return the numbers of the checkpoints, newest first."""
        numbers = [int(path.stem) for path in self.folder.glob("[0-9]*.safetensors")]
        return sorted(numbers, reverse=True)

    def write(self, notes: dict, state: Any) -> Path:
        """Write the next checkpoint and remove older ones.

        Two stay: the new one, and the newest undamaged one before it.

        Args:
            notes: plain values that can be read without the state, such as a position.
            state: nested dicts and lists of tensors and plain values.

        Returns:
            The path of the new checkpoint.

        Raises:
            CheckpointError: the file cannot be written, for instance because the disk
                is full; earlier checkpoints are unchanged.
            StateError: the state holds a value of an unsupported type.
        """
        numbers = self.numbers()  # of the checkpoints in the folder, newest first
        path = self.path(numbers[0] + 1 if numbers else 0)
        metadata = {
            "format": FORMAT,
            "settings": json.dumps(self.settings, sort_keys=True),
            "notes": json.dumps(notes),
        }
        try:
            write_state(path, state, metadata)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"the checkpoint {path} cannot be written ({error}); the one before it "
                "is untouched. Free some room and give the same command again: it "
                "resumes from there"
            ) from error
        undamaged = [
            number for number in numbers if number not in self._damaged_numbers
        ]
        staying = undamaged[: NEWEST - 1]  # beside the one that was just written
        for number in numbers:
            if number not in staying:
                self.path(number).unlink(missing_ok=True)
        return path

    def newest(
        self, check_notes: Callable[[dict], None] = lambda notes: None
    ) -> Checkpoint | None:
        """Read the newest undamaged checkpoint, with a warning for each damaged one.

        Args:
            check_notes: function that raises ``StateError`` for notes that no run
                writes, as those of a damaged checkpoint are.

        Returns:
            The checkpoint; ``None`` if the folder has none.

        Raises:
            CheckpointError: the checkpoint has other settings, or all are damaged.
        """
        numbers = self.numbers()
        for number in numbers:
            path = self.path(number)
            try:
                return self._read(number, check_notes)
            except (TensorFileError, StateError, OSError, KeyError) as error:
                self._damaged_numbers.add(number)
                warnings.warn(
                    f"the checkpoint {path} is damaged ({error}); trying the one "
                    "before it",
                    stacklevel=2,
                )
        if numbers:
            raise CheckpointError(
                f"all checkpoints in {self.folder} are damaged; remove that folder to "
                "start over"
            )
        return None

    def _read(self, number: int, check_notes: Callable[[dict], None]) -> Checkpoint:
        """Read a checkpoint; raise if it is damaged or has other settings."""
        state, metadata = read_state(self.path(number))
        if metadata.get("format") != FORMAT:
            raise TensorFileError(
                f"its format is {metadata.get('format')}, not {FORMAT}"
            )
        plain_values = {name: loaded_json(metadata[name]) for name in PLAIN_PARTS}
        check(record(**dict.fromkeys(PLAIN_PARTS, PLAIN_VALUES)), plain_values)
        self._check_settings(plain_values["settings"])
        check_notes(plain_values["notes"])
        return Checkpoint(number, plain_values["notes"], state)

    def path(self, number: int) -> Path:
        """Return the path of a checkpoint."""
        return self.folder / f"{number:08d}.safetensors"

    def _check_settings(self, settings: dict) -> None:
        """Raise CheckpointError unless a checkpoint has the settings of the folder."""
        expected = json.loads(json.dumps(self.settings))  # tuples are lists in a file
        for name in sorted({*settings, *expected}):
            values = (settings.get(name), expected.get(name))
            is_open = name in self.open_values and self.open_values[name] in values
            if values[0] != values[1] and not is_open:
                raise CheckpointError(
                    f"{self.folder} holds checkpoints made with "
                    f"{name}={settings.get(name)!r}, not {expected.get(name)!r}; "
                    "resume with the same settings, use another --output, or remove "
                    "that folder to start over"
                )


@dataclass(frozen=True)
class Position:
    """A position in the stream, between two steps.

    Attributes:
        experience: number of the experience.
        epoch: number of the epoch in this experience.
        step: number of steps done in this epoch; -1 before the experience begins.
    """

    experience: int
    epoch: int = 0
    step: int = -1

    @property
    def inside(self) -> bool:
        """Whether the experience has begun."""
        return self.step >= 0

    def described(self, n_experiences: int) -> str:
        """Return the position in words, in a stream of so many experiences."""
        finished = f"{self.experience} of {n_experiences} experiences are finished"
        if not self.inside:
            return finished
        return (
            f"{finished}, and {self.step} steps of epoch {self.epoch + 1} of the next"
        )


class _ResumingLoader:
    """Loader of an epoch that drops the batches before a checkpoint.

    Then it restores the state of the checkpoint.

    Args:
        loader: of the whole epoch.
        rng_at_epoch_start: torch's RNG state at the start of the epoch.
        n_dropped: number of batches to drop.
        restore: loads the state.
    """

    def __init__(
        self,
        loader,
        rng_at_epoch_start: torch.Tensor,
        n_dropped: int,
        restore: Callable[[], None],
    ):
        self.loader = loader
        self.rng_at_epoch_start = rng_at_epoch_start
        self.n_dropped = n_dropped
        self.restore = restore

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator:
        # It decides the order of a shuffled epoch.
        torch.set_rng_state(self.rng_at_epoch_start)
        batches = iter(self.loader)
        for _ in range(self.n_dropped):
            next(batches)
        self.restore()
        yield from batches


@dataclass(frozen=True)
class _Resumption:
    """Where an experience is resumed, and how.

    Attributes:
        position: of the checkpoint in the experience.
        rng_at_epoch_start: torch's RNG state at the start of its epoch.
        restore: loads the checkpoint's state.
    """

    position: Position
    rng_at_epoch_start: torch.Tensor
    restore: Callable[[], None]


class CheckpointPlugin(StatefulPlugin):
    """Calls ``save`` every few steps, and resumes an experience after a checkpoint.

    Append the plugin to ``strategy.plugins`` after the strategy is built: it must come
    after all other plugins and the clock, because a state is complete only when each of
    them has finished the step.

    A resumed experience begins as any other; its finished epochs and steps are skipped,
    and then ``restore`` replaces the state that the beginning changed.

    Args:
        save: function that is called with the position.
        every: steps between two calls; 0 disables them. Checkpoints between experiences
            are left to the caller.

    Attributes:
        rng_at_epoch_start: torch's RNG state at the start of the epoch.
    """

    def __init__(self, save: Callable[[Position], None], every: int = 0):
        super().__init__()
        self.save = save
        self.every = every
        self.rng_at_epoch_start: torch.Tensor | None = None
        self._resumption: _Resumption | None = None
        self._loader = None  # that of the host, while another one is in its place

    def resume_from(
        self,
        position: Position,
        rng_at_epoch_start: torch.Tensor,
        restore: Callable[[], None],
    ) -> None:
        """Resume the next experience from a position within it.

        Args:
            position: in the experience.
            rng_at_epoch_start: torch's RNG state at the start of its epoch.
            restore: loads the checkpoint's state.
        """
        self._resumption = _Resumption(position, rng_at_epoch_start, restore)

    def before_training_epoch(self, strategy, **kwargs):
        """Skip the epochs and steps before the position to resume from.

        ``strategy.dataloader`` is replaced: by an empty one in an epoch that was
        finished before the checkpoint, and in that of the checkpoint by one that drops
        the batches of the finished steps, and then restores the state.
        """
        self.rng_at_epoch_start = torch.get_rng_state()  # for checkpoints in this epoch
        resumption = self._resumption
        if resumption is None:  # nothing is resumed
            return
        self._loader = strategy.dataloader  # which is put back after the epoch
        was_finished = strategy.clock.train_exp_epochs < resumption.position.epoch
        if was_finished:
            strategy.dataloader = ()
            return
        self._resumption = None
        strategy.dataloader = _ResumingLoader(
            loader=self._loader,
            rng_at_epoch_start=resumption.rng_at_epoch_start,
            n_dropped=resumption.position.step,
            restore=resumption.restore,
        )

    def after_training_epoch(self, strategy, **kwargs):
        """Give the strategy its own data loader back."""
        if self._loader is not None:
            strategy.dataloader = self._loader
            self._loader = None

    def after_training_iteration(self, strategy, **kwargs):
        """Save a checkpoint after every ``every``-th step of the stream."""
        clock = strategy.clock
        if self.every and clock.train_iterations % self.every == 0:
            position = Position(
                experience=clock.train_exp_counter,
                epoch=clock.train_exp_epochs,
                step=clock.train_epoch_iterations,
            )
            self.save(position)

    def state_dict(self):
        """Return torch's RNG state at the start of the epoch."""
        return {"epoch_start": self.rng_at_epoch_start}

    def load_state_dict(self, state):
        """Load what ``state_dict`` returned."""
        self.rng_at_epoch_start = state["epoch_start"]
