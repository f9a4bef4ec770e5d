"""What a GPU learns and refuses, on a device that is played; a CPU run uses none."""

import copy

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from played_device import CPU, DEVICE, PlayedDevice
from watched import train

from crumb_avalanche.memory.buffers import CodeBuffer
from crumb_avalanche.methods.registry import LearningSettings, build_strategy
from crumb_avalanche.training.plugins import TrainingDivergedError

# What is learned on it


def assert_same_weights(on_device, on_cpu):
    for name, weight in on_cpu.named_parameters():
        device_weight = on_device.get_parameter(name).held
        torch.testing.assert_close(device_weight, weight, msg=name)


def test_a_gpu_learns_what_a_cpu_learns(make_model, make_stream):
    on_cpu = make_model()
    train(on_cpu, make_stream(), CodeBuffer(7))
    on_device = make_model()
    with PlayedDevice():
        train(on_device, make_stream(), CodeBuffer(7), device=DEVICE)
    assert_same_weights(on_device, on_cpu)
    for name, buffer in on_cpu.named_buffers():
        if name != "calibrated":
            held = on_device.get_buffer(name).held
            torch.testing.assert_close(held, buffer, msg=name)


def penalty_strategy(name, model, device):
    return build_strategy(
        name,
        model,
        LearningSettings(learning_rate=0.05, first_epochs=1),
        device=device,
        evaluator=EvaluationPlugin(loggers=[]),
    )


def train_penalty(name, model, stream, device):
    strategy = penalty_strategy(name, model, device)
    for experience in stream.train_stream:
        strategy.train(experience)


@pytest.mark.parametrize("name", ["ewc", "si", "mas", "lwf"])
def test_penalties_are_on_the_device(make_model, make_stream, name):
    """Avalanche's SI has everything on the CPU, whatever the device of the weights."""
    on_cpu = make_model(codebook=False)
    train_penalty(name, on_cpu, make_stream(), CPU)
    on_device = make_model(codebook=False)
    with PlayedDevice():
        train_penalty(name, on_device, make_stream(), DEVICE)
    assert_same_weights(on_device, on_cpu)


# The device has the type of torch's tensors without values, of which torch warns.
@pytest.mark.filterwarnings("ignore:.*copying from a non-meta")
@pytest.mark.parametrize("name", ["ewc", "si", "mas"])
def test_a_state_of_a_cpu_goes_on_on_the_device(make_model, make_stream, name):
    """After a first experience on a CPU."""
    first, second = make_stream().train_stream
    on_cpu = make_model(codebook=False)
    strategy = penalty_strategy(name, on_cpu, CPU)
    strategy.train(first)
    state = copy.deepcopy(strategy.state_dict())
    strategy.train(second)
    on_device = make_model(codebook=False)
    with PlayedDevice():
        device_strategy = penalty_strategy(name, on_device, DEVICE)
        device_strategy.load_state_dict(state)
        device_strategy.train(second)
    assert_same_weights(on_device, on_cpu)


class InfiniteWeights(SupervisedPlugin):
    """Breaks the head before memories are replayed."""

    def before_replay_step(self, strategy, **kwargs):
        strategy.model.plastic_layers.head.weight.detach().fill_(torch.inf)


def test_a_replay_loss_that_is_read_late(make_model, make_stream):
    model = make_model()
    words = "the loss became nan in experience 1"
    with PlayedDevice(), pytest.raises(TrainingDivergedError, match=words):
        plugins = [InfiniteWeights()]
        train(model, make_stream(), CodeBuffer(7), plugins, device=DEVICE)
    assert all(weight.held.isfinite().all() for weight in model.parameters())


# Without it

GPU_FUNCTIONS = (
    "_lazy_init",
    "synchronize",
    "get_rng_state",
    "set_rng_state",
    "current_device",
    "Event",
)


@pytest.fixture
def untouchable_gpu(monkeypatch):
    """A GPU that fails the test when it is touched."""

    def touch(*arguments, **keywords):
        raise AssertionError("a GPU was touched")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in GPU_FUNCTIONS:
        monkeypatch.setattr(torch.cuda, name, touch)


@pytest.mark.usefixtures("untouchable_gpu")
def test_a_run_on_a_cpu_touches_no_gpu(crumb, tiny, tmp_path):
    code, _, err = crumb(*tiny, "--device", "cpu", "--output", tmp_path / "run")
    assert code == 0, err
