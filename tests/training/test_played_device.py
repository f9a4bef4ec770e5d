"""What a GPU learns and refuses, on a device that is played, and that a CPU run uses none."""

from contextlib import nullcontext

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from watched import train

from crumb_avalanche.memory.buffers import CodeBuffer
from crumb_avalanche.methods.registry import LearningSettings, build_strategy
from crumb_avalanche.training.plugins import TrainingDivergedError


def test_a_gpu_learns_what_a_cpu_learns(make_model, make_stream):
    models = [make_model(), make_model()]
    train(models[0], make_stream(), CodeBuffer(7))
    with PlayedDevice():
        train(models[1], make_stream(), CodeBuffer(7), device=DEVICE)
    for name, weight in models[0].state_dict().items():
        if name != "calibrated":
            torch.testing.assert_close(
                models[1].state_dict()[name].held, weight, msg=name
            )


@pytest.mark.parametrize("name", ["ewc", "si", "mas", "lwf"])
def test_what_a_penalty_keeps_is_where_it_is_computed(make_model, make_stream, name):
    """Avalanche's SI keeps everything on the CPU, whatever the device of the weights."""
    models = [make_model(codebook=False) for _ in range(2)]
    settings = LearningSettings(learning_rate=0.05, first_epochs=1)
    for model, device in zip(models, (torch.device("cpu"), DEVICE)):
        with PlayedDevice() if device is DEVICE else nullcontext():
            strategy = build_strategy(
                name,
                model,
                settings,
                device=device,
                evaluator=EvaluationPlugin(loggers=[]),
            )
            for experience in make_stream().train_stream:
                strategy.train(experience)
    for (name, weight), same in zip(
        models[0].named_parameters(), models[1].parameters()
    ):
        torch.testing.assert_close(same.held, weight, msg=name)


def test_a_loss_of_memories_that_is_read_late_stops_too(make_model, make_stream):
    class Break(SupervisedPlugin):
        def before_replay_step(self, strategy, **kwargs):
            strategy.model.plastic_layers.head.weight.detach().fill_(torch.inf)

    model = make_model()
    with (
        PlayedDevice(),
        pytest.raises(
            TrainingDivergedError, match="the loss became nan in experience 1"
        ),
    ):
        train(model, make_stream(), CodeBuffer(7), [Break()], device=DEVICE)
    assert all(weight.held.isfinite().all() for weight in model.parameters())


def test_a_run_on_a_cpu_touches_no_gpu(monkeypatch, crumb, tiny, tmp_path):
    def touched(*arguments, **keywords):
        raise AssertionError("a GPU was touched")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in (
        "_lazy_init",
        "synchronize",
        "get_rng_state",
        "set_rng_state",
        "current_device",
        "Event",
    ):
        monkeypatch.setattr(torch.cuda, name, touched)
    code, _, err = crumb(*tiny, "--device", "cpu", "--output", tmp_path / "run")
    assert code == 0, err


DEVICE = torch.device("meta")
aten = torch.ops.aten
MIXED = {
    aten.copy_,
    aten.index,
    aten.index_put,
    aten.index_put_,
}  # take tensors of the CPU, too


class OnDevice(Tensor):
    """A tensor of the device; ``held`` is on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor):
        """Wrap a tensor in CPU memory."""
        layout = dict(
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        wrapper = Tensor._make_wrapper_subclass(
            cls, held.shape, requires_grad=False, **layout
        )
        wrapper.held = held
        return wrapper

    def tolist(self):
        """Return the values; torch refuses those of subclasses."""
        return self.cpu().tolist()

    def __getitem__(self, index):
        """Index by tensors of the device: torch makes empty ones of lists and of tensors on the CPU."""
        return super().__getitem__(_moved(index))

    def __setitem__(self, index, value):
        """See ``__getitem__``."""
        super().__setitem__(_moved(index), value)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        """Run on the CPU, outside of ``PlayedDevice``."""
        return run(function, arguments, keywords or {})


def _moved(index):
    if isinstance(index, tuple):
        return tuple(map(_moved, index))
    index = torch.tensor(index) if isinstance(index, list) else index
    return (
        OnDevice(index)
        if isinstance(index, Tensor) and not isinstance(index, OnDevice)
        else index
    )


def run(function, arguments, keywords):
    """Run an operation on the CPU, and wrap what it returns if it is on the device."""
    packet = function._overloadpacket
    inputs: list[OnDevice] = []
    others: list[Tensor] = []
    tree_map_only(
        Tensor,
        lambda one: (inputs if isinstance(one, OnDevice) else others).append(one),
        (arguments, keywords),
    )
    if inputs and packet not in MIXED and any(other.dim() for other in others):
        raise RuntimeError(
            f"{packet.__name__} has tensors of the device and of the CPU, which no GPU takes"
        )
    to = keywords.get("device")
    on_device = bool(inputs) if to is None else torch.device(to).type == DEVICE.type
    if to is not None:
        keywords = {**keywords, "device": "cpu"}
    given = tree_map_only(OnDevice, lambda tensor: tensor.held, (arguments, keywords))
    result = function(*given[0], **given[1])
    if packet is aten._to_copy and inputs == [] and on_device:
        result = result.clone() if result is given[0][0] else result
    if not on_device:
        return result
    known = {
        id(tensor.held): tensor for tensor in inputs
    }  # an operation in place returns its input
    return tree_map_only(
        Tensor,
        lambda tensor: known[id(tensor)] if id(tensor) in known else OnDevice(tensor),
        result,
    )


class PlayedDevice(TorchDispatchMode):
    """Plays the device within a ``with`` block."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        """Run an operation."""
        return run(function, arguments, keywords or {})
