"""What a GPU learns and refuses, on a device that is played, and that a CPU run uses none."""

from contextlib import nullcontext

import pytest
import torch
from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
from played_device import DEVICE, PlayedDevice
from small_crumb import train

from crumb_avalanche.memory.buffers import CodeBuffer
from crumb_avalanche.methods.registry import LearningSettings, build_strategy
from crumb_avalanche.training.plugins import TrainingDivergedError

pytestmark = pytest.mark.filterwarnings("ignore:No loggers specified")


def test_a_gpu_learns_what_a_cpu_learns(make_model, make_stream):
    models = [make_model(), make_model()]
    train(models[0], make_stream(), CodeBuffer(7))
    with PlayedDevice():
        train(models[1], make_stream(), CodeBuffer(7), device=DEVICE)
    for name, weight in models[0].state_dict().items():
        if name != "calibrated":
            torch.testing.assert_close(models[1].state_dict()[name].held, weight, msg=name)


@pytest.mark.parametrize("name", ["ewc", "si", "mas", "lwf"])
def test_what_a_penalty_keeps_is_where_it_is_computed(make_model, make_stream, name):
    """Avalanche's SI keeps everything on the CPU, whatever the device of the weights."""
    models = [make_model(codebook=False) for _ in range(2)]
    settings = LearningSettings(learning_rate=0.05, first_epochs=1)
    for model, device in zip(models, (torch.device("cpu"), DEVICE)):
        with PlayedDevice() if device is DEVICE else nullcontext():
            strategy = build_strategy(name, model, settings, device=device, evaluator=EvaluationPlugin(loggers=[]))
            for experience in make_stream().train_stream:
                strategy.train(experience)
    for (name, weight), same in zip(models[0].named_parameters(), models[1].parameters()):
        torch.testing.assert_close(same.held, weight, msg=name)


def test_a_loss_of_memories_that_is_read_late_stops_too(make_model, make_stream):
    class Break(SupervisedPlugin):
        def before_replay_step(self, strategy, **kwargs):
            strategy.model.plastic_layers.head.weight.detach().fill_(torch.inf)

    model = make_model()
    with PlayedDevice(), pytest.raises(TrainingDivergedError, match="the loss became nan in experience 1"):
        train(model, make_stream(), CodeBuffer(7), [Break()], device=DEVICE)
    assert all(weight.held.isfinite().all() for weight in model.parameters())


def test_a_run_on_a_cpu_touches_no_gpu(monkeypatch, crumb, tiny, tmp_path):
    def touched(*arguments, **keywords):
        raise AssertionError("a GPU was touched")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("_lazy_init", "synchronize", "get_rng_state", "set_rng_state", "current_device", "Event"):
        monkeypatch.setattr(torch.cuda, name, touched)
    code, _, err = crumb(*tiny, "--device", "cpu", "--output", tmp_path / "run")
    assert code == 0, err
