"""Facts of Avalanche's ``tests/training/test_strategies.py`` for our strategies, and for its own over a ``SplitModel``.

Ids name the host's test. ``docs/host_tests.md`` lists its tests that say nothing of our parts.
"""

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from host_benchmarks import KINDS, N_CLASSES, PER_CLASS, Trace, host_benchmark, host_model
from host_strategies import (
    HOST,
    NEEDS_PLAIN,
    OURS,
    STORING,
    buffer_of,
    host_strategy,
    our_strategy,
    plain_model,
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


def frozen_weights(model):
    return [weight.clone() for weight in model.feature_extractor.parameters()]


def run(strategy, benchmark, whole=False):
    """Train on every experience and evaluate all test images after each, as the host's ``run_strategy`` does."""
    outputs, before = Outputs(), frozen_weights(strategy.model) if isinstance(strategy.model, SplitModel) else []
    strategy.plugins.append(outputs)
    for stream in [benchmark.train_stream] if whole else benchmark.train_stream:
        strategy.train(stream, num_workers=0)
        strategy.eval(benchmark.test_stream)
    rounds = 1 if whole else len(benchmark.train_stream)
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


@pytest.mark.parametrize("kind", ["nc_tasks", "from_datasets"])
@pytest.mark.parametrize("name", [name for name, entry in STRATEGIES.items() if not entry.joint])
def test_registry_trains_and_evaluates(name, kind):
    """test_naive, test_replay, test_lwf, test_gem, test_ewc, test_mas, test_icarl, test_bic, test_cope and others.

    Ours also where the host's strategy of that name needs task labels.
    """
    strategy = registered(name, train_epochs=1)
    run(strategy, host_benchmark(kind))
    assert sorted(strategy.seen_classes.seen) == list(range(N_CLASSES))


@pytest.mark.parametrize("labels", ["nc", "nc_tasks"])
@pytest.mark.parametrize("name", HOST)
def test_the_hosts_own_strategies_train_a_split_model(name, labels):
    """Ids are the host's tests; F stays as it was bit for bit, P is trained."""
    model = host_model()
    plastic = {key: value.clone() for key, value in model.plastic_layers.state_dict().items()}
    strategy, frozen = host_strategy(name, model), frozen_weights(model)
    run(strategy, host_benchmark(labels), whole=name == "test_joint")
    assert all(torch.equal(*pair) for pair in zip(frozen, model.feature_extractor.parameters()))
    moved = [key for key, value in model.plastic_layers.state_dict().items() if not torch.equal(value, plastic[key])]
    assert bool(moved) == (name != "test_slda")  # it has statistics of its own


@pytest.mark.parametrize("name", NEEDS_PLAIN)
def test_strategies_that_read_gradients_train_a_plain_split_model(name):
    """test_agem, test_mir, test_mer: F without weights and contiguous memory."""
    run(host_strategy(name, plain_model()), host_benchmark("nc"))


@pytest.mark.parametrize("name", STORING)
def test_no_epoch_stores_all_the_same(name):
    """test_balancing: ``train_epochs=0`` fills the host's memory."""
    strategy = our_strategy(name, train_epochs=0)
    for experience in host_benchmark("nc").train_stream:
        strategy.train(experience)
    buffer = buffer_of(strategy)
    assert sorted(buffer.labels.tolist()) == sorted(2 * list(range(N_CLASSES)))
