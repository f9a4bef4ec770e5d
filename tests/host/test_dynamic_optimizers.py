"""Facts of Avalanche's ``tests/models/test_dynamic_optimizers.py`` and of its optimiser updates for our models."""

import pytest
import torch
from avalanche.core import Agent
from avalanche.models.dynamic_optimizers import DynamicOptimizer
from avalanche.training import MaskedCrossEntropy
from host_benchmarks import N_CLASSES, host_benchmark, host_model, sgd
from host_strategies import OURS, our_strategy
from torch.utils.data import DataLoader

from crumb_avalanche import ImageBuffer

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("kind", ["nc", "nc_tasks", "class_incremental"])
def test_a_loop_of_ones_own_around_an_agent(kind):
    """test_dynamic_optimizer: model, optimiser, loss and our buffer adapt by ``pre_adapt`` and ``post_adapt``."""
    agent, model = Agent(), host_model()
    frozen = [weight.clone() for weight in model.feature_extractor.parameters()]
    head = model.plastic_layers.head.weight.detach().clone()
    agent.loss, agent.model = MaskedCrossEntropy(), model
    agent.optimizer = DynamicOptimizer(sgd(model), model)
    agent.memory = ImageBuffer(12)
    for experience in host_benchmark(kind).train_stream:
        model.train()
        agent.pre_adapt(experience)
        for images, labels, *_ in DataLoader(experience.dataset.train(), batch_size=8, shuffle=True):
            agent.optimizer.zero_grad()
            agent.loss(model(images), labels).backward()
            agent.optimizer.step()
        agent.post_adapt(experience)
    assert all(torch.equal(*pair) for pair in zip(frozen, model.feature_extractor.parameters()))
    assert (model.plastic_layers.head.weight != head).all()
    assert sorted(agent.memory.labels.tolist()) == sorted(2 * list(range(N_CLASSES)))


@pytest.mark.parametrize("name", OURS)
def test_the_optimiser_keeps_its_state_between_experiences(name):
    """``update_optimizer``, which every strategy calls: momentum stays, weights are listed once."""
    strategy = our_strategy(name)
    stream = host_benchmark("nc").train_stream
    strategy.train(stream[0])
    weight = strategy.model.plastic_layers.conv.weight
    momentum = strategy.optimizer.state[weight]["momentum_buffer"]
    assert momentum.any()
    strategy.train(stream[1])
    assert strategy.optimizer.state[weight]["momentum_buffer"] is momentum
    listed = [id(one) for group in strategy.optimizer.param_groups for one in group["params"]]
    assert len(listed) == len(set(listed)) and id(weight) in listed
