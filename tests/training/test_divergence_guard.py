"""The guard against a loss that is not finite: the weights go back, and the training stops."""

from types import SimpleNamespace

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin
from small_crumb import make, train
from torch import nn

from crumb_avalanche.memory.buffers import CodeBuffer
from crumb_avalanche.training.plugins import DivergenceGuard, TrainingDivergedError
from crumb_avalanche.training.stream_strategy import StreamStrategy

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")


class NaNAt(SupervisedPlugin):
    """Makes the loss of one iteration NaN; keeps the trainable weights that each iteration began with."""

    def __init__(self, iteration, value=float("nan")):
        super().__init__()
        self.iteration, self.value, self.weights = iteration, value, []

    def before_backward(self, strategy, **kwargs):
        self.weights.append([p.detach().clone() for p in strategy.model.parameters() if p.requires_grad])
        if strategy.clock.train_exp_iterations == self.iteration:
            strategy.loss = strategy.loss * self.value


@pytest.mark.parametrize("iteration, value", [(0, float("nan")), (1, float("inf")), (3, float("nan"))])
def test_a_diverged_training_goes_back_to_the_last_good_weights(model, make_stream, iteration, value):
    fault = NaNAt(iteration, value)
    strategy = make(StreamStrategy, model, fault)
    words = f"the loss became {value} in experience 0, iteration {iteration}; the weights were put back"
    with pytest.raises(TrainingDivergedError, match=words + ".*--clamp-gradients 10"):
        strategy.train(make_stream().train_stream[0])
    assert len(fault.weights) == iteration + 1
    kept = [p for p in strategy.model.parameters() if p.requires_grad]
    good = fault.weights[max(iteration - 1, 0)]
    assert all(torch.equal(now, then) for now, then in zip(kept, good, strict=True))
    assert not iteration or not all(map(torch.equal, kept, fault.weights[iteration]))


def test_a_replay_loss_stops_the_training_too_and_without_the_guard_it_goes_on(make_model, make_stream):
    class Fault(SupervisedPlugin):
        def on_replay_loss(self, strategy, **kwargs):
            strategy.replay_loss = strategy.replay_loss * float("nan")

    model = make_model()
    with pytest.raises(TrainingDivergedError, match="in experience 1, iteration 0"):
        train(model, make_stream(), CodeBuffer(7), [Fault()])
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    model, fault = make_model(codebook=False), NaNAt(1)
    make(StreamStrategy, model, fault, divergence_guard=False).train(make_stream().train_stream[0])
    assert len(fault.weights) == 4 and any(weight.isnan().any() for weight in model.parameters())


def test_running_statistics_go_back_too(make_model):
    model = make_model()
    model.plastic_layers.add_module("norm", nn.BatchNorm1d(4))
    model.train()
    clock = SimpleNamespace(train_exp_counter=0, train_exp_iterations=1)
    strategy, guard = SimpleNamespace(model=model, clock=clock), DivergenceGuard()
    model.plastic_layers(torch.rand(6, *model.map_shape))
    guard.check(strategy, torch.tensor(1.0))
    good = model.plastic_layers.norm.running_mean.clone()
    model.plastic_layers(torch.full((6, *model.map_shape), float("inf")))
    assert not model.plastic_layers.norm.running_mean.isfinite().all()
    with pytest.raises(TrainingDivergedError):
        guard.check(strategy, torch.tensor(float("inf")))
    assert torch.equal(model.plastic_layers.norm.running_mean, good)
