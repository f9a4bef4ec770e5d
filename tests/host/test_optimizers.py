"""Facts of Avalanche's updates of optimisers, for ours over a ``SplitModel``."""

import pytest
import torch
from avalanche.models.dynamic_optimizers import update_optimizer
from host_benchmarks import (
    N_CLASSES,
    OURS,
    host_benchmark,
    host_model,
    host_strategy,
    our_strategy,
    sgd,
)

from crumb_avalanche.models.layers import trainable

pytestmark = pytest.mark.filterwarnings("ignore")


def rates_of(optimizer):
    """The learning rate of each weight, by its id."""
    rates = {}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            assert id(weight) not in rates  # listed once
            rates[id(weight)] = group["lr"]
    return rates


@pytest.mark.parametrize("name", OURS)
def test_momentum_stays_between_experiences(name):
    """``update_optimizer``, which every strategy calls."""
    strategy = our_strategy(name)
    first, second, _ = host_benchmark("nc").train_stream
    strategy.train(first)
    weight = strategy.model.plastic_layers.conv.weight
    momentum = strategy.optimizer.state[weight]["momentum_buffer"]
    assert momentum.any()
    strategy.train(second)
    assert strategy.optimizer.state[weight]["momentum_buffer"] is momentum
    assert id(weight) in rates_of(strategy.optimizer)


OPTIMIZERS = [
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.NAdam,
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", OURS)
def test_any_optimizer(name, optimizer):
    """Frozen weights stay, although the host adds them to the optimiser."""
    model = host_model()
    frozen = [weight.clone() for weight in model.feature_extractor.parameters()]
    trained = list(trainable(model).values())
    chosen = optimizer(trained, lr=1e-3, weight_decay=0.1)
    strategy = our_strategy(name, model, optimizer=chosen, train_epochs=1)
    strategy.train(host_benchmark("nc").train_stream[:2])
    assert all(map(torch.equal, frozen, model.feature_extractor.parameters()))
    assert len(strategy.optimizer.state) >= len(trained)


@pytest.mark.parametrize("name", OURS)
def test_groups_keep_their_rates(name):
    """``update_optimizer``: a weight keeps the group it was given."""
    model = host_model()
    layers = [*model.feature_extractor.parameters(), *model.plastic_layers.parameters()]
    blocks = [*model.codebook.parameters()]
    groups = [{"params": layers, "lr": 0.02}, {"params": blocks, "lr": 0.5}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    strategy = our_strategy(name, model, optimizer=optimizer, train_epochs=1)
    strategy.train(host_benchmark("nc").train_stream)
    rates = rates_of(strategy.optimizer)
    assert {rates[id(weight)] for weight in blocks} == {0.5}
    assert {rates[id(weight)] for weight in layers} == {0.02}


def test_a_new_head_is_trained():
    """``update_optimizer`` with a changed weight: ours by ``reset_head``."""
    model = host_model(n_classes=2)
    strategy = host_strategy("test_naive", model)
    first, second, _ = host_benchmark("nc").train_stream
    strategy.train(first)
    model.reset_head(N_CLASSES)
    fresh = model.plastic_layers.head.weight.detach().clone()
    strategy.train(second)
    assert not torch.equal(model.plastic_layers.head.weight, fresh)
    assert model.n_classes == N_CLASSES


def test_an_optimizer_lists_all_weights():
    """``update_optimizer`` on its own: F's weights stay without gradient."""
    model = host_model()
    optimizer = sgd(model)
    weights = dict(model.named_parameters())
    listed = update_optimizer(optimizer, weights, None, reset_state=True)
    assert listed.keys() == weights.keys()
    assert len(rates_of(optimizer)) == len(listed)
