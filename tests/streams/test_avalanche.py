"""The generators with Avalanche's own strategies and benchmark tools."""

import pytest
import torch
from avalanche.benchmarks import benchmark_with_validation_stream
from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive, Replay
from fake_data import core50_names, toybox_names, write_files
from torch import nn

from benchmarks_toybox_ilab import CORe50, Toybox, imagenet_transform

pytestmark = pytest.mark.filterwarnings("ignore")
torch.set_num_threads(1)

TREES = {
    CORe50: core50_names((1, 3), (1, 6, 11, 16), (10, 30)),
    Toybox: toybox_names(["cup", "mug", "duck", "car"], [1], 2),
}


@pytest.fixture(params=TREES, ids=lambda generator: generator.__name__)
def benchmark(request, tmp_path):
    """Four classes, two per experience, as images of 8 x 8 pixels."""
    write_files(tmp_path, TREES[request.param])
    small = imagenet_transform(8)
    return request.param(tmp_path, run=1, train_transform=small, eval_transform=small, classes_per_experience=2)


def strategy(kind, **arguments):
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 4))
    return kind(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=4,
        eval_mb_size=16,
        evaluator=EvaluationPlugin(accuracy_metrics(stream=True), loggers=[]),
        **arguments,
    )


def rows(experiences):
    return [row for experience in experiences for row in experience.dataset.frame_row]


def accuracy(metrics):
    return next(value for name, value in metrics.items() if name.startswith("Top1_Acc_Stream/eval_phase"))


@pytest.mark.parametrize(("kind", "arguments"), [(Naive, {}), (Replay, {"mem_size": 6})])
def test_avalanche_strategies_train_and_evaluate_on_it(benchmark, kind, arguments):
    learner = strategy(kind, **arguments)
    before = [parameter.clone() for parameter in learner.model.parameters()]
    for experience in benchmark.train_stream:
        learner.train(experience)
        assert 0 <= accuracy(learner.eval(benchmark.test_stream)) <= 1
    assert learner.clock.train_exp_counter == 2 == len(benchmark.train_stream)
    assert not any(torch.equal(*pair) for pair in zip(before, learner.model.parameters()))


def test_a_stream_can_be_split_into_mini_batches(benchmark):
    whole = rows(benchmark.train_stream)
    online = list(split_online_stream(benchmark.train_stream, experience_size=3, shuffle=False))
    assert rows(online) == whole and {len(experience.dataset) for experience in online[:-1]} <= {1, 2, 3}
    learner = strategy(Replay, mem_size=6)
    for experience in online[:4]:
        learner.train(experience)
    assert learner.clock.train_exp_counter == 4
    assert 0 <= accuracy(learner.eval(benchmark.test_stream[:1])) <= 1


def test_a_validation_stream_can_be_split_off(benchmark):
    whole = rows(benchmark.train_stream)
    parts = benchmark_with_validation_stream(benchmark, validation_size=0.34)
    train, valid = rows(parts.train_stream), rows(parts.valid_stream)
    assert sorted(train + valid) == sorted(whole) and train and valid
    assert rows(parts.test_stream) == rows(benchmark.test_stream)
    learner = strategy(Naive)
    learner.train(parts.train_stream[0])
    assert 0 <= accuracy(learner.eval(parts.valid_stream)) <= 1
