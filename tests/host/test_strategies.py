"""Facts of Avalanche's ``tests/training/test_strategies.py`` for our strategies, and for its own over a ``SplitModel``.

Ids name the host's test. ``docs/host_tests.md`` lists its tests that say nothing of our parts.
"""

import re
from functools import cache

import pytest
import torch
from avalanche.benchmarks.scenarios.online import OnlineCLScenario
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.supervised import Naive
from host_benchmarks import KINDS, N_CLASSES, PER_CLASS, Trace, host_benchmark, host_model, quiet, sgd
from host_strategies import (
    COMMON,
    HOST,
    OURS,
    buffer_of,
    host_strategy,
    our_strategy,
    registered,
)

from crumb_avalanche.methods.registry import STRATEGIES
from crumb_avalanche.models.split_model import SplitModel

pytestmark = pytest.mark.filterwarnings("ignore")
PER_EXPERIENCE = 2 * PER_CLASS  # images


class Outputs(SupervisedPlugin):
    """Counts the images evaluated and whether their outputs are finite."""

    def __init__(self):
        super().__init__()
        self.images, self.finite = 0, True

    def after_eval_iteration(self, strategy, **kwargs):
        self.images += len(strategy.mb_output)
        self.finite &= bool(torch.isfinite(strategy.mb_output).all())


class Callbacks(SupervisedPlugin):
    """Records every callback of the host's in the order of the calls."""

    def __init__(self):
        super().__init__()
        self.calls: list[str] = []


for _event in [name for name in dir(SupervisedPlugin) if re.match("before_|after_", name)]:
    setattr(Callbacks, _event, lambda self, strategy, _name=_event, **kwargs: self.calls.append(_name))


@cache
def callbacks_of_naive():
    """The callbacks that the host's ``Naive`` calls, in order, in training and evaluation on one experience."""
    callbacks, model = Callbacks(), host_model()
    naive = Naive(model=model, optimizer=sgd(model), plugins=[callbacks], evaluator=quiet(), **COMMON)
    return calls_of(naive, callbacks)


def calls_of(strategy, callbacks):
    benchmark = host_benchmark("nc")
    strategy.train(benchmark.train_stream[0], num_workers=0)
    strategy.eval([benchmark.test_stream[0]], num_workers=0)
    return callbacks.calls


def frozen_weights(model):
    return [weight.clone() for weight in model.feature_extractor.parameters()]


def run(strategy, benchmark):
    """Train on every experience and evaluate all test images after each, as the host's ``run_strategy`` does."""
    outputs, before = Outputs(), frozen_weights(strategy.model) if isinstance(strategy.model, SplitModel) else []
    strategy.plugins.append(outputs)
    for experience in benchmark.train_stream:
        strategy.train(experience, num_workers=0)
        strategy.eval(benchmark.test_stream)
    rounds = len(benchmark.train_stream)
    assert outputs.images == rounds * sum(len(experience.dataset) for experience in benchmark.test_stream)
    assert outputs.finite and strategy.clock.train_exp_counter == rounds
    if before:
        assert all(torch.equal(*pair) for pair in zip(before, strategy.model.feature_extractor.parameters()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OURS)
def test_ours_train_and_evaluate_every_kind_of_benchmark(name, kind):
    """test_naive, test_replay: with and without task labels, three epochs as the argument says."""
    trace = Trace()
    strategy = our_strategy(name, plugins=[trace], train_epochs=3)
    run(strategy, host_benchmark(kind))
    assert trace.epochs == [3, 3, 3]
    assert [len(labels) for labels in trace.labels] == 3 * [3 * PER_EXPERIENCE]
    if (buffer := buffer_of(strategy)) is not None:
        counts = [buffer.labels.tolist().count(label) for label in range(N_CLASSES)]
        assert counts == N_CLASSES * [buffer.max_size // N_CLASSES]


@pytest.mark.parametrize("name", OURS)
def test_every_callback_is_called_in_the_same_order(name):
    """test_callback_reachability."""
    callbacks = Callbacks()
    assert calls_of(our_strategy(name, plugins=[callbacks]), callbacks) == callbacks_of_naive()
    assert len(set(callbacks.calls)) >= 22


@pytest.mark.parametrize("kind", ["nc_tasks", "from_datasets"])
@pytest.mark.parametrize("name", [name for name, entry in STRATEGIES.items() if not entry.joint])
def test_registry_trains_and_evaluates(name, kind):
    """test_naive, test_replay, test_lwf, test_gem, test_ewc, test_mas, test_icarl, test_bic, test_cope and others.

    Ours also where the host's strategy of that name needs task labels; and test_callback_reachability.
    """
    callbacks = Callbacks()
    strategy = registered(name, train_epochs=1, plugins=[callbacks])
    run(strategy, host_benchmark(kind))
    assert set(callbacks.calls) >= set(callbacks_of_naive())
    assert sorted(strategy.seen_classes.seen) == list(range(N_CLASSES))


@pytest.mark.parametrize("name", HOST)
def test_the_hosts_own_strategies_train_a_split_model(name):
    """Ids are the host's tests; F stays as it was bit for bit, P is trained."""
    model = host_model()
    plastic = {key: value.clone() for key, value in model.plastic_layers.state_dict().items()}
    strategy = host_strategy(name, model)
    run(strategy, host_benchmark("nc_tasks"))
    moved = [key for key, value in model.plastic_layers.state_dict().items() if not torch.equal(value, plastic[key])]
    assert bool(moved) == (name != "test_slda")  # it has statistics of its own


@pytest.mark.parametrize("boundaries", [True, False])
@pytest.mark.parametrize("name", [*OURS, "er", "image_replay", "rda", "ewc"])
def test_online_scenario(name, boundaries):
    """test_naive of ``test_online_strategies.py``: one sub-experience a call, or the whole stream in one."""
    trace, benchmark = Trace(), host_benchmark("nc")
    online = OnlineCLScenario(benchmark.streams.values(), experience_size=10, access_task_boundaries=boundaries)
    strategy = (our_strategy if name in OURS else registered)(name, plugins=[trace], train_epochs=1)
    for part in online.train_online_stream if boundaries else [online.train_online_stream]:
        strategy.train(part, num_workers=0)
        strategy.eval(online.original_test_stream[:])
    assert strategy.clock.train_exp_counter == 6  # three experiences of 10 and 6 images
    assert len(trace.labels) == 6 and sum(map(len, trace.labels)) >= N_CLASSES * PER_CLASS
