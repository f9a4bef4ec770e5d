"""What a GPU learns and refuses, on a device that is played; a CPU run uses none."""

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from watched import train

from crumb_avalanche.memory.buffers import CodeBuffer
from crumb_avalanche.methods.registry import LearningSettings, build_strategy
from crumb_avalanche.training.plugins import TrainingDivergedError

CPU = torch.device("cpu")
DEVICE = torch.device("meta")


# A device whose tensors are in CPU memory

aten = torch.ops.aten
# Operations that take tensors of the CPU and of the device together.
MIXED = {aten.copy_, aten.index, aten.index_put, aten.index_put_}


class OnDevice(Tensor):
    """A tensor of the device; ``held`` is on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor):
        """Wrap a tensor in CPU memory."""
        wrapper = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            requires_grad=False,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        wrapper.held = held
        return wrapper

    def tolist(self):
        """Return the values; torch refuses those of subclasses."""
        return self.cpu().tolist()

    def __getitem__(self, index):
        """Index by tensors of the device.

        Of lists and of tensors on the CPU torch makes empty ones.
        """
        return super().__getitem__(_on_device(index))

    def __setitem__(self, index, value):
        """See ``__getitem__``."""
        super().__setitem__(_on_device(index), value)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        """Run on the CPU, outside of ``PlayedDevice``."""
        return run(function, arguments, keywords or {})


def _on_device(index):
    """Return an index whose lists and tensors are on the device."""
    if isinstance(index, tuple):
        return tuple(map(_on_device, index))
    if isinstance(index, list):
        index = torch.tensor(index)
    if isinstance(index, Tensor) and not isinstance(index, OnDevice):
        return OnDevice(index)
    return index


def run(function, arguments, keywords):
    """Run an operation on the CPU, and wrap what it returns if it is on the device."""
    packet = function._overloadpacket
    leaves = tree_leaves((arguments, keywords))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    inputs = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    if inputs and packet not in MIXED:
        _check_no_cpu_tensor(packet, tensors)
    device = keywords.get("device")
    on_device = bool(inputs)
    if device is not None:
        on_device = torch.device(device).type == DEVICE.type
        keywords = {**keywords, "device": "cpu"}
    cpu_arguments, cpu_keywords = tree_map_only(
        OnDevice, lambda tensor: tensor.held, (arguments, keywords)
    )
    result = function(*cpu_arguments, **cpu_keywords)
    if not on_device:
        return result
    is_moved = packet is aten._to_copy and not inputs
    if is_moved and result is cpu_arguments[0]:
        result = result.clone()
    return _wrapped(result, inputs)


def _check_no_cpu_tensor(packet, tensors):
    for tensor in tensors:
        if not isinstance(tensor, OnDevice) and tensor.dim():
            raise RuntimeError(
                f"{packet.__name__} has tensors of the device and of the CPU, which "
                "no GPU takes"
            )


def _wrapped(result, inputs):
    """Put results on the device; an operation in place returns its input."""
    wrappers = {id(tensor.held): tensor for tensor in inputs}

    def wrap(tensor):
        if id(tensor) in wrappers:
            return wrappers[id(tensor)]
        return OnDevice(tensor)

    return tree_map_only(Tensor, wrap, result)


class PlayedDevice(TorchDispatchMode):
    """Plays the device within a ``with`` block."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        """Run an operation."""
        return run(function, arguments, keywords or {})


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


def train_penalty(name, model, stream, device):
    strategy = build_strategy(
        name,
        model,
        LearningSettings(learning_rate=0.05, first_epochs=1),
        device=device,
        evaluator=EvaluationPlugin(loggers=[]),
    )
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
