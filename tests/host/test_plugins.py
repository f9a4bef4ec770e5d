"""Facts of Avalanche's ``tests/training/test_plugins.py`` for ours, and its plugins beside ``CRUMBPlugin``.

Ids name the host's test.
"""

import pytest
import torch
from avalanche.training.plugins import (
    AGEMPlugin,
    EvaluationPlugin,
    EWCPlugin,
    LwFPlugin,
    MASPlugin,
    ReplayPlugin,
    RWalkPlugin,
)
from host_benchmarks import N_CLASSES, coloured_images, host_benchmark, host_model
from host_strategies import STORING, our_strategy

from crumb_avalanche import ClassBalancedReservoir, CodeBuffer, ImageBuffer
from crumb_avalanche.memory.packing import bits_per_code, pack
from crumb_avalanche.methods.penalties import StreamSI

pytestmark = pytest.mark.filterwarnings("ignore")


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


def label_of_rows(buffer, model):
    """The labels of the training images whose row each memory is."""
    images = coloured_images()
    rows = model.pixels(images.tensors[0])
    if isinstance(buffer, CodeBuffer):
        codes = model.encode(model.features(images.tensors[0])).permute(0, 2, 3, 1).flatten(1)
        rows = pack(codes, bits_per_code(model.codebook.codebook_size))
    known = {row.numpy().tobytes(): label for row, label in zip(rows, images.targets)}
    return [known[row.numpy().tobytes()] for row, label in zip(buffer.rows, buffer.labels) if label >= 0]


BESIDE = {
    "test_ewc": lambda: EWCPlugin(ewc_lambda=0.4),
    "test_lwf": lambda: LwFPlugin(alpha=1.0, temperature=2),
    "test_mas": lambda: MASPlugin(lambda_reg=1.0, alpha=0.5),
    "test_rwalk": lambda: RWalkPlugin(ewc_lambda=0.1, ewc_alpha=0.9, delta_t=2),
    "our si": lambda: StreamSI(recipe=None),  # with the usual settings
    "test_replay": lambda: ReplayPlugin(mem_size=12),
}


@pytest.mark.parametrize("plugin", BESIDE)
@pytest.mark.parametrize("name, kind", [("CRUMBStrategy", CodeBuffer), ("Naive+CRUMBPlugin", ImageBuffer)])
def test_the_hosts_plugins_beside_ours(name, plugin, kind):
    """Ids are tests of ``test_strategies.py``: the plugin has an effect, and memories have the right labels."""
    ends = []
    for plugins in ([], [BESIDE[plugin]()]):
        model = host_model()
        model.codebook.requires_grad_(False)  # codes of an image stay the same
        buffer = kind(12, ClassBalancedReservoir() if plugin == "test_replay" else None)
        strategy = our_strategy(name, model, buffer, plugins=plugins)
        for experience in host_benchmark("nc").train_stream:
            strategy.train(experience)
        assert label_of_rows(buffer, model) == [label for label in buffer.labels.tolist() if label >= 0]
        assert sorted(buffer.classes) == list(range(N_CLASSES))
        ends.append(model.plastic_layers.head.weight.detach())
    assert torch.isfinite(ends[1]).all() and not torch.equal(*ends)


@pytest.mark.parametrize("name", STORING)
def test_agem_is_refused(name):
    """test_agem: the host's plugin cannot flatten gradients of a ``SplitModel``."""
    with pytest.raises((TypeError, ValueError), match="use the method gem"):
        our_strategy(name, plugins=[AGEMPlugin(8, 8)]).train(host_benchmark("nc").train_stream)
