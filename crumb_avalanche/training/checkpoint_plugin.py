"""Write checkpoints within an experience, and resume a learner from one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from crumb_avalanche.training.stateful import StatefulPlugin


@dataclass(frozen=True)
class Position:
    """A place in the stream, between two steps.

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

    def described(self, experiences: int) -> str:
        """The place in words, in a stream of so many experiences."""
        inside = f", and {self.step} steps of epoch {self.epoch + 1} of the next" if self.inside else ""
        return f"{self.experience} of {experiences} experiences are finished{inside}"


class ResumingLoader:
    """Loader of an epoch that skips the batches before a checkpoint and then restores its state.

    Args:
        loader: loader of the epoch.
        start: torch's RNG state at the start of the epoch, which decides the order of a shuffled epoch.
        step: number of batches already trained on; they are read and dropped.
        restore: function that restores the checkpoint's state, called after these batches.
    """

    def __init__(self, loader, start: torch.Tensor, step: int, restore: Callable[[], None]):
        self.loader = loader
        self.start = start
        self.step = step
        self.restore = restore

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator:
        torch.set_rng_state(self.start)
        batches = iter(self.loader)
        for _ in range(self.step):
            next(batches)
        self.restore()
        yield from batches


class CheckpointPlugin(StatefulPlugin):
    """Call ``save`` every few steps, and resume an experience after the step of a checkpoint.

    Append the plugin to ``strategy.plugins`` after the strategy is built: it must come after all other plugins and the
    clock, because a state is complete only when each of them has finished the step.

    A resumed experience begins as any other, which creates its loaders and cached data sets. Its finished epochs and
    steps are skipped, and then ``restore`` replaces the state that the beginning changed.

    Args:
        save: function that is called with the position.
        every: steps between two calls; 0 disables them. Checkpoints between experiences are left to the caller.

    Attributes:
        epoch_start: torch's RNG state at the start of the epoch.
    """

    def __init__(self, save: Callable[[Position], None], every: int = 0):
        super().__init__()
        self.save = save
        self.every = every
        self.epoch_start: torch.Tensor | None = None
        self._resume: tuple[Position, torch.Tensor, Callable[[], None]] | None = None
        self._loader = None

    def resume_from(self, position: Position, epoch_start: torch.Tensor, restore: Callable[[], None]) -> None:
        """Resume the next experience from a position within it.

        Args:
            position: position of the checkpoint.
            epoch_start: torch's RNG state at the start of the checkpoint's epoch.
            restore: function that restores the checkpoint's state.
        """
        self._resume = position, epoch_start, restore

    def before_training_epoch(self, strategy, **kwargs):
        self.epoch_start = torch.get_rng_state()
        if self._resume is None:
            return
        position, epoch_start, restore = self._resume
        self._loader = strategy.dataloader
        if strategy.clock.train_exp_epochs < position.epoch:
            strategy.dataloader = ()
            return
        self._resume = None
        strategy.dataloader = ResumingLoader(self._loader, epoch_start, position.step, restore)

    def after_training_epoch(self, strategy, **kwargs):
        if self._loader is not None:
            strategy.dataloader, self._loader = self._loader, None

    def after_training_iteration(self, strategy, **kwargs):
        clock = strategy.clock
        if self.every and clock.train_iterations % self.every == 0:
            self.save(Position(clock.train_exp_counter, clock.train_exp_epochs, clock.train_epoch_iterations))

    def state_dict(self):
        return {"epoch_start": self.epoch_start}

    def load_state_dict(self, state):
        self.epoch_start = state["epoch_start"]
