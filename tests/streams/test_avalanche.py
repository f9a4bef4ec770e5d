"""Benchmarks with Avalanche's own strategies and benchmark tools."""

import pytest
import torch
from avalanche.benchmarks import benchmark_with_validation_stream
from avalanche.benchmarks.scenarios.online import split_online_stream
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import ICaRL, Replay
from fake_data import toybox_names, write_files
from torch import nn

from benchmarks_toybox_ilab import Toybox, imagenet_transform

pytestmark = pytest.mark.filterwarnings("ignore")
SMALL = {"train_transform": imagenet_transform(8), "eval_transform": imagenet_transform(8)}


def rows(experiences):
    return [row for experience in experiences for row in experience.dataset.frame_row]


def test_streams_can_be_split_and_train_strategies_that_read_what_they_say_of_themselves(tmp_path):
    """Four classes, two per experience, as images of 8 x 8 pixels."""
    write_files(tmp_path, toybox_names(["cup", "mug", "duck", "car"], [1], 2))
    benchmark = Toybox(tmp_path, run=1, **SMALL)
    whole, net = (
        rows(benchmark.train_stream),
        nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
    )
    online = list(split_online_stream(benchmark.train_stream, experience_size=3, shuffle=False))
    assert rows(online) == whole and {len(experience.dataset) for experience in online[:-1]} <= {1, 2, 3}
    parts = benchmark_with_validation_stream(benchmark, validation_size=0.34)
    train, valid = rows(parts.train_stream), rows(parts.valid_stream)
    assert sorted(train + valid) == sorted(whole) and train and valid
    assert rows(parts.test_stream) == rows(benchmark.test_stream)

    head = nn.Linear(32, 5)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], 0.1)
    common = dict(optimizer=optimizer, train_mb_size=5, eval_mb_size=10, evaluator=EvaluationPlugin(loggers=[]))
    replay = Replay(model=nn.Sequential(net, head), criterion=nn.CrossEntropyLoss(), mem_size=6, **common)
    for experience in (*online[:4], parts.train_stream[0]):
        replay.train(experience)
    replay.eval(parts.valid_stream)
    memory = dict(memory_size=10, buffer_transform=None, fixed_memory=True)
    icarl, before = ICaRL(feature_extractor=net, classifier=head, **memory, **common), head.weight.detach().clone()
    for experience in benchmark.train_stream:
        icarl.train(experience, shuffle=False)
        icarl.eval(benchmark.test_stream)
    assert replay.clock.train_exp_counter == 5 and icarl.clock.train_exp_counter == 2
    assert not torch.equal(head.weight, before)
