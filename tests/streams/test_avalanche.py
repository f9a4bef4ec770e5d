"""Benchmarks with Avalanche's own strategies and benchmark tools."""

import pytest
import torch
from avalanche.benchmarks import benchmark_with_validation_stream
from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
from avalanche.training.storage_policy import ClassBalancedBuffer
from avalanche.training.supervised import EWC, ICaRL, LwF, Naive, Replay
from fake_data import toybox_names, write_files
from torch import nn

from benchmarks_toybox_ilab import Toybox, imagenet_transform

pytestmark = pytest.mark.filterwarnings("ignore")
torch.set_num_threads(1)
SMALL = {"train_transform": imagenet_transform(8), "eval_transform": imagenet_transform(8)}


def features():
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


def strategy(kind, strict=True, **arguments):
    evaluator = EvaluationPlugin(accuracy_metrics(stream=True), loggers=[], strict_checks=strict)
    sizes = {"train_mb_size": 5, "eval_mb_size": 10, "train_epochs": 1, "evaluator": evaluator}
    if kind is ICaRL:
        parts = features(), nn.Linear(32, 5)
        sgd = torch.optim.SGD([*parts[0].parameters(), *parts[1].parameters()], 0.1)
        return ICaRL(feature_extractor=parts[0], classifier=parts[1], optimizer=sgd, **sizes, **arguments)
    model = nn.Sequential(features(), nn.Linear(32, 5))
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    return kind(model=model, optimizer=sgd, criterion=nn.CrossEntropyLoss(), **sizes, **arguments)


def rows(experiences):
    return [row for experience in experiences for row in experience.dataset.frame_row]


@pytest.fixture
def benchmark(tmp_path):
    """Four classes, two per experience, as images of 8 x 8 pixels."""
    write_files(tmp_path, toybox_names(["cup", "mug", "duck", "car"], [1], 2))
    return Toybox(tmp_path, run=1, **SMALL)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (Naive, {}),
        (Naive, {"plugins": 10}),
        (Replay, {"mem_size": 6}),
        (EWC, {"ewc_lambda": 1.0}),
        (LwF, {"alpha": 1.0, "temperature": 2.0}),
        (ICaRL, {"memory_size": 10, "buffer_transform": None, "fixed_memory": True}),
    ],
)
def test_strategies_of_avalanche_train_and_evaluate(benchmark, kind, arguments):
    torch.manual_seed(0)
    if size := arguments.get("plugins"):
        arguments = {"plugins": [ReplayPlugin(mem_size=size, storage_policy=ClassBalancedBuffer(size))]}
    learner = strategy(kind, **arguments)
    before = [parameter.detach().clone() for parameter in learner.model.parameters()]
    for experience in benchmark.train_stream:
        learner.train(experience, shuffle=False)
        metrics = learner.eval(benchmark.test_stream)
        assert 0 <= next(value for name, value in metrics.items() if name.startswith("Top1_Acc_Stream/eval_phase")) <= 1
    assert learner.clock.train_exp_counter == len(benchmark.train_stream)
    assert any(not torch.equal(*pair) for pair in zip(before, learner.model.parameters()))


def test_streams_can_be_split_into_mini_batches_and_for_validation(benchmark):
    whole = rows(benchmark.train_stream)
    online = list(split_online_stream(benchmark.train_stream, experience_size=3, shuffle=False))
    assert rows(online) == whole and {len(experience.dataset) for experience in online[:-1]} <= {1, 2, 3}
    learner = strategy(Replay, strict=False, mem_size=6)  # a validation stream of Avalanche names no benchmark
    for experience in online[:4]:
        learner.train(experience)
    assert learner.clock.train_exp_counter == 4
    parts = benchmark_with_validation_stream(benchmark, validation_size=0.34)
    train, valid = rows(parts.train_stream), rows(parts.valid_stream)
    assert sorted(train + valid) == sorted(whole) and train and valid
    assert rows(parts.test_stream) == rows(benchmark.test_stream)
    learner.train(parts.train_stream[0])
    learner.eval(parts.valid_stream)
