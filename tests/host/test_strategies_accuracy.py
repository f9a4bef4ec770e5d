"""Facts of Avalanche's ``tests/training/test_strategies_accuracy.py``: what is trained answers better than chance."""

from collections import OrderedDict

import pytest
import torch
from avalanche.evaluation.metrics import StreamAccuracy
from avalanche.training.plugins import EvaluationPlugin
from host_benchmarks import N_CLASSES, host_benchmark, sgd
from host_strategies import host_strategy, our_strategy, registered
from small_models import SIZE
from torch import nn

from crumb_avalanche import Codebook, CodeBuffer, ImageBuffer, MapBuffer, SplitModel, calibrate

pytestmark = pytest.mark.filterwarnings("ignore")
EPOCHS = 12


def wide_model() -> SplitModel:
    """A ``SplitModel`` of 32 channels, wide enough for six colours."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        extractor = nn.Sequential(nn.Conv2d(3, 32, 4, stride=4), nn.ReLU())
        plastic = nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(32, 32, 1),
                relu=nn.ReLU(),
                pool=nn.AdaptiveAvgPool2d(1),
                flatten=nn.Flatten(),
                head=nn.Linear(32, N_CLASSES),
            )
        )
        return SplitModel(extractor, plastic, "head", codebook=Codebook(32, 8), image_size=SIZE)


def accuracy(build, kind="nc", whole=False) -> float:
    """The mean accuracy on the training images of all experiences, after the last."""
    benchmark, metric = host_benchmark(kind), StreamAccuracy()
    model = calibrate(wide_model(), benchmark.train_stream[0].dataset)
    torch.manual_seed(0)
    strategy = build(model, EvaluationPlugin(metric, loggers=[]))
    for part in [benchmark.train_stream] if whole else benchmark.train_stream:
        strategy.train(part)
    strategy.eval(benchmark.train_stream)
    values = metric.result()  # of each task, or of the stream
    return values if isinstance(values, float) else sum(values.values()) / len(values)


def ours(name, buffer=None, **arguments):
    return lambda model, evaluator: our_strategy(
        name, model, buffer, evaluator=evaluator, optimizer=sgd(model, 0.001), train_epochs=EPOCHS, **arguments
    )


@pytest.mark.parametrize("name, kind", [("CRUMBStrategy", "nc_tasks"), ("Naive+CRUMBPlugin", "nc")])
def test_replay_of_codes(name, kind):
    """test_multihead_cumulative: above 0.7 on the training stream."""
    assert accuracy(ours(name, CodeBuffer(24)), kind) > 0.7


def test_fine_tuning_forgets():
    """The bound below: the first experiences are forgotten."""
    assert accuracy(ours("StreamStrategy")) < 0.6


@pytest.mark.parametrize("kind", [ImageBuffer, MapBuffer])
def test_replay_of_images_and_maps(kind):
    """test_multihead_cumulative."""
    assert accuracy(ours("CRUMBStrategy", kind(24), direct_weight=1.0, codebook_weight=0.0)) > 0.7


@pytest.mark.parametrize("name", ["rda", "ranpac", "slda", "ncm"])
def test_closed_forms(name):
    """test_multihead_cumulative."""
    assert accuracy(lambda model, evaluator: registered(name, model, evaluator=evaluator)) > 0.7


@pytest.mark.parametrize("name", ["test_cumulative", "test_joint"])
def test_the_hosts_bounds_over_a_split_model(name):
    """test_multihead_cumulative itself."""

    def build(model, evaluator):
        strategy = host_strategy(name, model, evaluator=evaluator, optimizer=sgd(model, 0.001))
        strategy.train_epochs = EPOCHS
        return strategy

    assert accuracy(build, whole=name == "test_joint") > 0.7
