"""An optimiser step on memories alone, with the host's events of an update."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.utils import trigger_plugins
from torch import Tensor

from crumb_avalanche.training.stateful import StatefulPlugin


def in_replay_step(strategy: Any) -> bool:
    """Return whether a strategy takes a step on memories alone.

    A plugin that is for new batches alone asks this in ``after_backward``,
    ``before_update`` and ``after_update``, which a replay step triggers, too.
    """
    return getattr(strategy, "replaying", False)


def memory_step(strategy: Any, loss: Tensor, **kwargs: Any) -> None:
    """Take an optimiser step on a loss of memories alone, as on that of a new batch.

    Triggers these events on the strategy's plugins: ``on_replay_loss``, in which
    ``strategy.replay_loss`` may be replaced; ``after_backward``, ``on_replay_update``
    and ``before_update`` after the backward pass; ``after_update`` and
    ``after_replay_step`` after the step. ``before_backward``, in which plugins add
    losses of the new batch, belongs to new batches alone.

    Args:
        strategy: its ``loss`` is the replay loss during the step, and as before after
            it; its batch and outputs stay those of the new images.
        loss: a scalar with a graph.
        kwargs: those of the hook that calls this.
    """
    strategy.replay_loss = loss
    strategy.optimizer.zero_grad()
    trigger_plugins(strategy, "on_replay_loss", **kwargs)
    with _stepping_on(strategy, strategy.replay_loss):
        strategy.backward()  # not loss.backward(): a strategy may scale its loss there
        trigger_plugins(strategy, "after_backward", **kwargs)
        trigger_plugins(strategy, "on_replay_update", **kwargs)
        trigger_plugins(strategy, "before_update", **kwargs)
        strategy.optimizer_step()
        trigger_plugins(strategy, "after_update", **kwargs)
    strategy.replay_loss = strategy.replay_loss.detach()
    trigger_plugins(strategy, "after_replay_step", **kwargs)


@contextmanager
def _stepping_on(strategy: Any, loss: Tensor) -> Iterator[None]:
    """Make a replay loss the loss of the strategy, as long as a replay step takes.

    ``in_replay_step`` is true meanwhile.
    """
    loss_of_batch = strategy.loss
    strategy.loss = loss
    strategy.replaying = True
    try:
        yield
    finally:
        strategy.replaying = False
        strategy.loss = loss_of_batch


class AfterUpdate(StatefulPlugin):
    """Calls a plugin's ``replay`` when all plugins have seen the update of a new batch.

    ``follow`` puts it last in the plugin list, so that no other plugin sees the events
    of a replay step between ``before_update`` and ``after_update`` of the new batch.

    Args:
        plugin: the plugin; nothing happens while it is not in the strategy's list.
        replay: called with the strategy after the update of each new batch.
    """

    def __init__(self, plugin: SupervisedPlugin, replay: Callable[..., None]):
        super().__init__()
        self.plugin = plugin
        self.replay = replay

    def follow(self, strategy: Any) -> None:
        """Go to the end of the plugin list, unless this is there already."""
        plugins = strategy.plugins
        if plugins[-1] is self:
            return
        if self in plugins:
            plugins.remove(self)
        plugins.append(self)

    def after_update(self, strategy: Any, **kwargs: Any) -> None:
        """Replay after the update of a new batch, not after that of a replay step."""
        if not in_replay_step(strategy) and self.plugin in strategy.plugins:
            self.replay(strategy, **kwargs)
