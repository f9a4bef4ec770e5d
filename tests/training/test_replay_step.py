"""Replay steps are updates of the host's: its plugins see their events, in order."""

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from host_benchmarks import STORING, host_benchmark, host_model, our_strategy

from crumb_avalanche.methods.penalties import StreamSI
from crumb_avalanche.models.layers import trainable
from crumb_avalanche.training.crumb import CRUMBPlugin
from crumb_avalanche.training.replay_step import in_replay_step, memory_step

UPDATE = ["after_backward", "before_update", "after_update"]


def train(strategy):
    for experience in host_benchmark("nc").train_stream:
        strategy.train(experience)
    return strategy


class Events(SupervisedPlugin):
    """Records the events of updates, with whether a replay step triggered them."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def _record(self, name, strategy):
        self.calls.append((name, in_replay_step(strategy)))

    def after_backward(self, strategy, **kwargs):
        self._record("after_backward", strategy)

    def before_update(self, strategy, **kwargs):
        self._record("before_update", strategy)

    def after_update(self, strategy, **kwargs):
        self._record("after_update", strategy)

    def after_training_iteration(self, strategy, **kwargs):
        self._record("after_training_iteration", strategy)


class Norms(SupervisedPlugin):
    """Clips gradients to a norm where the host's plugins may; records the norms."""

    def __init__(self, event, largest=0.01):
        super().__init__()
        self.largest = largest
        self.before, self.after = [], []
        setattr(self, event, self.clip)

    def clip(self, strategy, **kwargs):
        weights = [p for p in strategy.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(weights, self.largest)
        self.before.append(float(norm))
        self.after.append(float(torch.nn.utils.get_total_norm(p.grad for p in weights)))


class StepsOf(torch.optim.SGD):
    """SGD that records the norm of the gradients of its steps."""

    def __init__(self, model):
        weights = list(trainable(model).values())
        super().__init__(weights, lr=0.02)
        self.norms = []

    def step(self, closure=None):
        gradients = []
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    gradients.append(weight.grad)
        self.norms.append(float(torch.nn.utils.get_total_norm(gradients)))
        return super().step(closure)


@pytest.mark.parametrize("event", ["after_backward", "before_update"])
@pytest.mark.parametrize("name", STORING)
def test_clipping_reaches_replay_steps(name, event):
    model, clip = host_model(), Norms(event)
    optimizer = StepsOf(model)
    train(our_strategy(name, model, optimizer=optimizer, plugins=[clip]))
    assert max(clip.before) > 1  # there was something to clip
    assert max(optimizer.norms) < 0.0101
    assert len(optimizer.norms) == len(clip.after) == 12 + 8  # 8 replay steps


@pytest.mark.parametrize("listed", ["before CRUMB", "after CRUMB"])
@pytest.mark.parametrize("name", STORING)
def test_a_replay_step_follows_the_whole_update(name, listed):
    events = Events()
    if listed == "before CRUMB":
        strategy = our_strategy(name, plugins=[events])
    else:
        strategy = our_strategy(name)
        strategy.plugins.append(events)
    train(strategy)
    new = [(event, False) for event in UPDATE]
    replay = [(event, True) for event in UPDATE]
    end = [("after_training_iteration", False)]
    assert events.calls == 4 * (new + end) + 8 * (new + replay + end)


@pytest.mark.parametrize("name", STORING)
def test_loss_is_the_replays_within_its_step(name):
    class Losses(SupervisedPlugin):
        def __init__(self):
            super().__init__()
            self.pairs, self.ends = [], []

        def before_backward(self, strategy, **kwargs):
            self.of_batch = strategy.loss

        def before_update(self, strategy, **kwargs):
            if in_replay_step(strategy):
                self.pairs.append((strategy.loss, strategy.replay_loss))

        def after_training_iteration(self, strategy, **kwargs):
            self.ends.append(strategy.loss is self.of_batch)

    losses = Losses()
    strategy = our_strategy(name)
    strategy.plugins.append(losses)
    train(strategy)
    assert len(losses.pairs) == 8
    assert all(loss is replay_loss for loss, replay_loss in losses.pairs)
    assert all(losses.ends)


def test_a_replay_loss_may_be_replaced():
    class Off(SupervisedPlugin):
        def on_replay_loss(self, strategy, **kwargs):
            strategy.replay_loss = 0 * strategy.replay_loss

    class Gradients(SupervisedPlugin):
        largest = 0.0

        def before_update(self, strategy, **kwargs):
            if in_replay_step(strategy):
                for weight in strategy.model.plastic_layers.parameters():
                    self.largest = max(self.largest, float(weight.grad.abs().max()))

    gradients = Gradients()
    train(our_strategy("CRUMBStrategy", plugins=[Off(), gradients]))
    assert gradients.largest == 0


def test_an_error_in_a_replay_step_ends_it():
    class Broken(SupervisedPlugin):
        def before_update(self, strategy, **kwargs):
            if in_replay_step(strategy):
                raise KeyboardInterrupt

    broken = Broken()
    strategy = our_strategy("CRUMBStrategy", plugins=[broken])
    with pytest.raises(KeyboardInterrupt):
        train(strategy)
    assert not in_replay_step(strategy)
    strategy.plugins.remove(broken)
    events = Events()
    strategy.plugins.append(events)
    strategy.train(host_benchmark("nc").train_stream[1])
    assert ("before_update", True) in events.calls


def test_a_removed_plugin_replays_no_more():
    events = Events()
    strategy = our_strategy("Naive+CRUMBPlugin", plugins=[events])
    first, second, _ = host_benchmark("nc").train_stream
    strategy.train(first)
    for plugin in list(strategy.plugins):
        if isinstance(plugin, CRUMBPlugin):
            strategy.plugins.remove(plugin)
    strategy.train(second)
    assert not any(replaying for _, replaying in events.calls)


def test_path_integrals_are_of_new_batches():
    """Memories are of old classes: their gradients say nothing of the new loss."""
    penalty = StreamSI(recipe=None)
    strategy = our_strategy("CRUMBStrategy", plugins=[penalty])

    class Later(SupervisedPlugin):
        """Compares what the penalty holds with the gradients of the new batch."""

        replays = 0

        def after_backward(self, strategy, **kwargs):
            if in_replay_step(strategy):
                self.replays += 1
            else:
                self.gradients = dict(penalty._gradients)

        def after_update(self, strategy, **kwargs):
            for name, gradient in penalty._gradients.items():
                assert gradient is self.gradients[name]

    later = Later()
    strategy.plugins.append(later)
    train(strategy)
    assert later.replays == 8


def test_memory_step_in_any_strategy():
    events = Events()
    strategy = our_strategy("StreamStrategy", plugins=[events])
    weight = strategy.model.plastic_layers.head.weight
    before = weight.detach().clone()
    memory_step(strategy, weight.square().sum())
    assert events.calls == [(event, True) for event in UPDATE]
    torch.testing.assert_close(weight.detach(), 0.96 * before)
    assert not strategy.replay_loss.requires_grad
