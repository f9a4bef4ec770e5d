"""Facts of Avalanche's ``tests/training/test_plugins.py`` for our strategies and plugins; ids name the host's test."""

import re

import pytest
from avalanche.evaluation import PluginMetric
from avalanche.evaluation.metric_results import MetricValue
from avalanche.training.plugins import (
    EarlyStoppingPlugin,
    EvaluationPlugin,
    SupervisedPlugin,
)
from avalanche.training.supervised import Naive
from host_benchmarks import Trace, host_benchmark, host_model, quiet, sgd
from host_strategies import COMMON, OURS, STORING, buffer_of, our_strategy, registered

from crumb_avalanche.methods.registry import STRATEGIES

pytestmark = pytest.mark.filterwarnings("ignore")

EVENTS = [name for name in dir(SupervisedPlugin) if re.match("before_|after_", name)]


class Callbacks(SupervisedPlugin):
    """Records every callback of the host's in the order of the calls."""

    def __init__(self):
        super().__init__()
        self.calls: list[str] = []


for _event in EVENTS:
    setattr(Callbacks, _event, lambda self, strategy, _name=_event, **kwargs: self.calls.append(_name))


def train_and_evaluate(strategy):
    benchmark = host_benchmark("nc")
    strategy.train(benchmark.train_stream[0], num_workers=0)
    strategy.eval([benchmark.test_stream[0]], num_workers=0)


@pytest.mark.parametrize("name", [*OURS, *(name for name, entry in STRATEGIES.items() if not entry.joint)])
def test_every_callback_is_called(name):
    """test_callback_reachability: each strategy of ours calls all callbacks that the host's ``Naive`` calls."""
    plugin, reference = Callbacks(), Callbacks()
    train_and_evaluate((our_strategy if name in OURS else registered)(name, plugins=[plugin]))
    model = host_model()
    train_and_evaluate(Naive(model=model, optimizer=sgd(model), plugins=[reference], evaluator=quiet(), **COMMON))
    assert len(set(reference.calls)) >= 22
    assert set(plugin.calls) >= set(reference.calls)
    if name in OURS:
        assert plugin.calls == reference.calls


class Scripted(PluginMetric):
    """A validation accuracy that follows a script, one value an evaluation."""

    def __init__(self, values):
        super().__init__()
        self.values = iter(values)

    def reset(self):
        pass

    def result(self):
        return None

    def after_eval(self, strategy):
        name = "Top1_Acc_Stream/eval_phase/test_stream/Task000"
        return [MetricValue(self, name, next(self.values), strategy.clock.train_iterations)]


# (script: first value is that before training; epochs trained with patience 2; the epoch whose weights are restored)
SCRIPTS = {"constant": (lambda n: 0.5, 2), "rising": (lambda n: n / 99, 6), "peak": (lambda n: -abs(n - 2.0), 4)}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("name", OURS)
def test_early_stopping_by_epoch(name, script):
    """test_early_stop_epochs: patience, and the best epoch; memories of every class are stored all the same."""
    value, epochs = SCRIPTS[script]
    evaluator = EvaluationPlugin(Scripted(map(value, range(99))), loggers=[])
    stopping, trace = EarlyStoppingPlugin(2, "test_stream"), Trace()
    strategy = our_strategy(name, plugins=[stopping, trace], evaluator=evaluator, train_epochs=6, eval_every=1)
    benchmark = host_benchmark("nc")
    strategy.train(benchmark.train_stream[0], eval_streams=[benchmark.test_stream])
    assert trace.epochs == [epochs]
    assert stopping.best_step == (5 if script == "rising" else epochs - 2)
    if name in STORING:
        assert sorted(buffer_of(strategy).classes) == [0, 1]
    strategy.train(benchmark.train_stream[1], eval_streams=[])  # trains on after it was stopped
    assert trace.epochs[1] > 0


@pytest.mark.parametrize("name", STORING)
def test_metrics_receive_the_events_of_replay(name):
    """test_forward_callbacks: an evaluator hands on events that it does not know, and none that is not one."""

    class Events:
        def __init__(self):
            self.calls = []

        def before_replay_step(self, strategy):
            self.calls.append("before")

        def after_replay_step(self, strategy):
            self.calls.append(float(strategy.replay_loss))

    metric = Events()
    evaluator = EvaluationPlugin(metric, loggers=[])
    strategy = our_strategy(name, evaluator=evaluator)
    for experience in host_benchmark("nc").train_stream:
        strategy.train(experience)
    # Two experiences of two epochs of two batches have memories to replay.
    assert metric.calls[::2] == 8 * ["before"] and all(loss > 0 for loss in metric.calls[1::2])
    with pytest.raises(AttributeError):
        evaluator.on_replay_loss(strategy)
