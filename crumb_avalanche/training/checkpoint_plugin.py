"""Going on in the middle of a run: when a learner's state is kept, and how the stream is brought to where it was."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from crumb_avalanche.training.stateful import StatefulPlugin


@dataclass(frozen=True)
class Position:
    """A place in the stream, between two steps.

    Attributes:
        experience: number of the experience that is being learned.
        epoch: of this experience.
        step: steps done in this epoch; ``-1``: the experience has not begun.
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
    """A loader that begins after some batches, with everything as it was then.

    Args:
        loader: the epoch's own.
        start: its random state when the epoch began, which decides the order of a shuffled epoch.
        step: batches that were learned already; they are read and dropped.
        restore: called when they have passed.
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
    """Calls ``save`` every so many steps, and brings a learner that is to go on to the step after its checkpoint.

    Append it to ``strategy.plugins`` when the strategy is built, so that it comes after all others, the clock too:
    a state is kept when everybody has finished the step. On going on, an experience begins as always, its first epochs
    are passed over, and then all state is put back: so whatever beginning an experience prepares (loaders, cached data
    sets) is there, and whatever it changes is undone.

    Args:
        save: called with the position.
        every: steps between two calls; 0 calls only between experiences, which is the caller's part.

    Attributes:
        epoch_start: torch's random state at the beginning of the epoch.
    """

    def __init__(self, save: Callable[[Position], None], every: int = 0):
        super().__init__()
        self.save = save
        self.every = every
        self.epoch_start: torch.Tensor | None = None
        self._resume: tuple[Position, torch.Tensor, Callable[[], None]] | None = None
        self._loader = None

    def go_on(self, position: Position, epoch_start: torch.Tensor, restore: Callable[[], None]) -> None:
        """Pass over what was learned before a position in the experience that is begun next.

        Args:
            position: of the checkpoint.
            epoch_start: torch's random state when that epoch began.
            restore: puts the checkpoint's state back.
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
